//! The whole gateway against a floor measured in the same run: `cargo bench --bench gateway`.
//!
//! Owns: figures of the running binary: submit, first byte, polls, start, memory.
//! May call: the simulator, the interface's client, plc (for the poll loop), the binary.
//! Never: decide whether a figure is good enough; it prints ratios, people judge.

use holdfast::cli::client::Client;
use holdfast::core::spec::{
    Address, DataType, GateSpec, LinkSpec, MachineSpec, ModbusArea, ModbusTcp, Scalar, Tag,
    WordOrder,
};
use holdfast::plc::link::Link;
use holdfast::plc::plan::PollPlan;
use holdfast::service::clock::Clock;
use holdfast::simulator::{Device, Simulator, SimulatorSpec};
use serde_json::json;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio_modbus::prelude::{Reader as _, Slave, tcp};

const SIM: &str = r#"
listen = "127.0.0.1:0"
unit = 1
[registers.holding]
100 = 0
120 = [7, 1]
"#;
const ROUNDS: usize = 300;
const CALLERS: usize = 64;
const PER_CALLER: usize = 20;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let simulator = Simulator::start(SimulatorSpec::from_toml(SIM).unwrap())
        .await
        .unwrap();
    let device = simulator.device();
    let dir = tempfile::Builder::new()
        .prefix("hf")
        .tempdir_in("target")
        .unwrap();
    let address = simulator.address().to_string();
    write_config(dir.path(), &address, 500, &["up.toml"]);
    println!("| figure | value | beside it | ratio |\n| --- | --- | --- | --- |");
    let size = std::fs::metadata(env!("CARGO_BIN_EXE_holdfast"))
        .unwrap()
        .len();
    println!("| binary | {:.1} MiB | | |", size as f64 / 1048576.0);
    let begun = device.elapsed();
    let mut gateway = Gateway::start(dir.path()).await;
    first_poll(&device, begun).await;
    idle(&gateway).await;
    gateway.stop();
    write_config(dir.path(), &address, 500, &["up.toml", "down.toml"]);
    let mut gateway = Gateway::start(dir.path()).await;
    submit_durable(dir.path()).await;
    many_callers(dir.path()).await;
    first_byte(dir.path(), &device, "polls every 500 ms").await;
    gateway.stop();
    write_config(dir.path(), &address, 10, &["up.toml", "down.toml"]);
    let mut gateway = Gateway::start(dir.path()).await;
    first_byte(dir.path(), &device, "100 tags polled every 10 ms").await;
    gateway.stop();
    polls(&simulator).await;
}

fn write_config(dir: &Path, address: &str, poll_ms: u64, machines: &[&str]) {
    let tags: String = (0..100)
        .map(|n| {
            format!(
                "[[tag]]\nname = \"t{n}\"\nread = \"holding:{}\"\ntype = \"u16\"\npoll = \"{poll_ms}ms\"\n",
                1000 + n
            )
        })
        .collect();
    let dir_text = std::fs::canonicalize(dir).unwrap().display().to_string();
    let machine = |name: &str, address: &str| {
        format!(
            "schema = 1\nname = \"{name}\"\nowner = \"gw\"\n[link]\nprotocol = \"modbus-tcp\"\naddress = \"{address}\"\n\
             unit = 1\ntimeout = \"500ms\"\n[gate]\nconfig_version = \"holding:120\"\n{tags}[[command]]\nname = \"set\"\n\
             class = \"absolute_set\"\nwrite = \"holding:100\"\nargs = {{ v = {{ type = \"u16\" }} }}\ncompletion = \"reply\"\n\
             [[command]]\nname = \"nudge\"\nclass = \"relative_action\"\nwrite = \"holding:101\"\nargs = {{ v = {{ type = \"u16\" }} }}\n"
        )
    };
    std::fs::write(dir.join("up.toml"), machine("up", address)).unwrap();
    // Nobody listens on port 1: this machine is never connected.
    std::fs::write(dir.join("down.toml"), machine("down", "127.0.0.1:1")).unwrap();
    let gateway = format!(
        "schema = 1\ngateway = \"gw\"\nboard = \"generic-x86_64\"\nstate_dir = \"{dir_text}/state\"\n\
         machines = {machines:?}\n[api]\nunix = \"{dir_text}/api.sock\"\n[[sink]]\nname = \"local\"\n\
         kind = \"file\"\npath = \"{dir_text}/events\"\n"
    );
    std::fs::create_dir_all(dir.join("state")).unwrap();
    std::fs::write(dir.join("holdfast.toml"), gateway).unwrap();
}

struct Gateway(Child);

impl Gateway {
    async fn start(dir: &Path) -> Self {
        let log = File::options()
            .create(true)
            .append(true)
            .open(dir.join("log"))
            .unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_holdfast"))
            .args([
                "--config",
                dir.join("holdfast.toml").to_str().unwrap(),
                "run",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let client = Client::new(dir.join("api.sock"));
        let up = async |client: &Client| {
            let raw = client.get("/v1/machines/up").await.ok()?;
            raw.text
                .contains("\"up\"")
                .then_some(raw.text.contains("\"state\":\"up\""))
        };
        wait_for("the gateway is up", async || {
            up(&client).await == Some(true)
        })
        .await;
        Self(child)
    }
    fn stop(&mut self) {
        let pid = rustix::process::Pid::from_raw(self.0.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.0.id())).unwrap()
    }
    fn cpu_ticks(&self) -> u64 {
        let stat = self.proc("stat");
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_whitespace()
            .collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn wait_for(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition().await {
        assert!(Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn first_poll(device: &Device, begun: Duration) {
    let seen = device.requests().first().map(|seen| seen.at).unwrap();
    let took = seen.saturating_sub(begun);
    println!(
        "| process start to first request at the device, empty journal | {:.0} ms | | |",
        took.as_secs_f64() * 1e3
    );
}

async fn idle(gateway: &Gateway) {
    const SECONDS: u64 = 10;
    let before = gateway.cpu_ticks();
    tokio::time::sleep(Duration::from_secs(SECONDS)).await;
    let ticks = gateway.cpu_ticks() - before;
    let rss = gateway.proc("status").lines().find_map(|line| {
        line.strip_prefix("VmRSS:")?
            .split_whitespace()
            .next()?
            .parse::<f64>()
            .ok()
    });
    println!(
        "| idle, one machine, 100 tags read twice a second: memory, processor | {:.1} MiB, {:.1} % | | |",
        rss.unwrap() / 1024.0,
        ticks as f64 / SECONDS as f64
    );
}

/// One append and fdatasync of about what a submission records.
struct Floor(File);

impl Floor {
    fn new(dir: &Path) -> Self {
        Self(File::create(dir.join("floor")).unwrap())
    }
    fn one(&mut self) -> Duration {
        let begun = Instant::now();
        self.0.write_all(&[7; 900]).unwrap();
        self.0.sync_data().unwrap();
        begun.elapsed()
    }
}

fn request(id: &str, machine: &str, command: &str, value: usize) -> String {
    json!({
        "operation_id": id, "machine": machine, "command": command, "args": { "v": value },
        "issued_at": jiff::Timestamp::now().to_string(),
    })
    .to_string()
}

/// A caller that keeps its connection, as a program does.
struct Caller(UnixStream);

impl Caller {
    async fn new(dir: &Path) -> Self {
        Self(UnixStream::connect(dir.join("api.sock")).await.unwrap())
    }
    /// The status of the answer.
    async fn post(&mut self, path: &str, body: &str) -> u16 {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: holdfast\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.0.write_all((head + body).as_bytes()).await.unwrap();
        let mut answer = Vec::with_capacity(4096);
        loop {
            let read = self.0.read_buf(&mut answer).await.unwrap();
            assert!(read > 0, "the gateway closed the connection");
            let text = String::from_utf8_lossy(&answer);
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length")
                    .then(|| value.trim().parse::<usize>().unwrap())
            });
            if body.len() >= length.unwrap() {
                return head[9..12].parse().unwrap();
            }
        }
    }
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// A relative action to a machine that is not connected: recorded as rejected, durably, then answered.
async fn submit_durable(dir: &Path) {
    let mut caller = Caller::new(dir).await;
    let mut floor = Floor::new(dir);
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for n in 0..ROUNDS {
        raw.push(floor.one());
        let body = request(&format!("S{n}"), "down", "nudge", n);
        let begun = Instant::now();
        let answer = caller.post("/v1/operations", &body).await;
        ours.push(begun.elapsed());
        assert_eq!(answer, 409);
    }
    let (ours, raw) = (median(&mut ours), median(&mut raw));
    println!(
        "| submit to durable answer, 1 caller, p50 | {ours:.0} µs | append+fdatasync {raw:.0} µs | {:.2} |",
        ours / raw
    );
}

async fn many_callers(dir: &Path) {
    let rate = async |callers: usize, tag: &str| {
        let begun = Instant::now();
        let mut tasks = Vec::new();
        for caller in 0..callers {
            let mut connection = Caller::new(dir).await;
            let tag = tag.to_owned();
            tasks.push(tokio::spawn(async move {
                for n in 0..PER_CALLER {
                    let body = request(&format!("{tag}{caller}-{n}"), "down", "nudge", n);
                    let answer = connection.post("/v1/operations", &body).await;
                    assert_eq!(answer, 409);
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        (callers * PER_CALLER) as f64 / begun.elapsed().as_secs_f64()
    };
    let (mut one, mut many) = (Vec::new(), Vec::new());
    for round in 0..5 {
        one.push(rate(1, &format!("O{round}.")).await);
        many.push(rate(CALLERS, &format!("M{round}.")).await);
    }
    one.sort_by(f64::total_cmp);
    many.sort_by(f64::total_cmp);
    println!(
        "| submissions a second, {CALLERS} callers | {:.0} | 1 caller {:.0} | {:.1} |",
        many[2],
        one[2],
        many[2] / one[2]
    );
}

/// From the request to the first byte at the device, link up, nothing waiting.
async fn first_byte(dir: &Path, device: &Device, how: &str) {
    let client = Client::new(dir.join("api.sock"));
    let mut caller = Caller::new(dir).await;
    let mut floor = Floor::new(dir);
    let (mut ours, mut raw, mut commits) = (Vec::new(), Vec::new(), 0);
    let commit = async || {
        let raw = client.get("/v1/status").await.unwrap();
        let status: serde_json::Value = serde_json::from_str(&raw.text).unwrap();
        status["journal"]["commit"]
            .as_str()
            .and_then(|n| n.parse::<u64>().ok())
            .unwrap_or(0)
    };
    for n in 0..ROUNDS {
        raw.push(floor.one());
        let before = commit().await;
        let body = request(&format!("F{how}{n}").replace(' ', "_"), "up", "set", n);
        let begun = device.elapsed();
        let answer = caller.post("/v1/operations?wait=5s", &body).await;
        assert_eq!(answer, 201);
        let write = device
            .requests()
            .into_iter()
            .rfind(|seen| seen.is_write() && seen.at >= begun);
        if let Some(write) = write {
            ours.push(write.at.saturating_sub(begun));
        }
        commits += commit().await - before;
    }
    let (ours, raw) = (median(&mut ours), median(&mut raw));
    println!(
        "| submit to first byte at the device, {how}, p50 | {ours:.0} µs | append+fdatasync {raw:.0} µs | {:.2} |",
        ours / raw
    );
    println!(
        "| ... commits an operation, end included | {:.2} | | |",
        commits as f64 / ROUNDS as f64
    );
}

/// The gateway's poll step against a bare client's read of the same registers, in turn.
async fn polls(simulator: &Simulator) {
    const READS: usize = 2000;
    let at = |offset| Scalar {
        address: Address::Modbus {
            area: ModbusArea::Holding,
            offset,
        },
        data_type: DataType::U16,
        word_order: WordOrder::HighFirst,
    };
    let tags = (0..100).map(|n| Tag {
        name: format!("t{n}"),
        at: at(1000 + n),
        unit: None,
        poll_ms: 1,
        no_value: Vec::new(),
        group: None,
    });
    let spec = MachineSpec {
        name: "up".into(),
        owner: "gw".into(),
        read_only: true,
        link: LinkSpec::ModbusTcp(ModbusTcp {
            host: "127.0.0.1".into(),
            port: simulator.address().port(),
            unit: 1,
            answering_unit: None,
            timeout_ms: 500,
            read_registers_max: 125,
            reconnect_ms_min: 100,
            reconnect_ms_max: 1000,
            heartbeat_ms: 1000,
        }),
        gate: GateSpec::default(),
        tags: tags.collect(),
        groups: Vec::new(),
        events: Vec::new(),
        commands: Vec::new(),
        mailbox: None,
    };
    let clock = Clock::new(true, 0).unwrap();
    let mut link = Link::new(&spec, clock.reader());
    link.connect().await.unwrap();
    let mut plan = PollPlan::new(&spec);
    let mut bare = tcp::connect_slave(simulator.address(), Slave(1))
        .await
        .unwrap();
    let (mut ours, mut theirs) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..READS / 100 {
        let begun = Instant::now();
        for _ in 0..100 {
            let step = plan.due(u64::MAX).remove(0);
            assert_eq!(link.poll(&mut plan, &step).await.len(), 100);
        }
        ours += begun.elapsed();
        let begun = Instant::now();
        for _ in 0..100 {
            assert_eq!(
                bare.read_holding_registers(1000, 100)
                    .await
                    .unwrap()
                    .unwrap()
                    .len(),
                100
            );
        }
        theirs += begun.elapsed();
    }
    println!(
        "| polls a second, 100 registers each | {:.0} | bare client {:.0} | {:.2} |",
        READS as f64 / ours.as_secs_f64(),
        READS as f64 / theirs.as_secs_f64(),
        theirs.as_secs_f64() / ours.as_secs_f64()
    );
}
