//! Owns: the binary under measurement, beside a simulated PLC.
//! May call: the simulator, the interface's client, the binary.
//! Never: run anything else that costs processor time meanwhile.

use holdfast::cli::client::Client;
use holdfast::simulator::{Device, Simulator, SimulatorSpec};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SIM: &str = "listen = \"127.0.0.1:0\"\nunit = 1\n[registers.holding]\n100 = 0\n600 = 0\n";
/// How often the hundred tags and the counter are read, in milliseconds.
pub(crate) const POLL_MS: u64 = 10;
/// Of `/proc/<pid>/stat`, on every Linux.
const TICKS_A_SECOND: f64 = 100.0;

pub(crate) struct Rig {
    pub(crate) dir: TempDir,
    pub(crate) device: Device,
    _simulator: Simulator,
    gateway: Option<Child>,
}

impl Rig {
    /// One machine with a hundred tags and a counter, and the books at `url`; not started.
    pub(crate) async fn new(url: &str) -> Self {
        let simulator = Simulator::start(SimulatorSpec::from_toml(SIM).unwrap())
            .await
            .unwrap();
        let dir = tempfile::Builder::new()
            .prefix("hf")
            .tempdir_in("target")
            .unwrap();
        write_config(dir.path(), &simulator.address().to_string(), url);
        Self {
            device: simulator.device(),
            _simulator: simulator,
            dir,
            gateway: None,
        }
    }

    /// Starts the gateway; returns when the machine is up.
    pub(crate) async fn start(&mut self) {
        let dir = self.dir.path();
        let log = File::create(dir.join("log")).unwrap();
        let gateway = Command::new(env!("CARGO_BIN_EXE_holdfast"))
            .arg("--config")
            .arg(dir.join("holdfast.toml"))
            .arg("run")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.gateway = Some(gateway.unwrap());
        let client = Client::new(dir.join("api.sock"));
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let raw = client.get("/v1/machines/up").await;
            if raw.is_ok_and(|raw| raw.text.contains("\"state\":\"up\"")) {
                return;
            }
            let log = || std::fs::read_to_string(dir.join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "it does not come up:\n{}", log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn proc(&self, file: &str) -> String {
        let id = self.gateway.as_ref().unwrap().id();
        std::fs::read_to_string(format!("/proc/{id}/{file}")).unwrap()
    }

    /// Processor time so far.
    pub(crate) fn cpu(&self) -> Duration {
        let stat = self.proc("stat");
        let after_name = stat.rsplit_once(')').unwrap().1;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        let ticks = [11, 12].map(|at| fields[at].parse::<u64>().unwrap());
        Duration::from_secs_f64(ticks.iter().sum::<u64>() as f64 / TICKS_A_SECOND)
    }

    /// A line of `/proc/<pid>/status`, in MiB.
    pub(crate) fn memory_mib(&self, name: &str) -> f64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.unwrap().split_whitespace().next().unwrap();
        kib.parse::<f64>().unwrap() / 1024.0
    }

    /// The next peak is counted from now on.
    pub(crate) fn forget_memory_peak(&self) {
        let id = self.gateway.as_ref().unwrap().id();
        std::fs::write(format!("/proc/{id}/clear_refs"), "5").unwrap();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(gateway) = &mut self.gateway {
            let _ = gateway.kill();
            let _ = gateway.wait();
        }
    }
}

fn write_config(dir: &Path, address: &str, url: &str) {
    let tags: String = (0..100)
        .map(|n| {
            format!(
                "[[tag]]\nname = \"t{n}\"\nread = \"holding:{}\"\ntype = \"u16\"\npoll = \"{POLL_MS}ms\"\n",
                1000 + n
            )
        })
        .collect();
    let machine = format!(
        "schema = 1\nname = \"up\"\nowner = \"gw\"\n[link]\nprotocol = \"modbus-tcp\"\naddress = \"{address}\"\n\
         unit = 1\ntimeout = \"500ms\"\n{tags}[[event]]\ntype = \"piece.good\"\nsource = \"counter\"\n\
         read = \"holding:600\"\ndata_type = \"u16\"\nunit = \"pieces\"\npoll = \"{POLL_MS}ms\"\n"
    );
    std::fs::write(dir.join("up.toml"), machine).unwrap();
    let dir_text = std::fs::canonicalize(dir).unwrap().display().to_string();
    let gateway = format!(
        "schema = 1\ngateway = \"gw\"\nboard = \"generic-x86_64\"\nstate_dir = \"{dir_text}/state\"\n\
         machines = [\"up.toml\"]\n[api]\nunix = \"{dir_text}/api.sock\"\n[journal]\nbudget = \"1GiB\"\n\
         [[sink]]\nname = \"books\"\nkind = \"postgres\"\nurl = \"{url}\"\n"
    );
    std::fs::create_dir_all(dir.join("state")).unwrap();
    std::fs::write(dir.join("holdfast.toml"), gateway).unwrap();
}
