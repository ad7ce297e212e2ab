//! Owns: sinks that are away for days: what a full journal gives up, and what it keeps and tells.
//! May call: the harness, and the journal to fill it beforehand.
//! Never: take the gateway's word for what arrived; the sink's lines are counted.

use super::field_common::key;
use super::harness::{PRESS, PRESS_SIM, Rig};
use holdfast::core::ids::{BootId, CommitNo, Epoch, EventKey, Sequence};
use holdfast::core::record::{Block, EventRecord, Record};
use holdfast::core::spec::{EventClass, Quality};
use holdfast::core::time::Now;
use holdfast::journal::{Journal, Opened, Options, Pressure, open};
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// The computer on which such a journal was written.
pub(crate) const COMPUTER: &str = "id1 mac=02:00:00:00:00:01";
const BUDGET_BYTES: u64 = 64 << 20;
/// The same, for the gateway.
pub(crate) const BUDGET_TOML: &str = "[journal]\nbudget = \"64MiB\"\n";
/// The wall time of what was recorded beforehand, microseconds since 1970: an hour after the release.
const BEFORE_US: i64 = holdfast::service::RELEASED_US + 3_600_000_000;
type Keys = BTreeSet<(String, u64, u64)>;

fn block_sink(rig: &Rig) {
    std::fs::write(rig.path().join("events"), "in the way").unwrap();
}
fn unblock_sink(rig: &Rig) {
    std::fs::remove_file(rig.path().join("events")).unwrap();
}

/// A press whose journal `fill` has filled before the first start.
async fn filled(machine: &str, fill: impl FnOnce(&mut Journal, Epoch)) -> Rig {
    let mut rig = Rig::with(machine, PRESS_SIM).await;
    rig.gateway_toml += BUDGET_TOML;
    fill_journal(&rig, "gw-test", fill);
    rig
}

/// Has `fill` write the journal of a gateway that was never started.
pub(crate) fn fill_journal(rig: &Rig, gateway: &str, fill: impl FnOnce(&mut Journal, Epoch)) {
    let now = Now {
        boot_id: BootId([9; 16]),
        boottime_ns: 1,
        wall_us: BEFORE_US,
        wall_trusted: true,
    };
    let opened = open(Options {
        dir: rig.journal_dir(),
        budget_bytes: BUDGET_BYTES,
        gateway: gateway.into(),
        now,
        build_wall_us: BEFORE_US,
        machine_id: COMPUTER.into(),
        open_timeout: Duration::from_secs(20),
    });
    let Ok(Opened::Normal(mut journal, recovered)) = opened else {
        panic!("it is new")
    };
    fill(&mut journal, recovered.epoch);
    journal.close().unwrap();
}

fn recorded(epoch: Epoch, no: u64, key: EventKey, class: EventClass, body: String) -> Block {
    let event = EventRecord {
        key,
        event_type: "before".into(),
        schema: 1,
        wall_us: BEFORE_US,
        boottime_ns: 1,
        quality: Quality::Good,
        class,
        qty: 1,
        body,
        unsynchronised: None,
    };
    block_of(epoch, no, event)
}

/// The block that records this event.
pub(crate) fn block_of(epoch: Epoch, no: u64, event: EventRecord) -> Block {
    Block {
        no: CommitNo(no),
        epoch,
        at: Now {
            boot_id: BootId([9; 16]),
            boottime_ns: 1,
            wall_us: BEFORE_US,
            wall_trusted: true,
        },
        records: vec![Record::Event(event)],
    }
}

fn press(epoch: Epoch, sequence: u64) -> EventKey {
    EventKey {
        source: "press-1".into(),
        epoch,
        sequence: Sequence(sequence),
    }
}

/// Large telemetry events, every tenth one a business event, until the journal is all but full.
fn to_the_brim(journal: &mut Journal, epoch: Epoch) -> u64 {
    let body = format!("\"{}\"", "x".repeat(20_000));
    let mut no = 1;
    let most = BUDGET_BYTES / 100 * 45 / 100 * 95;
    while journal.usage().used_bytes < most {
        let blocks: Vec<Block> = (no..no + 20)
            .map(|no| {
                let class = if no % 10 == 0 {
                    EventClass::Business
                } else {
                    EventClass::Telemetry
                };
                recorded(epoch, no, press(epoch, no), class, body.clone())
            })
            .collect();
        journal.commit(&blocks).unwrap();
        no += 20;
    }
    assert_eq!(journal.pressure(), Pressure::High);
    no - 1
}

fn keys(events: &[Json]) -> Keys {
    events.iter().map(key).collect()
}

/// The keys that a gap event names.
fn named(gap: &Json) -> Keys {
    let number = |value: &Json| value.as_str().unwrap().parse::<u64>().unwrap();
    let mut keys = Keys::new();
    for range in gap["body"]["ranges"].as_array().unwrap() {
        let source = range["source"].as_str().unwrap();
        let epoch = number(&range["epoch"]);
        let all = number(&range["first"])..=number(&range["last"]);
        assert_eq!(
            number(&range["count"]),
            all.clone().count() as u64,
            "{range}"
        );
        keys.extend(all.map(|sequence| (source.to_owned(), epoch, sequence)));
    }
    keys
}

async fn dropped(rig: &Rig) -> u64 {
    let (_, status) = rig.get("/v1/status").await;
    let text = status["journal"]["telemetry_dropped"].as_str().unwrap();
    text.parse().unwrap()
}

async fn until_drained(rig: &mut Rig) {
    rig.until("the sink has everything", async |rig| {
        rig.clock.pass(61_000);
        let (_, sinks) = rig.get("/v1/sinks").await;
        sinks["sinks"][0]["backlog"]["events"] == "0"
    })
    .await;
}

// covers: FWD-04, F103
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_telemetry_is_dropped_and_one_event_names_every_key_that_did_not_arrive() {
    let mut last = 0;
    let mut epoch = Epoch(0);
    let machine = PRESS.replace("class = \"business\"", "class = \"telemetry\"");
    let mut rig = filled(&machine, |journal, begun| {
        last = to_the_brim(journal, begun);
        epoch = begun;
    })
    .await;
    block_sink(&rig);
    // Dies while it makes room: between what is recorded as given up, and what is taken out of the log.
    for point in ["hollow.before-remove", "hollow.before-flush"] {
        rig.env("HOLDFAST_TEST_COMPUTER", COMPUTER);
        rig.env("HOLDFAST_KILL_AT", point);
        rig.spawn();
        rig.until_dead().await;
    }
    rig.env("HOLDFAST_TEST_COMPUTER", COMPUTER);
    rig.start_up().await;
    rig.until("there is room again", async |rig| {
        rig.alarms().await.contains(&"telemetry_dropped".to_owned()) && dropped(rig).await > 300
    })
    .await;
    // Nothing is refused meanwhile, and telemetry goes on.
    let (_, done) = rig.submit_wait(&rig.set_speed("OP1", 50)).await;
    assert_eq!(done["state"], "completed", "{done}");
    rig.make_events(3).await;
    let recorded = keys(&rig.events().await);
    unblock_sink(&rig);
    until_drained(&mut rig).await;
    rig.until("there is room, and the gap is told", async |rig| {
        rig.clock.pass(61_000);
        !rig.alarms().await.contains(&"telemetry_dropped".to_owned())
    })
    .await;
    until_drained(&mut rig).await;
    let (lines, count) = (rig.sink_lines(), dropped(&rig).await);
    let gaps: Vec<&Json> = lines
        .iter()
        .filter(|l| l["type"] == "events.dropped")
        .collect();
    assert_eq!(gaps.len(), 1, "one event for all of it");
    let (gap, arrived) = (named(gaps[0]), keys(&lines));
    assert_eq!(gaps[0]["body"]["exact"], true);
    assert_eq!(gaps[0]["body"]["count"], count.to_string());
    assert_eq!(gap.len() as u64, count);
    // What the sink's task had in its hands when it was given up may still arrive.
    let only_told = gap.difference(&arrived).count();
    assert!(only_told * 2 > gap.len(), "{only_told} of {}", gap.len());
    let before: Keys = (1..=last).map(|n| ("press-1".into(), epoch.0, n)).collect();
    let untold: Vec<_> = before
        .union(&recorded)
        .filter(|key| !gap.contains(key) && !arrived.contains(key))
        .collect();
    assert!(untold.is_empty(), "gone and not told: {untold:?}");
    // The oldest went, and of business nothing.
    let mut kept = arrived.difference(&gap);
    let oldest_kept = kept.find(|k| k.1 == epoch.0 && k.2 % 10 != 0);
    assert!(gap.iter().all(|key| Some(key) < oldest_kept));
    assert!(gap.iter().all(|key| key.2 % 10 != 0), "{gap:?}");
    assert_eq!(dropped(&rig).await, count, "counted for good");
    // Told once: another start has nothing to add.
    assert!(rig.stop().await.success());
    rig.env("HOLDFAST_TEST_COMPUTER", COMPUTER);
    rig.start_up().await;
    assert_eq!(rig.events_of("events.dropped").await.len(), 1);
    assert_eq!(dropped(&rig).await, count);
}

// covers: F085, EVT-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_at_the_edges_of_32_53_and_63_bits_arrive_digit_by_digit() {
    const EDGES: [u64; 3] = [u32::MAX as u64, (1 << 53) - 1, i64::MAX as u64];
    let mut rig = filled(PRESS, |journal, epoch| {
        let mut no = 0;
        for edge in EDGES {
            for sequence in [edge - 1, edge, edge + 1] {
                for epoch_shown in [edge - 1, edge] {
                    no += 1;
                    let mut key = press(Epoch(epoch_shown), sequence);
                    key.source = format!("source-{edge}");
                    let block = recorded(epoch, no, key, EventClass::Business, "{}".into());
                    journal.commit(&[block]).unwrap();
                }
            }
        }
    })
    .await;
    rig.env("HOLDFAST_TEST_COMPUTER", COMPUTER);
    rig.start_up().await;
    until_drained(&mut rig).await;
    let (lines, events) = (rig.sink_lines(), rig.events().await);
    for edge in EDGES {
        for sequence in [edge - 1, edge, edge + 1] {
            for epoch in [edge - 1, edge] {
                let (epoch, sequence) = (epoch.to_string(), sequence.to_string());
                let is = |event: &&Json| {
                    event["source"] == format!("source-{edge}")
                        && event["epoch"] == *epoch
                        && event["sequence"] == *sequence
                };
                assert_eq!(lines.iter().filter(is).count(), 1, "{epoch}/{sequence}");
                assert_eq!(events.iter().filter(is).count(), 1, "{epoch}/{sequence}");
            }
        }
    }
}

// covers: F125
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_event_expires_by_any_clock_before_it_is_sent() {
    const HOUR_MS: i64 = 3_600_000;
    const YEARS_20_MS: i64 = 20 * 365 * 24 * HOUR_MS;
    let mut rig = Rig::new().await;
    rig.gateway_toml += "[journal]\nkeep_events = \"1h\"\n";
    block_sink(&rig);
    rig.start_up().await;
    rig.make_events(20).await;
    let before = keys(&rig.events().await);
    assert!(rig.stop().await.success());
    // Off for four hours; then a clock that is twenty years ahead, vouched for or not, and is put right.
    rig.clock.pass(4 * HOUR_MS);
    rig.clock.reboot(true);
    for trusted in [false, true] {
        rig.clock.trusted = Some(trusted);
        rig.clock.step_wall(YEARS_20_MS);
        rig.start_up().await;
        rig.polls(20).await;
        assert!(before.is_subset(&keys(&rig.events().await)));
        rig.clock.trusted = Some(true);
        rig.clock.step_wall(-YEARS_20_MS);
        rig.polls(20).await;
        assert!(rig.stop().await.success());
    }
    rig.start_up().await;
    unblock_sink(&rig);
    until_drained(&mut rig).await;
    let arrived = keys(&rig.sink_lines());
    assert!(
        before.is_subset(&arrived),
        "{:?}",
        before.difference(&arrived)
    );
    assert_eq!(json!(rig.events_of("events.dropped").await), json!([]));
}
