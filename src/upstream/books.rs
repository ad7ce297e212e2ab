//! Owns: one connection to the books, and the call that enters a batch.
//! May call: target, row, trouble; core types.
//! Never: answer `Accepted` or `Duplicate` unless the server said so after its commit; use a connection again of
//! which it is not known where it stands.
//!
//! A call is one statement and so one transaction. If the connection ends in it, nobody here knows whether it was
//! committed: every row is to be sent again, and the books answer `duplicate` for what they hold (B5, B9).

use super::row::Row;
use super::target::{CONNECT_MS_MAX, Parts, Target};
use super::trouble::{Class, UpstreamError, mend, says};
use crate::core::outbox::Verdict;
use crate::failpoint;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Most rows in one call.
pub const BATCH_ROWS_MAX: usize = 5_000;
/// The server gives a statement up after so long, in milliseconds.
pub(super) const STATEMENT_MS_MAX: u64 = 20_000;
/// Most rows of one batch that are given up because the server refuses their values; more than that is no matter
/// of single rows.
pub(super) const POISONED_ROWS_MAX: usize = 50;
/// A call without an answer after so long ends the connection, in milliseconds: more than the server allows
/// itself.
pub const CALL_MS_MAX: u64 = 30_000;

const INGEST: &str = "SELECT ord, status, code, detail, kept FROM holdfast.ingest(\
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)";

/// One connection to the books.
#[derive(Debug)]
pub struct Books {
    client: Client,
    driver: JoinHandle<()>,
    place: String,
    tls: bool,
    is_here: bool,
    /// A call began and did not end: what the connection would answer next is not known.
    in_call: bool,
    /// Deliveries that the server rolled back with an error, to be counted with the next call.
    failed: u64,
}

impl Drop for Books {
    fn drop(&mut self) {
        // Without it a connection whose peer is silent would live on in its task.
        self.driver.abort();
    }
}

/// Why a call gave no verdicts.
enum Trouble {
    /// The server refused it: rolled back.
    Refused(Class, String),
    /// It is not known what became of it.
    Lost(String),
    /// It ended, but its answer cannot be read: nothing shows that it was rolled back, so it is not counted as that.
    Unread(String),
}

impl Books {
    /// Connects, within `CONNECT_MS_MAX`.
    ///
    /// # Errors
    /// [`UpstreamError`], which says whether it passes by itself.
    pub async fn connect(target: &Target) -> Result<Self, UpstreamError> {
        let Parts {
            config,
            tls,
            place,
            is_here,
        } = target.parts()?;
        let has_tls = tls.is_some();
        let seconds = CONNECT_MS_MAX / 1000;
        let late = UpstreamError::Passing(format!("{place}: no connection within {seconds} s"));
        let within = Duration::from_millis(CONNECT_MS_MAX);
        let connecting = async {
            match tls {
                Some(tls) => {
                    let tls = MakeRustlsConnect::new(tls.as_ref().clone());
                    let (client, connection) = config.connect(tls).await?;
                    Ok((client, drive(connection)))
                }
                None => {
                    let (client, connection) = config.connect(NoTls).await?;
                    Ok((client, drive(connection)))
                }
            }
        };
        let (client, driver) = tokio::time::timeout(within, connecting)
            .await
            .map_err(|_| late.clone())?
            .map_err(|error: Error| UpstreamError::connecting(&place, &error))?;
        let books = Self {
            client,
            driver,
            place,
            tls: has_tls,
            is_here,
            in_call: false,
            failed: 0,
        };
        tokio::time::timeout(within, books.settle_session())
            .await
            .map_err(|_| late)??;
        Ok(books)
    }

    /// What every call relies on, whatever the defaults of role and database are.
    async fn settle_session(&self) -> Result<(), UpstreamError> {
        let settings = format!(
            "SET statement_timeout = {STATEMENT_MS_MAX}; \
             SET default_transaction_isolation = 'read committed'"
        );
        self.client
            .batch_execute(&settings)
            .await
            .map_err(|error| UpstreamError::connecting(&self.place, &error))
    }

    /// Whether this connection is of no use any more.
    #[must_use]
    pub fn broken(&self) -> bool {
        self.in_call || self.client.is_closed()
    }

    /// Deliveries that the server rolled back with an error and that no call has counted yet.
    #[must_use]
    pub fn uncounted(&self) -> u64 {
        self.failed
    }

    /// Has the next call count what a connection before this one could not.
    pub fn count_too(&mut self, failed: u64) {
        self.failed += failed;
    }

    /// Whether the connection is encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.tls
    }

    /// Whether the connection stays on this computer.
    pub(super) fn is_here(&self) -> bool {
        self.is_here
    }

    /// `host:port/database`.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The connection, for questions.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Enters `rows`; one verdict a row, in their order. Trouble with the connection is `Retry`, trouble that a
    /// person must mend is `Stop`; what the books refuse as a value is sought by halving, entered as a dead letter
    /// and `Malformed`.
    pub async fn ingest(&mut self, gateway: &str, batch_id: &str, rows: &[Row]) -> Vec<Verdict> {
        let mut verdicts: Vec<Option<Verdict>> = vec![None; rows.len()];
        let mut parts: VecDeque<(usize, usize)> = VecDeque::new();
        for start in (0..rows.len()).step_by(BATCH_ROWS_MAX) {
            parts.push_back((start, rows.len().min(start + BATCH_ROWS_MAX)));
        }
        let mut given_up = 0;
        let mut poison = None;
        while let Some((start, end)) = parts.pop_front() {
            let part = &rows[start..end];
            let second = poison.take();
            let is_second = second.is_some();
            match self.call(gateway, batch_id, part, second).await {
                Ok(found) => {
                    for (place, verdict) in verdicts[start..end].iter_mut().zip(found) {
                        *place = Some(verdict);
                    }
                }
                Err(Trouble::Refused(Class::Row, reason)) if part.len() > 1 => {
                    let (place, count) = (&self.place, part.len());
                    log::debug!("{place}: {count} rows refused, halving: {reason}");
                    let middle = start + count / 2;
                    parts.push_front((middle, end));
                    parts.push_front((start, middle));
                }
                Err(Trouble::Refused(Class::Row, reason)) if given_up == POISONED_ROWS_MAX => {
                    let reason = format!(
                        "more than {POISONED_ROWS_MAX} events of a batch were refused, the last with: {reason}; \
                         look for a rule in the database that refuses them all"
                    );
                    return self.give_back(
                        verdicts,
                        &Trouble::Refused(Class::Person, reason),
                        part,
                    );
                }
                Err(Trouble::Refused(Class::Row, reason))
                    if is_second || part[0].defect.is_some() =>
                {
                    // Its own gateway keeps it: the books cannot even note it.
                    let reason = format!("{reason}; nor could it be kept as a dead letter there");
                    verdicts[start] = Some(Verdict::Malformed { reason });
                }
                Err(Trouble::Refused(Class::Row, reason)) => {
                    given_up += 1;
                    parts.push_front((start, end));
                    poison = Some(reason);
                }
                Err(trouble) => return self.give_back(verdicts, &trouble, part),
            }
        }
        fill(verdicts, &unanswered())
    }

    /// The verdicts reached before `trouble`, and what it means for all others.
    fn give_back(
        &mut self,
        verdicts: Vec<Option<Verdict>>,
        trouble: &Trouble,
        part: &[Row],
    ) -> Vec<Verdict> {
        if let Trouble::Refused(..) = trouble {
            self.failed += part.len() as u64;
        }
        let rest = verdicts.iter().filter(|verdict| verdict.is_none()).count();
        let (place, reason) = (&self.place, trouble.reason());
        log::debug!("{place}: {rest} events not entered: {reason}");
        fill(verdicts, &trouble.verdict())
    }

    /// One call, one transaction. `poisoned`: why the only row can never be entered.
    async fn call(
        &mut self,
        gateway: &str,
        batch_id: &str,
        rows: &[Row],
        poisoned: Option<String>,
    ) -> Result<Vec<Verdict>, Trouble> {
        if self.broken() {
            return Err(Trouble::Lost("the connection is closed".into()));
        }
        let columns = Columns::of(rows, poisoned.as_deref());
        let failed = i64::try_from(self.failed).unwrap_or(i64::MAX);
        let parameters = columns.parameters(&gateway, &batch_id, &failed);
        failpoint!("upstream.before-call");
        self.in_call = true;
        let within = Duration::from_millis(CALL_MS_MAX);
        let answer =
            tokio::time::timeout(within, self.client.query_typed(INGEST, &parameters)).await;
        failpoint!("upstream.after-commit");
        let found = match answer {
            Err(_) => {
                let reason = format!("no answer within {} s", CALL_MS_MAX / 1000);
                return Err(Trouble::Lost(reason));
            }
            Ok(Err(error)) => return Err(self.refused(&error)),
            Ok(Ok(found)) => found,
        };
        self.in_call = false;
        self.failed = 0;
        let mut verdicts = vec![unanswered(); rows.len()];
        for row in &found {
            let (ord, verdict) = read(row).map_err(|error| Trouble::Unread(says(&error)))?;
            let index = usize::try_from(ord).ok().and_then(|ord| ord.checked_sub(1));
            if let Some(place) = index.and_then(|index| verdicts.get_mut(index)) {
                *place = verdict;
            }
        }
        Ok(verdicts)
    }

    fn refused(&mut self, error: &Error) -> Trouble {
        let says = says(error);
        let Some(server) = error.as_db_error() else {
            return Trouble::Lost(says);
        };
        let class = Class::of(server);
        // A standby (25006) and a server that goes down will say the same for ever on this connection.
        let ends = ["25", "57P", "08", "26"]
            .iter()
            .any(|begin| server.code().code().starts_with(begin));
        self.in_call = ends;
        match class {
            Class::Person => Trouble::Refused(class, format!("{says}; {}", mend(server))),
            Class::Row | Class::Passes => Trouble::Refused(class, says),
        }
    }
}

impl Trouble {
    fn reason(&self) -> &str {
        match self {
            Self::Refused(_, reason) | Self::Lost(reason) | Self::Unread(reason) => reason,
        }
    }

    fn verdict(&self) -> Verdict {
        match self {
            Self::Refused(Class::Person, reason) => Verdict::Stop {
                reason: reason.clone(),
            },
            Self::Refused(_, reason) => Verdict::retry(reason.clone()),
            Self::Unread(reason) => Verdict::Stop {
                reason: format!(
                    "an answer of another form: {reason}; whether it was committed is not known; apply the schema of \
                     this version: holdfast upstream init"
                ),
            },
            Self::Lost(reason) => Verdict::retry(format!(
                "{reason}; whether it was committed is not known, sending it again tells"
            )),
        }
    }
}

fn unanswered() -> Verdict {
    Verdict::retry("the books did not answer for this event")
}

fn fill(verdicts: Vec<Option<Verdict>>, with: &Verdict) -> Vec<Verdict> {
    let filled = verdicts
        .into_iter()
        .map(|verdict| verdict.unwrap_or_else(|| with.clone()));
    filled.collect()
}

fn drive<S, T>(connection: tokio_postgres::Connection<S, T>) -> JoinHandle<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            log::debug!("connection to the books ended: {}", says(&error));
        }
    })
}

/// One row of an answer.
fn read(row: &tokio_postgres::Row) -> Result<(i32, Verdict), Error> {
    let ord: i32 = row.try_get(0)?;
    let status: &str = row.try_get(1)?;
    let detail = || -> Result<String, Error> {
        let code: Option<&str> = row.try_get(2)?;
        let detail: Option<&str> = row.try_get(3)?;
        Ok(match (code, detail) {
            (Some(code), Some(detail)) => format!("{code}: {detail}"),
            (code, detail) => code.or(detail).unwrap_or_default().to_owned(),
        })
    };
    let verdict = match status {
        "accepted" => Verdict::Accepted,
        "duplicate" => Verdict::Duplicate,
        "conflict" => Verdict::Conflict {
            reason: detail()?,
            kept: row.try_get(4)?,
        },
        "malformed" => Verdict::Malformed { reason: detail()? },
        "retry" => Verdict::retry(detail()?),
        other => Verdict::retry(format!(
            "the books said {other:?}, which means nothing here"
        )),
    };
    Ok((ord, verdict))
}

/// The rows as the function takes them: one array a column.
#[derive(Default)]
struct Columns<'a> {
    source: Vec<Option<&'a str>>,
    epoch: Vec<Option<i64>>,
    sequence: Vec<Option<i64>>,
    event_type: Vec<&'a str>,
    schema: Vec<i32>,
    time_us: Vec<i64>,
    quality: Vec<&'a str>,
    qty: Vec<i64>,
    body: Vec<&'a str>,
    clock: Vec<Option<&'a str>>,
    digest: Vec<&'a [u8]>,
    /// These three: `None` if no row has a defect.
    item: Option<Vec<Option<Vec<u8>>>>,
    code: Option<Vec<Option<&'a str>>>,
    detail: Option<Vec<Option<&'a str>>>,
}

impl<'a> Columns<'a> {
    fn of(rows: &'a [Row], poisoned: Option<&'a str>) -> Self {
        let mut columns = Self::default();
        for row in rows {
            // Of a row that cannot be entered only the item goes: its values may be what PostgreSQL refuses.
            let sound = row.defect.is_none() && poisoned.is_none();
            let text = |text: &'a str| if sound { text } else { "" };
            let source = Some(row.source.as_str()).filter(|source| sound && !source.is_empty());
            columns.source.push(source);
            columns.epoch.push(row.epoch.filter(|_| sound));
            columns.sequence.push(row.sequence.filter(|_| sound));
            columns.event_type.push(text(&row.event_type));
            columns.schema.push(row.schema);
            columns.time_us.push(row.time_us);
            columns.quality.push(text(&row.quality));
            columns.qty.push(row.qty);
            columns.body.push(text(&row.body));
            columns.clock.push(row.clock.as_deref().filter(|_| sound));
            columns.digest.push(&row.digest);
        }
        if let Some(reason) = poisoned {
            columns.item = Some(rows.iter().map(|row| Some(row.to_item())).collect());
            columns.code = Some(vec![Some("refused_value"); rows.len()]);
            columns.detail = Some(vec![Some(reason); rows.len()]);
        } else if rows.iter().any(|row| row.defect.is_some()) {
            let defects = || rows.iter().map(|row| row.defect.as_ref());
            columns.item = Some(defects().map(|d| d.map(|d| d.item.clone())).collect());
            columns.code = Some(defects().map(|d| d.map(|d| d.code.as_str())).collect());
            columns.detail = Some(defects().map(|d| d.map(|d| d.detail.as_str())).collect());
        }
        columns
    }

    fn parameters(
        &'a self,
        gateway: &'a &'a str,
        batch_id: &'a &'a str,
        failed: &'a i64,
    ) -> [(&'a (dyn ToSql + Sync), Type); 17] {
        [
            (gateway, Type::TEXT),
            (batch_id, Type::TEXT),
            (failed, Type::INT8),
            (&self.source, Type::TEXT_ARRAY),
            (&self.epoch, Type::INT8_ARRAY),
            (&self.sequence, Type::INT8_ARRAY),
            (&self.event_type, Type::TEXT_ARRAY),
            (&self.schema, Type::INT4_ARRAY),
            (&self.time_us, Type::INT8_ARRAY),
            (&self.quality, Type::TEXT_ARRAY),
            (&self.qty, Type::INT8_ARRAY),
            (&self.body, Type::TEXT_ARRAY),
            (&self.clock, Type::TEXT_ARRAY),
            (&self.digest, Type::BYTEA_ARRAY),
            (&self.item, Type::BYTEA_ARRAY),
            (&self.code, Type::TEXT_ARRAY),
            (&self.detail, Type::TEXT_ARRAY),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: FWD-03
    #[test]
    fn an_answer_that_cannot_be_read_stops_without_a_claim_of_what_was_committed() {
        let Verdict::Stop { reason } = Trouble::Unread("column 2".into()).verdict() else {
            panic!("not stopped");
        };
        assert!(
            reason.contains("whether it was committed is not known"),
            "{reason}"
        );
    }
}
