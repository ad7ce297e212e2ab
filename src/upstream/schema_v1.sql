-- Holdfast's books, schema version 1: PostgreSQL 15 and later. Applied by `holdfast upstream init`, in one
-- transaction, as the role that shall own it. docs/upstream.md says how to read the tables.

CREATE TABLE holdfast.schema_version (
  version    int         PRIMARY KEY,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  applied_by text        NOT NULL DEFAULT session_user,
  program    text        NOT NULL
);

-- One row a business fact, for ever. Only the content (body, clock) ever leaves it, into event_archive: the key
-- and the digest stay, so that a resend is a duplicate years later.
-- COLLATE "C": the order of keys, and so of locks, is the same for every worker, whatever the system's locale.
CREATE TABLE holdfast.event (
  source      text COLLATE "C" NOT NULL,
  epoch       bigint      NOT NULL,
  sequence    bigint      NOT NULL,
  type        text COLLATE "C" NOT NULL,
  schema      int         NOT NULL,
  time_us     bigint      NOT NULL,                       -- microseconds since 1970, of the fact
  quality     text        NOT NULL,
  qty         bigint      NOT NULL,
  body        text,                                       -- JSON, byte for byte as it was recorded
  clock       text,                                       -- JSON; there if the gateway's wall clock was not to be trusted
  digest      bytea       NOT NULL,
  gateway     text        NOT NULL,                       -- who delivered it first
  batch_ord   int         NOT NULL,                       -- its place in that batch, from 1
  accepted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  archived_at timestamptz,
  CONSTRAINT event_key      PRIMARY KEY (source, epoch, sequence),
  CONSTRAINT event_source   CHECK (source <> '' AND length(source) <= 128),
  CONSTRAINT event_epoch    CHECK (epoch >= 0),
  CONSTRAINT event_sequence CHECK (sequence >= 0),
  CONSTRAINT event_digest   CHECK (octet_length(digest) = 32),
  CONSTRAINT event_content  CHECK ((body IS NULL) = (archived_at IS NOT NULL))
);
CREATE INDEX event_accepted_at ON holdfast.event USING brin (accepted_at) WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE holdfast.event_archive (
  source   text COLLATE "C" NOT NULL, epoch bigint NOT NULL, sequence bigint NOT NULL,
  body     text NOT NULL,
  clock    text,
  PRIMARY KEY (source, epoch, sequence)
);

-- The same key came with other content. Both are kept; the event is untouched.
CREATE TABLE holdfast.conflict (
  source      text COLLATE "C" NOT NULL, epoch bigint NOT NULL, sequence bigint NOT NULL,
  digest      bytea       NOT NULL,
  gateway     text        NOT NULL,
  batch       text        NOT NULL,
  came        text        NOT NULL,                       -- JSON: what came now
  kept        text        NOT NULL,                       -- JSON: what was accepted first
  kept_digest bytea       NOT NULL,
  times       bigint      NOT NULL DEFAULT 1,
  first_seen  timestamptz NOT NULL DEFAULT clock_timestamp(),
  last_seen   timestamptz NOT NULL DEFAULT clock_timestamp(),
  settled_at  timestamptz,
  settled_as  text,
  PRIMARY KEY (source, epoch, sequence, digest),
  CHECK ((settled_at IS NULL) = (settled_as IS NULL))
);

-- What can never be taken as it is, with the reason.
CREATE TABLE holdfast.dead_letter (
  id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  gateway     text COLLATE "C" NOT NULL,
  item_digest bytea       NOT NULL,                       -- SHA-256 of item
  code        text COLLATE "C" NOT NULL,
  detail      text        NOT NULL,
  item        bytea       NOT NULL,                       -- as it came
  batch       text        NOT NULL,
  times       bigint      NOT NULL DEFAULT 1,
  first_seen  timestamptz NOT NULL DEFAULT clock_timestamp(),
  last_seen   timestamptz NOT NULL DEFAULT clock_timestamp(),
  settled_at  timestamptz,
  settled_as  text,
  UNIQUE (gateway, item_digest, code),
  CHECK ((settled_at IS NULL) = (settled_as IS NULL))
);

-- What business reads. Changed by a first acceptance alone, in its transaction. numeric: a total never overflows.
CREATE TABLE holdfast.total (
  source text COLLATE "C" NOT NULL,
  type   text COLLATE "C" NOT NULL,
  qty    numeric NOT NULL,
  events bigint  NOT NULL,
  PRIMARY KEY (source, type)
);

-- Deliveries, each counted once, under one heading. By source, so that lanes do not wait for each other; source ''
-- holds those whose source could not be read.
CREATE TABLE holdfast.delivery (
  gateway   text COLLATE "C" NOT NULL,
  source    text COLLATE "C" NOT NULL,
  received  bigint NOT NULL,
  accepted  bigint NOT NULL,
  duplicate bigint NOT NULL,
  conflict  bigint NOT NULL,
  malformed bigint NOT NULL,
  failed    bigint NOT NULL,
  PRIMARY KEY (gateway, source),
  CONSTRAINT delivery_sum CHECK (received = accepted + duplicate + conflict + malformed + failed)
);
-- Hot rows: room for the new versions on the same page.
ALTER TABLE holdfast.total SET (fillfactor = 50);
ALTER TABLE holdfast.delivery SET (fillfactor = 50);
