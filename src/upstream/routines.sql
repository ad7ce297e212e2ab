-- What reads and enters: views and functions, as this program needs them. Applied by every `holdfast upstream init`, behind
-- the tables, in the same transaction: one that was dropped, renamed or changed is there again.

-- For reading by people and reports.
CREATE OR REPLACE VIEW holdfast.events AS
  SELECT e.source, e.epoch, e.sequence, e.type, e.schema,
         timestamptz 'epoch' + make_interval(secs => e.time_us / 1000000) + (e.time_us % 1000000) * interval '1 microsecond' AS time,
         e.quality, e.qty, coalesce(e.body, a.body) AS body, coalesce(e.clock, a.clock) AS clock,
         'sha256:' || encode(e.digest, 'hex') AS digest, e.gateway, e.accepted_at, e.archived_at
  FROM holdfast.event e LEFT JOIN holdfast.event_archive a
    ON e.archived_at IS NOT NULL AND a.source = e.source AND a.epoch = e.epoch AND a.sequence = e.sequence;
CREATE OR REPLACE VIEW holdfast.counters AS
  SELECT gateway, sum(received) AS received, sum(accepted) AS accepted, sum(duplicate) AS duplicate, sum(conflict) AS conflict,
         sum(malformed) AS malformed, sum(failed) AS failed
  FROM holdfast.delivery GROUP BY gateway;
-- What a person has to look into. Settled by setting settled_at and settled_as.
CREATE OR REPLACE VIEW holdfast.pending AS
  SELECT 'conflict' AS kind, gateway, source || '/' || epoch || '/' || sequence AS what, 'other content under a key that is taken' AS reason,
         came, kept, times, first_seen, last_seen
  FROM holdfast.conflict WHERE settled_at IS NULL
  UNION ALL
  SELECT 'malformed', gateway, 'dead letter ' || id, code || ': ' || detail, encode(item, 'escape'), NULL, times, first_seen, last_seen
  FROM holdfast.dead_letter WHERE settled_at IS NULL;

-- Why an event can never be taken; NULL if it can. Inlined where it is used.
CREATE OR REPLACE FUNCTION holdfast.defect(source text, epoch bigint, sequence bigint, type text, schema int, time_us bigint, quality text, qty bigint, body text, digest bytea)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE
    WHEN source IS NULL OR source = '' THEN 'missing_source'
    WHEN length(source) > 128 THEN 'long_source'
    WHEN epoch IS NULL THEN 'missing_epoch'
    WHEN epoch < 0 THEN 'negative_epoch'
    WHEN sequence IS NULL THEN 'missing_sequence'
    WHEN sequence < 0 THEN 'negative_sequence'
    WHEN type IS NULL OR type = '' THEN 'missing_type'
    WHEN length(type) > 128 THEN 'long_type'
    WHEN schema IS NULL OR schema < 0 THEN 'bad_schema'
    WHEN time_us IS NULL OR time_us NOT BETWEEN -62135596800000000 AND 253402300799999999 THEN 'bad_time'
    WHEN quality IS NULL OR quality NOT IN ('good', 'uncertain', 'bad', 'stale') THEN 'bad_quality'
    WHEN qty IS NULL THEN 'missing_qty'
    WHEN body IS NULL OR octet_length(body) > 1048576 THEN 'bad_body'
    WHEN digest IS NULL OR octet_length(digest) <> 32 THEN 'bad_digest'
  END
$$;

CREATE OR REPLACE FUNCTION holdfast.defect_text(code text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE code
    WHEN 'missing_source' THEN 'source is missing; expected the name of a machine or gateway, 1 to 128 characters'
    WHEN 'long_source' THEN 'source is longer than 128 characters'
    WHEN 'missing_epoch' THEN 'epoch is missing; expected a number from 0 to 9223372036854775807'
    WHEN 'negative_epoch' THEN 'epoch is negative; expected a number from 0 to 9223372036854775807'
    WHEN 'missing_sequence' THEN 'sequence is missing; expected a number from 0 to 9223372036854775807'
    WHEN 'negative_sequence' THEN 'sequence is negative; expected a number from 0 to 9223372036854775807'
    WHEN 'missing_type' THEN 'type is missing; expected a name such as piece.good, 1 to 128 characters'
    WHEN 'long_type' THEN 'type is longer than 128 characters'
    WHEN 'bad_schema' THEN 'schema is missing or negative; expected the version of the body''s shape'
    WHEN 'bad_time' THEN 'time is missing or outside the years 1 to 9999'
    WHEN 'bad_quality' THEN 'quality is none of good, uncertain, bad, stale'
    WHEN 'missing_qty' THEN 'qty is missing; expected a whole number'
    WHEN 'bad_body' THEN 'body is missing or larger than 1 MiB'
    WHEN 'bad_digest' THEN 'digest is missing or not 32 bytes long'
    ELSE code END
$$;

-- One event as JSON, its body byte for byte.
CREATE OR REPLACE FUNCTION holdfast.shown(source text, epoch bigint, sequence bigint, type text, schema int, time_us bigint, quality text, qty bigint, body text, digest bytea, clock text)
RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT '{"source":' || coalesce(to_json(source)::text, 'null')
      || ',"epoch":' || coalesce('"' || epoch || '"', 'null') || ',"sequence":' || coalesce('"' || sequence || '"', 'null')
      || ',"type":' || coalesce(to_json(type)::text, 'null') || ',"schema":' || coalesce(schema::text, 'null')
      || ',"time":' || CASE WHEN time_us BETWEEN -62135596800000000 AND 253402300799999999 THEN
           to_char((timestamptz 'epoch' + make_interval(secs => time_us / 1000000) + (time_us % 1000000) * interval '1 microsecond') AT TIME ZONE 'UTC', '"\""YYYY-MM-DD"T"HH24:MI:SS.US"Z\""')
           ELSE 'null' END
      || ',"quality":' || coalesce(to_json(quality)::text, 'null') || ',"qty":' || coalesce(qty::text, 'null')
      || ',"body":' || coalesce(body, 'null') || ',"digest":' || coalesce('"sha256:' || encode(digest, 'hex') || '"', 'null')
      || coalesce(',"clock":' || clock, '') || '}'
$$;

-- One delivery of a batch: one transaction, one answer a row, in the order of the arrays.
--
-- p_item, p_code, p_detail name rows that the writer itself could not read or that PostgreSQL refused as a value:
-- they are kept as dead letters as they came; NULL for all others, and as a whole if there are none.
-- p_failed: deliveries that were rolled back with an error before, and not counted yet.
--
-- In READ COMMITTED a statement claims, in the order of the keys, and waits for a rival who is just inserting the
-- same key; the next has a new snapshot and sees what the rival committed. Locks are taken in one order by
-- everybody: events, totals, conflicts and dead letters, counters; by key within each. A claim that meets a taken
-- key is rolled back to its savepoint, which lets its locks go, before it is made anew.
CREATE OR REPLACE FUNCTION holdfast.ingest(
  p_gateway text, p_batch text, p_failed bigint,
  p_source text[], p_epoch bigint[], p_sequence bigint[], p_type text[], p_schema int[], p_time_us bigint[],
  p_quality text[], p_qty bigint[], p_body text[], p_clock text[], p_digest bytea[],
  p_item bytea[] DEFAULT NULL, p_code text[] DEFAULT NULL, p_detail text[] DEFAULT NULL)
RETURNS TABLE (ord int, status text, code text, detail text, kept text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, holdfast, pg_temp
-- A plan that was made while the table was small must never read all of it later.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  n       int := coalesce(cardinality(p_sequence), 0);
  won     int[];
  again   int[];
  is_resent boolean;
  every   text;    -- the status of all, if it is one
  st      text[];  -- by place: status, code, detail, what is kept
  co      text[];
  de      text[];
  ke      text[];
  kept    text;
  room    int := 2097152;  -- characters of kept contents in one answer; the table has them all
  o       int;
  r       record;
BEGIN
  IF p_gateway IS NULL OR p_gateway = '' OR p_batch IS NULL OR p_failed IS NULL OR p_failed < 0 THEN
    RAISE EXCEPTION 'ingest: gateway, batch or failed is missing' USING ERRCODE = 'datatype_mismatch';
  END IF;
  IF n = 0 OR n > 5000 OR (n = ALL (ARRAY[cardinality(p_source), cardinality(p_epoch), cardinality(p_type), cardinality(p_schema),
      cardinality(p_time_us), cardinality(p_quality), cardinality(p_qty), cardinality(p_body), cardinality(p_clock), cardinality(p_digest),
      coalesce(cardinality(p_item), n), coalesce(cardinality(p_code), n), coalesce(cardinality(p_detail), n)])) IS NOT TRUE THEN
    RAISE EXCEPTION 'ingest: arrays differ in length, or hold none or more than 5000 rows' USING ERRCODE = 'datatype_mismatch';
  END IF;
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'ingest: called in isolation level %; expected read committed', current_setting('transaction_isolation') USING ERRCODE = 'datatype_mismatch';
  END IF;
  -- The answer must mean that it is on the disk. Set here, not on the function: it must hold at the commit.
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;

  -- Arrays are read by their place: they are taken apart once a call, and a row costs no copy of its values.
  is_resent := EXISTS (SELECT FROM event e WHERE e.source = p_source[1] AND e.epoch = p_epoch[1] AND e.sequence = p_sequence[1])
    OR EXISTS (SELECT FROM event e WHERE e.source = p_source[n] AND e.epoch = p_epoch[n] AND e.sequence = p_sequence[n]);
  IF is_resent THEN
    -- Mostly duplicates, then. An equal digest is equal content, so what was sound then is sound now.
    SELECT array_agg(CASE WHEN e.digest = p_digest[o] AND p_code[o] IS NULL THEN 'duplicate' END ORDER BY o) INTO st
    FROM generate_series(1, n) AS g(o)
    LEFT JOIN event e ON e.source = p_source[o] AND e.epoch = p_epoch[o] AND e.sequence = p_sequence[o];
    IF array_position(st, NULL) IS NULL THEN
      every := 'duplicate';
    END IF;
  ELSE
    -- Mostly new. Without ON CONFLICT an insert costs half; a key that is taken ends it, and nothing is lost but time.
    BEGIN
      WITH ins AS (
        INSERT INTO event (source, epoch, sequence, type, schema, time_us, quality, qty, body, clock, digest, gateway, batch_ord)
        SELECT p_source[o], p_epoch[o], p_sequence[o], p_type[o], p_schema[o], p_time_us[o], p_quality[o], p_qty[o], p_body[o], p_clock[o], p_digest[o], p_gateway, o
        FROM (
          SELECT o FROM generate_series(1, n) AS g(o)
          WHERE st[o] IS NULL AND p_code[o] IS NULL
            AND defect(p_source[o], p_epoch[o], p_sequence[o], p_type[o], p_schema[o], p_time_us[o], p_quality[o], p_qty[o], p_body[o], p_digest[o]) IS NULL
          ORDER BY p_source[o] COLLATE "C", p_epoch[o], p_sequence[o], o) i
        RETURNING source, type, qty, batch_ord
      ), t AS (
        INSERT INTO total AS x (source, type, qty, events)
        SELECT source, type, sum(qty), count(*) FROM ins GROUP BY source, type ORDER BY source, type
        ON CONFLICT (source, type) DO UPDATE SET qty = x.qty + excluded.qty, events = x.events + excluded.events
      )
      SELECT coalesce(array_agg(batch_ord), '{}') INTO won FROM ins;
    EXCEPTION WHEN unique_violation THEN
      won := NULL;
    END;
  END IF;
  IF every IS NULL AND won IS NULL THEN
    WITH ins AS (
      INSERT INTO event (source, epoch, sequence, type, schema, time_us, quality, qty, body, clock, digest, gateway, batch_ord)
      SELECT p_source[o], p_epoch[o], p_sequence[o], p_type[o], p_schema[o], p_time_us[o], p_quality[o], p_qty[o], p_body[o], p_clock[o], p_digest[o], p_gateway, o
      FROM (
        SELECT o FROM generate_series(1, n) AS g(o)
        WHERE st[o] IS NULL AND p_code[o] IS NULL
          AND defect(p_source[o], p_epoch[o], p_sequence[o], p_type[o], p_schema[o], p_time_us[o], p_quality[o], p_qty[o], p_body[o], p_digest[o]) IS NULL
        ORDER BY p_source[o] COLLATE "C", p_epoch[o], p_sequence[o], o) i
      ON CONFLICT ON CONSTRAINT event_key DO NOTHING
      RETURNING source, type, qty, batch_ord
    ), t AS (
      INSERT INTO total AS x (source, type, qty, events)
      SELECT source, type, sum(qty), count(*) FROM ins GROUP BY source, type ORDER BY source, type
      ON CONFLICT (source, type) DO UPDATE SET qty = x.qty + excluded.qty, events = x.events + excluded.events
    )
    SELECT coalesce(array_agg(batch_ord), '{}') INTO won FROM ins;
  END IF;
  IF cardinality(won) = n THEN
    every := 'accepted';
  END IF;

  IF every IS NOT NULL AND p_failed = 0 THEN
    INSERT INTO delivery AS x (gateway, source, received, accepted, duplicate, conflict, malformed, failed)
    SELECT p_gateway, s, count(*), count(*) FILTER (WHERE every = 'accepted'), count(*) FILTER (WHERE every = 'duplicate'), 0, 0, 0
    FROM unnest(p_source) s GROUP BY s ORDER BY s COLLATE "C"
    ON CONFLICT (gateway, source) DO UPDATE SET received = x.received + excluded.received, accepted = x.accepted + excluded.accepted,
      duplicate = x.duplicate + excluded.duplicate;
    RETURN QUERY SELECT g, every, NULL::text, NULL::text, NULL::text FROM generate_series(1, n) g;
    RETURN;
  END IF;

  st := coalesce(st, array_fill(NULL::text, ARRAY[n]));
  co := array_fill(NULL::text, ARRAY[n]); de := co; ke := co;
  FOREACH o IN ARRAY coalesce(won, '{}') LOOP st[o] := 'accepted'; END LOOP;
  -- Who won the others did so before this statement, whose snapshot is new.
  SELECT coalesce(array_agg(o), '{}') INTO again
  FROM generate_series(1, n) AS g(o)
  JOIN event e ON e.source = p_source[o] AND e.epoch = p_epoch[o] AND e.sequence = p_sequence[o]
  WHERE st[o] IS NULL AND e.digest = p_digest[o] AND p_code[o] IS NULL;
  FOREACH o IN ARRAY again LOOP st[o] := 'duplicate'; END LOOP;

  IF array_position(st, NULL) IS NOT NULL THEN
    FOR r IN
      SELECT q.*, CASE WHEN q.code IS NOT NULL OR q.kept_digest <> q.digest THEN
        shown(q.source, q.epoch, q.sequence, q.type, q.schema, q.time_us, q.quality, q.qty, q.body, q.digest, q.clock) END AS came
      FROM (
        SELECT i.*, e.digest AS kept_digest,
          coalesce(i.given, defect(i.source, i.epoch, i.sequence, i.type, i.schema, i.time_us, i.quality, i.qty, i.body, i.digest)) AS code
        FROM unnest(p_source, p_epoch, p_sequence, p_type, p_schema, p_time_us, p_quality, p_qty, p_body, p_clock, p_digest, p_item, p_code, p_detail)
          WITH ORDINALITY AS i(source, epoch, sequence, type, schema, time_us, quality, qty, body, clock, digest, item, given, given_detail, o)
        LEFT JOIN event e ON e.source = i.source AND e.epoch = i.epoch AND e.sequence = i.sequence
        WHERE st[i.o] IS NULL) q
      ORDER BY q.source COLLATE "C", q.epoch, q.sequence, q.digest, q.o
    LOOP
      IF r.code IS NOT NULL THEN
        st[r.o] := 'malformed'; co[r.o] := r.code; de[r.o] := coalesce(r.given_detail, defect_text(r.code));
        INSERT INTO dead_letter AS x (gateway, item_digest, code, detail, item, batch)
        SELECT p_gateway, sha256(m.item), r.code, de[r.o], m.item, p_batch
        FROM (SELECT coalesce(r.item, convert_to(r.came, 'UTF8')) AS item) m
        ON CONFLICT (gateway, item_digest, code) DO UPDATE SET times = x.times + 1, last_seen = clock_timestamp();
      ELSIF r.kept_digest IS NULL THEN
        -- Who held the key has taken it back: the same delivery will be taken next time.
        st[r.o] := 'retry'; co[r.o] := 'key_released'; de[r.o] := 'a rival that held the key was rolled back';
      ELSIF r.kept_digest = r.digest THEN
        st[r.o] := 'duplicate';  -- committed between the two questions
      ELSE
        kept := (
          SELECT CASE WHEN coalesce(v.body, a.body) IS NULL THEN left(c.content, -1) || ',"content":"archived elsewhere"}' ELSE c.content END
          FROM event v LEFT JOIN event_archive a ON a.source = v.source AND a.epoch = v.epoch AND a.sequence = v.sequence,
            shown(v.source, v.epoch, v.sequence, v.type, v.schema, v.time_us, v.quality, v.qty, coalesce(v.body, a.body), v.digest, coalesce(v.clock, a.clock)) AS c(content)
          WHERE v.source = r.source AND v.epoch = r.epoch AND v.sequence = r.sequence);
        IF length(kept) <= least(room, 65536) THEN
          ke[r.o] := kept;
          room := room - length(kept);
        END IF;
        st[r.o] := 'conflict'; co[r.o] := 'other_content'; de[r.o] := 'the key is taken by other content';
        INSERT INTO conflict AS x (source, epoch, sequence, digest, gateway, batch, came, kept, kept_digest)
        VALUES (r.source, r.epoch, r.sequence, r.digest, p_gateway, p_batch, r.came, kept, r.kept_digest)
        ON CONFLICT (source, epoch, sequence, digest) DO UPDATE SET times = x.times + 1, last_seen = clock_timestamp();
      END IF;
    END LOOP;
  END IF;

  INSERT INTO delivery AS x (gateway, source, received, accepted, duplicate, conflict, malformed, failed)
  SELECT p_gateway, s.source, sum(n), coalesce(sum(n) FILTER (WHERE s.st = 'accepted'), 0), coalesce(sum(n) FILTER (WHERE s.st = 'duplicate'), 0),
    coalesce(sum(n) FILTER (WHERE s.st = 'conflict'), 0), coalesce(sum(n) FILTER (WHERE s.st = 'malformed'), 0), coalesce(sum(n) FILTER (WHERE s.st = 'retry'), 0)
  FROM (
    SELECT CASE WHEN u.source IS NULL OR length(u.source) > 128 THEN '' ELSE u.source END AS source, u.st, 1::bigint AS n
    FROM unnest(p_source, st) AS u(source, st)
    UNION ALL SELECT '', 'retry', p_failed WHERE p_failed > 0) s
  GROUP BY s.source ORDER BY s.source COLLATE "C"
  ON CONFLICT (gateway, source) DO UPDATE SET received = x.received + excluded.received, accepted = x.accepted + excluded.accepted,
    duplicate = x.duplicate + excluded.duplicate, conflict = x.conflict + excluded.conflict, malformed = x.malformed + excluded.malformed,
    failed = x.failed + excluded.failed;
  RETURN QUERY SELECT u.o::int, u.st, u.co, u.de, u.ke FROM unnest(st, co, de, ke) WITH ORDINALITY AS u(st, co, de, ke, o);
END $$;

-- A member of a body, for queries over many events; NULL where the body is no object or PostgreSQL cannot read it,
-- such as for the escape \u0000: one odd body must not fail the query for all.
CREATE OR REPLACE FUNCTION holdfast.member(body text, name text) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
  RETURN body::json ->> name;
EXCEPTION WHEN others THEN
  RETURN NULL;
END $$;

-- Moves the content of events that were accepted before p_before into event_archive, p_step of acceptance a
-- transaction. Keys and digests stay in event: a resend is a duplicate for ever. event_archive may then be copied
-- elsewhere and emptied.
CREATE OR REPLACE PROCEDURE holdfast.archive_before(p_before timestamptz, p_step interval DEFAULT '10 minutes', INOUT p_moved bigint DEFAULT 0)
LANGUAGE plpgsql AS $$
DECLARE
  t     timestamptz := (SELECT min(accepted_at) FROM holdfast.event WHERE archived_at IS NULL AND accepted_at < p_before);
  moved bigint;
BEGIN
  p_moved := 0;
  WHILE t < p_before LOOP
    WITH due AS MATERIALIZED (
      SELECT source, epoch, sequence, body, clock FROM holdfast.event
      WHERE archived_at IS NULL AND accepted_at >= t AND accepted_at < least(t + p_step, p_before) FOR UPDATE
    ), kept AS (
      INSERT INTO holdfast.event_archive (source, epoch, sequence, body, clock) SELECT * FROM due
    )
    UPDATE holdfast.event e SET body = NULL, clock = NULL, archived_at = clock_timestamp() FROM due d
    WHERE e.source = d.source AND e.epoch = d.epoch AND e.sequence = d.sequence;
    GET DIAGNOSTICS moved = ROW_COUNT;
    p_moved := p_moved + moved;
    COMMIT;
    t := t + p_step;
  END LOOP;
END $$;

COMMENT ON SCHEMA holdfast IS 'Holdfast books, schema 1';
