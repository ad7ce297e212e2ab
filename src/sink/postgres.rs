//! Owns: the `postgres` sink: lanes that enter events into the books.
//! May call: upstream, secret; core types; this room's interface.
//! Never: connect before a batch is due; keep a connection of which it is not known where it stands; show a
//! password.
//!
//! A lane has one connection and one batch under way. Password and CA are read at every connection, so that a
//! new one is taken up by itself. What a lost connection leaves open is settled by sending again: the books
//! answer `duplicate` for what they hold.

use super::{AckLevel, Delivery, Lane, Sink};
use crate::core::outbox::Verdict;
use crate::core::record::{EventRecord, Position};
use crate::secret;
use crate::upstream::{Books, Row, Target, UpstreamError, read_ca};
use std::path::PathBuf;
use std::sync::Arc;

/// What is configured of a `postgres` sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresSinkConfig {
    /// The gateway's name, under which the books count.
    pub gateway: String,
    /// `postgres://user@host:port/database`.
    pub url: String,
    /// Holds the user's password.
    pub password_file: Option<PathBuf>,
    /// Authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Connections, at least one.
    pub lanes: usize,
}

impl PostgresSinkConfig {
    /// The target, with its secrets read.
    ///
    /// # Errors
    /// [`UpstreamError::Mend`], which names the file.
    pub fn target(&self) -> Result<Target, UpstreamError> {
        let password = self.password_file.as_deref().map(secret::read);
        let password = password
            .transpose()
            .map_err(|error| UpstreamError::Mend(error.to_string()))?;
        let ca_pem = self
            .ca_file
            .as_deref()
            .map(read_ca)
            .transpose()
            .map_err(UpstreamError::Mend)?;
        Ok(Target {
            url: self.url.clone(),
            password: password.map(|secret| secret.reveal().to_owned()),
            ca_pem,
        })
    }
}

/// The sink of `config`.
#[must_use]
pub fn sink(config: PostgresSinkConfig) -> Sink {
    let config = Arc::new(config);
    let lane = |_| -> Box<dyn Lane> {
        Box::new(PostgresLane {
            config: Arc::clone(&config),
            books: None,
            uncounted: 0,
        })
    };
    Sink {
        kind: "postgres",
        ack_level: AckLevel::Committed,
        lanes: (0..config.lanes.max(1)).map(lane).collect(),
    }
}

struct PostgresLane {
    config: Arc<PostgresSinkConfig>,
    books: Option<Books>,
    /// Deliveries that failed on a connection that is gone.
    uncounted: u64,
}

impl PostgresLane {
    async fn deliver_all(&mut self, batch: &[(Position, EventRecord)]) -> Vec<Verdict> {
        let Some((_, first)) = batch.first() else {
            return Vec::new();
        };
        if self.books.as_ref().is_some_and(Books::broken) {
            self.books = None;
        }
        let mut books = match self.books.take() {
            Some(books) => books,
            None => match self.connect().await {
                Ok(mut books) => {
                    books.count_too(self.uncounted);
                    books
                }
                Err(error) => return vec![error.verdict(); batch.len()],
            },
        };
        let rows: Vec<Row> = batch
            .iter()
            .map(|(_, event)| Row::from_event(event))
            .collect();
        // Equal for equal batches, for tracing alone.
        let batch_id = format!("{}+{}", first.key, batch.len());
        let verdicts = books.ingest(&self.config.gateway, &batch_id, &rows).await;
        self.uncounted = books.uncounted();
        // Not put back if this is given up in the middle, and not if it is of no use any more.
        if !books.broken() {
            self.books = Some(books);
        }
        verdicts
    }

    async fn connect(&self) -> Result<Books, UpstreamError> {
        Books::connect(&self.config.target()?).await
    }
}

impl Lane for PostgresLane {
    fn deliver<'a>(&'a mut self, batch: &'a [(Position, EventRecord)]) -> Delivery<'a> {
        Box::pin(self.deliver_all(batch))
    }
}
