"""What the Kafka servers run on, made ready once a machine: Java, the jars, and an archive of loaded classes.

The archive (class data sharing) lets a JVM map Kafka's classes instead of loading them one by one: brokers
start in about half the time. It is made by running one small server for a moment, and is optional throughout.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kept.local.jars import Progress, broker_jars, fetch
from kept.local.java import Java, find_java
from kept.local.kafka import KafkaServer, Runtime
from kept.local.layout import Layout, new_cluster_id
from kept.local.places import cache_directory, only_one
from kept.local.ports import ANY_FREE

Say = Callable[[str], None]
TRAINING_SECONDS = 60


def prepared(say: Say = lambda _text: None, progress: Progress | None = None) -> Runtime:
    """Java, found; the jars, fetched and verified; the archive where it has been made."""
    java = find_java()
    jars = fetch(broker_jars(), cache_directory() / "jars", progress or _in_words(say))
    archive = _archive_path(java)
    return Runtime(java, jars, archive if archive.exists() else None)


def _in_words(say: Say) -> Progress:
    """Progress for those without a progress bar: one line a quarter."""
    told = -1

    def progress(done: int, whole: int) -> None:
        nonlocal told
        quarter = 4 * done // whole
        if quarter > told:
            told = quarter
            say(f"downloading the broker's jars: {done / 1e6:.0f} of {whole / 1e6:.0f} MB")

    return progress


def _archive_path(java: Java) -> Path:
    """One archive for each Java and set of jars: the JVM itself refuses one that does not fit."""
    sums = "".join(jar.sha256 for jar in broker_jars())
    identity = f"{java.executable.resolve()} {java.version} {sums} {cache_directory()}"
    return cache_directory() / "classes" / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"


def make_archive(runtime: Runtime, say: Say) -> Runtime:
    """Make the archive of loaded classes unless it is there."""
    path = _archive_path(runtime.java)
    with only_one(path.with_suffix(".lock"), "preparing the class archive"):
        if not path.exists():
            say("preparing the class archive (once; brokers then start in half the time)")
            with tempfile.TemporaryDirectory(prefix="kept-classes-") as scratch:
                made = _train(replace(runtime, archive=None), Path(scratch))
                if not made.exists():
                    say("the class archive could not be made; brokers will start more slowly")
                    return replace(runtime, archive=None)
                arriving = path.with_suffix(".part")
                shutil.copyfile(made, arriving)
                arriving.replace(path)
    return replace(runtime, archive=path)


def _train(runtime: Runtime, scratch: Path) -> Path:
    """Run one server that is broker and controller at once until it has started, stop it, and keep what it loaded."""
    layout = Layout(new_cluster_id(), ANY_FREE.preferred())
    server = KafkaServer(scratch, "broker-1", layout, lambda: runtime)
    server.configure()
    configuration = server.folder / "server.properties"
    with configuration.open("a") as file:
        file.write(
            "process.roles=broker,controller\n"
            f"controller.quorum.voters=1@{layout.listens('controller')}\n"
            f"listeners=CONTROLLER://{layout.listens('controller')},"
            f"INTERNAL://{layout.listens('broker-1-internal')},CLIENT://{layout.listens('broker-1')}\n"
        )
    server.format()
    archive = scratch / "kafka.jsa"
    command = runtime.command(
        f"-XX:ArchiveClassesAtExit={archive}",
        *server.options,
        "kafka.Kafka",
        str(configuration),
    )
    with (scratch / "training.out").open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            deadline = time.monotonic() + TRAINING_SECONDS
            while "Kafka Server started" not in "\n".join(server.log_tail(50)):
                if process.poll() is not None or time.monotonic() > deadline:
                    return archive
                time.sleep(0.2)
            process.terminate()
            process.wait(TRAINING_SECONDS)
        except subprocess.TimeoutExpired:
            return archive
        finally:
            process.kill()
            process.wait()
    return archive
