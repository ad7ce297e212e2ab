//! Owns: the plant of every play: three machines as their files say, and the gateway's settings.
//! May call: the crate's config.
//! Never: leave out what a real configuration would be checked for.

use holdfast::config::{GatewayConfig, load};
use holdfast::core::gateway::Settings;
use holdfast::core::roles::Roles;
use holdfast::core::spec::MachineSpec;
use std::sync::{Arc, OnceLock};

/// Machines of a play; the last one has no mailbox.
pub(crate) const MACHINES: [&str; 3] = ["press-1", "press-2", "lathe-1"];
/// Sinks of a play: one lane in order, and two lanes with fresh events first.
pub(crate) const SINKS: [(&str, usize); 2] = [("local", 1), ("mes", 2)];
/// Whose program answers.
pub(crate) const IDENTITY: i128 = 4711;

const GATEWAY: &str = r#"schema = 1
gateway = "gw"
board = "generic-x86_64"
machines = ["press-1.toml", "press-2.toml", "lathe-1.toml"]
[[sink]]
name = "local"
kind = "file"
path = "/var/lib/holdfast/events"
"#;

const COMMON: &str = r#"
[link]
protocol = "modbus-tcp"
address = "127.0.0.1:1502"
unit = 1
[gate]
identity = { read = "holding:110", equals = 4711 }
config_version = "holding:120"
interlocks = [{ name = "door closed", read = "coil:3", equals = true }]
max_age = "2s"
[[event]]
type = "speed.changed"
source = "on_change"
read = "holding:100"
data_type = "u16"
class = "business"
[[event]]
type = "piece.good"
source = "counter"
read = "holding:202"
wraps_after = 9999
class = "business"
[[event]]
type = "unit.done"
source = "handshake"
ready = "coil:20"
ack = "coil:21"
item = "holding:220"
numbers_from = 1
numbers_to = 20
data = [{ name = "serial", read = "holding:222", type = "u32" }]
class = "business"
[[event]]
type = "log.entry"
source = "ring"
head = "holding:400"
base = "holding:402"
entries = 16
words = 3
class = "business"
[[command]]
name = "set_speed"
class = "absolute_set"
write = "holding:100"
args = { speed = { type = "u16", unit = "rpm", min = 0, max = 3000 } }
queueable = true
ttl = "10s"
max_queued = 3
replace = "same_operator"
precondition = "config_version"
on_restart = "hold"
verify = "readback"
[[command]]
name = "read_status"
class = "query"
read = "holding:5160"
"#;

const WITH_MAILBOX: &str = r#"
[[command]]
name = "eject_one"
class = "relative_action"
mailbox = { opcode = 3 }
device_contract = "mailbox"
verify = "mailbox"
[mailbox]
command = "holding:300"
status = "holding:340"
"#;

const WITHOUT_MAILBOX: &str = r#"
[[command]]
name = "eject_one"
class = "relative_action"
write = "holding:130"
args = { count = { type = "u16", min = 1, max = 9, default = 1 } }
"#;

fn config() -> &'static GatewayConfig {
    static CONFIG: OnceLock<GatewayConfig> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("holdfast.toml"), GATEWAY).unwrap();
        for (index, name) in MACHINES.iter().enumerate() {
            let tail = if index == 2 {
                WITHOUT_MAILBOX
            } else {
                WITH_MAILBOX
            };
            let text = format!("schema = 1\nname = \"{name}\"\n{COMMON}{tail}");
            std::fs::write(dir.path().join(format!("{name}.toml")), text).unwrap();
        }
        let config = load(
            &dir.path().join("holdfast.toml"),
            &dir.path().join("boards"),
        );
        config.unwrap_or_else(|problems| {
            let all: String = problems.iter().map(|p| format!("{p}\n")).collect();
            panic!("{all}")
        })
    })
}

pub(crate) fn machines() -> Vec<Arc<MachineSpec>> {
    config().machines.iter().cloned().map(Arc::new).collect()
}

pub(crate) fn settings(replay_window_ms: u64) -> Settings {
    let config = config();
    Settings {
        gateway: config.gateway.clone(),
        replay_window_ms,
        drain_per_machine_milli: config.recovery_machine_milli_per_s,
        drain_total_milli: config.recovery_total_milli_per_s,
        roles: Roles {
            rules: Vec::new(),
            own_uid: 1000,
        },
    }
}
