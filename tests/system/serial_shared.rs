//! Owns: a line or port that others use too: how many requests of theirs a command waits for, what a silent unit costs
//! them, what a second process is told.
//! May call: the harness, serial (machines on one line).
//! Never: measure a wait in time where it can be counted in requests at the devices.

use super::harness::{PRESS, PRESS_SIM, Rig, until};
use super::link_kind::LinkKind;
use super::scene_c::entered_ns;
use super::serial::{QUICK, add_units, counters, line_sim, link_of, on_line, rig};
use holdfast::simulator::{ALWAYS, Act, Device, Fault, Matching, Span};
use serde_json::json;
use std::time::{Duration, Instant};

/// Commands whose waits are counted.
const COMMANDS: usize = 50;
/// Most that are submitted for that: those that the computer itself held up say nothing of the line.
const SUBMITTED_MAX: usize = 150;
/// How long a unit takes over a reply, so that the line is never free.
const REPLY: Duration = Duration::from_millis(100);

fn also(units: impl Iterator<Item = u8>) -> String {
    units
        .map(|unit| format!("[[also]]\nunit = {unit}\n"))
        .collect()
}

/// When the device saw each request.
fn seen_at(device: &Device) -> Vec<Instant> {
    let started = device.started();
    let seen = device.requests().into_iter();
    seen.map(|seen| started + seen.at).collect()
}

fn last_write(device: &Device) -> Instant {
    let seen = device.requests();
    let last = seen.iter().rfind(|seen| seen.is_write());
    device.started() + last.expect("it was written").at
}

// covers: SEND-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_waits_for_at_most_one_request_of_the_other_nine_units() {
    let line = "baud = 115200\nsettle = \"60ms\"\ntimeout = \"400ms\"";
    let machine = on_line(line)
        .replace("\nunit = 1\ntimeout = \"300ms\"", "\nunit = 1")
        .replace("max_age = \"1s\"", "max_age = \"5min\"");
    let mut rig = Rig::over_as_is(&machine, &line_sim(&also(2..=10))).await;
    add_units(&mut rig, 2..=10, line, "200ms");
    let units: Vec<Device> = rig.simulator.units().to_vec();
    let silent = [4_u8, 7, 10];
    let device = |unit: u8| &units[usize::from(unit) - 1];
    for unit in silent {
        device(unit).set_fault(Fault::next(Matching::Any, Act::Drop).times(ALWAYS));
    }
    rig.start_up().await;
    let live: Vec<u8> = (2..=10).filter(|unit| !silent.contains(unit)).collect();
    for unit in &live {
        rig.until("the live units are up", async |rig| {
            link_of(rig, &format!("unit-{unit}")).await == "up"
        })
        .await;
    }
    // From now on there is more to poll than fits on the line.
    for unit in live {
        let slow = Act::LateReply(Span(REPLY));
        device(unit).set_fault(Fault::next(Matching::Any, slow).times(ALWAYS));
    }
    let looked_for = || -> usize {
        let looks = silent.iter().map(|unit| device(*unit).requests().len());
        looks.sum()
    };
    let before = looked_for();
    let (mut waits, mut behind_one, mut submitted) = (Vec::new(), 0, 0);
    while waits.len() < COMMANDS {
        assert!(submitted < SUBMITTED_MAX, "this computer is too slow");
        let id = format!("Q{submitted}");
        let (from, from_ns) = (Instant::now(), rig.clock.boot_ns());
        rig.submit(&rig.set_speed(&id, 10 + submitted as u32)).await;
        submitted += 1;
        let done = rig.until_state(&id, "completed").await;
        let written = last_write(&units[0]);
        assert_eq!(rig.speed_writes(), submitted);
        if entered_ns(&done, "sending") - from_ns > REPLY.as_nanos() as i64 / 2 {
            continue;
        }
        let others: Vec<Instant> = units[1..].iter().flat_map(seen_at).collect();
        let within = |from, to| others.iter().filter(|at| **at > from && **at <= to).count();
        behind_one += within(from - REPLY, from);
        waits.push(within(from, written));
    }
    assert!(waits.iter().all(|wait| *wait <= 1), "{waits:?}");
    // The line was in use at most of these moments, by the silent ones too.
    assert!(behind_one > COMMANDS / 3, "{behind_one} of {COMMANDS}");
    until("silent units are looked for", async || {
        looked_for() > before
    })
    .await;
}

// covers: F021
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_unit_behind_a_serial_server_takes_the_connection_from_nobody() {
    let kind = LinkKind::Rtu { tcp: true };
    let sim = kind.simulator(PRESS_SIM) + &also(2..=4);
    let mut rig = Rig::over_as_is(&kind.machine(PRESS), &sim).await;
    let units: Vec<Device> = rig.simulator.units().to_vec();
    add_units(&mut rig, 2..=4, "settle = \"60ms\"", "50ms");
    for unit in 2..=4 {
        let file = rig.path().join(format!("unit-{unit}.toml"));
        let text = std::fs::read_to_string(&file).unwrap();
        let serial = format!(
            "serial = \"{}/com1\"\nparity = \"none\"",
            rig.path().display()
        );
        assert!(text.contains(&serial), "{text}");
        let address = format!(
            "address = \"{}\"\ntimeout = \"300ms\"",
            rig.simulator.address()
        );
        let text = text
            .replace("\"modbus-rtu\"", "\"modbus-rtu-over-tcp\"")
            .replace(&serial, &address);
        std::fs::write(file, text).unwrap();
    }
    units[1].set_fault(Fault::next(Matching::Any, Act::Drop).times(ALWAYS));
    rig.start_up().await;
    // Commands are queued and done while the silent unit is looked for.
    for n in 0..5 {
        let from = units[1].requests().len();
        until("unit 2 is looked for", async || {
            units[1].requests().len() > from
        })
        .await;
        let (_, done) = rig
            .submit_wait(&rig.set_speed(&format!("S{n}"), 50 + n))
            .await;
        assert_eq!(done["state"], "completed", "{done}");
    }
    assert_eq!(rig.speed_writes(), 5);
    until("the others were polled all the while", async || {
        [0, 2, 3].iter().all(|n| units[*n].requests().len() > 40)
    })
    .await;
    assert_ne!(link_of(&rig, "unit-2").await, "up");
    assert_eq!(rig.device.connections(), 1, "no unit's silence ends it");
    let good = ["press-1", "unit-3", "unit-4"];
    for machine in good {
        assert_eq!(counters(&rig, machine).await["timeouts"], 0, "{machine}");
    }
    // An order in doubt does, lest its bytes arrive later; it is the only request that is lost by that.
    rig.device
        .set_fault(Fault::next(Matching::Writes, Act::DropReply));
    rig.submit(&rig.request("N1", "nudge", json!({ "by": 1 })))
        .await;
    rig.until_state("N1", "outcome_unknown").await;
    rig.until_link("up").await;
    let from = [2, 3].map(|n: usize| units[n].requests().len());
    until("the others are polled on", async || {
        let mut both = [2, 3].into_iter().zip(from);
        both.all(|(n, from)| units[n].requests().len() > from + 20)
    })
    .await;
    assert_eq!(rig.device.connections(), 2);
    assert_eq!(counters(&rig, "press-1").await["timeouts"], 1);
    for machine in &good[1..] {
        assert_eq!(link_of(&rig, machine).await, "up");
        assert_eq!(counters(&rig, machine).await["timeouts"], 0, "{machine}");
    }
    assert_eq!(rig.device.effects_of_register(150), 1);
}

// covers: F038
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_gateway_on_the_port_says_once_who_holds_it_and_disturbs_nothing() {
    let mut first = rig(QUICK, "").await;
    first.start_up().await;
    let port = format!("{}/com1", first.path().display());
    let machine = on_line(QUICK).replace("RIG_DIR/com1", &port);
    let mut second = Rig::over_as_is(&machine, PRESS_SIM).await;
    second.start().await;
    let holder = first.gateway.as_ref().unwrap().id();
    let who = format!("serial port {port} is in use by process {holder} (holdfast)");
    second
        .until("the holder is named", async |rig| {
            let (_, machine) = rig.get("/v1/machines/press-1").await;
            let reason = machine["link"]["reason"].as_str().unwrap_or_default();
            reason.contains(&who)
        })
        .await;
    second
        .until("it was tried again and again", async |rig| {
            rig.counter("connect_failures").await >= 20
        })
        .await;
    let log = second.log();
    let lines = log.lines().filter(|line| line.contains(&who)).count();
    assert_eq!(lines, 1, "{log}");
    assert!(first.device.requests().iter().all(|seen| !seen.is_write()));
    for name in ["timeouts", "noise_bytes", "misfits"] {
        assert_eq!(first.counter(name).await, 0, "{name}");
    }
    assert!(first.stop().await.success());
    second.until_link("up").await;
}
