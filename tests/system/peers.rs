//! Peers that nobody of this project wrote: pymodbus as a device over TCP and RTU, mbpoll as a second client of the
//! simulator.

use super::harness::{PATIENCE, PRESS_SIM, Rig, until};
use super::load::ask;
use holdfast::simulator::{Cause, Simulator, SimulatorSpec};
use serde_json::{Value as Json, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What a plain Modbus server without a program can serve.
const MACHINE: &str = r#"
schema = 1
name = "press-1"
owner = "gw-test"
[link]
protocol = "modbus-tcp"
address = "PEER"
unit = 1
timeout = "1s"
reconnect_min = "50ms"
reconnect_max = "200ms"
[gate]
identity = { read = "holding:110", equals = 4711 }
config_version = "holding:120"
mode = { read = "holding:121", allowed = [1] }
interlocks = [{ name = "door closed", read = "coil:3", equals = true }]
max_age = "1s"
[[tag]]
name = "speed"
read = "holding:100"
type = "u16"
unit = "rpm"
poll = "100ms"
[[tag]]
name = "length"
read = "holding:102"
type = "u32"
poll = "100ms"
[[tag]]
name = "level"
read = "input:7"
type = "u16"
poll = "100ms"
[[tag]]
name = "missing"
read = "holding:9000"
type = "u16"
poll = "100ms"
[[event]]
type = "piece.count"
source = "on_change"
read = "holding:200"
poll = "50ms"
class = "business"
[[command]]
name = "set_speed"
class = "absolute_set"
write = "holding:100"
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
name = "set_length"
class = "absolute_set"
write = "holding:102"
args = { length = { type = "u32", unit = "mm", min = 0, max = 100000 } }
queueable = false
completion = "reply"
verify = "manual"
[[command]]
name = "set_beyond"
class = "absolute_set"
write = "holding:9000"
args = { value = { type = "u16", min = 0, max = 9 } }
queueable = false
completion = "reply"
verify = "manual"
[[command]]
name = "read_status"
class = "query"
read = "holding:516"
"#;

/// A server of pymodbus, as its own process.
struct Peer {
    child: Child,
    stdin: ChildStdin,
    lines: Arc<Mutex<Vec<String>>>,
    address: SocketAddr,
}

impl Peer {
    async fn start_with(port: u16, way: &[&str], values: &[&str]) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = root.join("target/venv/bin/python");
        assert!(
            python.exists(),
            "{} is missing: tests/run makes it, or: python3 -m venv target/venv && \
             target/venv/bin/pip install 'pymodbus>=3.16'",
            python.display()
        );
        let mut child = Command::new(python)
            .arg(root.join("tests/peers/pymodbus_server.py"))
            .args(["--port", &port.to_string(), "--registers", "2048"])
            .args(way)
            .args(values.iter().flat_map(|value| ["--value", value]))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let theirs = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                theirs.lock().unwrap().push(line);
            }
        });
        let mut peer = Self {
            child,
            stdin,
            lines,
            address: ([127, 0, 0, 1], port).into(),
        };
        let listening = peer.until(1, "listening ").await;
        peer.address
            .set_port(listening.rsplit(' ').next().unwrap().parse().unwrap());
        peer
    }
    /// A peer that has what the gate wants.
    async fn press(port: u16, identity: u16) -> Self {
        Self::press_by(&[], port, identity).await
    }
    /// The same, with further arguments.
    async fn press_by(way: &[&str], port: u16, identity: u16) -> Self {
        // All of it stands before the gateway can connect: it reads the gate at once.
        let identity = format!("holding:110={identity}");
        let values = [
            &*identity,
            "holding:120=7",
            "holding:121=1",
            "holding:100=5",
            "holding:516=77",
            "input:7=33",
            "coil:3=1",
        ];
        Self::start_with(port, way, &values).await
    }
    fn said(&self, start: &str) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        lines
            .iter()
            .filter(|line| line.starts_with(start))
            .cloned()
            .collect()
    }
    fn writes(&self) -> Vec<String> {
        self.said("write ")
    }
    /// Waits for the `count`-th line that starts so.
    async fn until(&mut self, count: usize, start: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(line) = self.said(start).get(count - 1) {
                return line.clone();
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the peer ended: {ended:?}");
            assert!(Instant::now() < deadline, "the peer never said {start:?}");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
    async fn set(&mut self, place: &str, value: u16) {
        let done = self.said("ok").len() + 1;
        writeln!(self.stdin, "set {place} {value}").unwrap();
        self.until(done, "ok").await;
    }
    async fn get(&mut self, place: &str) -> u16 {
        let done = self.said("value").len() + 1;
        writeln!(self.stdin, "get {place}").unwrap();
        let line = self.until(done, "value").await;
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn rig_to(address: SocketAddr) -> Rig {
    let mut rig = Rig::with(MACHINE, PRESS_SIM).await;
    rig.machine_toml = MACHINE.replace("PEER", &address.to_string());
    rig
}

async fn tag(rig: &Rig, name: &str) -> Json {
    let (_, tags) = rig.get("/v1/machines/press-1/tags").await;
    let tags = tags["tags"].as_array().unwrap();
    tags.iter()
        .find(|tag| tag["name"] == name)
        .cloned()
        .unwrap()
}

async fn until_tag(rig: &mut Rig, name: &str, value: u32) {
    rig.until(&format!("{name} is {value}"), async |rig| {
        let tag = tag(rig, name).await;
        tag["value"] == value && tag["quality"] == "good"
    })
    .await;
}

/// Polls, commands, queries and refusals against a foreign server.
async fn works(rig: &mut Rig, peer: &mut Peer) {
    rig.start_up().await;
    until_tag(rig, "speed", 5).await;
    until_tag(rig, "level", 33).await;
    peer.set("holding 100", 6).await;
    until_tag(rig, "speed", 6).await;

    let (status, done) = rig.submit_wait(&rig.set_speed("P1", 50)).await;
    assert_eq!(
        (status, done["state"].as_str()),
        (201, Some("completed")),
        "{done}"
    );
    let long = rig.request("P2", "set_length", json!({ "length": 70_000 }));
    let (_, done) = rig.submit_wait(&long).await;
    assert_eq!(done["state"], "completed", "{done}");
    let writes = peer.writes();
    let places: Vec<&str> = writes
        .iter()
        .map(|line| line.split_once(' ').unwrap().1)
        .collect();
    assert!(
        matches!(
            places.as_slice(),
            ["06 100 50" | "10 100 50", "10 102 1,4464"]
        ),
        "{writes:?}"
    );
    assert_eq!(
        (peer.get("holding 100").await, peer.get("holding 103").await),
        (50, 4464)
    );
    until_tag(rig, "length", 70_000).await;

    let query = json!({ "machine": "press-1", "command": "read_status", "args": {} });
    let (status, answer) = ask(&rig.client, "/v1/operations?wait=5s", Some(&query))
        .await
        .unwrap();
    assert!(
        status == 200 && answer.to_string().contains("77"),
        "{status} {answer}"
    );

    // No such register: the tag says so, the command has failed, and nothing else suffers.
    rig.until("the missing register is bad", async |rig| {
        let tag = tag(rig, "missing").await;
        tag["quality"] == "bad" && tag["value"].is_null() && tag["reason"].is_string()
    })
    .await;
    let beyond = rig.request("P3", "set_beyond", json!({ "value": 1 }));
    let (_, refused) = rig.submit_wait(&beyond).await;
    assert_eq!(refused["state"], "failed", "{refused}");
    assert_eq!(rig.link().await, "up");
    until_tag(rig, "speed", 50).await;
    assert_eq!(peer.writes().len(), 2, "{:?}", peer.writes());

    peer.set("holding 200", 1).await;
    rig.until("the piece is an event", async |rig| {
        rig.events()
            .await
            .iter()
            .any(|event| event["type"] == "piece.count")
    })
    .await;
}

// covers: SEND-04, SEND-05, EVT-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_pymodbus_takes_our_frames() {
    let mut peer = Peer::press(0, 4711).await;
    let mut rig = rig_to(peer.address).await;
    works(&mut rig, &mut peer).await;
}

// covers: SEND-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_with_every_frame_in_single_bytes() {
    let mut peer = Peer::press(0, 4711).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut rig = rig_to(listener.local_addr().unwrap()).await;
    let proxy = tokio::spawn(single_bytes(listener, peer.address));
    works(&mut rig, &mut peer).await;
    proxy.abort();
}

/// Passes every byte on alone, in both directions.
async fn single_bytes(listener: TcpListener, to: SocketAddr) {
    while let Ok((near, _)) = listener.accept().await {
        let far = TcpStream::connect(to).await.unwrap();
        near.set_nodelay(true).unwrap();
        far.set_nodelay(true).unwrap();
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        for (mut from, mut into) in [(near_in, far_out), (far_in, near_out)] {
            tokio::spawn(async move {
                while let Ok(byte) = from.read_u8().await {
                    if into.write_u8(byte).await.is_err() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            });
        }
    }
}

// covers: POL-02, POL-06, C6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_pymodbus_goes_and_comes_back_with_another_identity_and_with_its_own() {
    let mut peer = Peer::press(0, 4711).await;
    let port = peer.address.port();
    let mut rig = rig_to(peer.address).await;
    rig.start_up().await;
    peer.kill();
    rig.until("the loss is seen", async |rig| rig.link().await != "up")
        .await;
    let (status, queued) = rig.submit(&rig.set_speed("Q1", 50)).await;
    assert_eq!(
        (status, queued["state"].as_str()),
        (201, Some("queued")),
        "{queued}"
    );
    let now = rig.request("R1", "set_length", json!({ "length": 9 }));
    let (status, rejected) = ask(&rig.client, "/v1/operations", Some(&now))
        .await
        .unwrap();
    assert_eq!(
        (status, rejected["code"].as_str()),
        (409, Some("not_queueable")),
        "{rejected}"
    );

    let mut other = Peer::press(port, 4712).await;
    rig.until("the other device is not taken for this one", async |rig| {
        let (_, status) = rig.get("/v1/status").await;
        status["alarms"].to_string().contains("identity_mismatch")
    })
    .await;
    assert_ne!(rig.link().await, "up");
    let held = rig.until_state("Q1", "held").await;
    assert!(held["reason"].as_str().unwrap().contains("4712"), "{held}");
    assert!(other.writes().is_empty(), "{:?}", other.writes());
    other.kill();

    let own = Peer::press(port, 4711).await;
    rig.until_link("up").await;
    let (_, done) = rig.submit_wait(&rig.set_speed("Q2", 60)).await;
    assert_eq!(done["state"], "completed", "{done}");
    assert_eq!(own.writes().len(), 1, "{:?}", own.writes());
    assert!(own.writes()[0].ends_with(" 100 60"), "{:?}", own.writes());
    assert_eq!(rig.state("Q1").await, "held");
}

/// Two pseudo-terminals whose bytes go from one to the other.
struct Cable {
    socat: Child,
    near: String,
    far: String,
}

impl Cable {
    async fn between(dir: &Path) -> Self {
        let end = |name: &str| dir.join(name).display().to_string();
        let (near, far) = (end("near"), end("far"));
        let pty = |name: &str| format!("pty,raw,echo=0,link={name}");
        let socat = Command::new("socat")
            .args([pty(&near), pty(&far)])
            .spawn()
            .expect("socat is there: tests/run installs it (apt-get install socat)");
        let both = || Path::new(&near).exists() && Path::new(&far).exists();
        until("both ends of the cable are there", async || both()).await;
        Self { socat, near, far }
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        let _ = self.socat.kill();
        let _ = self.socat.wait();
    }
}

const RTU: &str = "protocol = \"modbus-rtu\"\nbaud = 115200\nparity = \"none\"\nsettle = \"100ms\"";

// covers: REL-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_device_on_a_serial_line_is_polled_and_commanded() {
    let mut rig = Rig::with(MACHINE, PRESS_SIM).await;
    let cable = Cable::between(rig.path()).await;
    let mut peer = Peer::press_by(&["--serial", &cable.far], 0, 4711).await;
    rig.machine_toml = MACHINE
        .replace("protocol = \"modbus-tcp\"", RTU)
        .replace("address = \"PEER\"", &format!("serial = {:?}", cable.near));
    works(&mut rig, &mut peer).await;
}

// covers: REL-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_device_behind_rtu_over_tcp_is_polled_and_commanded() {
    let mut rig = Rig::with(MACHINE, PRESS_SIM).await;
    let mut peer = Peer::press_by(&["--rtu"], 0, 4711).await;
    rig.machine_toml = MACHINE
        .replace("modbus-tcp", "modbus-rtu-over-tcp")
        .replace("PEER", &peer.address.to_string());
    works(&mut rig, &mut peer).await;
}

// covers: REL-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_simulated_line_is_a_fair_peer_to_a_master_nobody_here_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let port = dir.path().join("com1");
    let also = "[[also]]\nunit = 2\n[also.registers.holding]\n110 = 1234\n";
    let line = format!("{PRESS_SIM}[rtu]\npty = {port:?}\n{also}");
    let simulator = Simulator::start(SimulatorSpec::from_toml(&line).unwrap())
        .await
        .unwrap();
    let device = simulator.device();
    let poll = async |unit: &str, args: &[&str], values: &[&str]| {
        let mut command = Command::new("mbpoll");
        let rtu = ["-m", "rtu", "-b", "115200", "-P", "none", "-0", "-1", "-q"];
        command.args(rtu).args(["-a", unit, "-o", "1"]);
        command.args(args).arg(&port).args(values);
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = output.await.unwrap().unwrap();
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        (output.status.success(), text)
    };
    for (unit, identity) in [("1", "4711"), ("2", "1234")] {
        let (ok, said) = poll(unit, &["-t", "4", "-r", "110", "-c", "1"], &[]).await;
        assert!(ok && said.contains(identity), "{said}");
    }
    let (ok, said) = poll("1", &["-t", "4", "-r", "100"], &["50"]).await;
    assert!(ok, "{said}");
    let (ok, said) = poll("1", &["-t", "4", "-r", "102"], &["1", "4464"]).await;
    assert!(ok, "{said}");
    assert_eq!((device.holding(100), device.holding_u32(102)), (50, 70_000));
    assert_eq!((device.effects(), simulator.units()[1].effects()), (2, 0));
    // A unit that is not there says nothing.
    let (ok, said) = poll("9", &["-t", "4", "-r", "110", "-c", "1"], &[]).await;
    assert!(!ok && said.contains("timed out"), "{said}");
}

/// One run of `mbpoll` against the simulator; what it printed.
async fn mbpoll(address: SocketAddr, args: &[&str], values: &[&str]) -> (bool, String) {
    let mut command = Command::new("mbpoll");
    command
        .args([
            "-m",
            "tcp",
            "-a",
            "1",
            "-0",
            "-1",
            "-q",
            "-p",
            &address.port().to_string(),
        ])
        .args(args)
        .arg(address.ip().to_string())
        .args(values);
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .expect("mbpoll is there: tests/run installs it (apt-get install mbpoll)");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (output.status.success(), text)
}

// covers: REL-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_simulator_is_a_fair_peer_to_a_client_nobody_here_wrote() {
    let simulator = Simulator::start(SimulatorSpec::from_toml(PRESS_SIM).unwrap())
        .await
        .unwrap();
    let (device, address) = (simulator.device(), simulator.address());
    let (ok, said) = mbpoll(address, &["-t", "4", "-r", "110", "-c", "1"], &[]).await;
    assert!(ok && said.contains("4711"), "{said}");
    let (ok, said) = mbpoll(address, &["-t", "0", "-r", "3", "-c", "1"], &[]).await;
    assert!(ok && said.contains("[3]") && said.contains('1'), "{said}");
    let (ok, said) = mbpoll(address, &["-t", "4", "-r", "100"], &["50"]).await;
    assert!(ok, "{said}");
    let (ok, said) = mbpoll(address, &["-t", "4", "-r", "102"], &["1", "4464"]).await;
    assert!(ok, "{said}");
    assert_eq!((device.holding(100), device.holding_u32(102)), (50, 70_000));
    let written: Vec<(u8, u16, Vec<u16>)> = device
        .ledger()
        .into_iter()
        .map(|effect| match effect.cause {
            Cause::Write {
                function,
                start,
                words,
                ..
            } => (function, start, words),
            other => panic!("no such command was given: {other:?}"),
        })
        .collect();
    assert_eq!(written, [(6, 100, vec![50]), (16, 102, vec![1, 4464])]);
    // A unit that is not there.
    let (ok, said) = mbpoll(
        address,
        &["-t", "4", "-r", "110", "-c", "1", "-a", "9", "-o", "0.3"],
        &[],
    )
    .await;
    assert!(!ok, "{said}");
}
