//! Events from the machine count once: counters, handshakes, rings; killed between device, journal and acknowledgement.

use super::disk_full::SmallDisk;
use super::harness::{PRESS, PRESS_SIM, Rig};
use super::link_kind::LinkKind;
use super::load::Random;
use holdfast::simulator::data_word;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A source of each kind; the cycles are short, the counter can make many at once.
const SOURCES: &str = r#"
[[event]]
type = "piece.good"
source = "counter"
read = "holding:600"
data_type = "u16"
unit = "pieces"
max_step = 200
poll = "50ms"
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
head = "holding:400"
base = "holding:402"
entries = 8
words = 4
data = [{ name = "code", word = 2 }, { name = "place", word = 3 }]
poll = "20ms"
class = "telemetry"
"#;

const SOURCES_SIM: &str = r#"
[[pieces]]
at = "holding:600"
start = 65400
[[handshake]]
ready = "coil:20"
ack = "coil:21"
item = "holding:220"
data = "holding:222"
[[ring]]
head = "holding:400"
base = "holding:402"
entries = 8
words = 4
"#;

/// The press with these sources, whose counter shows `start`; the gateway knows where counter and ring stand.
async fn rig(start: u16) -> Rig {
    let sim = SOURCES_SIM.replace("65400", &start.to_string());
    let mut rig = Rig::with(&format!("{PRESS}{SOURCES}"), &format!("{PRESS_SIM}{sim}")).await;
    rig.start_up().await;
    rig.until("counter and ring have their baselines", async |rig| {
        of_type(&rig.events().await, "source.baseline").count() == 2
    })
    .await;
    rig
}

fn of_type<'a>(events: &'a [Json], kind: &'a str) -> impl Iterator<Item = &'a Json> + Clone {
    events.iter().filter(move |event| event["type"] == kind)
}

fn total(events: &[Json], kind: &str) -> i64 {
    of_type(events, kind)
        .map(|event| event["qty"].as_i64().unwrap())
        .sum()
}

async fn until_total(rig: &mut Rig, kind: &str, wanted: i64) {
    let what = format!("{wanted} of {kind}");
    rig.until(&what, async |rig| {
        total(&rig.events().await, kind) >= wanted
    })
    .await;
}

/// Everything acknowledged, and the line at rest.
async fn until_acknowledged(rig: &mut Rig, items: usize) {
    let what = format!("{items} items are acknowledged, and the bits are down");
    rig.until(&what, async |rig| {
        let made = rig.device.items(0);
        made.len() == items
            && made.iter().all(|item| item.acknowledged)
            && !rig.device.coil(20)
            && !rig.device.coil(21)
    })
    .await;
}

/// The sink has all that is in the log.
async fn until_delivered(rig: &mut Rig) {
    rig.until("the sink has everything", async |rig| {
        let (_, sinks) = rig.get("/v1/sinks").await;
        sinks["sinks"][0]["backlog"]["events"] == "0"
    })
    .await;
}

/// Each item that the device presented is one event, in its order, with its own data; and nothing else is.
fn items_are_events(rig: &Rig, events: &[Json]) {
    let made: Vec<Json> = rig
        .device
        .items(0)
        .iter()
        .map(|item| {
            json!([
                item.number,
                data_word(item.seed, 0),
                data_word(item.seed, 1)
            ])
        })
        .collect();
    let told: Vec<Json> = of_type(events, "unit.done")
        .map(|event| {
            let body = &event["body"];
            assert_eq!(event["qty"], 1);
            json!([
                body["item"],
                body["data"]["good"]["value"],
                body["data"]["batch"]["value"]
            ])
        })
        .collect();
    assert_eq!(told, made, "{}", rig.log());
}

/// The same for the entries of the ring from number `first` on.
fn entries_are_events(rig: &Rig, events: &[Json], first: u32) {
    let made: Vec<Json> = rig
        .device
        .entries(0)
        .iter()
        .filter(|entry| entry.number >= first)
        .map(|entry| {
            json!([
                entry.number,
                data_word(entry.seed, 0),
                data_word(entry.seed, 1)
            ])
        })
        .collect();
    let told: Vec<Json> = of_type(events, "log.entry")
        .map(|event| {
            let body = &event["body"];
            json!([
                body["entry"],
                body["data"]["code"]["value"],
                body["data"]["place"]["value"]
            ])
        })
        .collect();
    assert_eq!(told, made, "{}", rig.log());
}

/// Keys are unique, and sequences of one epoch without gaps (EVT-02).
fn keys_are_whole(events: &[Json]) {
    let mut last: BTreeMap<(String, String), u64> = BTreeMap::new();
    for event in events {
        let key = (event["source"].to_string(), event["epoch"].to_string());
        let sequence: u64 = event["sequence"].as_str().unwrap().parse().unwrap();
        let before = last.insert(key, sequence).unwrap_or(0);
        assert_eq!(sequence, before + 1, "{event}");
    }
}

// covers: EVT-03, EVT-05, EVT-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_items_and_entries_become_events_with_their_numbers() {
    let mut rig = rig(65_400).await;
    for pieces in [5, 120, 40] {
        rig.device.make_pieces(0, pieces);
        let made = rig.device.pieces_made(0);
        until_total(&mut rig, "piece.good", i64::try_from(made).unwrap()).await;
    }
    rig.device.present(0, 3);
    rig.device.log_entries(0, 5);
    until_acknowledged(&mut rig, 3).await;
    until_total(&mut rig, "log.entry", 5).await;
    let events = rig.events().await;
    assert_eq!(total(&events, "piece.good"), 165);
    // 65400 and 165 pieces: it passed 65535, and that is no reset.
    assert_eq!(rig.device.holding(600), 29);
    assert!(of_type(&events, "piece.good").any(|event| event["body"]["wrapped"] == true));
    let first = of_type(&events, "piece.good").next().unwrap();
    assert_eq!(first["body"]["from"], 65400, "{first}");
    assert_eq!(
        (&first["body"]["to"], &first["quality"]),
        (&json!(65405), &json!("good"))
    );
    assert_eq!(
        (&first["body"]["over"], &first["body"]["unit"]),
        (&json!("poll"), &json!("pieces"))
    );
    items_are_events(&rig, &events);
    entries_are_events(&rig, &events, 1);
    keys_are_whole(&events);
    until_delivered(&mut rig).await;
    assert!(rig.stop().await.success());
    let lines = rig.sink_lines();
    items_are_events(&rig, &lines);
    entries_are_events(&rig, &lines, 1);
    assert_eq!(total(&lines, "piece.good"), 165);
}

// covers: EVT-03, TIME-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_are_taken_after_the_validity_of_an_order_is_over() {
    for kind in [
        LinkKind::Rtu { tcp: true },
        LinkKind::C24 {
            frame: "4c",
            format: 5,
        },
    ] {
        let machine = format!("{PRESS}{SOURCES}").replace("ttl = \"10s\"", "ttl = \"500ms\"");
        let sim = format!("{PRESS_SIM}{SOURCES_SIM}");
        let mut rig = Rig::over(kind, &machine, &sim).await;
        rig.start_up().await;
        let sent = Instant::now();
        let (_, done) = rig.submit_wait(&rig.set_speed("OP1", 50)).await;
        assert_eq!(done["state"], "completed", "{done}");
        rig.until("the order's validity is over", async |_| {
            sent.elapsed() > Duration::from_millis(600)
        })
        .await;
        rig.device.present(0, 2);
        until_acknowledged(&mut rig, 2).await;
        items_are_events(&rig, &rig.events().await);
    }
}

/// Between reading an item and the acknowledgement that the device sees.
const KILL_POINTS: &[&str] = &[
    "source.after-read",
    "source.after-read:2",
    "source.before-commit",
    "source.before-commit:2",
    "source.durable",
    "source.durable:2",
    "engine.after-commit:3",
    "sink.before-deliver",
    "sink.after-deliver",
    "sink.after-deliver:2",
    "source.before-ack",
    "source.before-ack:2",
    "source.after-ack",
    "source.after-ack:2",
    "source.after-ack:3",
];

// covers: EVT-01, EVT-03, EVT-04, REC-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_between_device_journal_and_acknowledgement_each_item_is_one_event() {
    let mut rig = rig(65_400).await;
    rig.kill();
    let mut killed = 0;
    for (round, point) in KILL_POINTS.iter().enumerate() {
        rig.device.present(0, 2);
        rig.device.log_entries(0, 3);
        rig.device.make_pieces(0, 10 + round as u64);
        rig.env("HOLDFAST_KILL_AT", point);
        rig.spawn();
        assert!(!rig.until_dead().await.success(), "{point}\n{}", rig.log());
        killed += 1;
    }
    assert_eq!(killed, KILL_POINTS.len());
    rig.start_up().await;
    let items = 2 * KILL_POINTS.len();
    until_acknowledged(&mut rig, items).await;
    let entries = i64::try_from(rig.device.entries(0).len()).unwrap();
    rig.until("the ring is caught up", async |rig| {
        let events = rig.events().await;
        let lost: i64 = of_type(&events, "source.overrun")
            .map(|event| event["body"]["missing"].as_i64().unwrap())
            .sum();
        total(&events, "log.entry") + lost == entries
    })
    .await;
    let made = i64::try_from(rig.device.pieces_made(0)).unwrap();
    until_total(&mut rig, "piece.good", made).await;
    let events = rig.events().await;
    items_are_events(&rig, &events);
    assert_eq!(of_type(&events, "source.gap").count(), 0);
    assert_eq!(of_type(&events, "source.reset").count(), 0);
    assert_eq!(total(&events, "piece.good"), made);
    // An entry is told or told as lost, once.
    let mut told: Vec<i64> = of_type(&events, "log.entry")
        .map(|event| event["body"]["entry"].as_i64().unwrap())
        .collect();
    for overrun in of_type(&events, "source.overrun") {
        let (first, last) = (&overrun["body"]["first"], &overrun["body"]["last"]);
        told.extend(first.as_i64().unwrap()..=last.as_i64().unwrap());
    }
    told.sort_unstable();
    assert_eq!(told, (1..=entries).collect::<Vec<_>>());
    keys_are_whole(&events);
    until_delivered(&mut rig).await;
    assert!(rig.stop().await.success());
    items_are_events(&rig, &rig.sink_lines());
}

// covers: EVT-03, EVT-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_made_while_nobody_looked_is_told_as_such_and_what_is_lost_is_named() {
    let mut rig = rig(30_000).await;
    rig.device.present(0, 1);
    rig.device.log_entries(0, 2);
    until_acknowledged(&mut rig, 1).await;
    until_total(&mut rig, "log.entry", 2).await;
    rig.kill();
    rig.device.make_pieces(0, 70);
    rig.device.log_entries(0, 20); // 3 to 22; the ring keeps 15 to 22
    rig.device.number_next_item(0, 5); // 2 to 4 are lost at the device
    rig.device.present(0, 1);
    rig.start_up().await;
    until_acknowledged(&mut rig, 2).await;
    until_total(&mut rig, "piece.good", 70).await;
    until_total(&mut rig, "log.entry", 10).await;
    let events = rig.events().await;
    let piece = of_type(&events, "piece.good").next().unwrap();
    assert_eq!(
        (&piece["qty"], &piece["body"]["over"]),
        (&json!(70), &json!("absence")),
        "{piece}"
    );
    let overrun = of_type(&events, "source.overrun").next().unwrap();
    assert_eq!(
        (
            &overrun["body"]["first"],
            &overrun["body"]["last"],
            &overrun["body"]["missing"]
        ),
        (&json!(3), &json!(14), &json!(12))
    );
    assert_eq!(
        (&overrun["qty"], &overrun["body"]["event_type"]),
        (&json!(0), &json!("log.entry"))
    );
    let gap = of_type(&events, "source.gap").next().unwrap();
    assert_eq!(
        (&gap["body"]["first"], &gap["body"]["last"]),
        (&json!(2), &json!(4)),
        "{gap}"
    );
    items_are_events(&rig, &events);
    // Both devices begin anew, and the count is reset.
    rig.device.number_next_item(0, 1);
    rig.device.present(0, 1);
    rig.device.number_next_entry(0, 1);
    rig.device.log_entries(0, 3);
    rig.device.reset_pieces(0, 0);
    rig.device.make_pieces(0, 12);
    until_acknowledged(&mut rig, 3).await;
    until_total(&mut rig, "log.entry", 13).await;
    until_total(&mut rig, "piece.good", 82).await;
    let events = rig.events().await;
    assert_eq!(of_type(&events, "source.reset").count(), 3, "{events:#?}");
    items_are_events(&rig, &events);
    assert_eq!(total(&events, "piece.good"), 82);
}

// covers: EVT-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_that_is_lost_or_late_is_repeated_and_makes_no_second_event() {
    use holdfast::simulator::{Act, Fault, Matching};
    let mut rig = rig(65_400).await;
    let writes = |act| Fault::next(Matching::Functions(vec![5, 15]), act);
    for act in [
        Act::Drop,
        Act::DropReply,
        Act::Exception(6),
        Act::Reset,
        Act::ApplyReset,
    ] {
        rig.device.push_fault(writes(act));
        let items = rig.device.items(0).len() + 1;
        rig.device.present(0, 1);
        until_acknowledged(&mut rig, items).await;
        let speed = rig.set_speed(&format!("S{items}"), 40 + items as u32);
        rig.until_link("up").await;
        let (_, done) = rig.submit_wait(&speed).await;
        assert_eq!(done["state"], "completed", "{done}");
    }
    let events = rig.events().await;
    items_are_events(&rig, &events);
    assert_eq!(rig.device.items(0).len(), 5);
}

// covers: EVT-06, F039, F063
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_fails_makes_no_event_and_no_zero() {
    use holdfast::simulator::{Act, Fault, Matching};
    let mut rig = rig(65_400).await;
    rig.device.make_pieces(0, 9);
    until_total(&mut rig, "piece.good", 9).await;
    let busy = Fault::next(Matching::Reads, Act::Exception(6));
    rig.device.push_fault(busy.times(30).every(3));
    rig.device.present(0, 4);
    rig.device.make_pieces(0, 30);
    until_acknowledged(&mut rig, 4).await;
    until_total(&mut rig, "piece.good", 39).await;
    rig.device.clear_faults();
    rig.cut().await;
    rig.device.make_pieces(0, 2);
    rig.restore().await;
    until_total(&mut rig, "piece.good", 41).await;
    let events = rig.events().await;
    items_are_events(&rig, &events);
    assert_eq!(total(&events, "piece.good"), 41);
    assert_eq!(of_type(&events, "source.reset").count(), 0);
    for event in of_type(&events, "piece.good") {
        assert_eq!(event["quality"], "good", "{event}");
        assert!(event["body"]["to"].as_i64().unwrap() > 0, "{event}");
    }
}

/// The gateway has looked at the handshake some times more.
async fn until_looked_again(rig: &mut Rig) {
    let looks = |rig: &Rig| {
        let flags =
            |seen: &&holdfast::simulator::Seen| seen.function() == 1 && seen.start() == Some(20);
        rig.device.requests().iter().filter(flags).count()
    };
    let before = looks(rig);
    rig.until("it looks at the handshake again", async |rig| {
        looks(rig) > before + 5
    })
    .await;
}

// covers: FWD-04, CAP-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_full_journal_items_stay_at_the_device_and_come_when_there_is_room() {
    let disk = SmallDisk::new(48);
    let mut rig = rig(30_000).await;
    assert!(rig.stop().await.success());
    let small = format!("{}/state", disk.path().display());
    let own = format!("{}/state", rig.path().display());
    let copied = std::process::Command::new("cp")
        .args(["-a", &own, &small])
        .status();
    assert!(copied.unwrap().success());
    rig.gateway_toml = rig.gateway_toml.replace(&own, &small) + "[journal]\nbudget = \"64MiB\"\n";
    rig.start_up().await;
    rig.device.present(0, 1);
    until_acknowledged(&mut rig, 1).await;
    disk.fill(1 << 20);
    rig.until("it sees that there is no room", async |rig| {
        rig.get("/v1/status").await.1["journal"]["state"] == "full"
    })
    .await;
    rig.device.present(0, 2);
    rig.device.make_pieces(0, 30);
    rig.until("it says that events are not taken", async |rig| {
        let (_, status) = rig.get("/v1/status").await;
        let alarms = status["alarms"].as_array().unwrap();
        alarms
            .iter()
            .filter(|alarm| alarm["code"] == "events_not_taken")
            .count()
            == 1
    })
    .await;
    until_looked_again(&mut rig).await;
    let items = rig.device.items(0);
    assert_eq!(items.len(), 2, "the second waits behind the first");
    assert!(!items[1].acknowledged && rig.device.coil(20) && !rig.device.coil(21));
    assert_eq!(total(&rig.events().await, "piece.good"), 0);
    // A start that finds no room waits for it, and then the item is still there.
    rig.kill();
    rig.spawn();
    disk.make_room();
    until_acknowledged(&mut rig, 3).await;
    until_total(&mut rig, "piece.good", 30).await;
    rig.until("the alarms are gone", async |rig| {
        let (_, status) = rig.get("/v1/status").await;
        status["alarms"].as_array().unwrap().is_empty()
    })
    .await;
    let events = rig.events().await;
    items_are_events(&rig, &events);
    assert_eq!(total(&events, "piece.good"), 30);
}

// covers: F055, EVT-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_device_gives_no_events_and_gets_no_acknowledgement() {
    let mut rig = rig(65_400).await;
    rig.device.set_identity(1);
    rig.until("it sees another device", async |rig| {
        let (_, status) = rig.get("/v1/status").await;
        let alarms = status["alarms"].as_array().unwrap();
        alarms
            .iter()
            .any(|alarm| alarm["code"] == "identity_mismatch")
    })
    .await;
    rig.device.present(0, 1);
    rig.device.make_pieces(0, 9);
    until_looked_again(&mut rig).await;
    assert_eq!(rig.device.effects_of_coil(21), 0);
    let events = rig.events().await;
    assert_eq!(
        of_type(&events, "unit.done").count() + of_type(&events, "piece.good").count(),
        0
    );
    rig.device.set_identity(4711);
    until_acknowledged(&mut rig, 1).await;
    until_total(&mut rig, "piece.good", 9).await;
}

/// The same sources, with a machine that makes all the time.
const BUSY_SIM: &str = r#"
[[pieces]]
at = "holding:600"
start = 64000
every = "10ms"
by = 3
[[handshake]]
ready = "coil:20"
ack = "coil:21"
item = "holding:220"
data = "holding:222"
every = "60ms"
[[ring]]
head = "holding:400"
base = "holding:402"
entries = 8
words = 4
every = "15ms"
"#;
/// Kills of the busy machine's gateway.
const BUSY_ROUNDS: u64 = 10;

// covers: REL-01, EVT-02, EVT-03, EVT-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_random_while_the_machine_makes_everything_is_told_once_and_commands_go_on() {
    let machine = format!(
        "{PRESS}{}",
        SOURCES.replace("max_step = 200", "max_step = 2000")
    );
    let mut rig = Rig::with(&machine, &format!("{PRESS_SIM}{BUSY_SIM}")).await;
    let mut random = Random::new(41);
    for round in 0..BUSY_ROUNDS {
        rig.start_up().await;
        let speed = rig.set_speed(&format!("R{round}"), 100 + round as u32);
        let (_, done) = rig.submit_wait(&speed).await;
        assert_eq!(done["state"], "completed", "{done}");
        // The fault itself: a kill, and sometimes a lost connection before, at random moments.
        if random.one_in(3) {
            rig.device.close_connections();
        }
        tokio::time::sleep(std::time::Duration::from_millis(random.below(250))).await;
        rig.kill();
    }
    rig.start_up().await;
    rig.device.stop_making();
    rig.until("every item is acknowledged", async |rig| {
        let made = rig.device.items(0);
        made.iter().all(|item| item.acknowledged) && !rig.device.coil(20) && !rig.device.coil(21)
    })
    .await;
    let entries = rig.device.entries(0).last().unwrap().number;
    rig.until("the ring is caught up", async |rig| {
        let events = rig.events().await;
        let last = |kind: &str, key: &str| {
            let numbers = of_type(&events, kind).map(|event| event["body"][key].as_u64().unwrap());
            numbers.max().unwrap_or(0)
        };
        last("log.entry", "entry").max(last("source.overrun", "last")) == u64::from(entries)
    })
    .await;
    // The first look found what was there before as its baseline, and only that.
    let events = rig.events().await;
    let found = of_type(&events, "source.baseline");
    let baseline = |kind: &str| {
        let mut found = found
            .clone()
            .filter(|event| event["body"]["event_type"] == kind);
        let event = found
            .next()
            .unwrap_or_else(|| panic!("no baseline of {kind}"));
        assert!(found.next().is_none(), "two baselines of {kind}");
        event["body"]["found"].as_i64().unwrap()
    };
    let (counted, through) = (baseline("piece.good"), baseline("log.entry"));
    let made =
        i64::try_from(rig.device.pieces_made(0)).unwrap() - (counted - 64_000).rem_euclid(65_536);
    until_total(&mut rig, "piece.good", made).await;
    let events = rig.events().await;
    assert_eq!(total(&events, "piece.good"), made);
    assert_eq!(
        of_type(&events, "source.reset").count() + of_type(&events, "source.gap").count(),
        0
    );
    items_are_events(&rig, &events);
    let mut told: Vec<i64> = of_type(&events, "log.entry")
        .map(|event| event["body"]["entry"].as_i64().unwrap())
        .collect();
    for overrun in of_type(&events, "source.overrun") {
        let (first, last) = (&overrun["body"]["first"], &overrun["body"]["last"]);
        told.extend(first.as_i64().unwrap()..=last.as_i64().unwrap());
    }
    told.sort_unstable();
    assert_eq!(told, (through + 1..=i64::from(entries)).collect::<Vec<_>>());
    keys_are_whole(&events);
    // Each command was written once, and never into another exchange.
    assert_eq!(rig.speed_writes(), BUSY_ROUNDS as usize);
    until_delivered(&mut rig).await;
    assert!(rig.stop().await.success());
    items_are_events(&rig, &rig.sink_lines());
    println!(
        "{made} pieces, {} items, {entries} entries, {} kills",
        rig.device.items(0).len(),
        BUSY_ROUNDS
    );
}

// covers: EVT-03, EVT-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_that_the_network_held_back_takes_no_item_without_a_trace() {
    use holdfast::simulator::{Act, Fault, Matching, Span};
    let mut rig = rig(65_400).await;
    let late = Act::LateApply(Span::ms(900));
    let first = Fault::next(Matching::Functions(vec![5, 15]), late);
    rig.device.push_fault(first.times(2));
    rig.device.present(0, 60);
    until_acknowledged(&mut rig, 60).await;
    let events = rig.events().await;
    let mut told: Vec<i64> = of_type(&events, "unit.done")
        .map(|event| event["body"]["item"].as_i64().unwrap())
        .collect();
    for gap in of_type(&events, "source.gap") {
        let (first, last) = (&gap["body"]["first"], &gap["body"]["last"]);
        told.extend(first.as_i64().unwrap()..=last.as_i64().unwrap());
    }
    told.sort_unstable();
    assert_eq!(told, (1..=60).collect::<Vec<_>>());
}

// covers: EVT-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polls_that_fill_the_line_leave_handshake_and_ring_their_turn() {
    use holdfast::simulator::{Act, Fault, Matching, Span};
    let machine = format!("{PRESS}{SOURCES}").replace("poll = \"100ms\"", "poll = \"20ms\"");
    let mut rig = Rig::with(&machine, &format!("{PRESS_SIM}{SOURCES_SIM}")).await;
    rig.start_up().await;
    rig.until("counter and ring have their baselines", async |rig| {
        of_type(&rig.events().await, "source.baseline").count() == 2
    })
    .await;
    // A slow device: one poll is hardly read when the next is due.
    let slow = Fault::next(Matching::Reads, Act::LateReply(Span::ms(40)));
    rig.device.set_fault(slow.times(u32::MAX));
    rig.until("polls are late", async |rig| {
        rig.counter("polls_skipped").await > 20
    })
    .await;
    rig.device.present(0, 3);
    rig.device.log_entries(0, 3);
    until_acknowledged(&mut rig, 3).await;
    until_total(&mut rig, "log.entry", 3).await;
    // And they leave it to the polls.
    rig.device.make_pieces(0, 5);
    until_total(&mut rig, "piece.good", 5).await;
    items_are_events(&rig, &rig.events().await);
}
