//! Owns: what keeps the books from taking events for a while (the server, the schema, a right) or for good (a value).
//! May call: the harness, the PostgreSQL servers, the common questions of part B.
//! Never: count an event as arrived that is not a row; move the clock where the gateway should act by itself.

use crate::acceptance_b::{
    answers, cli, dead_letters, gateway, holding, sink, stands, start, until_settled,
};
use crate::books::piece;
use crate::harness::{PRESS, PRESS_SIM, Rig};
use crate::identity::{copy, set_back};
use crate::postgres_server::{Database, PostgresServer, Version};
use crate::postgres_sink::all_in_the_books;
use holdfast::core::record::EventRecord;

const COUNTER: &str = r#"
[[event]]
type = "piece.good"
source = "counter"
read = "holding:600"
data_type = "u32"
unit = "pieces"
max_step = 200
poll = "20ms"
class = "business"
"#;
const COUNTER_SIM: &str = "[[pieces]]\nat = \"holding:600\"\nwords = 2\n";
/// As long as the outages are.
const OUTAGE_MS: i64 = 600_000;
/// Longest wait of a sink before it tries again.
const BACKOFF_MS: i64 = 60_000;

fn machine() -> String {
    format!("{PRESS}{COUNTER}")
}

fn simulator() -> String {
    format!("{PRESS_SIM}{COUNTER_SIM}")
}

/// A press that counts, whose events are in the books so far.
async fn counting(name: &str, database: &Database<'_>) -> Rig {
    let port = database.server.port;
    let mut rig = gateway(name, database, port, &machine(), &simulator()).await;
    rig.start_up().await;
    rig.until("the counter has its baseline", async |rig| {
        !rig.events_of("source.baseline").await.is_empty()
    })
    .await;
    produce(&mut rig, 5).await;
    all_in_the_books(&mut rig, database).await;
    rig
}

/// So many pieces at once; the gateway has them on record.
async fn produce(rig: &mut Rig, pieces: u64) {
    rig.device.make_pieces(0, pieces);
    let made = i64::try_from(rig.device.pieces_made(0)).unwrap();
    rig.until("the pieces are on record", async |rig| {
        let events = rig.events_of("piece.good").await;
        let told = events.iter().map(|event| event["qty"].as_i64().unwrap());
        told.sum::<i64>() == made
    })
    .await;
}

/// Ten minutes by the gateway's clocks, in which the machine works on.
async fn work_through_ten_minutes(rig: &mut Rig, steps: i64) {
    for _ in 0..steps {
        produce(rig, 3).await;
        rig.clock.pass(OUTAGE_MS / steps);
    }
}

async fn counted(database: &Database<'_>) -> i64 {
    let sql = "SELECT coalesce(sum(qty), 0) FROM holdfast.total WHERE type = 'piece.good' AND source = 'press-1'";
    database.number(sql).await
}

/// Every event is a row, every piece counted, and nothing waits for a person.
async fn whole(rig: &mut Rig, database: &Database<'_>) {
    all_in_the_books(rig, database).await;
    until_settled(rig, "books").await;
    let made = i64::try_from(rig.device.pieces_made(0)).unwrap();
    assert_eq!(counted(database).await, made);
    assert_eq!(database.pending().await, 0);
    let [_, accepted, duplicates, conflicts, malformed, _] = answers(rig, "books").await;
    let [_, rows, again, ..] = database.counters().await;
    assert_eq!((conflicts, malformed), (0, 0));
    // A reply that the server's end took away is heard as a duplicate afterwards.
    assert!(accepted <= rows && accepted + duplicates <= rows + again);
    assert!(
        accepted + duplicates >= rows,
        "an event is held as settled that nobody answered for"
    );
}

/// The server is gone for ten minutes; `lose` is how it goes.
async fn outage(version: Version, lose: impl FnOnce(&PostgresServer)) {
    let server = PostgresServer::start(version).await;
    let database = server.database().await;
    let mut rig = counting("gw-b15", &database).await;
    let before = database.rows().await;
    lose(&server);
    work_through_ten_minutes(&mut rig, 30).await;
    rig.until("the sink says that it tries again", async |rig| {
        sink(rig, "books").await["circuit"] == "retrying"
    })
    .await;
    let [.., retries] = answers(&rig, "books").await;
    assert!(retries > 0);
    let waiting: i64 = sink(&rig, "books").await["backlog"]["events"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(waiting, rig.events().await.len() as i64 - before);
    assert!(!rig.alarms().await.contains(&"sink_stopped".to_owned()));
    server.start_again().await;
    assert_eq!(database.rows().await, before);
    // By itself, once its wait is over.
    rig.clock.pass(BACKOFF_MS);
    whole(&mut rig, &database).await;
}

// covers: B15, B16, FWD-01, FWD-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_that_is_away_for_ten_minutes_costs_nothing_on_15() {
    outage(Version::V15, PostgresServer::kill).await;
}

// covers: B15, B16, FWD-01, FWD-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_server_that_is_away_for_ten_minutes_costs_nothing_on_18() {
    outage(Version::V18, PostgresServer::stop).await;
}

/// What an administrator did to the books, and how the server says it. All of it is put right by what the alarm says.
const MISHAPS: [(&str, &str); 3] = [
    (
        "ALTER FUNCTION holdfast.ingest RENAME TO ingest_moved",
        "42883",
    ),
    (
        "REVOKE EXECUTE ON FUNCTION holdfast.ingest FROM holdfast_writer",
        "42501",
    ),
    ("DROP FUNCTION holdfast.ingest", "42883"),
];

async fn wrong_schema(version: Version) {
    let server = PostgresServer::shared(version).await;
    let database = server.database().await;
    let mut rig = counting("gw-42", &database).await;
    for (mishap, sqlstate) in MISHAPS {
        let before = database.rows().await;
        database.query(mishap).await;
        produce(&mut rig, 3).await;
        rig.until(
            "the sink stands still, and there is an alarm",
            async |rig| {
                sink(rig, "books").await["circuit"] == "stopped"
                    && rig.alarms().await.contains(&"sink_stopped".to_owned())
            },
        )
        .await;
        let (_, status) = rig.get("/v1/status").await;
        let alarms = status["alarms"].as_array().unwrap();
        let alarm = alarms.iter().find(|alarm| alarm["code"] == "sink_stopped");
        let text = alarm.unwrap()["text"].as_str().unwrap().to_owned();
        for part in ["books", sqlstate, "holdfast upstream init"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let said = cli(&rig, &["sinks", "books"]);
        assert!(said.contains("holdfast sinks books resume"), "{said}");
        let tried = answers(&rig, "books").await;
        // Not tried again, however long it takes, nor when it is mended: until a person says so.
        work_through_ten_minutes(&mut rig, 5).await;
        cli(&rig, &["upstream", "init", "--url", &database.admin().url]);
        work_through_ten_minutes(&mut rig, 5).await;
        assert_eq!(answers(&rig, "books").await, tried);
        assert_eq!(database.rows().await, before);
        assert_eq!(sink(&rig, "books").await["circuit"], "stopped");
        cli(&rig, &["sinks", "books", "resume"]);
        // Its end is an event too.
        rig.until("the alarm is over", async |rig| {
            !rig.alarms().await.contains(&"sink_stopped".to_owned())
        })
        .await;
        whole(&mut rig, &database).await;
    }
    // One event for each time it stood, and for each end.
    assert!(rig.events_of("alarm.raised").await.len() >= 2);
}

// covers: FWD-01, FWD-02, ING-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_schema_stops_the_sink_with_an_alarm_until_somebody_resumes_it_on_15() {
    wrong_schema(Version::V15).await;
}

// covers: FWD-01, FWD-02, ING-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_schema_stops_the_sink_with_an_alarm_until_somebody_resumes_it_on_18() {
    wrong_schema(Version::V18).await;
}

/// A thousand events; the plant's own rule refuses the 500th.
fn thousand() -> Vec<EventRecord> {
    let qty = |n| if n == 500 { 100 } else { 1 };
    (1..=1000).map(|n| piece("P", 7, n, qty(n))).collect()
}

async fn the_only_letter(rig: &mut Rig) -> (String, String) {
    rig.until("there is a dead letter", async |rig| {
        dead_letters(rig).await.len() == 1
    })
    .await;
    until_settled(rig, "books").await;
    let letter = dead_letters(rig).await.remove(0);
    assert_eq!(letter["status"], "malformed");
    let text = |name: &str| letter[name].as_str().unwrap().to_owned();
    (text("key"), text("reason"))
}

async fn poisoned(version: Version) {
    let server = PostgresServer::shared(version).await;
    let database = server.database().await;
    let rule = "ALTER TABLE holdfast.event ADD CONSTRAINT plant CHECK (qty < 100)";
    database.query(rule).await;
    let mut rig = holding("gw-p", &database, server.port, &thousand()).await;
    start(&mut rig).await;
    let (key, reason) = the_only_letter(&mut rig).await;
    assert_eq!(key, "P/7/500");
    assert!(
        reason.contains("refused_value") && reason.contains("plant"),
        "{reason}"
    );
    assert_eq!(stands(&database, "P").await, (999, 999));
    assert_eq!(database.pending().await, 1);
    let [.., malformed, _] = database.counters().await;
    assert_eq!(malformed, 1);
    let [_, accepted, duplicates, conflicts, malformed, _] = answers(&rig, "books").await;
    assert_eq!((duplicates, conflicts, malformed), (0, 0, 1));
    assert_eq!(accepted, database.rows().await);
    // Shown.
    let shown = cli(&rig, &["dead-letters", "books", "show", "P/7/500"]);
    // Folded for people, so where the lines end says nothing.
    let shown: String = shown.split_whitespace().collect();
    for part in [
        "P/7/500malformed",
        "\"plant\"",
        "\"qty\":100",
        "\"body\":{\"pieces\":100}",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // Mended: as a correction with a key of its own.
    let body = rig.path().join("body.json");
    std::fs::write(&body, "{\"pieces\": 10}").unwrap();
    let mended = cli(
        &rig,
        &[
            "dead-letters",
            "books",
            "mend",
            &key,
            "--body",
            body.to_str().unwrap(),
            "--qty",
            "10",
            "--reason",
            "a scanner read a zero too many",
            "--yes",
        ],
    );
    let correction = mended.trim().rsplit(' ').next().unwrap().to_owned();
    until_settled(&mut rig, "books").await;
    let found = format!(
        "SELECT qty FROM holdfast.event WHERE source || '/' || epoch || '/' || sequence = '{correction}'"
    );
    rig.until("the correction is in the books", async |_| {
        database.value(&found).await == "10"
    })
    .await;
    let told = cli(&rig, &["dead-letters", "books"]);
    assert!(told.contains("no dead letters"), "{told}");
    assert_eq!(stands(&database, "P").await, (1000, 1009));
    crate::books::assert_adds_up(&database).await;
}

// covers: B8, FWD-02, FWD-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_a_thousand_is_refused_shown_and_mended_on_15() {
    poisoned(Version::V15).await;
}

// covers: B8, FWD-02, FWD-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_a_thousand_is_refused_shown_and_mended_on_18() {
    poisoned(Version::V18).await;
}

/// A count of the machine that the plant's rule refuses: dropped with a reason; another one sent again when the
/// rule is gone.
async fn refused_count(version: Version) {
    let server = PostgresServer::shared(version).await;
    let database = server.database().await;
    let mut rig = counting("gw-r", &database).await;
    let rule = "ALTER TABLE holdfast.event ADD CONSTRAINT plant CHECK (qty < 100)";
    database.query(rule).await;
    produce(&mut rig, 150).await;
    produce(&mut rig, 7).await;
    let (key, reason) = the_only_letter(&mut rig).await;
    assert!(
        key.starts_with("press-1/") && reason.contains("plant"),
        "{key} {reason}"
    );
    assert_eq!(counted(&database).await, 12);
    let unsaid = rig
        .command(&["dead-letters", "books", "drop", &key, "--yes"])
        .output()
        .unwrap();
    assert_eq!(
        unsaid.status.code(),
        Some(2),
        "dropped without a reason: {unsaid:?}"
    );
    assert_eq!(dead_letters(&rig).await.len(), 1);
    let why = ["--reason", "counted by hand", "--yes"];
    let said = cli(
        &rig,
        &[&["dead-letters", "books", "drop", &key], &why[..]].concat(),
    );
    assert!(said.contains("dropped"), "{said}");
    assert!(dead_letters(&rig).await.is_empty());
    produce(&mut rig, 120).await;
    let (key, _) = the_only_letter(&mut rig).await;
    assert_eq!(counted(&database).await, 12);
    let refused = rig
        .command(&["dead-letters", "books", "resend", &key])
        .output()
        .unwrap();
    assert!(!refused.status.success(), "{refused:?}");
    assert_eq!(dead_letters(&rig).await.len(), 1);
    database
        .query("ALTER TABLE holdfast.event DROP CONSTRAINT plant")
        .await;
    let said = cli(&rig, &["dead-letters", "books", "resend", &key]);
    assert!(said.contains("books holds it now"), "{said}");
    assert!(dead_letters(&rig).await.is_empty());
    assert_eq!(counted(&database).await, 132);
    let waiting = rig.events().await.len() as i64 - database.rows().await;
    assert_eq!(
        waiting, 1,
        "the one that was dropped is the only one that is not there"
    );
    crate::books::assert_adds_up(&database).await;
}

// covers: FWD-02, FWD-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_that_is_refused_is_dropped_with_a_reason_or_sent_again_on_15() {
    refused_count(Version::V15).await;
}

// covers: FWD-02, FWD-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_that_is_refused_is_dropped_with_a_reason_or_sent_again_on_18() {
    refused_count(Version::V18).await;
}

/// The page's question about counts that were told twice.
fn told_twice() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/sources.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, block) = page.split_once("```sql\n").expect("the page has a query");
    block.split_once("```").unwrap().0.to_owned()
}

/// A disk that is set back behind pieces that are in the books: the counter tells them again, in its first event,
/// and the books can say which. No key is reused.
async fn counted_twice(version: Version) {
    let server = PostgresServer::shared(version).await;
    let database = server.database().await;
    let mut rig = counting("gw-b11", &database).await;
    let booked = async |rig: &mut Rig, pieces: u64, total: i64| {
        rig.device.make_pieces(0, pieces);
        let what = format!("{total} pieces in the books");
        rig.until(&what, async |_| counted(&database).await == total)
            .await;
    };
    assert!(rig.stop().await.success());
    let image = rig.path().join("image");
    copy(&rig.path().join("state"), &image);
    rig.start_up().await;
    booked(&mut rig, 4, 9).await;
    assert!(database.query(&told_twice()).await.is_empty());
    rig.kill();
    set_back(&image, &rig.path().join("state"));
    rig.start_up().await;
    // 4 of them again.
    booked(&mut rig, 0, 13).await;
    booked(&mut rig, 2, 15).await;
    let found = database.query(&told_twice()).await;
    let [pair] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(pair.last().unwrap().as_deref(), Some("4"), "{pair:?}");
    assert_eq!(database.pending().await, 0);
    crate::books::assert_adds_up(&database).await;
}

// covers: EVT-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_that_a_restored_gateway_tells_again_are_found_by_the_books_on_15() {
    counted_twice(Version::V15).await;
}

// covers: EVT-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_that_a_restored_gateway_tells_again_are_found_by_the_books_on_18() {
    counted_twice(Version::V18).await;
}
