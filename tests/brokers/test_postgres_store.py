"""Progress in a real Postgres: seeded once, fenced, moved with the effects or not at all, whatever dies in between."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress

import psycopg
import pytest

from kept.errors import (
    Fenced,
    FixConfiguration,
    Gap,
    OutcomeUnknown,
    PersonMustLook,
    ProgressLost,
    ProgressMoved,
    Refused,
    SinkChanged,
    SourceChanged,
    TryAgain,
    WeakensGuarantee,
)
from kept.local import Cluster
from kept.progress import Identity, Source
from kept.stores import PostgresProgress, Sink
from kept.verify.proxy import Command, Direction, Nth, PostgresProxy, Reset, Rule
from tests.brokers.store_things import (
    IDENTITY,
    SOURCES,
    TOPIC,
    a_database,
    apply,
    effects,
    insert,
    pipeline,
    recorded,
    seeds,
    span,
    tell,
    told_by,
    worker,
)

Connection = psycopg.Connection[tuple[object, ...]]
TEN = [(0, offset) for offset in range(10)]


@pytest.fixture
def store(dsn: str) -> Iterator[PostgresProgress]:
    with pipeline(dsn) as one:
        yield one


# -- birth


def test_seeding_again_changes_nothing_and_added_partitions_start_at_their_beginning(dsn: str) -> None:
    with PostgresProgress(dsn, "ledger") as store:
        assert store.born(TOPIC) is None
        first = store.seed(TOPIC, seeds(2, at_birth=500))
        again = store.seed(TOPIC, seeds(2, at_birth=900))
        assert first == again
        grown = store.seed(TOPIC, seeds(4, at_birth=900))
        birth = store.born(TOPIC)
    assert birth is not None
    assert (birth.topic_id, birth.partitions) == ("topic-id", 4)
    assert {number: progress.position.next_offset for number, progress in grown.items()} == {0: 500, 1: 500, 2: 0, 3: 0}


def test_a_missing_row_is_lost_and_never_zero(dsn: str) -> None:
    with pipeline(dsn, partitions=3) as store:
        with psycopg.connect(dsn) as connection:
            connection.execute("DELETE FROM kept_progress WHERE partition = 1")
        with pytest.raises(ProgressLost):
            store.seed(TOPIC, seeds(3))
        with pytest.raises(ProgressLost):
            store.take_over(TOPIC, [0, 1])
        with pytest.raises(ProgressLost), store.chunk([span(0, 10, 1)], SOURCES):
            pytest.fail("a chunk was opened without progress")
    with psycopg.connect(dsn) as connection:
        connection.execute("DROP TABLE kept_progress")
    with PostgresProgress(dsn, "ledger") as store, pytest.raises(ProgressLost):
        store.seed(TOPIC, seeds(3))


def test_a_topic_made_anew_is_another_source(dsn: str, store: PostgresProgress) -> None:
    other = Identity("cluster", "another-id", 0)
    with pytest.raises(SourceChanged):
        store.seed(TOPIC, seeds(1, identity=other))
    replaced = {(TOPIC, 0): Source(other, 0, 100, 100)}
    with pytest.raises(SourceChanged), store.chunk([span(0, 10)], replaced):
        pytest.fail("the new topic's records were taken for the old one's")
    cut = {(TOPIC, 0): Source(IDENTITY, 0, 100, 4)}
    apply(store, 0, 10)
    with pytest.raises(SourceChanged, match="cut"), store.chunk([span(10, 20)], cut):
        pytest.fail("the log was cut below progress")


def test_processes_that_make_tables_and_seed_at_once_agree(cluster: Cluster) -> None:
    dsn = a_database(cluster.dsn)
    many = [worker("seed", dsn) for _ in range(4)]
    for each in many:
        tell(each)
    answers = {each.communicate(timeout=60)[0] for each in many}
    assert [each.returncode for each in many] == [0, 0, 0, 0]
    assert answers == {f"{[(n, 0) for n in range(50)]}\n"}
    assert recorded(dsn) == dict.fromkeys(range(50), 0)


# -- the sink that progress belongs to


def begun(dsn: str, table: str) -> PostgresProgress:
    """A start that writes to this table."""
    store = PostgresProgress(dsn, "ledger", sink=Sink(table))
    try:
        store.seed(TOPIC, seeds(2))
        store.take_over(TOPIC, [0, 1])
    except BaseException:
        store.close()
        raise
    return store


def test_progress_is_that_of_one_table(dsn: str) -> None:
    """Another one under the same name would never get what was read before."""
    with begun(dsn, "effects") as store:
        apply(store, 0, 6)
        with pytest.raises(SinkChanged, match=r"what is in public\.effects; public\.other would never get") as refused:
            begun(dsn, "other")
        assert "kept pipelines repair ledger --into public.other" in refused.value.way_out
        apply(store, 6, 10)  # the one that runs was not disturbed
    begun(dsn, "public.effects").close()
    assert effects(dsn) == TEN


def test_a_sink_is_noted_by_a_take_over_and_not_by_a_start_that_was_refused(dsn: str) -> None:
    with PostgresProgress(dsn, "ledger", sink=Sink("mistyped")) as first:
        first.seed(TOPIC, seeds(2))
    begun(dsn, "effects").close()
    with PostgresProgress(dsn, "ledger", sink=Sink("mistyped")) as late:
        with pytest.raises(SinkChanged):
            late.seed(TOPIC, seeds(2))
        with pytest.raises(SinkChanged):
            late.take_over(TOPIC, [0, 1])


def test_a_table_that_was_made_anew_is_another_and_one_that_was_renamed_is_not(dsn: str) -> None:
    begun(dsn, "effects").close()
    with psycopg.connect(dsn) as connection:
        connection.execute("ALTER TABLE effects RENAME TO kept_rows")
    begun(dsn, "kept_rows").close()
    with begun(dsn, "kept_rows") as running:
        with psycopg.connect(dsn) as connection:
            connection.execute("DROP TABLE kept_rows")
        with pytest.raises(SinkChanged, match="is gone"):
            begun(dsn, "kept_rows")
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE kept_rows (partition int, at bigint)")
        with pytest.raises(SinkChanged, match="made anew"):
            begun(dsn, "kept_rows")
        with pytest.raises(SinkChanged), running.chunk([span(0, 5)], SOURCES) as chunk:
            running.refuse_another_sink(chunk.connection)
    assert recorded(dsn) == {0: 0, 1: 0}


def test_a_database_from_a_dump_goes_on_and_progress_of_an_earlier_version_adopts_its_table(dsn: str) -> None:
    """A dump brings new oids everywhere, that of kept_progress too."""
    begun(dsn, "effects").close()
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE kept_sinks SET table_oid = table_oid + 1, beside = beside + 1")
    with pytest.raises(SinkChanged):
        begun(dsn, "other")
    begun(dsn, "effects").close()
    with psycopg.connect(dsn) as connection:
        connection.execute("DROP TABLE kept_sinks")
    begun(dsn, "effects").close()
    with pytest.raises(SinkChanged):
        begun(dsn, "other")
    with psycopg.connect(dsn) as connection:
        connection.execute("DELETE FROM kept_progress")
        connection.execute("DELETE FROM kept_pipelines")
    begun(dsn, "other").close()  # born anew


# -- rule 5: a row lock is a mutex, not a fence


def test_without_the_rule_a_missing_row_locks_nothing(dsn: str) -> None:
    """Control: two that lock a row which is not there both go on, and the effect is there twice."""
    with psycopg.connect(dsn) as setup:
        setup.execute("CREATE TABLE own (id int PRIMARY KEY, next_offset bigint)")
    with ExitStack() as stack:
        for one in [stack.enter_context(psycopg.connect(dsn)) for _ in range(2)]:
            assert one.execute("SELECT next_offset FROM own WHERE id = 1 FOR UPDATE").fetchone() is None
            insert(one, 0, range(10))
    assert len(effects(dsn)) == 20


def test_without_the_rule_progress_read_once_repeats_what_another_did(dsn: str) -> None:
    """Control: the lock ends with each commit; who remembers what it read applies a chunk that another has applied."""
    with psycopg.connect(dsn, autocommit=True) as setup:
        setup.execute("CREATE TABLE own (id int PRIMARY KEY, next_offset bigint)")
        setup.execute("INSERT INTO own VALUES (1, 0)")
    with psycopg.connect(dsn) as one, psycopg.connect(dsn) as other:
        for connection in (one, other):
            connection.execute("SELECT next_offset FROM own WHERE id = 1")  # both read 0
            connection.commit()
        for connection in (one, other):
            connection.execute("SELECT 1 FROM own WHERE id = 1 FOR UPDATE")
            insert(connection, 0, range(10))
            connection.execute("UPDATE own SET next_offset = 10 WHERE id = 1")
            connection.commit()
    assert len(effects(dsn)) == 20


def test_an_earlier_owner_is_fenced_at_its_next_chunk(dsn: str, store: PostgresProgress) -> None:
    apply(store, 0, 5)
    with pipeline(dsn) as successor:
        with pytest.raises(Fenced):
            apply(store, 5, 10)
        with pytest.raises(Fenced):
            store.settle([(TOPIC, 0)])
        apply(successor, 5, 10)
    assert effects(dsn) == TEN
    assert recorded(dsn) == {0: 10}


def test_the_same_generation_of_another_owner_is_fenced_too(dsn: str, store: PostgresProgress) -> None:
    """A database that went back to a backup hands out a generation twice."""
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE kept_progress SET owner = 'somebody else'")
    with pytest.raises(Fenced):
        apply(store, 0, 10)
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE kept_progress SET generation = 0")
    with pytest.raises(ProgressMoved, match="went back"):
        apply(store, 0, 10)
    assert effects(dsn) == []


@pytest.mark.parametrize("to", [2, 7, 500], ids=["back", "inside the range", "beyond it"])
def test_progress_that_a_stranger_moved_stops_the_owner_and_who_comes_after_it(
    dsn: str, store: PostgresProgress, to: int
) -> None:
    """Records up to there would be dropped as done by a caller that may repeat, and never come."""
    apply(store, 0, 4)
    with psycopg.connect(dsn) as stranger:
        stranger.execute("UPDATE kept_progress SET next_offset = %s", (to,))
    with (
        pytest.raises(ProgressMoved, match="wrote 4: somebody else moved it"),
        store.chunk([span(2, 10)], SOURCES, may_repeat=True),
    ):
        pytest.fail("a stranger's progress was taken for our own")
    with PostgresProgress(dsn, "ledger") as after, pytest.raises(ProgressMoved, match="kept pipelines repair ledger"):
        after.take_over(TOPIC, [0])
    with psycopg.connect(dsn) as person:
        person.execute("UPDATE kept_progress SET next_offset = 4, owner = 'by hand'")
    with pipeline(dsn) as successor:
        apply(successor, 4, 10)
    assert effects(dsn) == TEN


def test_a_sleeping_holder_is_ended_and_its_commit_fails(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    sleeper = worker("sleep", dsn)
    tell(sleeper)
    assert told_by(sleeper) == "holding"
    os.kill(sleeper.pid, signal.SIGSTOP)
    try:
        with psycopg.connect(dsn) as control, pytest.raises(psycopg.errors.LockNotAvailable):
            control.execute("SET lock_timeout = '1s'")
            control.execute("SELECT 1 FROM kept_progress FOR UPDATE")  # without the rule: for ever
        began = time.monotonic()
        with caplog.at_level(logging.WARNING, "kept.stores"), pipeline(dsn) as successor:
            assert time.monotonic() - began < 10
            apply(successor, 0, 10)
        assert "idle in transaction" in caplog.text
    finally:
        os.kill(sleeper.pid, signal.SIGCONT)
    tell(sleeper)
    output, _ = sleeper.communicate(timeout=60)
    assert output.split() == ["OutcomeUnknown", "Fenced"]
    assert effects(dsn) == TEN
    assert recorded(dsn) == {0: 10}


@pytest.mark.parametrize("statement", ["SELECT 1 FROM kept_progress FOR UPDATE", "LOCK TABLE kept_progress"])
def test_a_strangers_lock_is_named_and_left_alone(dsn: str, statement: str) -> None:
    with pipeline(dsn, lock_within=0.3) as store, psycopg.connect(dsn) as stranger:
        stranger.execute(statement.encode())
        time.sleep(0.4)
        with pytest.raises(TryAgain, match=f"process {stranger.info.backend_pid}") as refused:
            store.take_over(TOPIC, [0])
        assert statement in str(refused.value)
        with pytest.raises(TryAgain):
            apply(store, 0, 10)
        stranger.rollback()
        apply(store, 0, 10)
    assert effects(dsn) == TEN


def test_a_successors_long_chunk_is_not_disturbed(dsn: str, store: PostgresProgress) -> None:
    with pipeline(dsn) as successor, successor.chunk([span(0, 10)], SOURCES) as chunk:
        insert(chunk.connection, 0, range(10))
        time.sleep(1.2)
        with pytest.raises(Fenced):
            apply(store, 0, 10)
        with pytest.raises(Fenced):
            store.settle([(TOPIC, 0)])
    assert effects(dsn) == TEN


def test_a_backend_of_our_own_that_was_left_behind_is_ended(dsn: str) -> None:
    """The network went away for us only: the server still keeps the transaction, and its lock, open."""
    with pipeline(dsn, lock_within=0.3) as store:
        left_behind = store._session()
        with closing(left_behind):
            left_behind.execute("BEGIN")
            left_behind.execute("SELECT 1 FROM kept_progress FOR UPDATE")
            store._open_session = None
            time.sleep(0.4)
            apply(store, 0, 10)
            with pytest.raises(psycopg.OperationalError):
                left_behind.execute("COMMIT")
    assert effects(dsn) == TEN


# -- gaps and repeats


def test_a_gap_stops_and_a_repeat_must_be_asked_for(dsn: str, store: PostgresProgress) -> None:
    apply(store, 0, 6)
    with pytest.raises(Gap), store.chunk([span(8, 10)], SOURCES):
        pytest.fail("offsets 6 and 7 were skipped")
    with pytest.raises(ProgressMoved), store.chunk([span(4, 10)], SOURCES):
        pytest.fail("offsets 4 and 5 would be applied twice")
    with store.chunk([span(4, 10)], SOURCES, may_repeat=True) as chunk:
        insert(chunk.connection, 0, range(chunk.drop_below[TOPIC, 0], 10))
    with store.chunk([span(0, 5)], SOURCES, may_repeat=True) as done:
        assert done.drop_below == {(TOPIC, 0): 10}
    assert chunk.recorded[TOPIC, 0].position.next_offset == 10
    assert effects(dsn) == TEN
    assert recorded(dsn) == {0: 10}


def test_a_chunk_moves_all_its_partitions_or_none(dsn: str) -> None:
    with pipeline(dsn, partitions=3) as store:
        with store.chunk([span(0, 7, 2), span(0, 5, 0)], SOURCES) as chunk:
            insert(chunk.connection, 2, range(7))
        assert recorded(dsn) == {0: 5, 1: 0, 2: 7}
        pipeline(dsn, partitions=1).close()  # takes partition 0 away
        with pytest.raises(Fenced), store.chunk([span(5, 9, 0), span(7, 9, 2)], SOURCES):
            pytest.fail("one of the two is not ours any more")
        apply(store, 7, 8, partition=2)
    assert recorded(dsn) == {0: 5, 1: 0, 2: 8}


def test_only_what_was_taken_over_is_written(dsn: str) -> None:
    with PostgresProgress(dsn, "ledger") as store:
        store.seed(TOPIC, seeds(1))
        with pytest.raises(FixConfiguration, match="take_over"):
            apply(store, 0, 10)
        store.take_over(TOPIC, [0])
        with store.chunk([span(0, 5)], SOURCES), pytest.raises(FixConfiguration, match="no other chunk"):
            apply(store, 0, 10)
        store.forget(TOPIC, [0])
        with pytest.raises(FixConfiguration, match="take_over"):
            apply(store, 5, 10)


# -- crashes


@pytest.mark.parametrize("arrived", [True, False], ids=["its reply", "the request"])
def test_a_lost_commit_is_settled_and_never_guessed(cluster: Cluster, dsn: str, arrived: bool) -> None:
    with PostgresProxy(cluster.layout.listens("postgres")) as proxy, pipeline(proxy.dsn(dsn)) as store:
        apply(store, 0, 4)
        if arrived:
            proxy.swallow_commit_reply()
        else:
            proxy.add(Rule(Command.COMMIT, Direction.REQUEST, Reset(), Nth(1)))
        with pytest.raises(OutcomeUnknown):
            apply(store, 4, 10)
        settled = store.settle([(TOPIC, 0)])[TOPIC, 0].position.next_offset
        assert settled == (10 if arrived else 4)
        if settled < 10:
            apply(store, settled, 10)
    assert effects(dsn) == TEN


def test_a_connection_lost_before_commit_leaves_nothing(dsn: str, store: PostgresProgress) -> None:
    def end(connection: Connection) -> None:
        with psycopg.connect(dsn) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))

    with pytest.raises(TryAgain), store.chunk([span(0, 10)], SOURCES) as chunk:
        insert(chunk.connection, 0, range(10))
        end(chunk.connection)
        insert(chunk.connection, 0, [11])
    with pytest.raises(OutcomeUnknown), store.chunk([span(0, 10)], SOURCES) as chunk:
        insert(chunk.connection, 0, range(10))
        end(chunk.connection)  # noticed only by COMMIT: the store does not know how far that came
    assert store.settle([(TOPIC, 0)])[TOPIC, 0].position.next_offset == 0
    apply(store, 0, 10)
    assert effects(dsn) == TEN


def test_postgres_killed_in_the_middle_of_a_chunk(mended: Cluster, dsn: str) -> None:
    with pipeline(dsn) as store:
        apply(store, 0, 5)
        with pytest.raises(TryAgain), store.chunk([span(5, 10)], SOURCES) as chunk:
            insert(chunk.connection, 0, range(5, 10))
            mended.postgres.kill()
            insert(chunk.connection, 0, [11])
        with pytest.raises(TryAgain):
            apply(store, 5, 10)
        mended.up()
        assert effects(dsn) == TEN[:5]
        apply(store, 5, 10)
    assert effects(dsn) == TEN


def test_a_connection_lost_while_idle_costs_nothing(mended: Cluster, dsn: str, store: PostgresProgress) -> None:
    apply(store, 0, 4)
    with psycopg.connect(dsn) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (store._session().info.backend_pid,))
    apply(store, 4, 7)
    mended.postgres.kill()
    mended.up()
    apply(store, 7, 10)
    assert effects(dsn) == TEN


def nothing(_connection: Connection) -> None:
    """Only the lock is held."""


def one_statement(connection: Connection) -> None:
    connection.execute("INSERT INTO effects VALUES (0, 99)")


def many_statements(connection: Connection) -> None:
    insert(connection, 0, range(10))


def a_pipeline(connection: Connection) -> None:
    with connection.pipeline():
        one_statement(connection)


@pytest.mark.parametrize("work", [nothing, one_statement, many_statements, a_pipeline])
def test_a_handler_that_pauses_too_long_loses_its_transaction(dsn: str, work: Callable[[Connection], None]) -> None:
    with PostgresProgress(dsn, "ledger", idle_within=0.2) as store:
        store.seed(TOPIC, seeds(1))
        store.take_over(TOPIC, [0])
        with pytest.raises(TryAgain, match="idle"), store.chunk([span(0, 10)], SOURCES) as chunk:
            work(chunk.connection)
            time.sleep(0.6)
            one_statement(chunk.connection)
        with pytest.raises((TryAgain, OutcomeUnknown)), store.chunk([span(0, 10)], SOURCES) as chunk:
            work(chunk.connection)
            time.sleep(0.6)
        assert store.settle([(TOPIC, 0)])[TOPIC, 0].position.next_offset == 0
        apply(store, 0, 10)
    assert effects(dsn) == TEN


# -- handlers


def test_a_handlers_own_exception_passes_through_after_a_rollback(dsn: str, store: PostgresProgress) -> None:
    with pytest.raises(ZeroDivisionError), store.chunk([span(0, 10)], SOURCES) as chunk:
        insert(chunk.connection, 0, range(10))
        raise ZeroDivisionError
    assert effects(dsn) == []
    apply(store, 0, 10)


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("SELECT 1/0", Refused),
        ("INSERT INTO effects VALUES (1, 'x')", Refused),
        ("SELECT * FROM no_such_table", FixConfiguration),
        ("DO $$ BEGIN RAISE EXCEPTION 'no'; END $$", PersonMustLook),
        ("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$", TryAgain),
    ],
)
def test_an_error_of_postgres_becomes_one_of_ours(store: PostgresProgress, statement: str, kind: type) -> None:
    with pytest.raises(kind), store.chunk([span(0, 10)], SOURCES) as chunk:
        chunk.connection.execute(statement.encode())


def test_a_handler_cannot_part_the_effect_from_its_progress(dsn: str, store: PostgresProgress) -> None:
    with pytest.raises(FixConfiguration, match="commit"), store.chunk([span(0, 10)], SOURCES) as chunk:
        insert(chunk.connection, 0, range(10))
        chunk.connection.commit()
    assert effects(dsn) == []
    with pytest.raises(PersonMustLook, match="ended"), store.chunk([span(0, 10)], SOURCES) as chunk:
        chunk.connection.execute("COMMIT")
    with pytest.raises(PersonMustLook, match="ended"), store.chunk([span(0, 10)], SOURCES) as chunk:
        chunk.connection.execute("COMMIT")
        chunk.connection.execute("BEGIN")
    with pytest.raises(FixConfiguration, match="25P02"), store.chunk([span(0, 10)], SOURCES) as chunk:
        with suppress(psycopg.Error):
            chunk.connection.execute("SELECT 1/0")
        assert chunk.connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
    assert recorded(dsn) == {0: 0}
    with store.chunk([span(0, 10)], SOURCES) as chunk, chunk.connection.transaction():
        insert(chunk.connection, 0, range(10))
    assert effects(dsn) == TEN


def test_a_commit_is_durable_and_bounded_even_if_a_handler_lowers_it(dsn: str, store: PostgresProgress) -> None:
    with psycopg.connect(dsn) as setup:
        setup.execute("CREATE TABLE seen (setting text)")
        setup.execute(
            "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$"
        )
        setup.execute(
            "CREATE CONSTRAINT TRIGGER look AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION look()"
        )
    with store.chunk([span(0, 10)], SOURCES) as chunk:
        names = ("lock_timeout", "idle_in_transaction_session_timeout", "synchronous_commit", "transaction_isolation")
        shown = [chunk.connection.execute(f"SHOW {name}".encode()).fetchone() for name in names]
        assert shown == [("1s",), ("1min",), ("on",), ("read committed",)]
        insert(chunk.connection, 0, [0])
        chunk.connection.execute("SET synchronous_commit = off")
        chunk.connection.execute("SET search_path = nowhere")
    with pipeline(f"{dsn}?options=-csynchronous_commit%3Dremote_apply") as higher:
        assert higher._session().execute("SHOW synchronous_commit").fetchone() == ("remote_apply",)
    with psycopg.connect(dsn) as look:
        assert look.execute("SELECT setting FROM seen").fetchall() == [("on",)]


def test_a_server_that_may_forget_is_refused(cluster: Cluster, dsn: str) -> None:
    def fsync(to: str) -> None:
        with psycopg.connect(cluster.dsn, autocommit=True) as admin:
            admin.execute(f"ALTER SYSTEM SET fsync = {to}".encode())
            admin.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with psycopg.connect(cluster.dsn) as look:
                if look.execute("SHOW fsync").fetchone() == (to,):
                    return
        pytest.fail("the server did not reload its settings")

    fsync("off")
    try:
        with pytest.raises(WeakensGuarantee, match="fsync"):
            PostgresProgress(dsn, "ledger")
    finally:
        fsync("on")
    PostgresProgress(dsn, "ledger").close()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda dsn: f"{dsn}_not_there", FixConfiguration),
        (lambda dsn: dsn.replace("127.0.0.1", "127.0.0.2"), TryAgain),
        (lambda dsn: "no dsn at all", FixConfiguration),
    ],
    ids=["no database", "no server", "no dsn"],
)
def test_what_cannot_be_reached_says_whether_to_try_again(dsn: str, change: object, kind: type) -> None:
    assert callable(change)
    with pytest.raises(kind):
        PostgresProgress(change(dsn), "ledger")


def test_a_deferred_constraint_is_refused_before_commit(dsn: str, store: PostgresProgress) -> None:
    with psycopg.connect(dsn) as setup:
        setup.execute("CREATE TABLE lines (at bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(Refused, match="23505"), store.chunk([span(0, 2)], SOURCES) as chunk:
        chunk.connection.execute("INSERT INTO lines VALUES (1), (1)")
    assert recorded(dsn) == {0: 0}


def test_names_that_do_not_fit_still_tell_pipelines_apart(dsn: str) -> None:
    names = ["x" * 200, "x" * 199 + "y", "größe"]
    with ExitStack() as stack:
        stores = [stack.enter_context(PostgresProgress(dsn, name)) for name in names]
        with psycopg.connect(dsn) as look:
            query = "SELECT left(application_name, -8) FROM pg_stat_activity WHERE application_name LIKE 'kept:%'"
            found = {row[0] for row in look.execute(query).fetchall()}
    assert len(found) == len(stores)
