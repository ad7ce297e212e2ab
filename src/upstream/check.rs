//! Owns: whether a sink could use the books as they stand, looked at as the sink would.
//! May call: books' connection, target, trouble.
//! Never: change anything; need more rights than a writer has (the catalog is open to everybody).

use super::SCHEMA_VERSION;
use super::books::Books;
use super::schema::SERVER_VERSION_MIN;
use super::target::Target;
use super::trouble::{UpstreamError, says};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Clocks that differ by more than this are worth a word, in milliseconds.
const CLOCK_MS_MAX: i64 = 5_000;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Ok,
    /// It works, and could be better.
    Warning,
    /// No event can be entered, or what was entered can be lost.
    Error,
}

impl Level {
    /// `ok`, `warning`, `error`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// Stable name.
    pub code: &'static str,
    /// What was found.
    pub text: String,
    /// What to do about it, if anything.
    pub mend: Option<&'static str>,
}

/// All that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// `host:port/database`.
    pub place: String,
    /// In the order of the table in docs/upstream.md.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether a sink may use the books.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.findings
            .iter()
            .all(|finding| finding.level != Level::Error)
    }

    fn say(
        &mut self,
        level: Level,
        code: &'static str,
        text: impl Into<String>,
        mend: &'static str,
    ) {
        self.findings.push(Finding {
            level,
            code,
            text: text.into(),
            mend: Some(mend).filter(|mend| !mend.is_empty()),
        });
    }
}

const QUESTION: &str = "
SELECT current_setting('server_version'), current_setting('server_version_num')::int, pg_is_in_recovery(),
  current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
  (extract(epoch FROM clock_timestamp()) * 1000)::bigint, current_user::text,
  (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
  (SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = 'holdfast'),
  coalesce((SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = 'holdfast'), false),
  (SELECT bool_or(has_function_privilege(p.oid, 'EXECUTE')) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = 'holdfast' AND p.proname = 'ingest' AND p.prosecdef),
  (SELECT string_agg(c.relname::text, ', ' ORDER BY c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'holdfast' AND c.relkind IN ('r', 'p', 'v')
      AND has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')),
  (SELECT string_agg(c.relname::text, ', ' ORDER BY c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'holdfast' AND c.relkind IN ('r', 'p') AND c.relpersistence <> 'p'),
  EXISTS (SELECT 1 FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_index i ON i.indexrelid = k.conindid
    WHERE n.nspname = 'holdfast' AND c.relname = 'event' AND k.conname = 'event_key' AND k.contype IN ('p', 'u') AND i.indisvalid
      AND (SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_attribute a
           WHERE a.attrelid = c.oid AND a.attnum = ANY (k.conkey) AND a.attnotnull) = ARRAY['epoch', 'sequence', 'source'])";

/// Looks at everything.
///
/// # Errors
/// [`UpstreamError`] if there is no connection.
pub async fn check(target: &Target) -> Result<Report, UpstreamError> {
    let books = Books::connect(target).await?;
    let asked = books.client().query_one(QUESTION, &[]).await;
    let row = asked
        .map_err(|error| UpstreamError::Passing(format!("{}: {}", books.place(), says(&error))))?;
    let mut report = Report {
        place: books.place().to_owned(),
        findings: Vec::new(),
    };
    server(&row, &books, &mut report);
    schema(&row, &mut report);
    rights(&row, &mut report);
    Ok(report)
}

fn server(row: &tokio_postgres::Row, books: &Books, report: &mut Report) {
    use Level::{Error, Ok, Warning};
    let (version, number): (String, i32) = (row.get(0), row.get(1));
    if number < SERVER_VERSION_MIN {
        report.say(
            Error,
            "server",
            format!("PostgreSQL {version}"),
            "use 15 or later",
        );
    } else {
        report.say(Ok, "server", format!("PostgreSQL {version}"), "");
    }
    if books.is_encrypted() {
        report.say(
            Ok,
            "tls",
            "the connection is encrypted, the server verified",
            "",
        );
    } else if books.is_here() {
        report.say(
            Ok,
            "tls",
            "not encrypted: the connection stays on this computer",
            "",
        );
    } else {
        report.say(
            Warning,
            "tls",
            "the connection is not encrypted",
            "remove sslmode=disable from url, and name ca_file",
        );
    }
    if row.get(2) {
        report.say(
            Error,
            "standby",
            "the server is a standby and takes no events",
            "connect to the primary",
        );
    }
    for (index, name, mend) in [
        (
            3,
            "fsync",
            "ALTER SYSTEM SET fsync = on: without it a power cut loses what was acknowledged",
        ),
        (
            4,
            "full_page_writes",
            "ALTER SYSTEM SET full_page_writes = on: without it a power cut can destroy pages",
        ),
    ] {
        let value: String = row.get(index);
        let level = if value == "on" { Ok } else { Error };
        report.say(
            level,
            name,
            format!("{name} = {value}"),
            if level == Ok { "" } else { mend },
        );
    }
    let value: String = row.get(5);
    if value == "off" {
        report.say(
            Warning,
            "synchronous_commit",
            "synchronous_commit = off for this role",
            "ALTER ROLE … SET synchronous_commit = on; the ingest function turns it on for itself",
        );
    } else {
        report.say(
            Ok,
            "synchronous_commit",
            format!("synchronous_commit = {value}"),
            "",
        );
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    let off_ms = i64::try_from(now.as_millis())
        .unwrap_or(i64::MAX)
        .saturating_sub(row.get(6));
    let text = format!(
        "the server's clock and this computer's differ by {} ms",
        off_ms.abs()
    );
    if off_ms.abs() > CLOCK_MS_MAX {
        report.say(
            Warning,
            "clock",
            text,
            "synchronise both; events carry this computer's time",
        );
    } else {
        report.say(Ok, "clock", text, "");
    }
}

fn schema(row: &tokio_postgres::Row, report: &mut Report) {
    use Level::{Error, Ok};
    let mend = "holdfast upstream init";
    let comment: Option<String> = row.get(9);
    let version = comment
        .as_deref()
        .and_then(|text| text.rsplit_once("schema ")?.1.parse::<i32>().ok());
    match version {
        Some(version) if version == SCHEMA_VERSION => {
            report.say(Ok, "schema", format!("schema version {version}"), "");
        }
        Some(version) if version > SCHEMA_VERSION => {
            report.say(
                Error,
                "schema",
                format!("schema version {version}; this program knows {SCHEMA_VERSION}"),
                "use a newer program",
            );
        }
        Some(version) => {
            report.say(
                Error,
                "schema",
                format!("schema version {version}; expected {SCHEMA_VERSION}"),
                mend,
            );
        }
        None => report.say(Error, "schema", "no schema holdfast of this program", mend),
    }
    if version.is_none() {
        return;
    }
    if row.get(14) {
        report.say(Ok, "unique", "event keys are unique and not null", "");
    } else {
        report.say(Error, "unique", "the unique constraint event_key on (source, epoch, sequence) is missing, invalid or of other columns", "restore it: without it events are counted twice");
    }
    if let Some(tables) = row.get::<_, Option<String>>(13) {
        report.say(
            Error,
            "unlogged",
            format!("not written to the log: {tables}"),
            "ALTER TABLE … SET LOGGED: a crash empties such tables",
        );
    }
}

fn rights(row: &tokio_postgres::Row, report: &mut Report) {
    use Level::{Error, Ok, Warning};
    let user: String = row.get(7);
    let may_execute: Option<bool> = row.get(11);
    if row.get(10) && may_execute == Some(true) {
        report.say(
            Ok,
            "execute",
            format!("{user} may execute holdfast.ingest"),
            "",
        );
    } else {
        report.say(
            Error,
            "execute",
            format!("{user} may not execute holdfast.ingest"),
            "holdfast upstream init --writer ROLE",
        );
    }
    let tables: Option<String> = row.get(12);
    match (row.get::<_, Option<bool>>(8) == Some(true), tables) {
        (true, _) => report.say(
            Warning,
            "least_privilege",
            format!("{user} is a superuser"),
            "enter events as a role that may do nothing else",
        ),
        (false, Some(tables)) => report.say(
            Warning,
            "least_privilege",
            format!("{user} may read or change tables directly: {tables}"),
            "enter events as a role that may do nothing else",
        ),
        (false, None) => report.say(
            Ok,
            "least_privilege",
            format!("{user} may neither read nor change a table"),
            "",
        ),
    }
}
