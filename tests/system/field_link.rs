//! Owns: links that are silent, slow, refused, dropped or another's, and what the gateway makes of them.
//! May call: the harness, its common questions, the bus.
//! Never: count an effect anywhere but at the device.

use super::field_bus::Bus;
use super::harness::{PRESS_SIM, Rig, until};
use holdfast::simulator::{ALWAYS, Act, Fault, Matching, Simulator, SimulatorSpec, Span};
use serde_json::{Value as Json, json};
use std::time::{Duration, Instant};

/// A machine whose only traffic is what its link and its commands cause.
const QUIET: &str = r#"
schema = 1
name = "press-1"
owner = "gw-test"
[link]
protocol = "modbus-tcp"
address = "ADDRESS"
unit = 1
timeout = "300ms"
reconnect_min = "50ms"
reconnect_max = "200ms"
LINK
[[tag]]
name = "speed"
read = "holding:100"
type = "u16"
poll = "POLL"
[[command]]
name = "set_speed"
class = "absolute_set"
write = "holding:100"
args = { speed = { type = "u16", min = 0, max = 3000 } }
queueable = true
ttl = "30s"
precondition = "none"
i_accept = "test"
completion = "reply"
verify = "readback"
[[command]]
name = "set_length"
class = "absolute_set"
write = "holding:102"
args = { length = { type = "u16", min = 0, max = 3000 } }
queueable = false
completion = "reply"
verify = "manual"
"#;

async fn quiet(link: &str, poll: &str, sim: &str) -> Rig {
    let machine = QUIET.replace("LINK", link).replace("POLL", poll);
    Rig::with(&machine, sim).await
}

/// Machines `unit-N` at one address, beside the press.
async fn units_on(
    bus: &Bus,
    units: std::ops::RangeInclusive<u8>,
    timeout: &str,
    poll: &str,
) -> Rig {
    let mut rig = Rig::new().await;
    let mut files = vec!["\"press-1.toml\"".to_owned()];
    for unit in units {
        let text = format!(
            "schema = 1\nname = \"unit-{unit}\"\n[link]\nprotocol = \"modbus-tcp\"\naddress = \"{}\"\n\
             unit = {unit}\ntimeout = \"{timeout}\"\nreconnect_min = \"100ms\"\nreconnect_max = \"1s\"\n\
             [[tag]]\nname = \"value\"\nread = \"holding:0\"\ntype = \"u16\"\npoll = \"{poll}\"\n",
            bus.address
        );
        std::fs::write(rig.path().join(format!("unit-{unit}.toml")), text).unwrap();
        files.push(format!("\"unit-{unit}.toml\""));
    }
    let list = format!("machines = [{}]", files.join(", "));
    rig.gateway_toml = rig
        .gateway_toml
        .replace("machines = [\"press-1.toml\"]", &list);
    rig
}

async fn link_of(rig: &Rig, machine: &str) -> (String, Json) {
    let (_, found) = rig.get(&format!("/v1/machines/{machine}")).await;
    let state = found["link"]["state"].as_str().unwrap_or_default();
    (state.to_owned(), found["counters"].clone())
}

// covers: F021
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_unit_of_a_serial_server_costs_the_others_nothing() {
    let bus = Bus::start(&[2]).await;
    let mut rig = units_on(&bus, 1..=4, "200ms", "50ms").await;
    rig.start_up().await;
    until("unit 2 was asked many times", async || {
        bus.times(2).len() >= 6
    })
    .await;
    let others = [1, 3, 4];
    until("the others were polled all the while", async || {
        others.iter().all(|unit| bus.times(*unit).len() > 40)
    })
    .await;
    assert_ne!(link_of(&rig, "unit-2").await.0, "up");
    for unit in others {
        let (state, counters) = link_of(&rig, &format!("unit-{unit}")).await;
        assert_eq!(state, "up");
        assert_eq!(bus.connections(unit), 1, "unit {unit} was reconnected");
        assert_eq!(counters["timeouts"], "0", "unit {unit}: {counters}");
    }
}

// covers: F033
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offline_units_take_no_cycle_of_the_good_ones() {
    let bus = Bus::start(&[1, 2, 3, 4, 5, 6]).await;
    let mut rig = units_on(&bus, 1..=10, "200ms", "500ms").await;
    rig.start_up().await;
    until("good units were polled for some seconds", async || {
        (7..=10).all(|unit| bus.times(unit).len() >= 8)
    })
    .await;
    for unit in 7..=10 {
        let times = bus.times(unit);
        let lag = times
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .max()
            .unwrap();
        assert!(lag < Duration::from_millis(1000), "unit {unit}: {lag:?}");
    }
    // One request at a time, 200 ms each: nothing is queued for a unit that does not answer.
    for unit in 1..=6 {
        for pair in bus.times(unit).windows(2) {
            assert!(
                pair[1] - pair[0] >= Duration::from_millis(190),
                "unit {unit}"
            );
        }
    }
}

// covers: F033
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cycles_that_a_slow_device_misses_are_skipped_and_counted() {
    let mut rig = quiet("", "50ms", "").await;
    rig.start_up().await;
    rig.polls(5).await;
    let (polls, skipped) = (
        rig.counter("polls").await,
        rig.counter("polls_skipped").await,
    );
    let slow = Fault::next(Matching::Reads, Act::Hold(Span::ms(220)));
    rig.device.set_fault(slow.times(10));
    rig.polls(10).await;
    rig.device.clear_faults();
    let missed = rig.counter("polls_skipped").await - skipped;
    assert!((30..=60).contains(&missed), "{missed} of about 40 cycles");
    // What was missed is not made up for: then one poll a cycle, no burst.
    let from = rig.device.requests().len();
    rig.polls(10).await;
    let seen = rig.device.requests();
    let burst = seen[from + 1..]
        .windows(2)
        .filter(|pair| pair[1].at - pair[0].at < Duration::from_millis(15))
        .count();
    assert!(burst <= 1, "{burst} polls right behind another");
    assert!(rig.counter("polls").await > polls);
    // A cycle without a connection is a missed one too.
    let skipped = rig.counter("polls_skipped").await;
    rig.cut().await;
    rig.until("cycles are missed", async |rig| {
        rig.counter("polls_skipped").await >= skipped + 5
    })
    .await;
}

// covers: F037
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_at_a_swapped_address_is_never_written_to() {
    let other = SimulatorSpec::from_toml(&PRESS_SIM.replace("4711", "4712")).unwrap();
    let other = Simulator::start(other).await.unwrap();
    let other_device = other.device();
    other_device.set_holding(200, 55);
    let mut rig = Rig::new().await;
    rig.start_up().await;
    rig.make_events(1).await;
    rig.cut().await;
    let waiting = rig.set_speed("W1", 50);
    assert_eq!(rig.submit(&waiting).await.1["state"], "queued");
    let (own, swapped) = (rig.simulator.address(), other.address());
    rig.machine_toml = rig
        .machine_toml
        .replace(&own.to_string(), &swapped.to_string());
    assert_eq!(rig.reload().await.0, 200);
    rig.until("the mismatch is raised", async |rig| {
        rig.alarms().await.contains(&"identity_mismatch".to_owned())
    })
    .await;
    let held = rig.until_state("W1", "held").await;
    assert_eq!(held["code"], "identity_mismatch", "{held}");
    for (id, command, args) in [
        ("W2", "set_length", json!({ "length": 5 })),
        ("W3", "eject_one", json!({})),
    ] {
        let (_, answer) = rig.submit(&rig.request(id, command, args)).await;
        assert_eq!(answer["operation"]["state"], "rejected", "{answer}");
        assert_eq!(answer["operation"]["code"], "identity_mismatch", "{answer}");
    }
    assert_eq!(other_device.effects(), 0);
    assert!(other_device.requests().iter().all(|seen| !seen.is_write()));
}

// covers: F055
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_with_another_program_gives_no_values_and_gets_no_commands() {
    let mut rig = Rig::new().await;
    rig.machine_toml = rig
        .machine_toml
        .replace("max_queued = 1", "max_queued = 3")
        .replace("replace = \"same_operator\"", "replace = \"never\"")
        .replace("ttl = \"10s\"", "ttl = \"10min\"");
    rig.device.set_holding(100, 1234);
    rig.start_up().await;
    rig.make_events(2).await;
    rig.cut().await;
    for (n, id) in ["P1", "P2", "P3"].iter().enumerate() {
        let request = rig.set_speed(id, 50 + n as u32);
        let (_, answer) = rig.submit(&request).await;
        assert_eq!(answer["state"], "queued", "{answer}");
    }
    // Another program: other registers, another identity.
    rig.device.set_identity(4712);
    rig.device.set_holding(100, 9999);
    rig.device.set_holding(200, 999);
    rig.device.restore();
    for id in ["P1", "P2", "P3"] {
        let held = rig.until_state(id, "held").await;
        assert_eq!(held["code"], "identity_mismatch", "{held}");
    }
    let polls = rig.device.requests().len();
    rig.polls(20).await;
    let tag = rig.tag("speed").await;
    assert!(tag["value"].is_null(), "{tag}");
    let reason = tag["reason"].as_str().unwrap();
    assert!(reason.starts_with("config_mismatch"), "{tag}");
    // The first thing that is asked over a new connection is who answers.
    let connection = rig.device.requests().last().unwrap().connection;
    let first = rig.device.requests();
    let first = first
        .iter()
        .find(|seen| seen.connection == connection)
        .unwrap();
    assert_eq!(first.start(), Some(110), "{first:?}");
    assert!(rig.device.requests().len() > polls);
    assert_eq!(rig.device.effects(), 0);
    let values = piece_values(&rig).await;
    assert!(
        !values.contains(&json!(999)),
        "another device's pieces: {values:?}"
    );
    // The right program again: what was held waits for a person, what is counted is counted.
    rig.device.set_identity(4711);
    rig.device.set_holding(200, 3);
    rig.until_link("up").await;
    rig.until("the right device's value is recorded", async |rig| {
        piece_values(rig).await.last() == Some(&json!(3))
    })
    .await;
    rig.polls(20).await;
    assert_eq!(rig.device.effects(), 0);
    assert_eq!(rig.state("P2").await, "held");
    let (status, answer) = rig.post("/v1/operations/P2/approve", json!({})).await;
    assert!(status < 300, "{answer}");
    rig.until_state("P2", "completed").await;
    assert_eq!((rig.device.holding(100), rig.speed_writes()), (51, 1));
}

async fn piece_values(rig: &Rig) -> Vec<Json> {
    let events = rig.events_of("piece.count").await;
    events
        .iter()
        .map(|event| event["body"]["value"].clone())
        .collect()
}

// covers: F043 (its two states; memory over tens of refusals only)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_that_is_offline_is_not_the_link_that_is_down() {
    let mut rig = quiet("", "20ms", "").await;
    rig.start_up().await;
    rig.polls(5).await;
    let offline = Fault::next(Matching::Any, Act::Exception(0x0B));
    rig.device.set_fault(offline.times(ALWAYS));
    rig.until("the unit is said to be offline", async |rig| {
        let (_, machine) = rig.get("/v1/machines/press-1").await;
        let reason = machine["link"]["reason"].as_str().unwrap();
        machine["link"]["state"] != "up" && reason.contains("unit 1 is offline")
    })
    .await;
    let asked = rig.counter("exceptions").await;
    rig.until("it is asked again and again", async |rig| {
        rig.counter("exceptions").await > asked + 10
    })
    .await;
    let before = resident_kb(&rig);
    rig.until("and again", async |rig| {
        rig.counter("exceptions").await > asked + 60
    })
    .await;
    let grown = resident_kb(&rig).saturating_sub(before);
    assert!(grown < 2_000, "{grown} kB more after 50 refusals");
    let tag = rig.tag("speed").await;
    assert_ne!(tag["quality"], "good", "{tag}");
    rig.device.clear_faults();
    rig.until_link("up").await;
    assert_eq!(rig.device.connections(), 1, "the connection never went");
    // One transition each way, however often it was asked in between.
    let changes = rig.events_of("link.changed").await;
    assert_eq!(changes.len(), 3, "{changes:?}");
}

fn resident_kb(rig: &Rig) -> u64 {
    let pid = rig.gateway.as_ref().unwrap().id();
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:"));
    let digits = line.unwrap().split_whitespace().nth(1).unwrap();
    digits.parse().unwrap()
}

// covers: F059
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_was_swallowed_is_back_within_ten_seconds() {
    // The link's own times are the defaults.
    let machine = QUIET
        .replace("timeout = \"300ms\"\n", "")
        .replace("reconnect_min = \"50ms\"\n", "")
        .replace("reconnect_max = \"200ms\"\n", "")
        .replace("LINK", "")
        .replace("POLL", "200ms");
    let mut rig = Rig::with(&machine, "").await;
    rig.start_up().await;
    rig.until_tag("speed", |tag| tag["quality"] == "good").await;
    rig.device.black_hole(true);
    rig.until("the silence is noticed", async |rig| {
        rig.link().await != "up"
    })
    .await;
    rig.until("it tries again and again", async |rig| {
        rig.counter("connects").await >= 4
    })
    .await;
    rig.device.black_hole(false);
    rig.device.reboot();
    let back = Instant::now();
    rig.until_link("up").await;
    rig.until_tag("speed", |tag| tag["quality"] == "good").await;
    assert!(
        back.elapsed() < Duration::from_secs(10),
        "{:?}",
        back.elapsed()
    );
}

// covers: F060
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_reported_does_not_arrive_when_the_cable_is_back() {
    let mut rig = quiet("", "10s", "").await;
    rig.start_up().await;
    rig.until_tag("speed", |tag| tag["quality"] == "good").await;
    rig.device.freeze(true);
    let w1 = rig.request("W1", "set_length", json!({ "length": 111 }));
    let (_, answer) = rig.submit_wait(&w1).await;
    rig.until("W1 is reported", async |rig| {
        matches!(rig.state("W1").await.as_str(), "outcome_unknown" | "failed")
    })
    .await;
    assert_eq!(answer["operation_id"], "W1", "{answer}");
    rig.until("the gateway sees the loss", async |rig| {
        rig.link().await != "up"
    })
    .await;
    let w2 = rig.request("W2", "set_speed", json!({ "speed": 222 }));
    let (_, answer) = rig.submit(&w2).await;
    assert_eq!(answer["state"], "queued", "{answer}");
    rig.device.freeze(false);
    rig.until_state("W2", "completed").await;
    rig.polls(1).await;
    assert_eq!(rig.device.effects_of_register(102), 0, "W1 arrived late");
    assert_eq!((rig.device.holding(100), rig.speed_writes()), (222, 1));
    assert_eq!(rig.state("W1").await, "outcome_unknown");
}

// covers: F069
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_heartbeat_finds_what_idleness_lost_before_a_command_does() {
    let mut rig = quiet("heartbeat = \"400ms\"", "1h", "").await;
    rig.start_up().await;
    // A box on the way forgets the flow: nothing comes, and nobody says so.
    rig.device.black_hole(true);
    rig.until("the heartbeat finds it", async |rig| {
        rig.link().await != "up"
    })
    .await;
    rig.device.black_hole(false);
    rig.until_link("up").await;
    let request = rig.request("I1", "set_length", json!({ "length": 5 }));
    let (_, done) = rig.submit_wait(&request).await;
    assert_eq!(done["state"], "completed", "{done}");
    assert_eq!(rig.device.effects_of_register(102), 1);
    // The device ends all sessions on a mode change.
    let connections = rig.device.connections();
    rig.device.close_connections();
    let device = rig.device.clone();
    until("it connected anew", async || {
        device.connections() > connections
    })
    .await;
    rig.until_link("up").await;
    let request = rig.request("I2", "set_length", json!({ "length": 6 }));
    let (_, done) = rig.submit_wait(&request).await;
    assert_eq!(done["state"], "completed", "{done}");
    assert_eq!(rig.device.effects_of_register(102), 2);
}

// covers: F081
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_the_device_closed_takes_no_command_with_it() {
    let sim = "idle_close = \"500ms\"\n";
    let mut rig = quiet("heartbeat = \"1h\"", "1h", sim).await;
    rig.start_up().await;
    let device = rig.device.clone();
    until("the device closed it for idleness", async || {
        device.connections() >= 1 && device.slots_taken() == 0
    })
    .await;
    let request = rig.request("C1", "set_speed", json!({ "speed": 7 }));
    let (_, done) = rig.submit_wait(&request).await;
    assert_eq!(done["state"], "completed", "{done}");
    let first = &done["attempts"][0];
    assert_eq!(first["outcome"], "not_sent", "{done}");
    assert_eq!(first["bytes_sent"], 0, "{done}");
    assert_eq!((rig.device.holding(100), rig.speed_writes()), (7, 1));
    // One that may not wait is told at once, and never has an effect later.
    until("closed again", async || device.slots_taken() == 0).await;
    let request = rig.request("C2", "set_length", json!({ "length": 7 }));
    let (_, end) = rig.submit_wait(&request).await;
    let effects = rig.device.effects_of_register(102);
    assert_eq!(end["operation"]["state"], "rejected", "{end}");
    let not_sent = &end["operation"]["attempts"][0]["outcome"];
    assert_eq!((not_sent, effects), (&json!("not_sent"), 0), "{end}");
}

// covers: F141
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_with_two_slots_sees_one_connection_of_ours() {
    let sim = "slots = 2\nslot_timeout = \"300ms\"\n[registers.holding]\n100 = 1\n";
    let mut rig = quiet("", "20ms", sim).await;
    rig.machine_toml = rig
        .machine_toml
        .replace("reconnect_min = \"50ms\"", "reconnect_min = \"450ms\"")
        .replace("reconnect_max = \"200ms\"", "reconnect_max = \"2s\"");
    rig.start_up().await;
    // The panel takes the other slot, and keeps it.
    let panel = tokio::net::TcpStream::connect(rig.simulator.address())
        .await
        .unwrap();
    let (device, address) = (rig.device.clone(), rig.simulator.address());
    until("both slots are taken", async || device.slots_taken() == 2).await;
    for n in 0..10 {
        let poll = format!("poll = \"{}ms\"", 21 + n);
        let line = rig
            .machine_toml
            .lines()
            .find(|line| line.starts_with("poll"))
            .unwrap()
            .to_owned();
        rig.machine_toml = rig.machine_toml.replace(&line, &poll);
        let (status, answer) = rig.reload().await;
        assert_eq!(status, 200, "{answer}");
        rig.until_link("up").await;
        assert!(device.slots_taken() <= 2);
        let mut byte = [0];
        let open = panel.try_read(&mut byte);
        assert!(
            open.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock),
            "the panel was pushed out"
        );
    }
    assert_eq!(device.connections(), 12, "one for each reload");
    one_at_a_time(&rig);
    drop(panel);
    // The slot of a connection that was cut stays taken for a while: it is waited for.
    for _ in 0..10 {
        until("only ours is taken", async || device.slots_taken() == 1).await;
        let _panel = tokio::net::TcpStream::connect(address).await.unwrap();
        until("both slots are taken", async || device.slots_taken() == 2).await;
        let before = rig.counter("connects").await;
        rig.device.cut();
        rig.device.restore();
        rig.until("it is back", async |rig| {
            rig.counter("connects").await > before && rig.link().await == "up"
        })
        .await;
        assert_eq!(
            rig.counter("connects").await,
            before + 1,
            "no try was in vain"
        );
    }
    one_at_a_time(&rig);
}

/// Requests of one connection never come after those of a later one.
fn one_at_a_time(rig: &Rig) {
    let numbers: Vec<u64> = rig
        .device
        .requests()
        .iter()
        .map(|seen| seen.connection)
        .collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
}
