//! Owns: the connections to the books: few, opened when they are needed, never two users of one, never all of them one gateway's.
//! May call: upstream.
//! Never: hand out a connection that is broken; wait for one without an end.

use crate::core::outbox::Verdict;
use crate::upstream::{Books, Row, UpstreamError};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Longest wait for a connection that is free, in milliseconds.
const WAIT_MS_MAX: u64 = 10_000;

/// One connection to the books.
pub trait Ledger: Send {
    /// Enters `rows`; one verdict a row, in their order; the verdicts come after the commit.
    fn ingest<'a>(
        &'a mut self,
        gateway: &'a str,
        batch_id: &'a str,
        rows: &'a [Row],
    ) -> Pin<Box<dyn Future<Output = Vec<Verdict>> + Send + 'a>>;
    /// Whether it is of no use any more.
    fn broken(&self) -> bool;
}

/// A connection that is being opened.
pub type Opening = Pin<Box<dyn Future<Output = Result<Box<dyn Ledger>, UpstreamError>> + Send>>;
/// Opens a connection, with what its secrets are then.
pub type Connect = Arc<dyn Fn() -> Opening + Send + Sync>;

/// [`Books`] as a [`Ledger`].
pub struct BooksLedger(pub Books);

impl Ledger for BooksLedger {
    fn ingest<'a>(
        &'a mut self,
        gateway: &'a str,
        batch_id: &'a str,
        rows: &'a [Row],
    ) -> Pin<Box<dyn Future<Output = Vec<Verdict>> + Send + 'a>> {
        Box::pin(self.0.ingest(gateway, batch_id, rows))
    }
    fn broken(&self) -> bool {
        self.0.broken()
    }
}

/// The connections.
pub struct Pool {
    connect: Connect,
    free: Mutex<Vec<Box<dyn Ledger>>>,
    permits: Arc<Semaphore>,
    /// What one gateway may hold: all but one, so that a slow call of one never stops the others.
    share: usize,
    shares: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Pool {
    /// At most so many connections.
    #[must_use]
    pub fn new(connect: Connect, most: usize) -> Arc<Self> {
        Arc::new(Self {
            connect,
            free: Mutex::default(),
            permits: Arc::new(Semaphore::new(most.max(1))),
            share: most.saturating_sub(1).max(1),
            shares: Mutex::default(),
        })
    }

    /// A connection for `gateway`, one that is known here; opened if none is free.
    ///
    /// # Errors
    /// [`UpstreamError`].
    pub async fn take_for(self: &Arc<Self>, gateway: &str) -> Result<Held, UpstreamError> {
        let share = Arc::clone(
            self.shares
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(gateway.to_owned())
                .or_insert_with(|| Arc::new(Semaphore::new(self.share))),
        );
        let permit = turn(
            share,
            "this gateway's share of the connections to the books is",
        )
        .await?;
        let mut held = self.take().await?;
        held._share = Some(permit);
        Ok(held)
    }

    /// A connection, opened if none is free.
    ///
    /// # Errors
    /// [`UpstreamError`].
    pub async fn take(self: &Arc<Self>) -> Result<Held, UpstreamError> {
        let all = Arc::clone(&self.permits);
        let permit = turn(all, "all connections to the books are").await?;
        // Broken ones end here.
        let free = loop {
            let next = self.free().pop();
            match next {
                Some(ledger) if ledger.broken() => {}
                other => break other,
            }
        };
        let ledger = match free {
            Some(ledger) => ledger,
            None => (self.connect)().await?,
        };
        Ok(Held {
            ledger: Some(ledger),
            pool: Arc::clone(self),
            _permit: permit,
            _share: None,
        })
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<Box<dyn Ledger>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection in use; it goes back by itself.
pub struct Held {
    ledger: Option<Box<dyn Ledger>>,
    pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
    _share: Option<OwnedSemaphorePermit>,
}

async fn turn(of: Arc<Semaphore>, busy: &str) -> Result<OwnedSemaphorePermit, UpstreamError> {
    let wait = Duration::from_millis(WAIT_MS_MAX);
    match tokio::time::timeout(wait, of.acquire_owned()).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(_)) | Err(_) => Err(UpstreamError::Passing(format!(
            "{busy} busy for {} s",
            WAIT_MS_MAX / 1000
        ))),
    }
}

impl Held {
    /// See [`Ledger::ingest`].
    pub async fn ingest(&mut self, gateway: &str, batch_id: &str, rows: &[Row]) -> Vec<Verdict> {
        match &mut self.ledger {
            Some(ledger) => ledger.ingest(gateway, batch_id, rows).await,
            None => Vec::new(),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(ledger) = self.ledger.take().filter(|ledger| !ledger.broken()) {
            self.pool.free().push(ledger);
        }
    }
}
