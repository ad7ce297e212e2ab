//! Owns: a port that its board profile calls an RS-485 line of the driver's, and a driver that knows no such thing.
//! May call: the rig, the configuration, the simulator.
//! Never: call a pseudo-terminal an RS-485 line.

use crate::rig::{link, until_connected};
use holdfast::config;
use holdfast::plc::link::LinkError;
use holdfast::simulator::{C24Program, RtuProgram, Simulator, SimulatorSpec};
use std::fs;
use std::path::Path;

const GATEWAY: &str = "schema = 1\ngateway = \"gw\"\nboard = \"own\"\nstate_dir = \"/nonexistent/state\"\n\
                       machines = [\"press-1.toml\"]\n[api]\nunix = \"/nonexistent/api.sock\"\n";
const MACHINE: &str = "schema = 1\nname = \"press-1\"\nowner = \"gw\"\n[link]\nprotocol = \"mc-4c\"\nfamily = \"q\"\n\
                       format = 5\nstation = 0\nserial = \"com1\"\nbaud = 115200\nparity = \"none\"\n\
                       settle = \"10ms\"\ntimeout = \"5s\"\n";

/// The machine of a gateway whose board says of com1 that this is its device, and who sees to its direction.
fn machine(dir: &Path, device: &Path, rs485: &str) -> config::GatewayConfig {
    let (device, arch) = (device.display(), std::env::consts::ARCH);
    let profile = format!(
        "schema = 1\nname = \"own\"\narch = \"{arch}\"\nbattery_clock = false\n[[serial]]\nname = \"com1\"\npath = \"{device}\"\n\
         modes = [\"rs485\"]\nrs485 = \"{rs485}\"\n"
    );
    fs::write(dir.join("own.toml"), profile).unwrap();
    fs::write(dir.join("holdfast.toml"), GATEWAY).unwrap();
    fs::write(dir.join("press-1.toml"), MACHINE).unwrap();
    let loaded = config::load(&dir.join("holdfast.toml"), dir);
    loaded.unwrap_or_else(|problems| panic!("{problems:?}"))
}

#[tokio::test]
async fn a_driver_that_cannot_switch_an_rs485_line_is_named_and_nothing_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let pty = dir.path().join("line");
    let program = C24Program {
        line: RtuProgram {
            pty: Some(pty.clone()),
            ..RtuProgram::default()
        },
        ..C24Program::default()
    };
    let spec = SimulatorSpec {
        c24: Some(program),
        unit: 0,
        ..SimulatorSpec::default()
    };
    let simulator = Simulator::start(spec).await.unwrap();
    let device = fs::canonicalize(&pty).unwrap();
    let told = machine(dir.path(), &device, "kernel");
    let mut refused = link(&told.machines[0]);
    // Each time: a port that is not as its profile says is not used in another way.
    for _ in 0..2 {
        let error = refused.connect().await.unwrap_err();
        assert!(matches!(&error, LinkError::Port(_)), "{error:?}");
        let text = error.to_string();
        for part in [
            device.to_str().unwrap(),
            "does not switch an RS-485 line",
            "Inappropriate ioctl",
            "board profile",
        ] {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
        assert!(!refused.is_open());
    }
    assert!(simulator.device().requests().is_empty());
    // The same port, where a transceiver sees to it: it was closed again, and is told nothing.
    let by_itself = machine(dir.path(), &device, "hardware");
    until_connected(&mut link(&by_itself.machines[0])).await;
    assert!(!simulator.device().requests().is_empty());
}
