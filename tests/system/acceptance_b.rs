//! Owns: the rows of part B from end to end: journal, sink, books; what two workers do; B16 after all of them.
//! May call: the harness, the PostgreSQL servers, the journal to fill it beforehand.
//! Never: take one side's word: rows, totals, replies and what is pending are counted in the database and asked of
//! the gateway.

use crate::books::{piece, rival, row, until_waiting};
use crate::cut_proxy::CutProxy;
use crate::full_journal::{BUDGET_TOML, COMPUTER, block_of, fill_journal};
use crate::harness::until;
use crate::harness::{PRESS, PRESS_SIM, Rig};
use crate::identity::{copy, set_back};
use crate::postgres_server::{Database, PostgresServer, Version};
use holdfast::core::record::EventRecord;
use serde_json::Value as Json;

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

/// The epoch of the articles, E7.
const EPOCH: u64 = 7;

/// A gateway of this name, stopped, whose events go to the database behind `port`.
pub(crate) async fn gateway(
    name: &str,
    database: &Database<'_>,
    port: u16,
    machine: &str,
    simulator: &str,
) -> Rig {
    let mut rig = Rig::with(&machine.replace("gw-test", name), simulator).await;
    // No other sink: a kill point of a sink is met at this one.
    let (head, _file_sink) = rig.gateway_toml.split_once("[[sink]]").unwrap();
    let head = head.replace("gw-test", name);
    rig.gateway_toml = head + BUDGET_TOML + &sink_toml("books", port, &database.name);
    rig
}

pub(crate) fn sink_toml(name: &str, port: u16, database: &str) -> String {
    format!(
        "[[sink]]\nname = \"{name}\"\nkind = \"postgres\"\n\
         url = \"postgres://holdfast_writer@127.0.0.1:{port}/{database}\"\nlanes = 1\n"
    )
}

/// ... and whose journal holds these events.
pub(crate) async fn holding(
    name: &str,
    database: &Database<'_>,
    port: u16,
    events: &[EventRecord],
) -> Rig {
    let rig = gateway(name, database, port, PRESS, PRESS_SIM).await;
    fill_journal(&rig, name, |journal, epoch| {
        let blocks = (1..).zip(events).map(|(no, event)| {
            // An event is recorded in the epoch of its key, unless no journal could have come so far.
            let epoch = Some(event.key.epoch)
                .filter(|epoch| epoch.0 == EPOCH)
                .unwrap_or(epoch);
            block_of(epoch, no, event.clone())
        });
        journal.commit(&blocks.collect::<Vec<_>>()).unwrap();
    });
    rig
}

pub(crate) async fn start(rig: &mut Rig) {
    rig.env("HOLDFAST_TEST_COMPUTER", COMPUTER);
    rig.start().await;
}

/// Starts it to die there.
async fn die_at(rig: &mut Rig, point: &str) {
    rig.env("HOLDFAST_TEST_COMPUTER", COMPUTER);
    rig.env("HOLDFAST_KILL_AT", point);
    rig.spawn();
    rig.until_dead().await;
}

/// What a command of the command line says.
pub(crate) fn cli(rig: &Rig, args: &[&str]) -> String {
    let output = rig.command(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn rewind(rig: &Rig, key: &str) {
    let why = "as if its reply had been lost";
    cli(
        rig,
        &[
            "sinks", "books", "rewind", "--to", key, "--reason", why, "--yes",
        ],
    );
}

/// Rows of a source and their total.
pub(crate) async fn stands(database: &Database<'_>, source: &str) -> (i64, i64) {
    let rows = format!("SELECT count(*) FROM holdfast.event WHERE source = '{source}'");
    let total =
        format!("SELECT coalesce(sum(qty), 0) FROM holdfast.total WHERE source = '{source}'");
    (database.number(&rows).await, database.number(&total).await)
}

/// received, accepted, duplicate, conflict, malformed, failed, where `condition` holds.
async fn deliveries(database: &Database<'_>, condition: &str) -> [i64; 6] {
    let sums = [
        "received",
        "accepted",
        "duplicate",
        "conflict",
        "malformed",
        "failed",
    ]
    .map(|heading| format!("coalesce(sum({heading}), 0)"));
    let sql = format!(
        "SELECT {} FROM holdfast.delivery WHERE {condition}",
        sums.join(", ")
    );
    let found = database.query(&sql).await.remove(0);
    std::array::from_fn(|i| found[i].as_ref().unwrap().parse().unwrap())
}

/// Waits until these replies were given for a source: accepted, duplicate, conflict; and for nothing else.
async fn replied(database: &Database<'_>, source: &str, expected: [i64; 3]) {
    let [accepted, duplicate, conflict] = expected;
    let all = [
        accepted + duplicate + conflict,
        accepted,
        duplicate,
        conflict,
        0,
        0,
    ];
    let condition = format!("source = '{source}'");
    let what = format!("{source}: {all:?}");
    until(&what, async || {
        deliveries(database, &condition).await == all
    })
    .await;
}

/// A sink as the interface shows it.
pub(crate) async fn sink(rig: &Rig, name: &str) -> Json {
    let (_, answer) = rig.get("/v1/sinks").await;
    let mut sinks = answer["sinks"].as_array().unwrap().iter();
    sinks.find(|sink| sink["name"] == name).unwrap().clone()
}

/// attempts, accepted, duplicates, conflicts, malformed, retries of a sink, which add up (FWD-05).
pub(crate) async fn answers(rig: &Rig, name: &str) -> [i64; 6] {
    let sink = sink(rig, name).await;
    let number = |heading: &str| -> i64 {
        let text = sink["counters"][heading].as_str().unwrap();
        text.parse().unwrap()
    };
    let all = [
        "attempts",
        "accepted",
        "duplicates",
        "conflicts",
        "malformed",
        "retries",
    ]
    .map(number);
    assert_eq!(all[0], all[1..].iter().sum::<i64>(), "{sink}");
    all
}

/// Waits until a sink has nothing more to do.
pub(crate) async fn until_settled(rig: &mut Rig, name: &str) {
    rig.until("everything is settled", async |rig| {
        let sink = sink(rig, name).await;
        sink["backlog"]["events"] == "0" && sink["in_flight"] == 0
    })
    .await;
}

pub(crate) async fn dead_letters(rig: &Rig) -> Vec<Json> {
    let (_, answer) = rig.get("/v1/sinks/books/dead-letters").await;
    answer["dead_letters"].as_array().unwrap().clone()
}

/// What a gateway was answered, and what the books answered it.
struct Account {
    gateway: String,
    said: [i64; 6],
    /// Whether answers were given that it never heard.
    deaf: bool,
}

/// One database, and the gateways that have reported to it.
struct Rows<'a> {
    database: &'a Database<'a>,
    accounts: Vec<Account>,
    /// Conflicts and dead letters there must be.
    pending: i64,
}

impl Rows<'_> {
    /// What waits for a person, and nothing else does.
    async fn assert_pending(&mut self, more: i64) {
        self.pending += more;
        assert_eq!(self.database.pending().await, self.pending);
    }

    /// The gateway has nothing left to send; what it heard is noted, and it ends.
    async fn close(&mut self, name: &str, mut rig: Rig, deaf: bool) {
        until_settled(&mut rig, "books").await;
        let said = answers(&rig, "books").await;
        let waiting = dead_letters(&rig).await.len() as i64;
        assert_eq!(waiting, said[3] + said[4], "{name}");
        self.accounts.push(Account {
            gateway: name.to_owned(),
            said,
            deaf,
        });
        assert!(rig.stop().await.success());
    }

    async fn b1_b2_b13_b14(&mut self) {
        let database = self.database;
        // B1: the first reply is lost behind the commit: the call waits for a rival until the way back is cut.
        let proxy = CutProxy::to(database.server.port).await;
        let mut first = holding("gw-b1", database, proxy.port, &[piece("A", 7, 42, 1)]).await;
        let rival_first = rival(database, &row("A", 7, 42, 1)).await;
        start(&mut first).await;
        until_waiting(database).await;
        proxy.lose_next_reply();
        rival_first.batch_execute("ROLLBACK").await.unwrap();
        replied(database, "A", [1, 1, 0]).await;
        until_settled(&mut first, "books").await;
        rewind(&first, "A/7/42");
        replied(database, "A", [1, 2, 0]).await;
        assert_eq!(stands(database, "A").await, (1, 1));
        self.assert_pending(0).await;
        // B14: the next normal piece; B2: the same key, another quantity.
        let events = [piece("A", 7, 43, 1), piece("A", 7, 42, 2)];
        let mut second = holding("gw-b2", database, database.server.port, &events).await;
        start(&mut second).await;
        replied(database, "A", [2, 2, 1]).await;
        assert_eq!(stands(database, "A").await, (2, 2));
        self.assert_pending(1).await;
        until_settled(&mut second, "books").await;
        let letters = dead_letters(&second).await;
        let [letter] = letters.as_slice() else {
            panic!("{letters:?}")
        };
        assert_eq!(
            (&letter["key"], &letter["status"]),
            (&"A/7/42".into(), &"conflict".into())
        );
        assert_eq!(letter["event"]["body"]["pieces"], 2);
        let kept = letter["kept"].as_str().unwrap();
        assert!(kept.contains("{\"pieces\":  1}"), "{kept}");
        let both = "SELECT came::json ->> 'qty' || ' ' || (kept::json ->> 'qty') FROM holdfast.conflict WHERE source = 'A'";
        assert_eq!(database.value(both).await, "2 1");
        let original = "SELECT qty FROM holdfast.event WHERE source = 'A' AND sequence = 42";
        assert_eq!(database.number(original).await, 1);
        // B13: archived, then sent again.
        database
            .query("CALL holdfast.archive_before(clock_timestamp())")
            .await;
        rewind(&first, "A/7/42");
        replied(database, "A", [2, 3, 1]).await;
        assert_eq!(stands(database, "A").await, (2, 2));
        self.assert_pending(0).await;
        self.close("gw-b1", first, true).await;
        self.close("gw-b2", second, false).await;
    }

    /// The gateway dies before the call, then the server does in the middle of it.
    async fn b4(&mut self) {
        let database = self.database;
        let server = database.server;
        let mut rig = holding("gw-b4", database, server.port, &[piece("B4", 7, 42, 1)]).await;
        die_at(&mut rig, "upstream.before-call").await;
        assert_eq!(stands(database, "B4").await, (0, 0));
        let _rival = rival(database, &row("B4", 7, 42, 1)).await;
        start(&mut rig).await;
        until_waiting(database).await;
        server.kill();
        rig.until("the sink tries again", async |rig| {
            sink(rig, "books").await["circuit"] == "retrying"
        })
        .await;
        server.start_again().await;
        // A call that had been committed would be answered `duplicate` now.
        replied(database, "B4", [1, 0, 0]).await;
        assert_eq!(stands(database, "B4").await, (1, 1));
        self.assert_pending(0).await;
        self.close("gw-b4", rig, false).await;
    }

    /// Killed after the commit, then after the reply and before the cursor (A14).
    async fn b5_a14(&mut self) {
        let database = self.database;
        let port = database.server.port;
        let mut rig = holding("gw-b5", database, port, &[piece("B5", 7, 42, 1)]).await;
        for (point, duplicates) in [("upstream.after-commit", 0), ("sink.after-deliver", 1)] {
            die_at(&mut rig, point).await;
            replied(database, "B5", [1, duplicates, 0]).await;
            assert_eq!(stands(database, "B5").await, (1, 1));
        }
        start(&mut rig).await;
        replied(database, "B5", [1, 2, 0]).await;
        assert_eq!(stands(database, "B5").await, (1, 1));
        self.assert_pending(0).await;
        until_settled(&mut rig, "books").await;
        let [_, _, duplicates, ..] = answers(&rig, "books").await;
        assert!(duplicates >= 1, "the sink did not say so");
        self.close("gw-b5", rig, true).await;
    }

    async fn b6_b7(&mut self) {
        let database = self.database;
        let port = database.server.port;
        let ten: Vec<_> = (1..=10).map(|n| piece("B6", 7, n, 1)).collect();
        let mut rig = holding("gw-b6", database, port, &ten).await;
        start(&mut rig).await;
        for duplicates in [0, 1, 2] {
            replied(database, "B6", [10, duplicates, 0]).await;
            assert_eq!(stands(database, "B6").await, (10, 10));
            until_settled(&mut rig, "books").await;
            if duplicates < 2 {
                rewind(&rig, "B6/7/10");
            }
        }
        self.assert_pending(0).await;
        let mut other = holding("gw-b7", database, port, &[piece("B6", 7, 10, 9)]).await;
        start(&mut other).await;
        replied(database, "B6", [10, 2, 1]).await;
        assert_eq!(stands(database, "B6").await, (10, 10));
        self.assert_pending(1).await;
        self.close("gw-b6", rig, false).await;
        self.close("gw-b7", other, false).await;
    }

    async fn b8_b12(&mut self) {
        let database = self.database;
        let port = database.server.port;
        // B8: the number of the fifth is larger than any the books can hold.
        let mut events: Vec<_> = (1..=10).map(|n| piece("B8", 7, n, 1)).collect();
        events[4] = piece("B8", 7, 1 << 63, 1);
        // B12: no source, and an epoch that reaches the books as NULL.
        events.push(piece("", 7, 1, 1));
        events.push(piece("B12", u64::MAX, 1, 1));
        let mut rig = holding("gw-b8", database, port, &events).await;
        start(&mut rig).await;
        replied(database, "B8", [9, 0, 0]).await;
        until_settled(&mut rig, "books").await;
        assert_eq!(stands(database, "B8").await, (9, 9));
        assert_eq!(stands(database, "B12").await, (0, 0));
        assert_eq!(stands(database, "").await, (0, 0));
        self.assert_pending(3).await;
        let reasons = "SELECT string_agg(split_part(reason, ':', 1), ' ' ORDER BY reason) FROM holdfast.pending WHERE gateway = 'gw-b8'";
        assert_eq!(
            database.value(reasons).await,
            "large_epoch large_sequence missing_source"
        );
        let letters = dead_letters(&rig).await;
        assert!(
            letters.iter().all(|letter| letter["status"] == "malformed"),
            "{letters:?}"
        );
        let of = format!("B8/7/{}", 1_u64 << 63);
        let eighth = letters.iter().find(|letter| letter["key"] == of).unwrap();
        let reason = eighth["reason"].as_str().unwrap();
        assert!(reason.starts_with("large_sequence: "), "{reason}");
        assert_eq!(deliveries(database, "gateway = 'gw-b8'").await[4], 3);
        self.close("gw-b8", rig, false).await;
    }

    /// The connection is lost in a batch of ten, once before its commit and once behind it.
    async fn b9(&mut self) {
        let database = self.database;
        let proxy = CutProxy::to(database.server.port).await;
        let ten: Vec<_> = (1..=10).map(|n| piece("B9", 7, n, 1)).collect();
        let mut rig = holding("gw-b9", database, proxy.port, &ten).await;
        let in_the_way = rival(database, &row("B9", 7, 8, 1)).await;
        start(&mut rig).await;
        until_waiting(database).await;
        let waiting = format!(
            "SELECT pid FROM pg_stat_activity WHERE datname = '{}' AND wait_event_type = 'Lock'",
            database.name
        );
        let first = database.number(&waiting).await;
        database
            .query(&format!("SELECT pg_terminate_backend({first})"))
            .await;
        until("the batch comes again", async || {
            let now = database.value(&waiting).await;
            !now.is_empty() && now != first.to_string()
        })
        .await;
        assert_eq!(stands(database, "B9").await, (0, 0));
        proxy.lose_next_reply();
        in_the_way.batch_execute("ROLLBACK").await.unwrap();
        replied(database, "B9", [10, 10, 0]).await;
        assert_eq!(stands(database, "B9").await, (10, 10));
        self.assert_pending(0).await;
        until_settled(&mut rig, "books").await;
        let [_, _, duplicates, _, _, retries] = answers(&rig, "books").await;
        assert!(duplicates >= 10 && retries >= 20, "{duplicates} {retries}");
        self.close("gw-b9", rig, true).await;
    }

    /// The machine's own numbers begin at 1 again; then the gateway's disk is set back.
    async fn b10_b11(&mut self) {
        let database = self.database;
        let machine = format!("{PRESS}{HANDSHAKE}");
        let simulator = format!("{PRESS_SIM}{HANDSHAKE_SIM}");
        let port = database.server.port;
        let mut rig = gateway("gw-b10", database, port, &machine, &simulator).await;
        let numbers = "SELECT coalesce(string_agg(body::json ->> 'item', ' ' ORDER BY accepted_at, sequence), '') FROM holdfast.event WHERE gateway = 'gw-b10' AND type = 'unit.done'";
        let arrive = async |rig: &mut Rig, expected: &str| {
            rig.device.present(0, 2);
            let what = format!("items {expected}");
            rig.until(&what, async |_| database.value(numbers).await == expected)
                .await;
        };
        rig.start_up().await;
        arrive(&mut rig, "1 2").await;
        rig.device.reboot();
        rig.device.number_next_item(0, 1);
        arrive(&mut rig, "1 2 1 2").await;
        until_settled(&mut rig, "books").await;
        assert!(rig.stop().await.success());
        let image = rig.path().join("image");
        copy(&rig.path().join("state"), &image);
        rig.start_up().await;
        arrive(&mut rig, "1 2 1 2 3 4").await;
        rig.kill();
        set_back(&image, &rig.path().join("state"));
        rig.start_up().await;
        arrive(&mut rig, "1 2 1 2 3 4 5 6").await;
        let total =
            "SELECT qty FROM holdfast.total WHERE source = 'press-1' AND type = 'unit.done'";
        assert_eq!(database.number(total).await, 8);
        let epochs = "SELECT count(DISTINCT epoch) FROM holdfast.event WHERE source = 'press-1' AND type = 'unit.done'";
        assert_eq!(database.number(epochs).await, 3);
        let [.., conflict, malformed, failed] = deliveries(database, "gateway = 'gw-b10'").await;
        assert_eq!((conflict, malformed, failed), (0, 0, 0));
        self.assert_pending(0).await;
        self.close("gw-b10", rig, true).await;
    }

    /// B16: at the books, at every gateway, and one against the other.
    async fn b16(&self) {
        let database = self.database;
        crate::books::assert_adds_up(database).await;
        assert!(self.accounts.len() >= 8);
        for Account {
            gateway,
            said,
            deaf,
        } in &self.accounts
        {
            let condition = format!("gateway = '{gateway}'");
            let [received, accepted, duplicate, conflict, malformed, failed] =
                deliveries(database, &condition).await;
            let answered = accepted + duplicate + conflict + malformed;
            assert_eq!(received, answered + failed);
            let [attempts, heard_accepted, heard_duplicate, ..] = *said;
            assert_eq!((said[3], said[4]), (conflict, malformed), "{gateway}");
            if *deaf {
                // What was accepted unheard was heard as a duplicate.
                assert!(accepted >= heard_accepted, "{gateway}");
                assert!(received >= heard_accepted + heard_duplicate, "{gateway}");
            } else {
                assert_eq!(
                    (heard_accepted, heard_duplicate),
                    (accepted, duplicate),
                    "{gateway}"
                );
                assert!(attempts >= received, "{gateway}");
            }
        }
    }
}

async fn all_rows(version: Version) {
    let server = PostgresServer::start(version).await;
    let database = server.database().await;
    let mut rows = Rows {
        database: &database,
        accounts: Vec::new(),
        pending: 0,
    };
    rows.b1_b2_b13_b14().await;
    rows.b4().await;
    rows.b5_a14().await;
    rows.b6_b7().await;
    rows.b8_b12().await;
    rows.b9().await;
    rows.b10_b11().await;
    rows.b16().await;
}

// covers: B1, B2, B4, B5, B6, B7, B8, B9, B10, B11, B12, B13, B14, B16, A14, FWD-02, FWD-03, FWD-05, ING-03, ING-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rows_of_part_b_on_15() {
    all_rows(Version::V15).await;
}

// covers: B1, B2, B4, B5, B6, B7, B8, B9, B10, B11, B12, B13, B14, B16, A14, FWD-02, FWD-03, FWD-05, ING-03, ING-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rows_of_part_b_on_18() {
    all_rows(Version::V18).await;
}

/// Two sinks of one gateway enter the same thousand keys into the same database at once.
async fn two_workers(version: Version) {
    let server = PostgresServer::shared(version).await;
    let database = server.database().await;
    let events: Vec<_> = (1..=1000).map(|n| piece("A", 7, n, 1)).collect();
    let mut rig = holding("gw-b3", &database, server.port, &events).await;
    rig.gateway_toml += &sink_toml("rival", server.port, &database.name);
    // Both wait for the first key, and go on at the same moment.
    let in_the_way = rival(&database, &row("A", 7, 1, 1)).await;
    start(&mut rig).await;
    let waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND wait_event_type = 'Lock'",
        database.name
    );
    until("both wait", async || database.number(&waiting).await == 2).await;
    in_the_way.batch_execute("ROLLBACK").await.unwrap();
    replied(&database, "A", [1000, 1000, 0]).await;
    until_settled(&mut rig, "books").await;
    until_settled(&mut rig, "rival").await;
    assert_eq!(stands(&database, "A").await, (1000, 1000));
    assert_eq!(database.pending().await, 0);
    let [_, accepted, duplicate, ..] = database.counters().await;
    let (ours, theirs) = (answers(&rig, "books").await, answers(&rig, "rival").await);
    assert_eq!(
        (ours[1] + theirs[1], ours[2] + theirs[2]),
        (accepted, duplicate)
    );
    crate::books::assert_adds_up(&database).await;
}

// covers: B3, B16, FWD-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sinks_with_the_same_keys_at_once_are_counted_once_on_15() {
    two_workers(Version::V15).await;
}

// covers: B3, B16, FWD-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sinks_with_the_same_keys_at_once_are_counted_once_on_18() {
    two_workers(Version::V18).await;
}
