//! Owns: what a board profile says, and the profiles that are compiled in.
//! May call: nothing.
//! Never: read or check a file (config does), or reach hardware.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// What the gateway needs to know of the computer that it runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoardProfile {
    /// As named in the gateway file.
    pub name: String,
    /// The processor, as Rust names it: `x86_64`, `aarch64`.
    pub arch: String,
    /// For people.
    pub description: String,
    /// A battery keeps the clock over a power cut, so wall time can be trusted after a boot (TIME-04).
    pub battery_clock: bool,
    /// Serial ports by the name printed on the case.
    pub serial: BTreeMap<String, SerialPort>,
    /// The hardware watchdog that systemd is to feed.
    pub watchdog: Option<PathBuf>,
    /// What to know of its storage: wear, power-loss protection.
    pub storage: String,
}

/// A serial port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SerialPort {
    /// Its device file.
    pub device: PathBuf,
    /// The driver must be told to switch the direction (RS-485).
    pub rs485: bool,
}

/// The profiles that are compiled in: name and TOML text.
pub const BUILT_IN: &[(&str, &str)] = &[
    (
        "generic-x86_64",
        include_str!("../../boards/generic-x86_64.toml"),
    ),
    (
        "generic-aarch64",
        include_str!("../../boards/generic-aarch64.toml"),
    ),
];

/// The compiled-in profile of that name.
#[must_use]
pub fn built_in(name: &str) -> Option<&'static str> {
    let found = BUILT_IN.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text)
}
