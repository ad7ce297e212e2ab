//! Owns: the demo's directory, its files, its three simulated PLCs.
//! May call: simulator.
//! Never: overwrite an earlier demo, or leave a temporary directory behind that nobody asked for.

use super::Broken;
use holdfast::simulator::{Device, Simulator, SimulatorSpec};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Names tried for a temporary directory.
const TRIES_MAX: u32 = 16;

/// Where the demo works.
#[derive(Debug)]
pub(super) struct Place {
    dir: PathBuf,
    temporary: bool,
}

impl Place {
    /// A given directory without an earlier demo in it, or a new temporary one.
    pub(super) fn new(given: Option<&Path>) -> Result<Self, Broken> {
        let place = match given {
            Some(dir) => Self::given(dir),
            None => Self::temporary(),
        };
        let place =
            place.map_err(|(dir, error)| Broken::Place(format!("{}: {error}", dir.display())))?;
        if place.dir.join("state").exists() {
            return Err(Broken::Place(format!(
                "{}: an earlier demo worked here, and its ids are taken; delete it or name another --dir",
                place.dir.display()
            )));
        }
        Ok(place)
    }
    fn given(dir: &Path) -> Result<Self, (PathBuf, io::Error)> {
        let made = fs::create_dir_all(dir).and_then(|()| dir.canonicalize());
        let dir = made.map_err(|error| (dir.to_owned(), error))?;
        Ok(Self {
            dir,
            temporary: false,
        })
    }
    fn temporary() -> Result<Self, (PathBuf, io::Error)> {
        let mut tried = 0;
        loop {
            let name = format!("holdfast-demo-{}-{tried}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            match DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => {
                    return Ok(Self {
                        dir,
                        temporary: true,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tried < TRIES_MAX => {
                    tried += 1;
                }
                Err(error) => return Err((dir, error)),
            }
        }
    }
    /// Something went wrong: what is here may tell why.
    pub(super) fn keep(&mut self) {
        self.temporary = false;
        eprintln!(
            "The gateway's log and journal are kept in {}",
            self.dir.display()
        );
    }
    pub(super) fn is_temporary(&self) -> bool {
        self.temporary
    }
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }
    pub(super) fn config(&self) -> PathBuf {
        self.dir.join("holdfast.toml")
    }
    pub(super) fn socket(&self) -> PathBuf {
        self.dir.join("api.sock")
    }
    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("gateway.log")
    }
    fn write(&self, name: &str, text: &str) -> Result<(), Broken> {
        let path = self.dir.join(name);
        fs::write(&path, text)
            .map_err(|error| Broken::Place(format!("{}: {error}", path.display())))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.temporary {
            // Nobody is left to tell.
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// One simulated PLC and the name by which the gateway knows it.
pub(super) struct Press {
    pub(super) name: &'static str,
    pub(super) device: Device,
    _simulator: Simulator,
}

impl Press {
    async fn set_up(place: &Place, name: &'static str) -> Result<Self, Broken> {
        let broken = |error: String| Broken::Place(format!("the simulated PLC {name}: {error}"));
        let spec =
            SimulatorSpec::from_toml(PRESS_SIM).map_err(|error| broken(error.to_string()))?;
        let simulator = Simulator::start(spec).await;
        let simulator = simulator.map_err(|error| broken(error.to_string()))?;
        let address = simulator.address().to_string();
        place.write(
            &format!("{name}-sim.toml"),
            &PRESS_SIM.replace("127.0.0.1:0", &address),
        )?;
        place.write(
            &format!("{name}.toml"),
            &PRESS.replace("NAME", name).replace("ADDRESS", &address),
        )?;
        Ok(Self {
            name,
            device: simulator.device(),
            _simulator: simulator,
        })
    }
}

/// Three presses that begin alike.
pub(super) struct Stage {
    /// Away for 15 s.
    pub(super) long: Press,
    /// Away for 8 s, unchanged.
    pub(super) same: Press,
    /// Away for 8 s; comes back with another configuration.
    pub(super) changed: Press,
}

impl Stage {
    /// Writes every file and starts the simulated PLCs.
    pub(super) async fn set(place: &Place) -> Result<Self, Broken> {
        let stage = Self {
            long: Press::set_up(place, "press-1").await?,
            same: Press::set_up(place, "press-2").await?,
            changed: Press::set_up(place, "press-3").await?,
        };
        let dir = place.dir.display().to_string();
        place.write("holdfast.toml", &GATEWAY.replace("DIR", &dir))?;
        Ok(stage)
    }
    pub(super) fn presses(&self) -> [&Press; 3] {
        [&self.long, &self.same, &self.changed]
    }
}

const GATEWAY: &str = r#"# The gateway of the demo.
schema = 1
gateway = "gw-demo"
board = "generic-x86_64"
state_dir = "DIR/state"
machines = ["press-1.toml", "press-2.toml", "press-3.toml"]
[api]
unix = "DIR/api.sock"
[[sink]]
name = "local"
kind = "file"
path = "DIR/events"
"#;

const PRESS: &str = r#"# A press of the demo.
schema = 1
name = "NAME"
owner = "gw-demo"
[link]
protocol = "modbus-tcp"
address = "ADDRESS"
unit = 1
timeout = "500ms"
reconnect_min = "100ms"
reconnect_max = "400ms"
[gate]                               # read after every reconnection, before any command
identity = { read = "holding:110", equals = 4711 }
config_version = "holding:120"
mode = { read = "holding:121", allowed = [1] }
interlocks = [{ name = "door closed", read = "coil:3", equals = true }]
[mailbox]
command = "holding:300"
status = "holding:340"
[[tag]]
name = "speed"
read = "holding:100"
type = "u16"
unit = "rpm"
poll = "250ms"
[[event]]
type = "piece.count"
source = "on_change"
read = "holding:200"
poll = "250ms"
class = "business"
[[command]]
name = "set_speed"
class = "absolute_set"               # may wait: it says the same, whenever it arrives
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
name = "eject_one"
class = "relative_action"            # never waits: one more is not the same later
mailbox = { opcode = 3 }
verify = "mailbox"
[[command]]
name = "read_status"
class = "query"
read = "holding:5160"
"#;

const PRESS_SIM: &str = r#"# The simulated PLC of a press; `holdfast sim` runs it alone.
listen = "127.0.0.1:0"
unit = 1
[registers.holding]
110 = 4711                           # identity
120 = [7, 1]                         # configuration version, mode
5160 = 77                            # status
[registers.coil]
3 = true                             # door closed
[points]
identity = "holding:110"
config_version = "holding:120"
mode = "holding:121"
interlocks = ["coil:3"]
[mailbox]
command = "holding:300"
status = "holding:340"
[[mailbox.opcode]]
opcode = 3                           # eject one
add = [{ at = "holding:200", by = 1 }]
"#;
