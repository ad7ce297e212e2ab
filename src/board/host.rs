//! Owns: what this computer says of itself, read from `/sys`, `/proc` and `/dev`.
//! May call: the file system, to read.
//! Never: open a device, write anything, or guess what is not said.

use super::{DMI_FIELDS, StorageKind};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// Most entries of a directory that are looked at.
const ENTRIES_MAX: usize = 256;
/// Deepest stack of block devices (partition, RAID, encryption) that is followed.
const LAYERS_MAX: usize = 8;

/// A computer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// As Rust names it.
    pub arch: String,
    /// What its firmware says, by field; a PC's, as a rule.
    pub dmi: BTreeMap<String, String>,
    /// The model in its device tree.
    pub model: Option<String>,
    /// The `compatible` names of its device tree.
    pub device_tree: Vec<String>,
    /// The device files that were asked for.
    pub ports: BTreeMap<PathBuf, Port>,
    /// Real-time clocks.
    pub clocks: Vec<HardwareClock>,
    /// Watchdogs.
    pub watchdogs: Vec<Watchdog>,
    /// Network ports with hardware behind them.
    pub nics: Vec<HostNic>,
    /// What the root file system stands on.
    pub root: Option<Storage>,
}

/// A serial device file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// The file is there.
    pub there: bool,
    /// What it is a link to, if it is one.
    pub target: Option<PathBuf>,
    /// There is a device file, and the driver found no hardware for it.
    pub empty: bool,
    /// Its driver.
    pub driver: Option<String>,
}

/// A real-time clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HardwareClock {
    /// Such as `rtc0`.
    pub name: String,
    /// Its driver's name for it.
    pub driver: String,
    /// Its time, in seconds since 1970; `None` if it says that it has none.
    pub since_epoch_s: Option<i64>,
    /// The kernel took its time from this one at boot.
    pub at_boot: bool,
}

/// A watchdog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watchdog {
    /// Such as `watchdog0`.
    pub name: String,
    /// What it calls itself.
    pub identity: String,
    /// Its driver.
    pub driver: Option<String>,
    /// It runs: somebody feeds it. `None` if the kernel does not say.
    pub active: Option<bool>,
}

/// A network port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNic {
    /// Such as `eth0`.
    pub name: String,
    /// Its driver.
    pub driver: Option<String>,
}

/// A disk, card or flash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Such as `mmcblk0`.
    pub device: String,
    /// What it is, where that can be told.
    pub kind: Option<StorageKind>,
}

impl Host {
    /// Reads what is below `root` (`/`, but for tests); of the device files, `ports`.
    #[must_use]
    pub fn probe(root: &Path, arch: &str, ports: &[&Path]) -> Self {
        let tree = root.join("proc/device-tree");
        Self {
            arch: arch.to_owned(),
            dmi: dmi(root),
            model: read(&tree.join("model")).map(|text| text.trim_matches('\0').to_owned()),
            device_tree: compatible(&tree.join("compatible")),
            ports: ports
                .iter()
                .map(|path| ((*path).to_owned(), port(root, path)))
                .collect(),
            clocks: clocks(root),
            watchdogs: watchdogs(root),
            nics: nics(root),
            root: storage(root),
        }
    }

    /// How it calls itself, for people.
    #[must_use]
    pub fn called(&self) -> Option<String> {
        let field = |name: &str| self.dmi.get(name).map(String::as_str);
        let parts = [field("sys_vendor"), field("product_name")];
        let dmi: Vec<&str> = parts.into_iter().flatten().collect();
        match (&self.model, dmi.is_empty()) {
            (Some(model), _) => Some(model.clone()),
            (None, false) => Some(dmi.join(" ")),
            (None, true) => None,
        }
    }
}

/// A small text file, trimmed; `None` if it cannot be read, or holds nothing.
fn read(path: &Path) -> Option<String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The entries of a directory, in order.
fn entries(dir: &Path) -> Vec<(String, PathBuf)> {
    let found = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut all: Vec<_> = found
        .take(ENTRIES_MAX)
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, entry.path())
        })
        .collect();
    all.sort();
    all
}

/// The driver of a device's directory in `/sys`.
fn driver(device: &Path) -> Option<String> {
    let link = std::fs::read_link(device.join("driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// The driver of a port: since Linux 6.5 two devices of the serial core stand between it and its hardware.
fn port_driver(device: &Path) -> Option<String> {
    let mut device = device.canonicalize().ok()?;
    loop {
        let name = driver(&device);
        if !matches!(name.as_deref(), Some("port" | "ctrl")) {
            return name;
        }
        device = device.parent()?.to_owned();
    }
}

fn dmi(root: &Path) -> BTreeMap<String, String> {
    let dir = root.join("sys/class/dmi/id");
    let field = |name: &&str| Some(((*name).to_owned(), read(&dir.join(name))?));
    DMI_FIELDS.iter().filter_map(field).collect()
}

fn compatible(path: &Path) -> Vec<String> {
    let text = read(path).unwrap_or_default();
    let names = text.split('\0').filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

fn port(root: &Path, path: &Path) -> Port {
    let file = root.join(path.strip_prefix("/").unwrap_or(path));
    let Ok(real) = file.canonicalize() else {
        return Port::default();
    };
    let Some(name) = real.file_name() else {
        return Port::default();
    };
    let tty = root.join("sys/class/tty").join(name);
    let linked = file
        .symlink_metadata()
        .is_ok_and(|data| data.file_type().is_symlink());
    Port {
        there: true,
        target: linked.then(|| Path::new("/dev").join(name)),
        // The kernel's PORT_UNKNOWN.
        empty: read(&tty.join("type")).as_deref() == Some("0"),
        driver: port_driver(&tty.join("device")),
    }
}

fn clocks(root: &Path) -> Vec<HardwareClock> {
    let all = entries(&root.join("sys/class/rtc"));
    let clock = |(name, dir): (String, PathBuf)| HardwareClock {
        driver: read(&dir.join("name")).unwrap_or_default(),
        since_epoch_s: read(&dir.join("since_epoch")).and_then(|text| text.parse().ok()),
        at_boot: read(&dir.join("hctosys")).as_deref() == Some("1"),
        name,
    };
    all.into_iter().map(clock).collect()
}

fn watchdogs(root: &Path) -> Vec<Watchdog> {
    let all = entries(&root.join("sys/class/watchdog"));
    let watchdog = |(name, dir): (String, PathBuf)| Watchdog {
        identity: read(&dir.join("identity")).unwrap_or_default(),
        driver: driver(&dir.join("device")),
        active: read(&dir.join("state")).map(|state| state == "active"),
        name,
    };
    all.into_iter().map(watchdog).collect()
}

fn nics(root: &Path) -> Vec<HostNic> {
    let all = entries(&root.join("sys/class/net"));
    let real = all
        .into_iter()
        .filter(|(_, dir)| dir.join("device").exists());
    let nic = |(name, dir): (String, PathBuf)| HostNic {
        driver: driver(&dir.join("device")),
        name,
    };
    real.map(nic).collect()
}

fn storage(root: &Path) -> Option<Storage> {
    let mounts = read(&root.join("proc/self/mountinfo"))?;
    // The last mount on a place is the one that is seen.
    let line = mounts.lines().rev().find(|line| {
        let mut fields = line.split(' ');
        fields.nth(4) == Some("/")
    })?;
    let number = line.split(' ').nth(2)?;
    let mut dir = root.join("sys/dev/block").join(number);
    dir = dir.canonicalize().ok()?;
    for _ in 0..LAYERS_MAX {
        if dir.join("partition").exists() {
            dir = dir.parent()?.to_owned();
        } else if let Some((_, below)) = entries(&dir.join("slaves")).into_iter().next() {
            dir = below.canonicalize().ok()?;
        } else {
            break;
        }
    }
    let device = dir.file_name()?.to_string_lossy().into_owned();
    Some(Storage {
        kind: kind(&dir, &device),
        device,
    })
}

fn kind(dir: &Path, device: &str) -> Option<StorageKind> {
    let on_usb = dir
        .components()
        .any(|part| part.as_os_str().to_string_lossy().starts_with("usb"));
    if device.starts_with("nvme") {
        Some(StorageKind::Nvme)
    } else if device.starts_with("mmcblk") {
        match read(&dir.join("device/type")).as_deref() {
            Some("MMC") => Some(StorageKind::Emmc),
            Some("SD") => Some(StorageKind::Sd),
            _ => None,
        }
    } else if on_usb {
        Some(StorageKind::Usb)
    } else if device.starts_with("sd") {
        match read(&dir.join("queue/rotational")).as_deref() {
            Some("0") => Some(StorageKind::Ssd),
            Some("1") => Some(StorageKind::Disk),
            _ => None,
        }
    } else {
        None
    }
}
