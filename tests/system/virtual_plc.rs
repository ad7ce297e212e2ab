//! A CPU that nobody of this project wrote does a write and says nothing: what is known, and what can be proven.

use super::harness::{PATIENCE, PRESS_SIM, Rig};
use plc_comm_slmp::{
    SlmpAddress, SlmpClient, SlmpConnectionOptions, SlmpPlcProfile, SlmpTargetAddress,
    SlmpTransportMode,
};
use serde_json::{Value as Json, json};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a CPU without a program can serve.
const MACHINE: &str = r#"
schema = 1
name = "press-1"
owner = "gw-test"
[link]
protocol = "mc-3e"
family = "q"
address = "PEER"
timeout = "500ms"
reconnect_min = "50ms"
reconnect_max = "200ms"
[gate]
identity = { read = "D110", equals = 4711 }
config_version = "D120"
mode = { read = "D121", allowed = [1] }
interlocks = [{ name = "door closed", read = "M3", equals = true }]
max_age = "1s"
[[command]]
name = "set_speed"
class = "absolute_set"
write = "D100"
args = { speed = { type = "u16", unit = "rpm", min = 0, max = 3000 } }
queueable = true
ttl = "60s"
max_queued = 1
replace = "same_operator"
precondition = "config_version"
on_restart = "hold"
completion = "reply"
verify = "readback"
[[command]]
name = "load"
class = "absolute_set"
verify = "readback"
args = { speed = { type = "u16", write = "D130" }, length = { type = "u32", write = "D1500" }, mould = { type = "u16", write = "R31" } }
[[command]]
name = "start_cycle"
class = "mode_change"
write = "D500"
args = { cycle = { type = "u16", min = 1, max = 8 } }
request_id = "append"
completion = "event"
done = { id = "D510", result = "D512" }
completion_timeout = "3s"
"#;

const MEMORY: &str = r#"{"D": {"110": [4711], "120": [7, 1]}, "M": {"3": [1]}}"#;

/// virtual-plc, as its own process, with what it prints about every request.
struct VirtualPlc {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    address: SocketAddr,
}

impl VirtualPlc {
    /// The reply to the first of these commands is lost in this way, after it was carried out.
    async fn losing_a_reply(dir: &Path, command: &str, how: &str) -> Self {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/venv/bin/virtual-plc");
        assert!(
            program.exists(),
            "{} is missing: tests/run makes it, or: target/venv/bin/pip install virtual-plc",
            program.display()
        );
        let (memory, plan) = (dir.join("memory.json"), dir.join("plan.json"));
        std::fs::write(&memory, MEMORY).unwrap();
        let steps = json!([{ "match": { "command": command }, "action": { "type": how } }]);
        std::fs::write(&plan, json!({ "steps": steps }).to_string()).unwrap();
        let mut child = Command::new(program)
            .args(["--port", "0", "--verbose", "--init"])
            .arg(memory)
            .arg("--fault-plan")
            .arg(plan)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let (theirs, said) = (Arc::clone(&lines), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                theirs.lock().unwrap().push(line);
            }
        });
        let mut plc = Self {
            child,
            lines,
            address: ([127, 0, 0, 1], 0).into(),
        };
        plc.address = plc.listening().await;
        plc
    }

    async fn listening(&mut self) -> SocketAddr {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let lines = self.lines.lock().unwrap().clone();
            let rest = lines
                .iter()
                .find_map(|line| line.strip_prefix("listening on "));
            if let Some(word) = rest.and_then(|rest| rest.split_whitespace().next()) {
                return word.parse().unwrap();
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "virtual-plc ended: {lines:?}");
            assert!(Instant::now() < deadline, "never listening: {lines:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Requests with this command that it carried out: none of them is ever taken back.
    fn done(&self, command: &str) -> usize {
        let lines = self.lines.lock().unwrap();
        let done = |line: &&String| line.contains(command) && line.contains("end=0000");
        lines.iter().filter(done).count()
    }
    fn writes(&self) -> usize {
        self.done("command=1401")
    }
    fn reads(&self) -> usize {
        self.done("command=0401") + self.done("command=0403")
    }

    /// Another client of the same CPU: what stands in it, and what its program would do.
    async fn other_client(&self) -> SlmpClient {
        let options = SlmpConnectionOptions::new(
            self.address.ip().to_string(),
            self.address.port(),
            SlmpTransportMode::Tcp,
            SlmpTargetAddress::default(),
            PROFILE,
        );
        SlmpClient::connect(options.unwrap()).await.unwrap()
    }
}

impl Drop for VirtualPlc {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const PROFILE: SlmpPlcProfile = SlmpPlcProfile::QnUDV;

async fn read(client: &SlmpClient, at: &str, count: u16) -> Vec<u16> {
    let place = SlmpAddress::parse(at, PROFILE).unwrap();
    client.read_words(place, count).await.unwrap()
}

async fn write(client: &SlmpClient, at: &str, words: &[u16]) {
    let place = SlmpAddress::parse(at, PROFILE).unwrap();
    client.write_words(place, words).await.unwrap();
}

async fn rig(how: &str) -> (Rig, VirtualPlc) {
    rig_losing("0x1401", how).await
}

async fn rig_losing(command: &str, how: &str) -> (Rig, VirtualPlc) {
    let mut rig = Rig::over_as_is(MACHINE, PRESS_SIM).await;
    let plc = VirtualPlc::losing_a_reply(rig.path(), command, how).await;
    rig.machine_toml = MACHINE.replace("PEER", &plc.address.to_string());
    rig.start_up().await;
    (rig, plc)
}

/// What reading the written place back has found.
fn readback(operation: &Json) -> String {
    let findings = operation["findings"].as_array().unwrap();
    let found = findings.iter().find(|found| found["method"] == "readback");
    found.map_or_else(String::new, |found| found["says"].to_string())
}

/// The same request once more.
async fn again_is_the_same(rig: &Rig, request: &Json, state: &str) {
    let (status, again) = rig.submit(request).await;
    assert_eq!(
        (status, again["state"].as_str()),
        (200, Some(state)),
        "{again}"
    );
}

/// Of the places that are read in turn, all have been read by then.
const LOOKS: usize = 8;
const LOSSES: [&str; 4] = ["drop", "rst", "close_before_response", "corrupt_header"];

// covers: SEND-03, VER-02, ST-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_reply_is_lost_stays_unknown_beside_what_the_device_shows() {
    for how in LOSSES {
        let (mut rig, plc) = rig(how).await;
        let request = rig.set_speed("S1", 50);
        rig.submit(&request).await;
        rig.until_state("S1", "outcome_unknown").await;
        rig.until("the place is read back", async |rig| {
            readback(&rig.operation("S1").await).contains("50, as sent")
        })
        .await;
        // It is there, and somebody else may have put it there: no proof.
        again_is_the_same(&rig, &request, "outcome_unknown").await;
        let other = plc.other_client().await;
        assert_eq!(read(&other, "D100", 1).await, [50], "{how}");
        assert_eq!(plc.writes(), 1, "{how}");
        // A person has looked, and says so.
        let says = json!({ "as": "completed", "reason": "the display shows 50" });
        let (status, resolved) = rig.post("/v1/operations/S1/resolve", says).await;
        assert_eq!(
            (status, &resolved["state"]),
            (200, &json!("completed")),
            "{resolved}"
        );
        again_is_the_same(&rig, &request, "completed").await;
        assert_eq!(plc.writes(), 1, "{how}");
    }
}

// covers: SEND-03, VER-02, ST-05, POL-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_apart_whose_reply_is_lost_are_read_back_and_stay_unknown() {
    for how in LOSSES {
        let (mut rig, plc) = rig_losing("0x1402", how).await;
        let args = json!({ "speed": 50, "length": 0x1234_5678, "mould": 9 });
        let request = rig.request("L1", "load", args);
        rig.submit(&request).await;
        rig.until_state("L1", "outcome_unknown").await;
        rig.until("the places are read back", async |rig| {
            let says = readback(&rig.operation("L1").await);
            ["50, as sent", "305419896, as sent", "9, as sent"]
                .iter()
                .all(|part| says.contains(part))
        })
        .await;
        again_is_the_same(&rig, &request, "outcome_unknown").await;
        let other = plc.other_client().await;
        assert_eq!(read(&other, "D130", 1).await, [50], "{how}");
        assert_eq!(read(&other, "D1500", 2).await, [0x5678, 0x1234], "{how}");
        assert_eq!(plc.done("command=1402"), 1, "{how}");
        assert_eq!(plc.done("command=0403"), 1, "one request reads all of them");
        assert_eq!(plc.writes(), 0, "{how}");
    }
}

// covers: SEND-03, VER-03, ST-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_is_made_good_by_the_event_that_carries_the_request_id() {
    for how in &LOSSES[..2] {
        let (mut rig, plc) = rig(how).await;
        let request = rig.request("C1", "start_cycle", json!({ "cycle": 3 }));
        rig.submit(&request).await;
        rig.until_state("C1", "outcome_unknown").await;
        rig.until_link("up").await;
        let other = plc.other_client().await;
        let [cycle, low, high] = read(&other, "D500", 3).await[..] else {
            panic!("three words");
        };
        assert_eq!(cycle, 3, "{how}");
        // The event of somebody else's request proves nothing about this one.
        write(&other, "D510", &[low.wrapping_add(1), high]).await;
        let reads = plc.reads();
        rig.until("the event is looked at", async |_| {
            plc.reads() >= reads + LOOKS
        })
        .await;
        again_is_the_same(&rig, &request, "outcome_unknown").await;
        // The machine is done with this one.
        write(&other, "D510", &[low, high]).await;
        let done = rig.until_state("C1", "completed").await;
        assert_eq!(done["evidence"]["method"], "event", "{done}");
        again_is_the_same(&rig, &request, "completed").await;
        assert_eq!(read(&other, "D500", 1).await, [3]);
        // Two of them are the other client's.
        assert_eq!(plc.writes(), 3, "{how}");
    }
}
