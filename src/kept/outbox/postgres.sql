-- The outbox in your own Postgres: records that are committed with your data, or not at all.
-- `kept outbox init DSN` runs this file, in the first schema of your search_path. Postgres 14 or later.

CREATE TABLE kept_outbox_identity (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    identity uuid NOT NULL DEFAULT gen_random_uuid(),
    version int NOT NULL DEFAULT 1,
    epoch bigint NOT NULL DEFAULT 0 CHECK (epoch >= 0),
    made_at timestamptz NOT NULL DEFAULT now());
INSERT INTO kept_outbox_identity DEFAULT VALUES;

-- The records. Any language may insert here, in its own transaction; kept_enqueue below is for text.
CREATE TABLE kept_outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic text NOT NULL CHECK (topic ~ '^[A-Za-z0-9._-]{1,249}$' AND topic NOT IN ('.', '..')),
    key bytea,
    value bytea,
    header_names text[] NOT NULL DEFAULT '{}',
    header_values bytea[] NOT NULL DEFAULT '{}',
    partition int CHECK (partition >= 0),
    timestamp_ms bigint NOT NULL DEFAULT floor(extract(epoch FROM clock_timestamp()) * 1000) CHECK (timestamp_ms > 0),
    tag bigint NOT NULL DEFAULT floor(random() * 4503599627370496)::bigint,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT headers_have_a_name_and_a_value_each CHECK (
        cardinality(header_names) = cardinality(header_values) AND array_position(header_names, NULL) IS NULL
        AND coalesce(array_ndims(header_names), 1) = 1 AND coalesce(array_ndims(header_values), 1) = 1));

-- Their order. A record gets its position when its transaction commits, not when it is inserted: whatever rows the
-- transaction locked, before or after the insert, it holds then. So of two transactions that touched the same row the
-- one that commits first has the lower positions, and a transaction that stays open delays nobody.
CREATE TABLE kept_outbox_order (
    position bigint PRIMARY KEY,
    id bigint NOT NULL);
-- With a cache, each session would hand out numbers from a range of its own.
CREATE SEQUENCE kept_outbox_positions AS bigint MAXVALUE 1099511627775 CACHE 1 NO CYCLE;

CREATE TABLE kept_outbox_standing (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    generation bigint NOT NULL DEFAULT 0,
    owner text NOT NULL DEFAULT '',
    confirmed bigint NOT NULL DEFAULT 0,
    confirmed_tag bigint NOT NULL DEFAULT 0,
    attempted bigint NOT NULL DEFAULT 0,
    relay_error text,
    updated_at timestamptz NOT NULL DEFAULT now());
INSERT INTO kept_outbox_standing DEFAULT VALUES;

CREATE TABLE kept_outbox_refused (
    position bigint PRIMARY KEY,
    topic text NOT NULL,
    key bytea,
    value bytea,
    header_names text[] NOT NULL,
    header_values bytea[] NOT NULL,
    partition int,
    timestamp_ms bigint NOT NULL,
    tag bigint NOT NULL,
    written_at timestamptz NOT NULL,
    reason text NOT NULL,
    refused_at timestamptz NOT NULL DEFAULT now());

-- Rows come and go all the time: a fifth of the table, the usual measure, is no measure for that.
ALTER TABLE kept_outbox SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
                             autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE kept_outbox_order SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
                                   autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE kept_outbox_standing SET (fillfactor = 10, autovacuum_vacuum_scale_factor = 0,
                                      autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

-- The lock by which the relay sees who is between taking a position and being visible. It makes nobody wait.
CREATE FUNCTION kept_outbox_lock() RETURNS bigint LANGUAGE sql STABLE
    RETURN (1801810036::bigint << 32) | 'kept_outbox_order'::regclass::oid::bigint;

-- Positions begin with the server's timeline, which a promoted standby or a restored backup raises. What it lost may
-- have been relayed before: its numbers are not given to other records. (pg_upgrade lowers it; an epoch stays.)
CREATE FUNCTION kept_outbox_epoch() RETURNS bigint LANGUAGE sql VOLATILE
    RETURN (SELECT greatest(epoch, ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint)
            FROM kept_outbox_identity);
UPDATE kept_outbox_identity SET epoch = kept_outbox_epoch();

CREATE FUNCTION kept_outbox_take_position() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE now_in bigint := kept_outbox_epoch();
BEGIN
    PERFORM pg_advisory_xact_lock_shared(kept_outbox_lock());  -- before the number is taken, until it is visible
    PERFORM FROM kept_outbox_identity WHERE epoch < now_in FOR UPDATE SKIP LOCKED;
    IF FOUND THEN  -- once a timeline; whoever finds it locked leaves it to the other
        UPDATE kept_outbox_identity SET epoch = now_in;
    END IF;
    INSERT INTO kept_outbox_order (position, id) VALUES ((now_in << 40) + nextval('kept_outbox_positions'), NEW.id);
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION kept_outbox_take_position() FROM PUBLIC;

CREATE CONSTRAINT TRIGGER kept_outbox_order AFTER INSERT ON kept_outbox DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION kept_outbox_take_position();

-- Emptied by hand, with its numbers begun anew, new records would be taken for old ones.
CREATE FUNCTION kept_outbox_refuse_truncate() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN RAISE EXCEPTION 'records of the outbox would be lost: use `kept outbox purge DSN --unsent`'; END $$;
CREATE TRIGGER kept_outbox_refuse_truncate BEFORE TRUNCATE ON kept_outbox
    FOR EACH STATEMENT EXECUTE FUNCTION kept_outbox_refuse_truncate();
CREATE TRIGGER kept_outbox_refuse_truncate BEFORE TRUNCATE ON kept_outbox_order
    FOR EACH STATEMENT EXECUTE FUNCTION kept_outbox_refuse_truncate();

CREATE FUNCTION kept_enqueue(topic text, value text, key text DEFAULT NULL, headers jsonb DEFAULT '{}',
                             partition int DEFAULT NULL, timestamp_ms bigint DEFAULT NULL,
                             idempotency_key uuid DEFAULT NULL) RETURNS bigint LANGUAGE sql
BEGIN ATOMIC
    WITH all_headers AS (
        SELECT name, convert_to(text, 'UTF8') AS content
        FROM jsonb_each_text(headers || CASE WHEN idempotency_key IS NULL THEN '{}'
                                             ELSE jsonb_build_object('idempotency_key', idempotency_key) END)
             AS each(name, text))
    INSERT INTO kept_outbox (topic, key, value, header_names, header_values, partition, timestamp_ms)
    VALUES (topic, convert_to(key, 'UTF8'), convert_to(value, 'UTF8'),
            ARRAY(SELECT name FROM all_headers ORDER BY name), ARRAY(SELECT content FROM all_headers ORDER BY name),
            partition, coalesce(timestamp_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)))
    RETURNING id;
END;
