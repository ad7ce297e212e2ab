//! Owns: row C16 of the acceptance: what had to wait goes out at the configured pace, with jitter, in order.
//! May call: the harness.
//! Never: take the gateway's word for when something reached a device.

use super::harness::{PRESS, PRESS_SIM, Rig};
use super::link_kind::LinkKind;
use super::scene_c::entered_ns;
use holdfast::simulator::{Cause, Device, Simulator, SimulatorSpec};
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// A machine of the fleet: one value to set, nothing polled.
const SMALL: &str = r#"
schema = 1
name = "NAME"
owner = "gw-test"
[link]
protocol = "modbus-tcp"
address = "ADDRESS"
unit = 1
timeout = "5s"
reconnect_min = "50ms"
reconnect_max = "200ms"
[gate]
config_version = "holding:120"
max_age = "30s"
[[command]]
name = "set_speed"
class = "absolute_set"
write = "holding:100"
args = { speed = { type = "u16", unit = "rpm", min = 0, max = 3000 } }
queueable = true
ttl = "5min"
max_queued = 4
precondition = "config_version"
completion = "reply"
"#;
const SMALL_SIM: &str = r#"
listen = "127.0.0.1:0"
unit = 1
[registers.holding]
100 = 0
120 = 7
"#;
/// Machines that come back at once.
const FLEET: usize = 200;
/// Of those, how many have three commands waiting instead of one.
const FLEET_BUSY: usize = 10;
/// `[recovery] total`, sends a second.
const FLEET_RATE: usize = 80;
/// `[recovery] per_machine`, sends a second.
const FLEET_RATE_EACH: u64 = 1;
/// How much two sends may come closer than they left: one was read late by a busy computer.
const LATE: Duration = Duration::from_millis(400);

struct Fleet {
    rig: Rig,
    machines: Vec<(String, Simulator)>,
}

impl Fleet {
    async fn new() -> Self {
        let mut rig = Rig::new().await;
        let kind = LinkKind::from_env();
        let mut machines = Vec::new();
        for n in 0..FLEET {
            let name = format!("m{n:03}");
            // On serial lines each machine has a port of its own.
            let here = |text: String| {
                text.replace("RIG_DIR/com1", &format!("RIG_DIR/{name}.com"))
                    .replace("RIG_DIR", &rig.path().display().to_string())
            };
            let spec = SimulatorSpec::from_toml(&here(kind.simulator(SMALL_SIM))).unwrap();
            let simulator = Simulator::start(spec).await.unwrap();
            let text = here(kind.machine(SMALL))
                .replace("NAME", &name)
                .replace("ADDRESS", &simulator.address().to_string());
            std::fs::write(rig.path().join(format!("{name}.toml")), text).unwrap();
            machines.push((name, simulator));
        }
        let files: Vec<String> = machines
            .iter()
            .map(|(name, _)| format!("\"{name}.toml\""))
            .collect();
        let files = format!("machines = [{}]", files.join(", "));
        rig.gateway_toml = rig
            .gateway_toml
            .replace("machines = [\"press-1.toml\"]", &files)
            .replace("\"50/s\"", &format!("\"{FLEET_RATE_EACH}/s\""))
            .replace("\"200/s\"", &format!("\"{FLEET_RATE}/s\""));
        Self { rig, machines }
    }

    async fn until_all(&mut self, wanted: &'static [&'static str]) {
        let what = format!("all links are {wanted:?}");
        self.rig
            .until(&what, async |rig| {
                let (_, status) = rig.get("/v1/status").await;
                let machines = status["machines"].as_array().cloned().unwrap_or_default();
                machines.len() == FLEET
                    && machines.iter().all(|machine| {
                        wanted.contains(&machine["link"]["state"].as_str().unwrap_or_default())
                    })
            })
            .await;
    }

    /// Three commands each for the first few, one for the others; `m000-0` and so on.
    async fn submit_all(&self) -> usize {
        let mut asked = JoinSet::new();
        let mut count = 0;
        for (n, (name, _)) in self.machines.iter().enumerate() {
            let client = self.rig.client.clone();
            let own: usize = if n < FLEET_BUSY { 3 } else { 1 };
            count += own;
            let requests: Vec<Json> = (0..own)
                .map(|k| {
                    json!({ "operation_id": format!("{name}-{k}"), "machine": name,
                        "command": "set_speed", "args": { "speed": 10 + k },
                        "issued_at": self.rig.now(), "expected_config_version": 7 })
                })
                .collect();
            if asked.len() >= 40 {
                asked.join_next().await.unwrap().unwrap();
            }
            asked.spawn(async move {
                for request in requests {
                    let raw = client.post("/v1/operations", request.to_string(), 30_000);
                    assert_eq!(raw.await.unwrap().status, 201);
                }
            });
        }
        while let Some(done) = asked.join_next().await {
            done.unwrap();
        }
        count
    }

    /// When each effect happened, over all devices, in order.
    fn effects(&self) -> Vec<Instant> {
        let mut moments: Vec<Instant> = self
            .machines
            .iter()
            .flat_map(|(_, simulator)| {
                let device = simulator.device();
                let started = device.started();
                device.ledger().into_iter().map(move |e| started + e.at)
            })
            .collect();
        moments.sort();
        moments
    }
}

// covers: C16, POL-08
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c16_two_hundred_machines_come_back_at_the_pace_that_is_configured() {
    let mut fleet = Fleet::new().await;
    fleet.rig.start().await;
    fleet.until_all(&["up"]).await;
    for (_, simulator) in &fleet.machines {
        simulator.device().close_connections();
        simulator.device().cut();
    }
    // Nothing is polled: what ends the connections is the next look at the gate.
    fleet.rig.clock.pass(16_000);
    fleet.until_all(&["down", "connecting"]).await;
    let count = fleet.submit_all().await;
    assert!(fleet.effects().is_empty());
    for (_, simulator) in &fleet.machines {
        simulator.device().restore();
    }
    fleet
        .rig
        .until("every command had its effect", async |_| {
            fleet_done(&fleet.machines, count)
        })
        .await;
    let moments = fleet.effects();
    assert_eq!(moments.len(), count);
    // In no second more than the limit; the whole took at least what the limit says.
    let spacing = Duration::from_secs(1) / FLEET_RATE as u32;
    for (n, from) in moments.iter().enumerate() {
        let ahead = moments.get(n + FLEET_RATE + 1).map(|to| *to - *from);
        assert!(
            ahead.is_none_or(|gap| gap + LATE >= Duration::from_secs(1)),
            "{} sends within {ahead:?}",
            FLEET_RATE + 1
        );
    }
    let whole = *moments.last().unwrap() - moments[0];
    assert!(whole + LATE >= spacing * (count as u32 - 1), "{whole:?}");
    // Order within a machine, and its own pace.
    for (name, simulator) in fleet.machines.iter().take(FLEET_BUSY) {
        let ledger = simulator.device().ledger();
        assert_eq!(written(&simulator.device()), [10, 11, 12], "{name}");
        for pair in ledger.windows(2) {
            let gap = pair[1].at - pair[0].at + LATE;
            assert!(
                gap >= Duration::from_secs(1) / FLEET_RATE_EACH as u32,
                "{gap:?}"
            );
        }
    }
}

fn fleet_done(machines: &[(String, Simulator)], count: usize) -> bool {
    let effects = machines
        .iter()
        .map(|(_, simulator)| simulator.device().effects());
    effects.sum::<usize>() >= count
}

/// What was written to the device, in order.
fn written(device: &Device) -> Vec<u16> {
    let ledger = device.ledger();
    let words = ledger.iter().flat_map(|effect| match &effect.cause {
        Cause::Write { words, .. } => words.clone(),
        Cause::Mailbox { .. }
        | Cause::Device { .. }
        | Cause::Scattered { .. }
        | Cause::Remote { .. } => Vec::new(),
    });
    words.collect()
}

/// Commands that wait for the paced link.
const PACED: u16 = 8;
/// How far the clock is moved at once while they go out.
const STEP_MS: i64 = 50;

// covers: C16, POL-08
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c16_the_pace_has_jitter_and_keeps_the_order() {
    let machine = PRESS
        .replace("max_queued = 1", "max_queued = 8")
        .replace("ttl = \"10s\"", "ttl = \"5min\"")
        .replace("max_age = \"1s\"", "max_age = \"5min\"");
    let mut rig = Rig::with(&machine, PRESS_SIM).await;
    rig.gateway_toml = rig.gateway_toml.replace("\"50/s\"", "\"1/s\"");
    rig.start_up().await;
    rig.cut().await;
    let id = |n: u16| format!("SET-{n}");
    for n in 0..PACED {
        let (status, _) = rig.submit(&rig.set_speed(&id(n), u32::from(10 + n))).await;
        assert_eq!(status, 201);
    }
    // The clock stands but for these steps, so only what the gateway itself adds can differ.
    let begin_ns = rig.clock.boot_ns();
    rig.clock.stand_at(begin_ns);
    rig.restore().await;
    let mut t_ms = 0;
    for n in 0..PACED {
        while rig.state(&id(n)).await == "queued" {
            assert!(t_ms < 60_000, "{}", rig.log());
            t_ms += STEP_MS;
            rig.clock.stand_at(begin_ns + t_ms * 1_000_000);
        }
        rig.until_state(&id(n), "completed").await;
    }
    let expected: Vec<u16> = (10..10 + PACED).collect();
    assert_eq!(written(&rig.device), expected);
    let mut begun = Vec::new();
    for n in 0..PACED {
        begun.push(entered_ns(&rig.operation(&id(n)).await, "sending"));
    }
    let gaps_ms = begun.windows(2).map(|pair| (pair[1] - pair[0]) / 1_000_000);
    let gaps_ms: BTreeSet<i64> = gaps_ms.collect();
    let (first, last) = (gaps_ms.first().unwrap(), gaps_ms.last().unwrap());
    assert!(*first >= 1_000 && *last <= 1_500 + STEP_MS, "{gaps_ms:?}");
    assert!(gaps_ms.len() >= 2, "no jitter: {gaps_ms:?}");
}
