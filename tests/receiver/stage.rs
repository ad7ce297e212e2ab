//! Owns: a receiver with books in memory, and a client of raw bytes.
//! May call: the receiver.
//! Never: sleep where a condition can be waited for.

use crate::client::{Answer, Caller, PATIENCE};
use holdfast::core::event::to_json;
use holdfast::core::ids::{Epoch, EventKey, Sequence};
use holdfast::core::outbox::Verdict;
use holdfast::core::record::EventRecord;
use holdfast::core::spec::{EventClass, Quality};
use holdfast::receiver::{Connect, GatewaySettings, Ledger, Limits, Receiver, Reloader, Settings};
use holdfast::upstream::{Row, UpstreamError};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

pub(crate) const TOKEN: &str = "token-of-gw-line3-0123456789";
pub(crate) const OTHER_TOKEN: &str = "token-of-gw-line4-0123456789";

/// Books in memory, which everything that happens to them can be asked for.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) events: Mutex<BTreeMap<String, [u8; 32]>>,
    pub(crate) dead: Mutex<Vec<(String, String)>>,
    pub(crate) calls: Mutex<Vec<(String, String)>>,
    pub(crate) connected: AtomicUsize,
    /// Connecting fails so.
    pub(crate) away: Mutex<Option<UpstreamError>>,
    /// Every event is answered so.
    pub(crate) verdict: Mutex<Option<Verdict>>,
    /// Calls wait here while it is shut.
    pub(crate) shut: AtomicBool,
    pub(crate) waiting: AtomicUsize,
    pub(crate) open: Arc<OpenGate>,
}

pub(crate) struct OpenGate(Semaphore);

impl Default for OpenGate {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Memory {
    pub(crate) fn let_go(&self) {
        self.shut.store(false, Ordering::SeqCst);
        self.open.0.add_permits(1_000);
    }

    fn enter(&self, row: &Row) -> Verdict {
        if let Some(verdict) = self.verdict.lock().unwrap().clone() {
            return verdict;
        }
        if let Some(defect) = &row.defect {
            let item = String::from_utf8_lossy(&defect.item).into_owned();
            self.dead.lock().unwrap().push((defect.code.clone(), item));
            return Verdict::Malformed {
                reason: defect.detail.clone(),
            };
        }
        let mut events = self.events.lock().unwrap();
        match events.get(&row.name()) {
            None => {
                events.insert(row.name(), row.digest);
                Verdict::Accepted
            }
            Some(kept) if *kept == row.digest => Verdict::Duplicate,
            Some(_) => Verdict::Conflict {
                reason: "the key is taken by other content".into(),
                kept: Some("{\"first\":true}".into()),
            },
        }
    }
}

struct Line(Arc<Memory>);

impl Ledger for Line {
    fn ingest<'a>(
        &'a mut self,
        gateway: &'a str,
        batch_id: &'a str,
        rows: &'a [Row],
    ) -> Pin<Box<dyn Future<Output = Vec<Verdict>> + Send + 'a>> {
        Box::pin(async move {
            let memory = &self.0;
            memory
                .calls
                .lock()
                .unwrap()
                .push((gateway.into(), batch_id.into()));
            if memory.shut.load(Ordering::SeqCst) {
                memory.waiting.fetch_add(1, Ordering::SeqCst);
                memory.open.0.acquire().await.unwrap().forget();
            }
            rows.iter().map(|row| memory.enter(row)).collect()
        })
    }
    fn broken(&self) -> bool {
        self.0.away.lock().unwrap().is_some()
    }
}

pub(crate) struct Stage {
    pub(crate) dir: TempDir,
    pub(crate) memory: Arc<Memory>,
    pub(crate) address: SocketAddr,
    pub(crate) settings: Settings,
    pub(crate) reloader: Reloader,
    pub(crate) stop: watch::Sender<bool>,
    pub(crate) serving: JoinHandle<()>,
}

pub(crate) fn secret_file(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

pub(crate) fn settings(dir: &Path) -> Settings {
    let gateway = |name: &str, token: &str| GatewaySettings {
        name: name.into(),
        token_file: secret_file(dir, name, token),
        sources: None,
    };
    Settings {
        listen: "127.0.0.1:0".parse().unwrap(),
        tls: None,
        gateways: vec![gateway("gw-line3", TOKEN), gateway("gw-line4", OTHER_TOKEN)],
        metrics_token_file: None,
        books: 2,
        limits: Limits::default(),
    }
}

impl Stage {
    pub(crate) async fn new() -> Self {
        Self::with(|_| ()).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let dir = TempDir::new().unwrap();
        let mut settings = settings(dir.path());
        change(&mut settings);
        let memory: Arc<Memory> = Arc::default();
        let books = Arc::clone(&memory);
        let connect: Connect = Arc::new(move || {
            let books = Arc::clone(&books);
            Box::pin(async move {
                if let Some(error) = books.away.lock().unwrap().clone() {
                    return Err(error);
                }
                books.connected.fetch_add(1, Ordering::SeqCst);
                Ok(Box::new(Line(books)) as Box<dyn Ledger>)
            })
        });
        let receiver = Receiver::bind(settings.clone(), connect).await.unwrap();
        let (stop, stopping) = watch::channel(false);
        Self {
            dir,
            memory,
            address: receiver.address().unwrap(),
            settings,
            reloader: receiver.reloader(),
            stop,
            serving: tokio::spawn(receiver.serve(stopping)),
        }
    }

    pub(crate) async fn call(&self) -> Caller {
        Caller::connect(self.address).await
    }

    /// One request of the first gateway on a connection of its own.
    pub(crate) async fn post(&self, body: &str) -> Answer {
        self.call()
            .await
            .post(TOKEN, "application/json", body)
            .await
    }
}

pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn event(n: u64, qty: i64) -> EventRecord {
    EventRecord {
        key: EventKey {
            source: "press-1".into(),
            epoch: Epoch(7),
            sequence: Sequence(n),
        },
        event_type: "piece.good".into(),
        schema: 1,
        wall_us: 1_796_025_600_000_000,
        boottime_ns: 0,
        quality: Quality::Good,
        class: EventClass::Business,
        qty,
        body: "{\"b\": 1.50,  \"a\":2}".into(),
        unsynchronised: None,
    }
}

/// A batch of the first gateway with these events, as they stand.
pub(crate) fn batch(events: &[String]) -> String {
    format!(
        "{{\"gateway\":\"gw-line3\",\"batch_id\":\"b-1\",\"events\":[{}]}}",
        events.join(",")
    )
}

pub(crate) fn good(range: std::ops::RangeInclusive<u64>) -> String {
    let events: Vec<String> = range.map(|n| to_json(&event(n, 1))).collect();
    batch(&events)
}

pub(crate) fn changed(n: u64, change: impl Fn(&mut Json)) -> String {
    let mut value: Json = serde_json::from_str(&to_json(&event(n, 1))).unwrap();
    change(&mut value);
    value.to_string()
}

pub(crate) fn counts(
    received: u64,
    accepted: u64,
    duplicate: u64,
    conflict: u64,
    malformed: u64,
    retry: u64,
) -> Json {
    json!({"received": received, "accepted": accepted, "duplicate": duplicate, "conflict": conflict, "malformed": malformed, "retry": retry})
}
