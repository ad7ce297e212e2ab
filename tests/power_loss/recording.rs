//! Owns: the real binary under load with the library preloaded, and what callers, machine and readers saw of it, each
//! at its place in the log.
//! May call: harness, load, tape.
//! Never: enter anything that was not answered, or not counted at the device.

use super::harness::{PATIENCE, PRESS, PRESS_SIM, Rig};
use super::load::{self, Asked, Book, Effects, Kind, Random};
use super::tape::{self, Tape};
use holdfast::cli::client::Client;
use holdfast::simulator::{Cause, Device};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// A source that the gateway acknowledges to the machine.
const HANDSHAKE: &str = r#"
[[event]]
type = "unit.done"
source = "handshake"
ready = "coil:20"
ack = "coil:21"
item = "holding:220"
data = [{ name = "good", read = "holding:222" }]
poll = "20ms"
"#;
const HANDSHAKE_SIM: &str = r#"
[[handshake]]
ready = "coil:20"
ack = "coil:21"
item = "holding:220"
data = "holding:222"
"#;

/// The machine of these tests, as it comes.
pub(crate) fn simulator_toml() -> String {
    load::sim_toml(PRESS_SIM) + HANDSHAKE_SIM
}

/// How long a sync takes: long enough that an answer given before its end is seen before its end.
const SYNC_US: u64 = 2_000;
const CALLERS: u64 = 3;
/// Operations of each of the three runs.
const OPERATIONS: usize = 40;

/// Operations around one error of the disk.
const OPERATIONS_FEW: usize = 30;

/// A rig on a disk whose every change is logged.
pub(crate) struct Recorder {
    pub(crate) rig: Rig,
    pub(crate) book: Arc<Book>,
    pub(crate) log: PathBuf,
    /// In the environment of every start that is watched.
    pub(crate) always: Vec<(&'static str, &'static str)>,
    home: tempfile::TempDir,
    shim: PathBuf,
}

impl Recorder {
    pub(crate) async fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let shim = tape::build_shim(home.path());
        let rig = Rig::with(&(load::machine_toml(PRESS) + HANDSHAKE), &simulator_toml()).await;
        let log = home.path().join("log");
        std::fs::create_dir(home.path().join("disk")).unwrap();
        Self {
            rig,
            book: Arc::new(Book::default()),
            log,
            always: Vec::new(),
            home,
            shim,
        }
    }

    fn kill_file(&self) -> PathBuf {
        self.home.path().join("kill")
    }

    pub(crate) fn arm_file(&self) -> PathBuf {
        self.home.path().join("arm")
    }

    /// What the disk holds of files of which the kernel shows something else.
    pub(crate) fn disk_dir(&self) -> PathBuf {
        self.home.path().join("disk")
    }

    /// The next start is watched; `more` in its environment.
    pub(crate) fn watch(&mut self, more: &[(&str, &str)]) {
        let root = self.rig.path().display().to_string();
        let (shim, log) = (
            self.shim.display().to_string(),
            self.log.display().to_string(),
        );
        let (kill, arm) = (
            self.kill_file().display().to_string(),
            self.arm_file().display().to_string(),
        );
        let disk = self.disk_dir().display().to_string();
        let sync_us = SYNC_US.to_string();
        let all = [
            ("LD_PRELOAD", shim.as_str()),
            ("HOLDFAST_SHIM_ROOT", &root),
            ("HOLDFAST_SHIM_LOG", &log),
            ("HOLDFAST_SHIM_KILL", &kill),
            ("HOLDFAST_SHIM_ARM", &arm),
            ("HOLDFAST_SHIM_DISK", &disk),
            ("HOLDFAST_SHIM_SYNC_US", &sync_us),
        ];
        for (key, value) in all.iter().chain(&self.always).chain(more) {
            self.rig.env(key, value);
        }
    }

    /// Killed between two changes of the disk, so that the log is exact.
    pub(crate) async fn kill(&mut self) {
        std::fs::write(self.kill_file(), "").unwrap();
        self.rig.until_dead().await;
        std::fs::remove_file(self.kill_file()).unwrap();
    }

    /// Killed where it changes nothing on the disk: in recovery mode.
    pub(crate) fn kill_at_rest(&mut self) {
        self.rig.kill();
    }

    /// Created and stopped; started from that and killed; started from what the kill left and killed.
    pub(crate) async fn run(&mut self, seed: u64, more: &[(&str, &str)]) {
        let mut random = Random::new(seed);
        for turn in 0..3 {
            self.watch(more);
            self.rig.start_up().await;
            let (_, status) = self.rig.get("/v1/status").await;
            tape::mark(
                &self.log,
                &format!("epoch {}", status["journal"]["epoch"].as_str().unwrap()),
            );
            self.load(&mut random, turn == 0).await;
        }
    }

    async fn load(&mut self, random: &mut Random, to_the_end: bool) {
        let enough = self.book.len() + OPERATIONS;
        let load = self.begin_load(random);
        let book = Arc::clone(&self.book);
        self.rig
            .until("enough operations", async |_| book.len() >= enough)
            .await;
        if to_the_end {
            load.end().await;
            assert!(self.rig.stop().await.success(), "{}", self.rig.log());
        } else {
            self.kill().await;
            load.end().await;
        }
    }

    /// A load that comes to its end.
    pub(crate) async fn load_some(&mut self) {
        let enough = self.book.len() + OPERATIONS_FEW;
        let load = self.begin_load(&mut Random::new(enough as u64));
        let book = Arc::clone(&self.book);
        self.rig
            .until("enough operations", async |_| book.len() >= enough)
            .await;
        load.end().await;
    }

    /// A load under which the process may end, or must; how it did, if it did.
    pub(crate) async fn load_until_ended(&mut self, must_end: bool) -> Option<ExitStatus> {
        let enough = self.book.len() + OPERATIONS_FEW;
        let load = self.begin_load(&mut Random::new(enough as u64));
        let begun = Instant::now();
        let ended = loop {
            let child = self.rig.gateway.as_mut().unwrap();
            if let Some(status) = child.try_wait().unwrap() {
                self.rig.gateway = None;
                break Some(status);
            }
            if !must_end && self.book.len() >= enough {
                break None;
            }
            assert!(begun.elapsed() < PATIENCE, "{}", self.rig.log());
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        load.end().await;
        ended
    }

    fn begin_load(&self, random: &mut Random) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let client = self.rig.client.clone();
        let mut tasks = Vec::new();
        for _ in 0..CALLERS {
            let (book, client, stop, log) = (
                Arc::clone(&self.book),
                client.clone(),
                Arc::clone(&stop),
                self.log.clone(),
            );
            let seed = random.next();
            tasks.push(tokio::spawn(async move {
                call(book, client, stop, log, seed).await;
            }));
        }
        let device = self.rig.device.clone();
        tasks.push(tokio::spawn(load::tick_until(
            device.clone(),
            Arc::clone(&stop),
        )));
        let (book, theirs, log) = (Arc::clone(&self.book), Arc::clone(&stop), self.log.clone());
        tasks.push(tokio::spawn(async move {
            watch_device(book, device, theirs, log).await;
        }));
        let (theirs, log) = (Arc::clone(&stop), self.log.clone());
        tasks.push(tokio::spawn(async move {
            watch_events(client, theirs, log).await;
        }));
        Load { stop, tasks }
    }
}

/// Callers, ticking machine and readers at work.
struct Load {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

async fn call(book: Arc<Book>, client: Client, stop: Arc<AtomicBool>, log: PathBuf, seed: u64) {
    let mut random = Random::new(seed);
    while !stop.load(Ordering::Relaxed) {
        let kind = match random.below(10) {
            0..=2 => Kind::Mailbox,
            3..=5 => Kind::Length,
            6..=8 => Kind::Speed,
            _ => Kind::Nudge,
        };
        let (id, body) = book.new_request(kind);
        if !submit(&client, &log, &id, &body, random.one_in(2)).await {
            return;
        }
        if random.one_in(4) {
            let known = book.ids();
            let id = &known[random.below(known.len() as u64) as usize];
            if !submit(&client, &log, id, &book.get(id).body, true).await {
                return;
            }
        }
    }
}

/// Enters what the answer says; false: nobody answered.
pub(crate) async fn submit(client: &Client, log: &Path, id: &str, body: &Json, wait: bool) -> bool {
    let path = if wait {
        "/v1/operations?wait=300ms"
    } else {
        "/v1/operations"
    };
    let Some((_, answer)) = load::ask(client, path, Some(body)).await else {
        return false;
    };
    let operation = if answer["state"].is_string() {
        &answer
    } else {
        &answer["operation"]
    };
    if let Some(state) = operation["state"].as_str() {
        tape::mark(log, &format!("op {id} {state}"));
    }
    true
}

async fn watch_device(book: Arc<Book>, device: Device, stop: Arc<AtomicBool>, log: PathBuf) {
    let mut every = tokio::time::interval(Duration::from_millis(1));
    let known = device.items(0);
    let mut items_entered = known.iter().filter(|item| item.acknowledged).count();
    let (mut seen, mut entered) = (device.ledger().len(), BTreeSet::new());
    while !stop.load(Ordering::Relaxed) {
        every.tick().await;
        let items = device.items(0);
        let acknowledged: Vec<u32> = items
            .iter()
            .filter(|item| item.acknowledged)
            .map(|item| item.number)
            .collect();
        for number in acknowledged.iter().skip(items_entered) {
            tape::mark(&log, &format!("item {number}"));
        }
        items_entered = items_entered.max(acknowledged.len());
        if acknowledged.len() == items.len() {
            device.present(0, 1);
        }
        let fresh = device.ledger_since(seen);
        if fresh.is_empty() {
            continue;
        }
        seen += fresh.len();
        for effect in &fresh {
            if let Cause::Mailbox { request_id, .. } = effect.cause {
                tape::mark(&log, &format!("request {request_id}"));
            }
        }
        let effects = Effects::of(&device);
        for id in book.ids() {
            if !entered.contains(&id) && effects.count(&book.get(&id)) > 0 {
                tape::mark(&log, &format!("effect {id}"));
                entered.insert(id);
            }
        }
    }
}

async fn watch_events(client: Client, stop: Arc<AtomicBool>, log: PathBuf) {
    let mut after = String::new();
    while !stop.load(Ordering::Relaxed) {
        let path = format!("/v1/events?limit=1000{after}");
        let Some((200, page)) = load::ask(&client, &path, None).await else {
            return;
        };
        for event in page["events"].as_array().unwrap() {
            let text = |name: &str| event[name].as_str().unwrap().to_owned();
            tape::mark(
                &log,
                &format!(
                    "event {}/{}/{}",
                    text("source"),
                    text("epoch"),
                    text("sequence")
                ),
            );
            after = format!("&after={}", text("cursor"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What had been seen by a moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// The state last told, by operation; a final one stays.
    pub(crate) operations: BTreeMap<String, String>,
    pub(crate) effects: BTreeSet<String>,
    pub(crate) events: BTreeSet<String>,
    pub(crate) epoch: u64,
    pub(crate) request_id: u32,
    /// Items that the machine saw acknowledged.
    pub(crate) items: BTreeSet<u32>,
    through: usize,
}

impl Told {
    pub(crate) fn advance(&mut self, tape: &Tape, moment: usize) {
        let from = self.through;
        for (at, text) in tape.marks().skip_while(|(at, _)| *at < from) {
            if at >= moment {
                break;
            }
            self.take(text);
        }
        self.through = moment;
    }

    fn take(&mut self, text: &str) {
        let (what, rest) = text.split_once(' ').unwrap();
        match what {
            "op" => {
                let (id, state) = rest.split_once(' ').unwrap();
                let known = self.operations.entry(id.into()).or_default();
                if !load::is_final(known) {
                    state.clone_into(known);
                }
            }
            "effect" => drop(self.effects.insert(rest.into())),
            "item" => drop(self.items.insert(rest.parse().unwrap())),
            "event" => drop(self.events.insert(rest.into())),
            "epoch" => self.epoch = self.epoch.max(rest.parse().unwrap()),
            "request" => self.request_id = self.request_id.max(rest.parse().unwrap()),
            _ => panic!("{text}"),
        }
    }
}

/// How often this operation had its effect, before the power loss and since, at a device that is new since.
pub(crate) fn effects_in_all(told: &Told, since: &Effects, id: &str, asked: &Asked) -> usize {
    usize::from(told.effects.contains(id)) + since.count(asked)
}
