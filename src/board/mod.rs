//! Owns: what a board profile says, and the profiles that are compiled in.
//! May call: nothing.
//! Never: read or check a profile's file (config does), or believe it over the computer itself (check does not).

pub mod check;
pub mod host;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What the gateway needs to know of the computer that it runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoardProfile {
    /// As named in the gateway file.
    pub name: String,
    /// The processor, as Rust names it: `x86_64`, `aarch64`.
    pub arch: String,
    /// For people.
    pub description: String,
    /// Where each fact was read: manual and section, or file of a device tree or driver.
    pub sources: Vec<String>,
    /// What the sources do not say.
    pub not_documented: Vec<Fact>,
    /// How the computer calls itself.
    pub identity: Identity,
    /// A battery keeps the clock over a power cut, so wall time can be trusted after a boot (TIME-04).
    /// False too where that is not documented: what nobody vouches for is not trusted.
    pub battery_clock: bool,
    /// Serial ports by the name printed on the case.
    pub serial: BTreeMap<String, SerialPort>,
    /// The hardware watchdog that systemd is to feed.
    pub watchdog: Option<PathBuf>,
    /// Its driver, as Linux names it.
    pub watchdog_driver: Option<String>,
    /// What its storage is.
    pub storage_kinds: Vec<StorageKind>,
    /// The storage finishes its writes when the power fails.
    pub power_loss_protection: Option<bool>,
    /// What else to know of its storage.
    pub storage: String,
    /// Network ports.
    pub nics: Vec<Nic>,
    /// What else to know.
    pub notes: Vec<String>,
}

impl BoardProfile {
    /// The device file of a port by the name printed on the case, such as `com1`.
    #[must_use]
    pub fn serial_path(&self, name: &str) -> Option<&Path> {
        self.serial.get(name).map(|port| port.device.as_path())
    }

    /// Whether a fact was looked for and not found.
    #[must_use]
    pub fn lacks(&self, fact: Fact) -> bool {
        self.not_documented.contains(&fact)
    }
}

/// Names by which a computer is known: firmware (DMI) on PCs, device tree elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Parts that DMI fields must hold, by the field's name in `/sys/class/dmi/id`. All of them.
    pub dmi: BTreeMap<String, String>,
    /// `compatible` names of the device tree. One of them is enough.
    pub device_tree: Vec<String>,
}

impl Identity {
    /// Nothing to know it by.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.dmi.is_empty() && self.device_tree.is_empty()
    }
}

/// DMI fields a profile may name.
pub const DMI_FIELDS: &[&str] = &[
    "sys_vendor",
    "product_name",
    "product_version",
    "product_family",
    "board_vendor",
    "board_name",
];

/// A serial port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SerialPort {
    /// Its device file.
    pub device: PathBuf,
    /// What its plug can be; empty where that is not documented.
    pub modes: Vec<SerialMode>,
    /// Who switches the direction of an RS-485 line; `None` where there is none, or it is not documented.
    pub rs485: Option<Rs485>,
    /// The driver of its device, as Linux names it.
    pub driver: Option<String>,
    /// What else to know.
    pub note: Option<String>,
}

impl SerialPort {
    /// The driver must be told to switch the direction (`TIOCSRS485`), by whoever opens the port.
    #[must_use]
    pub fn kernel_rs485(&self) -> bool {
        self.rs485 == Some(Rs485::Kernel)
    }
}

/// The electrical side of a serial port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SerialMode {
    /// One device, full duplex.
    Rs232,
    /// Two pairs.
    Rs422,
    /// One pair, half duplex.
    Rs485,
}

impl SerialMode {
    /// As written in a profile.
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("rs232", Self::Rs232),
        ("rs422", Self::Rs422),
        ("rs485", Self::Rs485),
    ];
}

/// Who sets an RS-485 line up and switches its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rs485 {
    /// The driver, once it is told to (`TIOCSRS485`).
    Kernel,
    /// Transceiver, or driver from boot on: nothing to be done, and nothing to be set.
    Hardware,
    /// A person, by jumper, switch or BIOS.
    Jumper,
    /// A program or GPIO of the maker's, before the gateway starts.
    Tool,
}

impl Rs485 {
    /// As written in a profile.
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("kernel", Self::Kernel),
        ("hardware", Self::Hardware),
        ("jumper", Self::Jumper),
        ("tool", Self::Tool),
    ];
}

/// What data is kept on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageKind {
    /// Soldered flash.
    Emmc,
    /// A card: SD, microSD.
    Sd,
    /// SATA, mSATA, M.2, CFast.
    Ssd,
    /// Flash behind PCI Express.
    Nvme,
    /// A disk that turns.
    Disk,
    /// A stick or disk on USB.
    Usb,
}

impl StorageKind {
    /// As written in a profile.
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("emmc", Self::Emmc),
        ("sd", Self::Sd),
        ("ssd", Self::Ssd),
        ("nvme", Self::Nvme),
        ("disk", Self::Disk),
        ("usb", Self::Usb),
    ];
}

/// A network port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// As printed on the case, or as its source calls it.
    pub label: String,
    /// As Linux names it, where that is fixed.
    pub name: Option<String>,
    /// Its driver, as Linux names it.
    pub driver: Option<String>,
}

/// What a profile can say, and can say that nobody documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// `identity`
    Identity,
    /// `battery_clock`
    BatteryClock,
    /// `serial`
    Serial,
    /// `watchdog`
    Watchdog,
    /// `watchdog_driver`
    WatchdogDriver,
    /// `storage_kinds`
    StorageKinds,
    /// `power_loss_protection`
    PowerLossProtection,
    /// `nic`
    Nic,
}

impl Fact {
    /// As written in a profile: the key that would say it.
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("identity", Self::Identity),
        ("battery_clock", Self::BatteryClock),
        ("serial", Self::Serial),
        ("watchdog", Self::Watchdog),
        ("watchdog_driver", Self::WatchdogDriver),
        ("storage_kinds", Self::StorageKinds),
        ("power_loss_protection", Self::PowerLossProtection),
        ("nic", Self::Nic),
    ];
}

/// The name of a value out of such a table of names.
#[must_use]
pub fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: &T) -> &'static str {
    let found = names.iter().find(|(_, known)| known == value);
    found.map_or("", |(name, _)| name)
}

macro_rules! shipped {
    ($($name:literal,)*) => {
        &[$(($name, include_str!(concat!("../../boards/", $name, ".toml")))),*]
    };
}

/// The profiles that are compiled in: name and TOML text.
pub const BUILT_IN: &[(&str, &str)] = shipped![
    "generic-x86_64",
    "generic-aarch64",
    "beckhoff-cx",
    "dh-drc02-imx8mp",
    "kontron-bl-imx8mm",
    "kunbus-revpi-connect-4",
    "kunbus-revpi-flat-s",
    "moxa-mc-1220",
    "moxa-v2403c",
    "moxa-v2406c",
    "phytec-phygate-tauri-l",
    "seeed-recomputer-r1000",
    "sfera-iono-pi-max",
    "siemens-iot2050-advanced-pg2",
    "siemens-ipc127e",
    "siemens-ipc227e",
    "siemens-ipc227g",
    "siemens-ipc427e",
];

/// The compiled-in profile of that name.
#[must_use]
pub fn built_in(name: &str) -> Option<&'static str> {
    let found = BUILT_IN.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text)
}
