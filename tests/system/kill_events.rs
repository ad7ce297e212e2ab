//! Events from the device's register to the row, the gateway killed at every place in between: what the device has in
//! its own ledger is in the books, each once.

use super::books::assert_adds_up;
use super::harness::{PATIENCE, PRESS, PRESS_SIM, Rig};
use super::load::Random;
use super::postgres_server::{Database, PostgresServer, Version};
use holdfast::simulator::data_word;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

const SIGKILL: Option<i32> = Some(9);

/// A source of each kind that has something to lose. The ring is deep enough for all that a dead gateway misses.
pub(crate) const SOURCES: &str = r#"
[[event]]
type = "piece.good"
source = "counter"
read = "holding:600"
data_type = "u16"
unit = "pieces"
max_step = 2000
poll = "20ms"
[[event]]
type = "unit.done"
source = "handshake"
ready = "coil:20"
ack = "coil:21"
item = "holding:220"
data = [{ name = "good", read = "holding:222" }, { name = "batch", read = "holding:223" }]
poll = "20ms"
[[event]]
type = "log.entry"
source = "ring"
head = "holding:9998"
base = "holding:10000"
entries = 4096
words = 4
data = [{ name = "code", word = 2 }, { name = "place", word = 3 }]
poll = "20ms"
"#;

/// The count wraps at 16 bits after 236 pieces.
pub(crate) const SOURCES_SIM: &str = r#"
[[pieces]]
at = "holding:600"
start = 65300
[[handshake]]
ready = "coil:20"
ack = "coil:21"
item = "holding:220"
data = "holding:222"
[[ring]]
head = "holding:9998"
base = "holding:10000"
entries = 4096
words = 4
"#;

/// Killed before the journal exists; nothing is made yet.
const WHILE_CREATING: &[&str] = &[
    "create.before-meta",
    "create.before-manifest",
    "create.before-marker",
    "create.after-marker",
];

/// From the device over the journal and the sink to the cursor; each start follows a kill, and passes what a start
/// after a kill passes.
const WHILE_RUNNING: &[&str] = &[
    "open.before-copy",
    "open.before-store",
    "open.after-epoch",
    "source.after-read",
    "source.after-read:4",
    "source.before-commit",
    "source.before-commit:3",
    "engine.before-commit",
    "engine.before-commit:6",
    "commit.before-insert:2",
    "commit.before-insert:7",
    "commit.before-flush:2",
    "commit.before-flush:7",
    "commit.after-flush:2",
    "commit.after-flush:7",
    "engine.after-commit",
    "engine.after-commit:6",
    "source.durable",
    "source.durable:3",
    "source.before-ack",
    "source.before-ack:3",
    "source.after-ack",
    "source.after-ack:3",
    "sink.before-deliver",
    "sink.before-deliver:3",
    "upstream.before-call",
    "upstream.before-call:3",
    "upstream.after-commit",
    "upstream.after-commit:3",
    "sink.after-deliver",
    "sink.after-deliver:3",
    "cursor.before-commit",
    "cursor.durable",
    "checkpoint.before-flush",
    "checkpoint.after-flush",
];

/// Told to stop, and killed over it.
const WHILE_STOPPING: &[&str] = &[
    "cursor.before-commit",
    "cursor.durable",
    "checkpoint.before-flush",
    "close.before-mark",
    "close.after-mark",
];

/// What every sink has taken leaves the log when its time has come.
const WHILE_TRIMMING: &[&str] = &["trim.before-remove"];

/// Kill points that no event passes on its way to these books, or only after a journal of many megabytes, and who
/// proves them.
const ELSEWHERE: &[(&str, &str)] = &[
    // Commands.
    ("engine.before-answer", "tests/system/acceptance_a_kill.rs"),
    ("engine.before-run", "tests/system/acceptance_a_kill.rs"),
    (
        "link.before-first-byte",
        "tests/system/acceptance_a_kill.rs",
    ),
    ("link.after-reply", "tests/system/acceptance_a_kill.rs"),
    // A journal that is full, or is written anew.
    ("hollow.before-flush", "tests/system/full_journal.rs"),
    ("hollow.before-remove", "tests/system/full_journal.rs"),
    ("rewrite.begun", "tests/journal_kill.rs"),
    ("rewrite.before-switch", "tests/journal_kill.rs"),
    ("rewrite.after-switch", "tests/journal_kill.rs"),
    // The receiver's process.
    ("receiver.before-books", "tests/system/receiver.rs"),
    ("receiver.before-reply", "tests/system/receiver.rs"),
    ("receiver.after-commit", "tests/system/mqtt_chain.rs"),
];

/// Points that the engine names after the kind of a record.
const NAMED_BY_RECORD: &[&str] = &[
    "source.before-commit",
    "source.durable",
    "cursor.before-commit",
    "cursor.durable",
];

/// Every `failpoint!` of the program.
fn points_of_the_program(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            points_of_the_program(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let names = text.split("failpoint!(\"").skip(1);
            found.extend(names.map(|rest| rest.split('"').next().unwrap().to_owned()));
        }
    }
}

/// A gateway whose only sink is the books, and what it was seen to have written down.
pub(crate) struct Line {
    pub(crate) rig: Rig,
    /// Items of the handshake that a journal of a killed gateway held.
    items: BTreeSet<u64>,
    /// Entries of the ring likewise.
    entries: u64,
    /// Keys likewise.
    keys: BTreeSet<String>,
    /// Deaths by kill point.
    deaths: BTreeMap<String, u32>,
}

impl Line {
    pub(crate) async fn new(database: &Database<'_>) -> Self {
        let machine = format!("{PRESS}{SOURCES}");
        let mut rig = Rig::with(&machine, &format!("{PRESS_SIM}{SOURCES_SIM}")).await;
        let start = rig.gateway_toml.find("[[sink]]").unwrap();
        rig.gateway_toml.truncate(start);
        rig.gateway_toml += &format!(
            "[journal]\nkeep_events = \"1h\"\n[[sink]]\nname = \"books\"\nkind = \"postgres\"\nlanes = 2\nurl = \"{}?sslmode=disable\"\n",
            database.writer_url()
        );
        Self {
            rig,
            items: BTreeSet::new(),
            entries: 0,
            keys: BTreeSet::new(),
            deaths: BTreeMap::new(),
        }
    }

    /// It knows where counter and ring stood before anything was made.
    pub(crate) async fn begin(&mut self) {
        self.rig.start_up().await;
        self.rig
            .until("counter and ring have their baselines", async |rig| {
                rig.events_of("source.baseline").await.len() == 2
            })
            .await;
    }

    /// The device makes some of each, if the last item was taken and let go: it never has long to wait.
    pub(crate) fn make(&self) {
        let device = &self.rig.device;
        let taken = device.items(0).iter().all(|item| item.acknowledged);
        if taken && !device.coil(20) && !device.coil(21) {
            device.present(0, 2);
            device.log_entries(0, 3);
            device.make_pieces(0, 11);
        }
    }

    /// ... and goes on without looking, as far as its ring holds what nobody has read yet.
    fn press_on(&self, random: &mut Random) {
        self.make();
        let device = &self.rig.device;
        device.make_pieces(0, 1 + random.below(2));
        if (device.entries(0).len() as u64) < self.entries + RING_BACKLOG_MAX {
            device.log_entries(0, random.below(3));
        }
    }

    /// Lets it die at `point`.
    async fn die_at(&mut self, point: &str) {
        self.make();
        self.rig.env("HOLDFAST_KILL_AT", point);
        self.rig.spawn();
        self.until_killed(point).await;
    }

    /// The device goes on until the gateway is dead.
    async fn until_killed(&mut self, point: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let child = self.rig.gateway.as_mut().unwrap();
            if let Some(status) = child.try_wait().unwrap() {
                self.rig.gateway = None;
                assert_eq!(status.signal(), SIGKILL, "{point}\n{}", self.rig.log());
                break;
            }
            assert!(
                Instant::now() < deadline,
                "{point} was never reached\n{}",
                self.rig.log()
            );
            self.make();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let name = point
            .split_once(':')
            .map_or(point, |(name, _)| name)
            .to_owned();
        *self.deaths.entry(name).or_default() += 1;
    }

    /// What the journal of the gateway that is not running holds, as anybody can read it.
    fn read_journal(&mut self) {
        let dir = self.rig.journal_dir();
        let args = ["journal", "export", dir.to_str().unwrap()];
        let out = self.rig.command(&args).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        for line in String::from_utf8(out.stdout).unwrap().lines() {
            let line: Json = serde_json::from_str(line).unwrap();
            let records = line["value"]["records"].as_array();
            let events = records.into_iter().flatten().map(|record| &record["Event"]);
            for event in events.filter(|event| !event.is_null()) {
                let key = &event["key"];
                let source = key["source"].as_str().unwrap();
                self.keys
                    .insert(format!("{source}/{}/{}", key["epoch"], key["sequence"]));
                let body: Json = serde_json::from_str(event["body"].as_str().unwrap()).unwrap();
                let number = |name: &str| body[name].as_u64().unwrap();
                match event["event_type"].as_str().unwrap() {
                    "unit.done" => _ = self.items.insert(number("item")),
                    "log.entry" => self.entries = self.entries.max(number("entry")),
                    _ => {}
                }
            }
        }
    }

    /// After a kill: nothing was acknowledged at the device, and nothing is in the books, that is not written down.
    async fn nothing_ahead_of_the_journal(&mut self, database: &Database<'_>, point: &str) {
        self.read_journal();
        for item in self.rig.device.items(0) {
            assert!(
                !item.acknowledged || self.items.contains(&item.number.into()),
                "{point}: {item:?} is acknowledged and in no journal"
            );
        }
        // A server that is away has nothing to show now; it is asked after the next kill.
        let Ok(rows) = database.try_query(KEYS).await else {
            return;
        };
        for key in rows.into_iter().flatten().flatten() {
            assert!(self.keys.contains(&key), "{point}: {key} is in no journal");
        }
    }

    /// The device has made all; everything it made is taken, and the books have all that the gateway has.
    async fn finish(&mut self, database: &Database<'_>) {
        let device = self.rig.device.clone();
        self.rig
            .until("every item is acknowledged", async |_| {
                let items = device.items(0);
                items.iter().all(|item| item.acknowledged) && !device.coil(20) && !device.coil(21)
            })
            .await;
        let (pieces, entries) = (
            i64::try_from(device.pieces_made(0)).unwrap(),
            device.entries(0).len() as i64,
        );
        self.rig
            .until("the books have what the device made", async |rig| {
                // The wait before a next try is over too.
                rig.clock.pass(1_000);
                let told = "SELECT coalesce(sum(qty) FILTER (WHERE type = 'piece.good'), 0) || ' ' || \
                    count(*) FILTER (WHERE type = 'log.entry') FROM holdfast.event";
                database.value(told).await == format!("{pieces} {entries}")
            })
            .await;
        self.rig
            .until("the sink has everything", async |rig| {
                let (_, sinks) = rig.get("/v1/sinks").await;
                sinks["sinks"][0]["backlog"]["events"] == "0"
            })
            .await;
        assert!(self.rig.stop().await.success(), "{}", self.rig.log());
    }

    /// The books against the device's own ledger.
    async fn books_agree(&self, database: &Database<'_>) {
        let device = &self.rig.device;
        let made: Vec<Json> = device.items(0).iter().map(numbers).collect();
        let told = numbers_in(database, "unit.done", ["item", "good", "batch"]).await;
        assert_eq!(told, made, "{}", self.rig.log());
        let logged: Vec<Json> = device.entries(0).iter().map(numbers).collect();
        let told = numbers_in(database, "log.entry", ["entry", "code", "place"]).await;
        assert_eq!(told, logged, "{}", self.rig.log());
        let pieces = i64::try_from(device.pieces_made(0)).unwrap();
        for (kind, made) in [
            ("piece.good", pieces),
            ("unit.done", made.len() as i64),
            ("log.entry", logged.len() as i64),
        ] {
            let total = format!("SELECT qty FROM holdfast.total WHERE type = '{kind}'");
            assert_eq!(database.number(&total).await, made, "total of {kind}");
        }
        // Each source began once; nothing about it was ever strange.
        let remarks =
            "SELECT type, count(*) FROM holdfast.event WHERE type LIKE 'source.%' GROUP BY 1";
        let baselines = [Some("source.baseline".to_owned()), Some("3".to_owned())];
        assert_eq!(
            database.query(remarks).await,
            [baselines],
            "{}",
            self.rig.log()
        );
        keys_are_whole(database).await;
        // A resend was never anything but a duplicate. A call that a dying server rolled back is counted as failed.
        let [_, _, _, conflict, malformed, _] = database.counters().await;
        assert_eq!((conflict, malformed), (0, 0));
        assert_eq!(database.pending().await, 0);
        assert_adds_up(database).await;
    }
}

const KEYS: &str = "SELECT source || '/' || epoch || '/' || sequence FROM holdfast.event";

/// Within an epoch, sequences begin at 1 and have no gap (EVT-02); a key is unique by the table's own constraint.
pub(crate) async fn keys_are_whole(database: &Database<'_>) {
    let gaps = "SELECT source, epoch, min(sequence), max(sequence), count(*) FROM holdfast.event GROUP BY 1, 2 \
        HAVING min(sequence) <> 1 OR max(sequence) <> count(*)";
    let gaps = database.query(gaps).await;
    assert!(gaps.is_empty(), "{gaps:?}");
}

/// The device's own number, and its data words.
fn numbers(item: &holdfast::simulator::Item) -> Json {
    json!([
        item.number,
        data_word(item.seed, 0),
        data_word(item.seed, 1)
    ])
}

/// The same as the books tell it, in the order of the keys.
async fn numbers_in(database: &Database<'_>, kind: &str, names: [&str; 3]) -> Vec<Json> {
    let sql =
        format!("SELECT body FROM holdfast.events WHERE type = '{kind}' ORDER BY epoch, sequence");
    let rows = database.query(&sql).await.into_iter().flatten().flatten();
    rows.map(|body| {
        let body: Json = serde_json::from_str(&body).unwrap();
        let [number, first, second] = names;
        let data = &body["data"];
        json!([body[number], data[first]["value"], data[second]["value"]])
    })
    .collect()
}

/// Every kill point of the program was met here, or somebody else names it.
fn every_point_was_met(deaths: &BTreeMap<String, u32>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut points = NAMED_BY_RECORD.iter().map(ToString::to_string).collect();
    points_of_the_program(&root.join("src"), &mut points);
    assert!(points.len() > NAMED_BY_RECORD.len(), "{points:?}");
    for point in &points {
        let Some((_, file)) = ELSEWHERE.iter().find(|(name, _)| name == point) else {
            assert!(deaths.contains_key(point), "nobody died at {point}");
            continue;
        };
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        assert!(
            text.contains(&format!("\"{point}")),
            "{file} does not name {point}"
        );
    }
    for (point, _) in ELSEWHERE {
        assert!(points.contains(*point), "there is no {point}");
    }
}

/// Killed at each point of these lists; who died where.
async fn killed_at_all(
    version: Version,
    while_creating: &[&str],
    while_running: &[&str],
    while_stopping: &[&str],
    while_trimming: &[&str],
) -> BTreeMap<String, u32> {
    let database = PostgresServer::shared(version).await.database().await;
    let mut line = Line::new(&database).await;
    for point in while_creating {
        line.rig.env("HOLDFAST_KILL_AT", point);
        line.rig.spawn();
        let status = line.rig.until_dead().await;
        assert_eq!(status.signal(), SIGKILL, "{point}\n{}", line.rig.log());
        *line.deaths.entry((*point).to_owned()).or_default() += 1;
    }
    line.begin().await;
    line.rig.kill();
    for point in while_running {
        line.die_at(point).await;
        line.nothing_ahead_of_the_journal(&database, point).await;
    }
    for point in while_stopping {
        line.rig.env("HOLDFAST_KILL_AT", point);
        line.rig.start_up().await;
        line.make();
        line.rig.terminate();
        line.until_killed(point).await;
        line.nothing_ahead_of_the_journal(&database, point).await;
    }
    for point in while_trimming {
        line.rig.clock.pass(2 * 3_600_000);
        line.die_at(point).await;
        line.nothing_ahead_of_the_journal(&database, point).await;
    }
    line.rig.start_up().await;
    line.finish(&database).await;
    line.books_agree(&database).await;
    line.deaths
}

// covers: A14, B5, EVT-01, EVT-02, EVT-04, FWD-01, REC-01, REL-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_every_point_what_the_device_made_is_in_the_books_once() {
    let deaths = killed_at_all(
        Version::V18,
        WHILE_CREATING,
        WHILE_RUNNING,
        WHILE_STOPPING,
        WHILE_TRIMMING,
    )
    .await;
    every_point_was_met(&deaths);
}

// covers: A14, B5, EVT-01, EVT-02, EVT-04, FWD-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_on_the_way_to_the_older_books_likewise() {
    let near = |point: &&&str| {
        let sides = ["sink.", "upstream.", "cursor."];
        sides.iter().any(|side| point.starts_with(side))
    };
    let points: Vec<&str> = WHILE_RUNNING.iter().filter(near).copied().collect();
    let deaths = killed_at_all(Version::V15, &[], &points, &WHILE_STOPPING[..2], &[]).await;
    assert_eq!(deaths.len(), 6, "{deaths:?}");
}

/// Replays with the same choices; another one by `HOLDFAST_SEED`.
const SEED: u64 = 0x6b69_6c6c_6576_7473;
/// Another number by `HOLDFAST_ROUNDS`.
const ROUNDS: u64 = 24;
/// A machine that is too busy for all rounds in this time does fewer, and says so; not if they were asked for.
const ROUNDS_SECONDS_MAX: u64 = 60;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Entries that the device logs at most before somebody has read them: less than its ring holds.
const RING_BACKLOG_MAX: u64 = 3_000;

/// What fails around the gateway while it runs.
#[derive(Clone, Copy, Debug, Default)]
struct Around {
    link_cuts: u32,
    connections_lost: u32,
    servers_killed: u32,
    sessions_ended: u32,
}

impl Around {
    /// One of the faults, or none; what is put right at once, and what stays until the next.
    async fn strike(&mut self, random: &mut Random, line: &Line, database: &Database<'_>) {
        match random.below(8) {
            0 => {
                self.link_cuts += 1;
                line.rig.device.cut();
            }
            1 => {
                self.connections_lost += 1;
                line.rig.device.close_connections();
            }
            2 if !database.server.is_killed() => {
                self.servers_killed += 1;
                database.server.kill();
            }
            3 if !database.server.is_killed() => {
                self.sessions_ended += 1;
                database.terminate_all().await;
            }
            _ => {
                line.rig.device.restore();
                if database.server.is_killed() {
                    database.server.start_again().await;
                }
            }
        }
    }
}

/// Runs it among faults until it dies at a point, or is killed at a moment, that chance has chosen.
async fn round(line: &mut Line, random: &mut Random, around: &mut Around, database: &Database<'_>) {
    if random.one_in(2) {
        let point = WHILE_RUNNING[random.below(WHILE_RUNNING.len() as u64) as usize];
        let name = point.split(':').next().unwrap();
        let nth = 1 + random.below(12);
        line.rig.env("HOLDFAST_KILL_AT", &format!("{name}:{nth}"));
    }
    line.make();
    line.rig.spawn();
    let end = Instant::now() + Duration::from_millis(100 + random.below(1_400));
    let mut strike = Instant::now() + Duration::from_millis(random.below(500));
    while Instant::now() < end {
        let child = line.rig.gateway.as_mut().unwrap();
        if let Some(status) = child.try_wait().unwrap() {
            assert_eq!(status.signal(), SIGKILL, "{}", line.rig.log());
            line.rig.gateway = None;
            break;
        }
        if Instant::now() >= strike {
            around.strike(random, line, database).await;
            strike = Instant::now() + Duration::from_millis(random.below(500));
        }
        line.press_on(random);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    line.rig.kill();
}

// covers: A14, B15, EVT-01, EVT-02, EVT-04, FWD-01, REC-01, REL-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_random_with_link_and_database_failing_each_piece_counts_once() {
    let (seed, rounds) = (
        number("HOLDFAST_SEED", SEED),
        number("HOLDFAST_ROUNDS", ROUNDS),
    );
    println!("HOLDFAST_SEED={seed} HOLDFAST_ROUNDS={rounds}");
    let asked_for = std::env::var_os("HOLDFAST_ROUNDS").is_some();
    let mut random = Random::new(seed);
    let version = if random.one_in(2) {
        Version::V15
    } else {
        Version::V18
    };
    let server = PostgresServer::start(version).await;
    let database = server.database().await;
    let mut line = Line::new(&database).await;
    line.begin().await;
    line.rig.kill();
    let mut around = Around::default();
    let (begun, mut done) = (Instant::now(), 0);
    while done < rounds && (asked_for || begun.elapsed().as_secs() < ROUNDS_SECONDS_MAX) {
        done += 1;
        round(&mut line, &mut random, &mut around, &database).await;
        line.nothing_ahead_of_the_journal(&database, &format!("round {done}"))
            .await;
    }
    line.rig.device.restore();
    if server.is_killed() {
        server.start_again().await;
    }
    line.rig.start_up().await;
    line.finish(&database).await;
    line.books_agree(&database).await;
    let device = &line.rig.device;
    println!(
        "{done} of {rounds} rounds in {:.1} s on {version:?}: {} items, {} entries, {} pieces; {around:?}; {:?} in the books",
        begun.elapsed().as_secs_f64(),
        device.items(0).len(),
        device.entries(0).len(),
        device.pieces_made(0),
        database.counters().await,
    );
    assert!(done >= rounds.min(5), "too few rounds: {done}");
    let struck = around.link_cuts + around.connections_lost + around.servers_killed;
    assert!(
        u64::from(struck) >= done / 4,
        "too little failed: {around:?}"
    );
}
