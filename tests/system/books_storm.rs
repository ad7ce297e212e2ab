//! The books in a storm: workers that send the same events at once in batches of any size, 2% of them altered,
//! while sessions are ended in the middle of calls and the server is killed.

use crate::books::{assert_adds_up, piece};
use crate::harness::until;
use crate::postgres_server::{Database, PostgresServer, VERSIONS, Version};
use holdfast::core::outbox::Verdict;
use holdfast::upstream::{Books, Row, Target};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const SOURCES: u64 = 6;
const EVENTS_OF_SOURCE: u64 = 150;
const KEYS: u64 = SOURCES * EVENTS_OF_SOURCE;
const BATCH_MAX: u64 = 120;
/// How often the server is killed in each storm.
const KILLS: u64 = 3;

/// xorshift: the same storm for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// What one worker has to deliver: every key, some with a content of its own.
fn work(worker: u64, dice: &mut Dice) -> Vec<Row> {
    let mut rows: Vec<Row> = (0..KEYS)
        .map(|key| {
            let qty = if dice.below(100) < 2 {
                100 + worker as i64
            } else {
                1
            };
            let (source, sequence) = (key % SOURCES, key / SOURCES + 1);
            Row::from_event(&piece(&format!("press-{source}"), 7, sequence, qty))
        })
        .collect();
    for place in (1..rows.len()).rev() {
        rows.swap(place, dice.below(place as u64 + 1) as usize);
    }
    rows
}

/// Delivers until every event is finished; how many answers of each kind came.
async fn deliver(target: Target, worker: u64, seed: u64) -> BTreeMap<&'static str, u64> {
    let mut dice = Dice(seed);
    let mut open = work(worker, &mut dice);
    let mut books: Option<Books> = None;
    let mut seen = BTreeMap::new();
    while !open.is_empty() {
        if books.as_ref().is_none_or(Books::broken) {
            // Passing trouble only: the server is down or starts.
            match Books::connect(&target).await {
                Ok(fresh) => books = Some(fresh),
                Err(error) => {
                    let verdict = error.verdict();
                    assert!(matches!(verdict, Verdict::Retry { .. }), "{error}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            }
        }
        let count = (1 + dice.below(BATCH_MAX) as usize).min(open.len());
        let batch: Vec<Row> = open.drain(..count).collect();
        let verdicts = books
            .as_mut()
            .unwrap()
            .ingest(&format!("gw-{worker}"), "storm", &batch)
            .await;
        assert_eq!(verdicts.len(), batch.len());
        for (row, verdict) in batch.into_iter().zip(verdicts) {
            let name = match verdict {
                Verdict::Accepted => "accepted",
                Verdict::Duplicate => "duplicate",
                Verdict::Conflict { .. } => "conflict",
                Verdict::Retry { .. } => {
                    open.push(row);
                    "retry"
                }
                other => panic!("{other:?}"),
            };
            *seen.entry(name).or_default() += 1;
        }
    }
    seen
}

/// Ends a session of a worker every now and then, in the middle of whatever it does.
async fn end_sessions(database: &Database<'_>, stop: &AtomicBool, ended: &AtomicU64) {
    let sql = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity \
        WHERE usename = 'holdfast_writer' AND datname = current_database() AND state = 'active' ORDER BY random() LIMIT 1) s";
    while !stop.load(Ordering::SeqCst) {
        // The server may just be down.
        if let Ok(rows) = database.try_query(sql).await {
            ended.fetch_add(
                u64::from(rows[0][0].as_deref() == Some("1")),
                Ordering::SeqCst,
            );
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

/// Kills the server each time so much more was entered.
async fn kill_server(database: &Database<'_>, times: u64) {
    for n in 1..=times {
        let rows = (KEYS * n / (times + 1)) as i64;
        until("so many rows", async || database.rows().await >= rows).await;
        database.server.kill();
        database.server.start_again().await;
    }
}

async fn storm(version: Version, workers: u64, kills: u64) {
    let server = PostgresServer::start(version).await;
    let database = server.database().await;
    let stop = Arc::new(AtomicBool::new(false));
    let ended = AtomicU64::new(0);
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..workers {
        tasks.spawn(deliver(
            database.writer(),
            worker,
            0x9e37_79b9_7f4a_7c15 ^ (worker + 1),
        ));
    }
    let finish = async {
        let mut seen = BTreeMap::<&str, u64>::new();
        while let Some(done) = tasks.join_next().await {
            for (name, count) in done.unwrap() {
                *seen.entry(name).or_default() += count;
            }
        }
        stop.store(true, Ordering::SeqCst);
        seen
    };
    let (seen, (), ()) = tokio::join!(
        finish,
        end_sessions(&database, &stop, &ended),
        kill_server(&database, kills)
    );
    let told = format!("{version:?}, {workers} workers, {kills} kills, {ended:?} ended: {seen:?}");
    println!("{told}");
    // Rows are the distinct keys, each as somebody sent it; the total is what stands there.
    assert_eq!(database.rows().await, KEYS as i64, "{told}");
    let foreign = "SELECT count(*) FROM holdfast.event WHERE body <> format('{\"pieces\":  %s}', qty) OR NOT (qty = 1 OR qty BETWEEN 100 AND 108)";
    assert_eq!(database.number(foreign).await, 0, "{told}");
    assert_adds_up(&database).await;
    // Every content that was sent is either the event or kept as evidence beside it, with its own digest.
    let mut contents = BTreeMap::<String, std::collections::BTreeSet<Vec<u8>>>::new();
    for worker in 0..workers {
        for row in work(worker, &mut Dice(0x9e37_79b9_7f4a_7c15 ^ (worker + 1))) {
            contents
                .entry(row.name())
                .or_default()
                .insert(row.digest.to_vec());
        }
    }
    let losers: usize = contents.values().map(|digests| digests.len() - 1).sum();
    assert!(losers > 0, "the storm altered nothing");
    assert_eq!(
        database
            .number("SELECT count(*) FROM holdfast.conflict")
            .await,
        losers as i64,
        "{told}"
    );
    let untrue = "SELECT count(*) FROM holdfast.conflict c JOIN holdfast.event e USING (source, epoch, sequence) WHERE c.kept_digest <> e.digest OR c.digest = e.digest";
    assert_eq!(database.number(untrue).await, 0, "{told}");
    // The books have counted at least what the workers were told: replies can be lost, not made up.
    let [_, accepted, duplicate, conflict, malformed, _] = database.counters().await;
    for (name, counted) in [
        ("accepted", accepted),
        ("duplicate", duplicate),
        ("conflict", conflict),
    ] {
        assert!(counted >= seen[name] as i64, "{name}: {counted}; {told}");
    }
    assert_eq!(malformed, 0, "{told}");
    // One order of locks for everybody.
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(database.number(deadlocks).await, 0, "{told}");
    assert!(
        ended.load(Ordering::SeqCst) > 0,
        "no session was ended; {told}"
    );
}

// covers: B3, B4, B5, B9, B16, ING-02, ING-03, ING-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_and_the_server_killed_three_times() {
    for version in VERSIONS {
        storm(version, 2, KILLS).await;
    }
}

// covers: B3, B4, B5, B9, B16, ING-02, ING-03, ING-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_workers_and_the_server_killed_three_times() {
    for version in VERSIONS {
        storm(version, 4, KILLS).await;
    }
}

// covers: B3, B4, B5, B9, B16, ING-02, ING-03, ING-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_workers_and_the_server_killed_three_times() {
    for version in VERSIONS {
        storm(version, 8, KILLS).await;
    }
}
