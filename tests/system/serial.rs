//! The gateway on a serial line: pseudo-terminals under the simulator, unplugged, swapped, shared and held by others.

use super::harness::{HOLDFAST, PRESS, PRESS_SIM, Rig, until};
use holdfast::simulator::{ALWAYS, Act, Cause, Device, Fault, Matching, Simulator, SimulatorSpec};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

/// The press on a line, with what else `[link]` says.
pub(crate) fn on_line(link: &str) -> String {
    let tcp = "protocol = \"modbus-tcp\"\naddress = \"ADDRESS\"";
    let rtu = "protocol = \"modbus-rtu\"\nserial = \"RIG_DIR/com1\"\nparity = \"none\"";
    assert!(PRESS.contains(tcp));
    PRESS.replace(tcp, &format!("{rtu}\n{link}"))
}

pub(crate) const QUICK: &str = "baud = 115200\nsettle = \"60ms\"";

/// Its counterpart, with what else `[rtu]` says, and the line's other units.
pub(crate) fn line_sim(rtu: &str) -> String {
    format!("{PRESS_SIM}[rtu]\npty = \"RIG_DIR/com1\"\n{rtu}")
}

pub(crate) async fn rig(link: &str, rtu: &str) -> Rig {
    Rig::over_as_is(&on_line(link), &line_sim(rtu)).await
}

/// Machines of their own for further units on the same line.
pub(crate) fn add_units(rig: &mut Rig, units: impl Iterator<Item = u8>, link: &str, poll: &str) {
    let mut files = vec!["\"press-1.toml\"".to_owned()];
    for unit in units {
        let text = format!(
            "schema = 1\nname = \"unit-{unit}\"\n[link]\nprotocol = \"modbus-rtu\"\nserial = \"{}/com1\"\n\
             parity = \"none\"\n{link}\nunit = {unit}\nreconnect_min = \"50ms\"\nreconnect_max = \"1s\"\n\
             [[tag]]\nname = \"value\"\nread = \"holding:0\"\ntype = \"u16\"\npoll = \"{poll}\"\n",
            rig.path().display()
        );
        std::fs::write(rig.path().join(format!("unit-{unit}.toml")), text).unwrap();
        files.push(format!("\"unit-{unit}.toml\""));
    }
    let list = format!("machines = [{}]", files.join(", "));
    rig.gateway_toml = rig
        .gateway_toml
        .replace("machines = [\"press-1.toml\"]", &list);
}

pub(crate) async fn counters(rig: &Rig, machine: &str) -> BTreeMap<String, u64> {
    let (_, found) = rig.get(&format!("/v1/machines/{machine}")).await;
    let counters = found["counters"].as_object().unwrap().iter();
    counters
        .map(|(name, count)| (name.clone(), count.as_str().unwrap().parse().unwrap()))
        .collect()
}

pub(crate) async fn link_of(rig: &Rig, machine: &str) -> String {
    let (_, found) = rig.get(&format!("/v1/machines/{machine}")).await;
    found["link"]["state"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn writes(device: &Device) -> Vec<(u8, u16, Vec<u16>)> {
    let writes = device.ledger().into_iter().map(|effect| effect.cause);
    writes
        .filter_map(|cause| match cause {
            Cause::Write {
                function,
                start,
                words,
                ..
            } => Some((function, start, words)),
            _ => None,
        })
        .collect()
}

// covers: SEND-02, SEND-05, VER-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_go_over_a_serial_line_and_end_as_the_device_proves() {
    let mut rig = rig(QUICK, "").await;
    rig.start_up().await;
    rig.until_tag("speed", |tag| tag["quality"] == "good").await;
    let (_, done) = rig.submit_wait(&rig.set_speed("S1", 50)).await;
    assert_eq!(done["state"], "completed", "{done}");
    assert_eq!(rig.speed_writes(), 1);
    let (_, done) = rig
        .submit_wait(&rig.request("S2", "eject_one", json!({})))
        .await;
    assert_eq!(done["state"], "completed", "{done}");
    assert_eq!(rig.device.holding(200), 1);
    // The device did it, and its reply was lost.
    rig.device
        .set_fault(Fault::next(Matching::Writes, Act::DropReply));
    let request = rig.request("S3", "set_length", json!({ "length": 70_000 }));
    rig.submit(&request).await;
    rig.until_state("S3", "outcome_unknown").await;
    assert_eq!(rig.device.holding_u32(102), 70_000);
    rig.until_link("up").await;
    // Asked again it is not done again.
    let (status, _) = rig.submit(&request).await;
    assert_eq!((status, rig.device.effects_of_register(102)), (200, 1));
    // The device says so in its mailbox.
    rig.device
        .set_fault(Fault::next(Matching::Commit, Act::DropReply));
    rig.submit(&rig.request("S4", "eject_one", json!({}))).await;
    rig.until_state("S4", "completed").await;
    assert_eq!(rig.device.holding(200), 2);
}

// covers: SEND-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adapter_pulled_out_and_put_back_fifty_times_is_found_each_time() {
    let link = format!("{QUICK}\nreconnect_min = \"10ms\"\nreconnect_max = \"30ms\"");
    let machine = on_line(&link)
        .replace("reconnect_min = \"50ms\"\nreconnect_max = \"200ms\"\n", "")
        .replace("poll = \"100ms\"", "poll = \"20ms\"");
    let mut rig = Rig::over_as_is(&machine, &line_sim("")).await;
    rig.start_up().await;
    for round in 0..50 {
        rig.cut().await;
        assert!(!rig.path().join("com1").exists(), "round {round}");
        rig.restore().await;
    }
    let (_, done) = rig.submit_wait(&rig.set_speed("U1", 50)).await;
    assert_eq!(done["state"], "completed", "{done}");
    assert_eq!(rig.speed_writes(), 1);
    assert!(rig.log().contains("is gone") || rig.log().contains("is not there"));
}

// covers: F037
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_device_under_the_old_name_is_told_nothing() {
    let mut rig = rig(QUICK, "").await;
    rig.start_up().await;
    rig.cut().await;
    let waiting = rig.set_speed("W1", 50);
    assert_eq!(rig.submit(&waiting).await.1["state"], "queued");
    let port = rig.path().join("com1");
    until("the old one is out", async || !port.exists()).await;
    let other = line_sim("")
        .replace("4711", "4712")
        .replace("RIG_DIR", &rig.path().display().to_string());
    let other = Simulator::start(SimulatorSpec::from_toml(&other).unwrap())
        .await
        .unwrap();
    rig.until("the mismatch is raised", async |rig| {
        rig.alarms().await.contains(&"identity_mismatch".to_owned())
    })
    .await;
    let held = rig.until_state("W1", "held").await;
    assert_eq!(held["code"], "identity_mismatch", "{held}");
    let (_, answer) = rig.submit(&rig.request("W2", "eject_one", json!({}))).await;
    assert_eq!(answer["operation"]["code"], "identity_mismatch", "{answer}");
    let other = other.device();
    assert!(!other.requests().is_empty());
    assert!(other.requests().iter().all(|seen| !seen.is_write()));
    assert_eq!((other.effects(), rig.device.effects()), (0, 0));
}

// covers: F033
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_silent_units_of_ten_cost_the_others_no_cycle() {
    let also: String = (2..=10)
        .map(|unit| format!("[[also]]\nunit = {unit}\n"))
        .collect();
    let line = "baud = 115200\nsettle = \"100ms\"\ntimeout = \"150ms\"";
    let machine = on_line(line).replace("\nunit = 1\ntimeout = \"300ms\"", "\nunit = 1");
    let mut rig = Rig::over_as_is(&machine, &line_sim(&also)).await;
    add_units(&mut rig, 2..=10, line, "500ms");
    let units: Vec<Device> = rig.simulator.units().to_vec();
    let silent = [4, 7, 10];
    for unit in silent {
        units[unit - 1].set_fault(Fault::next(Matching::Any, Act::Drop).times(ALWAYS));
    }
    let good: Vec<usize> = (2..=10).filter(|unit| !silent.contains(unit)).collect();
    rig.start_up().await;
    let up = good.clone();
    rig.until("the good units are up", async |rig| {
        for unit in &up {
            if link_of(rig, &format!("unit-{unit}")).await != "up" {
                return false;
            }
        }
        true
    })
    .await;
    let polled = |unit: usize| units[unit - 1].requests();
    let from: Vec<usize> = good.iter().map(|unit| polled(*unit).len()).collect();
    until("the good units were polled for some seconds", async || {
        let mut all = good.iter().zip(&from);
        all.all(|(unit, from)| polled(*unit).len() >= from + 12)
    })
    .await;
    for (unit, from) in good.iter().zip(&from) {
        let seen = polled(*unit);
        let lag = seen[*from..].windows(2).map(|two| two[1].at - two[0].at);
        let lag = lag.max().unwrap();
        assert!(lag < Duration::from_millis(1_000), "unit {unit}: {lag:?}");
        assert_eq!(counters(&rig, &format!("unit-{unit}")).await["timeouts"], 0);
    }
    for unit in silent {
        assert_ne!(link_of(&rig, &format!("unit-{unit}")).await, "up");
        let looked_for = format!("unit {unit} is looked for");
        until(&looked_for, async || polled(unit).len() > 2).await;
    }
    // And a command waits for one request at most, a silent unit's included.
    let began = Instant::now();
    let (_, done) = rig.submit_wait(&rig.set_speed("T1", 50)).await;
    assert_eq!(done["state"], "completed", "{done}");
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    // Back, it is found.
    units[silent[0] - 1].clear_faults();
    rig.until("unit 4 is up", async |rig| {
        link_of(rig, "unit-4").await == "up"
    })
    .await;
}

// covers: SEND-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_line_full_of_polls_a_command_waits_for_one_request_at_a_time() {
    let also: String = (2..=8)
        .map(|unit| format!("[[also]]\nunit = {unit}\n"))
        .collect();
    // So slow that seven polls take longer than their cycle.
    let line = "baud = 9600\nsettle = \"60ms\"\ntimeout = \"2s\"";
    let machine = on_line(line).replace("\nunit = 1\ntimeout = \"300ms\"", "\nunit = 1");
    let mut rig = Rig::over_as_is(&machine, &line_sim(&also)).await;
    add_units(&mut rig, 2..=8, line, "10ms");
    let units: Vec<Device> = rig.simulator.units().to_vec();
    rig.start_up().await;
    until("all are polled", async || {
        units.iter().all(|unit| unit.requests().len() > 5)
    })
    .await;
    let mut between = Vec::new();
    for n in 0..5 {
        let id = format!("M{n}");
        let (_, done) = rig
            .submit_wait(&rig.request(&id, "eject_one", json!({})))
            .await;
        assert_eq!(done["state"], "completed", "{done}");
        let at = |unit: &Device, seen: &holdfast::simulator::Seen| unit.started() + seen.at;
        let own: Vec<Instant> = (units[0].requests().iter())
            .filter(|seen| seen.is_write())
            .map(|seen| at(&units[0], seen))
            .collect();
        // The block, and its commit: in between it was read back.
        let [.., block, commit] = own.as_slice() else {
            panic!("{own:?}")
        };
        let others = units[1..].iter().flat_map(|unit| {
            let seen = unit.requests();
            seen.into_iter().map(move |seen| at(unit, &seen))
        });
        between.push(others.filter(|at| at > block && at < commit).count());
    }
    // One before each of the two; by age alone it would be all seven, twice.
    between.sort_unstable();
    assert!(between[2] <= 4, "{between:?}");
}

// covers: F025, F027
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_units_that_need_silence_before_a_request_get_it() {
    // 3.5 characters of eleven bits; of ten they would be shorter.
    let line = "baud = 9600\nsettle = \"60ms\"";
    let rtu = "gap = \"4ms\"\n[[also]]\nunit = 2\n";
    let even = |text: &str| text.replace("parity = \"none\"", "parity = \"even\"");
    let machine = even(&on_line(line)).replace("poll = \"100ms\"", "poll = \"10ms\"");
    let mut rig = Rig::over_as_is(&machine, &line_sim(rtu)).await;
    add_units(&mut rig, 2..=2, line, "10ms");
    let second = rig.path().join("unit-2.toml");
    let text = std::fs::read_to_string(&second).unwrap();
    std::fs::write(second, even(&text)).unwrap();
    let units: Vec<Device> = rig.simulator.units().to_vec();
    rig.start_up().await;
    // A thousand requests, each answered within the millisecond.
    for most in (1..=10).map(|part| part * 50) {
        until("both are polled", async || {
            units.iter().all(|unit| unit.requests().len() > most)
        })
        .await;
    }
    assert_eq!(units[0].early_requests(), 0);
    for machine in ["press-1", "unit-2"] {
        assert_eq!(counters(&rig, machine).await["timeouts"], 0, "{machine}");
    }
}

const BROADCAST: &str = r#"
schema = 1
name = "all"
[link]
protocol = "modbus-rtu"
serial = "RIG_DIR/com1"
baud = 115200
parity = "none"
settle = "60ms"
unit = 0
COMMANDS
"#;

fn broadcast() -> String {
    let command = |name: &str, write: &str, args: &str| {
        format!(
            "[[command]]\nname = \"{name}\"\nclass = \"absolute_set\"\nwrite = \"{write}\"\nqueueable = false\n\
             verify = \"manual\"\nargs = {{ {args} }}\n"
        )
    };
    let bit = |name: &str| format!("{name} = {{ type = \"bool\" }}");
    let word = |name: &str| format!("{name} = {{ type = \"u16\", min = 0, max = 9 }}");
    let commands = [
        command("coil", "coil:40", &bit("a")),
        command("coils", "coil:40", &format!("{}, {}", bit("a"), bit("b"))),
        command("word", "holding:40", &word("a")),
        command(
            "words",
            "holding:40",
            &format!("{}, {}", word("a"), word("b")),
        ),
    ];
    BROADCAST.replace("COMMANDS", &commands.concat())
}

// covers: F031
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broadcast_is_sent_once_reaches_all_and_is_never_called_done() {
    let mut rig = rig(QUICK, "[[also]]\nunit = 2\n").await;
    let text = broadcast().replace("RIG_DIR", &rig.path().display().to_string());
    std::fs::write(rig.path().join("all.toml"), text).unwrap();
    rig.gateway_toml = rig
        .gateway_toml
        .replace("[\"press-1.toml\"]", "[\"press-1.toml\", \"all.toml\"]");
    rig.start_up().await;
    rig.until("the line is open", async |rig| {
        link_of(rig, "all").await == "up"
    })
    .await;
    let cases = [
        ("coil", json!({ "a": true }), 5),
        ("coils", json!({ "a": true, "b": true }), 15),
        ("word", json!({ "a": 5 }), 6),
        ("words", json!({ "a": 5, "b": 6 }), 16),
    ];
    for (n, (command, args, _)) in cases.iter().enumerate() {
        let id = format!("B{n}");
        let mut request = rig.request(&id, command, args.clone());
        request["machine"] = "all".into();
        rig.submit(&request).await;
        let unknown = rig.until_state(&id, "outcome_unknown").await;
        assert!(
            unknown["reason"]
                .as_str()
                .unwrap()
                .contains("sent, unconfirmable"),
            "{unknown}"
        );
    }
    // The line was polled on behind it, and nothing was sent twice.
    rig.polls(5).await;
    for unit in rig.simulator.units() {
        let functions: Vec<u8> = writes(unit)
            .iter()
            .map(|(function, ..)| *function)
            .collect();
        assert_eq!(
            functions,
            cases.each_ref().map(|(_, _, function)| *function)
        );
    }
    assert_eq!(rig.counter("timeouts").await, 0);
}

// covers: F038
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_another_process_holds_is_said_to_be_held_and_taken_when_it_is_free() {
    let mut rig = rig(QUICK, "").await;
    let port = rig.path().join("com1");
    let mut holder = Command::new("flock")
        .arg("--no-fork")
        .arg(&port)
        .args(["sleep", "600"])
        .spawn()
        .unwrap();
    let held = || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.contains(&format!(" {} ", holder.id()))
    };
    until("it is held", async || held()).await;
    rig.start().await;
    let who = format!("process {}", holder.id());
    rig.until("the holder is named", async |rig| {
        let (_, machine) = rig.get("/v1/machines/press-1").await;
        machine["link"]["reason"]
            .as_str()
            .unwrap_or_default()
            .contains(&who)
    })
    .await;
    rig.until("it was tried some times", async |rig| {
        rig.counter("connect_failures").await >= 20
    })
    .await;
    let lines = rig.log().lines().filter(|line| line.contains(&who)).count();
    assert_eq!(lines, 1, "{}", rig.log());
    holder.kill().unwrap();
    holder.wait().unwrap();
    rig.until_link("up").await;
}

// covers: F038
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_another_process_has_open_without_a_lock_is_left_alone_until_it_is_free() {
    let mut rig = rig(QUICK, "").await;
    let port = std::fs::File::open(rig.path().join("com1")).unwrap();
    let mut holder = Command::new("sleep")
        .arg("600")
        .stdin(port)
        .spawn()
        .unwrap();
    rig.start().await;
    let who = format!("process {} (sleep)", holder.id());
    rig.until("the holder is named", async |rig| {
        let (_, machine) = rig.get("/v1/machines/press-1").await;
        let reason = machine["link"]["reason"].as_str().unwrap_or_default();
        reason.contains(&who) && reason.contains("without a lock")
    })
    .await;
    rig.until("it was tried some times", async |rig| {
        rig.counter("connect_failures").await >= 5
    })
    .await;
    assert_eq!(rig.device.requests().len(), 0, "something was sent");
    let lines = rig.log().lines().filter(|line| line.contains(&who)).count();
    assert!(lines <= 1, "{}", rig.log());
    holder.kill().unwrap();
    holder.wait().unwrap();
    rig.until_link("up").await;
}

async fn check(rig: &Rig) -> (bool, Json, String) {
    rig.write_config();
    let output = Command::new(HOLDFAST)
        .args(["--json", "--config"])
        .arg(rig.path().join("holdfast.toml"))
        .arg("check")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let json = serde_json::from_str(&text).unwrap_or(Json::Null);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), json, text + &said)
}

// covers: CFG-01, F031, F037
#[tokio::test]
async fn what_a_line_cannot_do_is_refused_and_what_is_odd_is_said() {
    let mut rig = rig(QUICK, "").await;
    let good = rig.machine_toml.clone();
    let (ok, _, text) = check(&rig).await;
    assert!(ok, "{text}");
    // A name that changes with the order in which adapters are found.
    let com1 = format!("\"{}/com1\"", rig.path().display());
    rig.machine_toml = good.replace(&com1, "\"/dev/ttyUSB0\"");
    let (ok, _, text) = check(&rig).await;
    assert!(ok && text.contains("/dev/serial/by-id"), "{text}");
    let cases = [
        (com1.as_str(), "\"com99\"", "com99"),
        ("baud = 115200", "baud = 0", "baud"),
        ("parity = \"none\"", "parity = \"mark\"", "even"),
        (
            "parity = \"none\"",
            "parity = \"none\"\ndata_bits = 7",
            "whole bytes",
        ),
        ("\nunit = 1", "\nunit = 248", "247"),
        ("\nunit = 1", "\nunit = 0", "nothing answers a broadcast"),
        ("baud = 115200\n", "", "baud"),
    ];
    for (from, to, said) in cases {
        assert!(good.contains(from), "{from}");
        rig.machine_toml = good.replace(from, to);
        let (ok, _, text) = check(&rig).await;
        assert!(!ok && text.contains(said), "{to}: {text}");
    }
    // Two machines that would drive one line in two ways.
    rig.machine_toml = good;
    add_units(&mut rig, 2..=2, "baud = 9600", "500ms");
    let (ok, _, text) = check(&rig).await;
    assert!(!ok && text.contains("other settings"), "{text}");
}
