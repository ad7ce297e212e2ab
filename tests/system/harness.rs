//! Owns: a gateway process, a simulated PLC and a moved clock for one test, and the questions tests ask.
//! May call: the simulator, the interface's client, the binary under test.
//! Never: read an effect from the gateway's own log; sleep where a condition can be waited for.
#![allow(dead_code, reason = "each part of the suite uses some of it")]

use super::link_kind::LinkKind;
use holdfast::cli::client::{Client, Raw};
use holdfast::cli::exit::Failure;
use holdfast::simulator::{Device, Place, Simulator, SimulatorSpec};
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The binary under test, built with the kill points and the movable clock.
pub(crate) const HOLDFAST: &str = env!("CARGO_BIN_EXE_holdfast");
/// How long any condition may take to come true, in milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_millis(20_000);

/// Waits until `condition` holds, and no longer than [`PATIENCE`].
pub(crate) async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A gateway, its PLC, its clock.
pub(crate) struct Rig {
    pub(crate) dir: TempDir,
    pub(crate) simulator: Simulator,
    pub(crate) device: Device,
    pub(crate) client: Client,
    pub(crate) gateway: Option<Child>,
    pub(crate) clock: TestClock,
    pub(crate) machine_toml: String,
    pub(crate) gateway_toml: String,
    env: Vec<(String, String)>,
}

/// What the clocks of the gateway under test are moved by.
#[derive(Clone, Debug)]
pub(crate) struct TestClock {
    path: PathBuf,
    pub(crate) boot_ms: i64,
    pub(crate) wall_ms: i64,
    stands_at_ns: Option<i64>,
    pub(crate) boot_id: Option<String>,
    pub(crate) trusted: Option<bool>,
    frozen: Option<(u64, i64)>,
}

impl TestClock {
    fn new(path: PathBuf) -> Self {
        let clock = Self {
            path,
            boot_ms: 0,
            wall_ms: 0,
            stands_at_ns: None,
            boot_id: None,
            trusted: Some(true),
            frozen: None,
        };
        clock.write();
        clock
    }
    /// From now on both clocks stand still, and move by `pass` alone: for edges that are met exactly.
    pub(crate) fn freeze(&mut self) {
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let boot_ns = boot.tv_sec as u64 * 1_000_000_000 + boot.tv_nsec as u64;
        self.frozen = Some((boot_ns, jiff::Timestamp::now().as_microsecond()));
        self.write();
    }
    /// Wall time, microseconds since 1970.
    pub(crate) fn wall_us(&self) -> i64 {
        let base = self
            .frozen
            .map_or_else(|| jiff::Timestamp::now().as_microsecond(), |(_, wall)| wall);
        base + self.wall_ms * 1000
    }
    /// Time passes: both clocks.
    pub(crate) fn pass(&mut self, ms: i64) {
        self.boot_ms += ms;
        self.wall_ms += ms;
        self.write();
    }
    /// What the gateway's boot clock reads, in nanoseconds.
    pub(crate) fn boot_ns(&self) -> i64 {
        self.stands_at_ns
            .unwrap_or_else(|| real_boot_ns() + self.boot_ms * 1_000_000)
    }
    /// The boot clock stands still at this reading until it is moved or let go; the wall clock moved as far.
    pub(crate) fn stand_at(&mut self, boot_ns: i64) {
        self.wall_ms += (boot_ns - self.boot_ns()) / 1_000_000;
        self.stands_at_ns = Some(boot_ns);
        self.write();
    }
    /// The boot clock runs on from where it stands.
    pub(crate) fn run_on(&mut self) {
        if let Some(boot_ns) = self.stands_at_ns.take() {
            self.boot_ms = (boot_ns - real_boot_ns()) / 1_000_000 + 1;
            self.write();
        }
    }
    /// The wall clock is stepped; the boot clock is not.
    pub(crate) fn step_wall(&mut self, ms: i64) {
        self.wall_ms += ms;
        self.write();
    }
    /// The computer boots anew: another boot id, the boot clock near its beginning.
    pub(crate) fn reboot(&mut self, trusted: bool) {
        self.stands_at_ns = None;
        self.boot_ms = 5_000 - real_boot_ns() / 1_000_000;
        self.boot_id = Some("00000000-0000-4000-8000-00000000000b".into());
        self.trusted = Some(trusted);
        self.write();
    }
    fn write(&self) {
        let mut text = String::new();
        if let Some((boot_ns, wall_us)) = self.frozen {
            text += &format!("boot_ns={boot_ns}\nwall_us={wall_us}\n");
        }
        text += &format!("boot_ms={}\nwall_ms={}\n", self.boot_ms, self.wall_ms);
        if let Some(boot_ns) = self.stands_at_ns {
            text += &format!("boot_ns={boot_ns}\n");
        }
        if let Some(id) = &self.boot_id {
            text += &format!("boot_id={id}\n");
        }
        if let Some(trusted) = self.trusted {
            text += &format!("trusted={trusted}\n");
        }
        let fresh = self.path.with_extension("new");
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(&fresh, &self.path).unwrap();
    }
}

fn real_boot_ns() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// The press of the articles: mailbox, interlock, version, identity, and a command of each class.
pub(crate) const PRESS: &str = r#"
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
[gate]
identity = { read = "holding:110", equals = 4711 }
config_version = "holding:120"
mode = { read = "holding:121", allowed = [1] }
interlocks = [{ name = "door closed", read = "coil:3", equals = true }]
max_age = "1s"
[mailbox]
command = "holding:300"
status = "holding:340"
[[tag]]
name = "speed"
read = "holding:100"
type = "u16"
unit = "rpm"
poll = "100ms"
[[event]]
type = "piece.count"
source = "on_change"
read = "holding:200"
poll = "100ms"
class = "business"
[[command]]
name = "set_speed"
class = "absolute_set"
write = "holding:100"
args = { speed = { type = "u16", unit = "rpm", min = 0, max = 3000 } }
queueable = true
ttl = "10s"
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
name = "eject_one"
class = "relative_action"
mailbox = { opcode = 3 }
verify = "mailbox"
[[command]]
name = "start_cycle"
class = "mode_change"
write = "holding:500"
args = { cycle = { type = "u16", min = 1, max = 8 } }
request_id = "append"
completion = "event"
done = { id = "holding:510", result = "holding:512" }
completion_timeout = "3s"
[[command]]
name = "nudge"
class = "relative_action"
write = "holding:150"
args = { by = { type = "u16", min = 1, max = 10 } }
completion_timeout = "2s"
verify = "manual"
[[command]]
name = "read_status"
class = "query"
read = "holding:5160"
"#;

/// Its simulated counterpart; effects happen within the write (`scan = "0ms"`).
pub(crate) const PRESS_SIM: &str = r#"
listen = "127.0.0.1:0"
unit = 1
[registers.holding]
100 = 0
110 = 4711
120 = [7, 1]
200 = 0
5160 = 77
[registers.coil]
3 = true
[points]
identity = "holding:110"
config_version = "holding:120"
mode = "holding:121"
interlocks = ["coil:3"]
[mailbox]
command = "holding:300"
status = "holding:340"
scan = "0ms"
[[mailbox.opcode]]
opcode = 3
add = [{ at = "holding:200", by = 1 }]
[done]
request_id = "holding:501"
id = "holding:510"
result = "holding:512"
delay = "200ms"
"#;

impl Rig {
    /// The press, not started yet.
    pub(crate) async fn new() -> Self {
        Self::with(PRESS, PRESS_SIM).await
    }

    /// A machine file (with `ADDRESS` in it) and a simulator file, over the link that the environment names; `RIG_DIR`
    /// in both is the test's directory.
    pub(crate) async fn with(machine_toml: &str, sim_toml: &str) -> Self {
        Self::over(LinkKind::from_env(), machine_toml, sim_toml).await
    }

    /// The same over this link: both files are written for Modbus TCP.
    pub(crate) async fn over(kind: LinkKind, machine_toml: &str, sim_toml: &str) -> Self {
        Self::over_as_is(&kind.machine(machine_toml), &kind.simulator(sim_toml)).await
    }

    /// Both files as they are; `RIG_DIR` in them is the test's directory.
    pub(crate) async fn over_as_is(machine_toml: &str, sim_toml: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("hf").tempdir().unwrap();
        let here = |text: &str| text.replace("RIG_DIR", &dir.path().display().to_string());
        let (machine_toml, sim_toml) = (here(machine_toml), here(sim_toml));
        let spec = SimulatorSpec::from_toml(&sim_toml).expect("the simulator's file is good");
        let simulator = Simulator::start(spec).await.unwrap();
        let socket = dir.path().join("api.sock");
        let machine_toml = machine_toml.replace("ADDRESS", &simulator.address().to_string());
        let gateway_toml = format!(
            "schema = 1\ngateway = \"gw-test\"\nboard = \"generic-x86_64\"\nstate_dir = \"{0}/state\"\n\
             machines = [\"press-1.toml\"]\n[recovery]\nper_machine = \"50/s\"\ntotal = \"200/s\"\n\
             [api]\nunix = \"{0}/api.sock\"\n[[sink]]\nname = \"local\"\nkind = \"file\"\npath = \"{0}/events\"\n",
            dir.path().display()
        );
        std::fs::create_dir(dir.path().join("state")).unwrap();
        Self {
            clock: TestClock::new(dir.path().join("clock")),
            device: simulator.device(),
            simulator,
            client: Client::new(socket),
            gateway: None,
            dir,
            machine_toml,
            gateway_toml,
            env: Vec::new(),
        }
    }

    /// The press, stopped; it ran before, so that requests made from now on are not older than its journal.
    pub(crate) async fn commissioned() -> Self {
        let mut rig = Self::new().await;
        rig.start().await;
        assert!(rig.stop().await.success());
        rig
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
    pub(crate) fn journal_dir(&self) -> PathBuf {
        self.path().join("state/journal")
    }
    /// For the next start only.
    pub(crate) fn env(&mut self, key: &str, value: &str) {
        self.env.push((key.into(), value.into()));
    }

    pub(crate) fn write_config(&self) {
        std::fs::write(self.path().join("press-1.toml"), &self.machine_toml).unwrap();
        std::fs::write(self.path().join("holdfast.toml"), &self.gateway_toml).unwrap();
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(HOLDFAST);
        command
            .args(args)
            .env("HOLDFAST_CONFIG", self.path().join("holdfast.toml"))
            .env("HOLDFAST_SOCKET", self.path().join("api.sock"))
            .env("HOLDFAST_TEST_CLOCK", self.path().join("clock"))
            .env("HOLDFAST_LOG", "info")
            .stdin(Stdio::null());
        command
    }

    /// Starts the gateway's process and returns without waiting for anything.
    pub(crate) fn spawn(&mut self) {
        assert!(self.gateway.is_none(), "it runs already");
        self.write_config();
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.path().join("log"))
            .unwrap();
        let mut command = self.command(&["run"]);
        command
            .envs(self.env.drain(..))
            .stdout(Stdio::null())
            .stderr(log);
        self.gateway = Some(command.spawn().unwrap());
    }

    /// Starts it and waits until it answers.
    pub(crate) async fn start(&mut self) {
        self.spawn();
        self.until("the gateway answers", async |rig| {
            rig.assert_alive();
            rig.client
                .get("/readyz")
                .await
                .is_ok_and(|raw| raw.status == 200)
        })
        .await;
    }

    /// ... and until its machine may be commanded.
    pub(crate) async fn start_up(&mut self) {
        self.start().await;
        self.until_link("up").await;
    }

    fn assert_alive(&mut self) {
        let ended = self
            .gateway
            .as_mut()
            .and_then(|child| child.try_wait().unwrap());
        assert!(
            ended.is_none(),
            "the gateway ended by itself: {ended:?}\n{}",
            self.log()
        );
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path().join("log")).unwrap_or_default()
    }

    /// Ends it as a power cut would end it.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.gateway.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Waits for it to end by itself (a kill point).
    pub(crate) async fn until_dead(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ended = self
                .gateway
                .as_mut()
                .expect("it was started")
                .try_wait()
                .unwrap();
            if let Some(status) = ended {
                self.gateway = None;
                return status;
            }
            assert!(Instant::now() < deadline, "it did not end\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Tells it to end, as the service manager would.
    pub(crate) fn terminate(&self) {
        let child = self.gateway.as_ref().expect("it was started");
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Ends it as the service manager would.
    pub(crate) async fn stop(&mut self) -> ExitStatus {
        self.terminate();
        self.until_dead().await
    }

    /// Waits until `condition` holds; says `what` did not come true otherwise.
    pub(crate) async fn until(&mut self, what: &str, condition: impl AsyncFn(&mut Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(self).await {
            if Instant::now() >= deadline {
                let status = self.client.get("/v1/status").await;
                panic!("in vain: {what}\n{status:?}\n{}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Json) {
        self.answer(path, self.client.get(path).await)
    }
    pub(crate) async fn post(&self, path: &str, body: Json) -> (u16, Json) {
        self.post_text(path, body.to_string()).await
    }
    /// The body as it is written.
    pub(crate) async fn post_text(&self, path: &str, body: String) -> (u16, Json) {
        self.answer(path, self.client.post(path, body, 30_000).await)
    }
    /// Status and body; a problem is an answer too.
    fn answer(&self, path: &str, answer: Result<Raw, Failure>) -> (u16, Json) {
        match answer {
            Ok(raw) => (
                raw.status,
                serde_json::from_str(&raw.text).unwrap_or(Json::Null),
            ),
            Err(Failure::Problem { status, body }) => (status, body),
            Err(error) => panic!("{path}: {error:?}\n{}", self.log()),
        }
    }

    /// The wall clock of the gateway under test, as `issued_at`.
    pub(crate) fn now(&self) -> String {
        jiff::Timestamp::from_microsecond(self.clock.wall_us())
            .unwrap()
            .to_string()
    }

    /// The body of a request.
    pub(crate) fn request(&self, id: &str, command: &str, args: Json) -> Json {
        json!({ "operation_id": id, "machine": "press-1", "command": command, "args": args, "issued_at": self.now() })
    }
    pub(crate) fn set_speed(&self, id: &str, speed: u32) -> Json {
        let mut request = self.request(id, "set_speed", json!({ "speed": speed }));
        request["expected_config_version"] = 7.into();
        request
    }
    /// Submits, without waiting for the end.
    pub(crate) async fn submit(&self, request: &Json) -> (u16, Json) {
        self.post("/v1/operations", request.clone()).await
    }
    /// Submits and waits for the end.
    pub(crate) async fn submit_wait(&self, request: &Json) -> (u16, Json) {
        self.post("/v1/operations?wait=10s", request.clone()).await
    }
    pub(crate) async fn operation(&self, id: &str) -> Json {
        let (status, operation) = self.get(&format!("/v1/operations/{id}")).await;
        assert_eq!(status, 200, "{id}: {operation}");
        operation
    }
    pub(crate) async fn state(&self, id: &str) -> String {
        self.operation(id).await["state"]
            .as_str()
            .unwrap()
            .to_owned()
    }
    pub(crate) async fn until_state(&mut self, id: &str, state: &str) -> Json {
        let what = format!("{id} becomes {state}");
        self.until(&what, async |rig| rig.state(id).await == state)
            .await;
        self.operation(id).await
    }
    pub(crate) async fn link(&self) -> String {
        let (_, machine) = self.get("/v1/machines/press-1").await;
        machine["link"]["state"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
    pub(crate) async fn until_link(&mut self, state: &str) {
        let what = format!("the link is {state}");
        self.until(&what, async |rig| rig.link().await == state)
            .await;
    }
    /// The link is lost, and the gateway knows.
    pub(crate) async fn cut(&mut self) {
        self.device.cut();
        self.until("the gateway sees the loss", async |rig| {
            matches!(rig.link().await.as_str(), "down" | "connecting")
        })
        .await;
    }
    /// The link is back, and the gate passed.
    pub(crate) async fn restore(&mut self) {
        self.device.restore();
        self.until_link("up").await;
    }
    /// Every event, in the order of the log.
    pub(crate) async fn events(&self) -> Vec<Json> {
        let mut events: Vec<Json> = Vec::new();
        let mut path = "/v1/events?limit=1000".to_owned();
        loop {
            let (status, page) = self.get(&path).await;
            assert_eq!(status, 200, "{page}");
            events.extend(page["events"].as_array().unwrap().iter().cloned());
            match page["next"].as_str() {
                Some(next) => path = format!("/v1/events?limit=1000&after={next}"),
                None => return events,
            }
        }
    }
    /// Lines of the file sink.
    pub(crate) fn sink_lines(&self) -> Vec<Json> {
        let mut files: Vec<_> = std::fs::read_dir(self.path().join("events"))
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default();
        files.sort();
        let text: Vec<String> = files
            .iter()
            .filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
            .map(|path| std::fs::read_to_string(path).unwrap())
            .collect();
        text.iter()
            .flat_map(|text| text.lines())
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
    /// How often the speed register was written.
    pub(crate) fn speed_writes(&self) -> usize {
        self.device.effects_of_register(100)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Kept so that tests can name places.
pub(crate) fn holding(offset: u16) -> Place {
    Place::holding(offset)
}
