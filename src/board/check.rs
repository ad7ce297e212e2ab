//! Owns: holding a profile against the computer: what agrees, what does not, what cannot be told.
//! May call: nothing.
//! Never: reach hardware (host does); call something right that nobody said or saw.

use super::host::{Host, HostNic, Port, Storage};
use super::{BoardProfile, Fact, Nic, Rs485, SerialMode, SerialPort, StorageKind};

/// What a finding means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Profile and computer agree.
    Ok,
    /// To be known; nothing to be done.
    Note,
    /// Somebody should look.
    Warn,
    /// Not as the profile says, and the gateway relies on it.
    Wrong,
}

impl Verdict {
    /// For people and programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Wrong => "wrong",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Such as `serial com1`.
    pub about: String,
    /// What it means.
    pub verdict: Verdict,
    /// In plain words.
    pub says: String,
    /// What to do next, where something can be done.
    pub mend: Option<String>,
}

impl Finding {
    fn new(about: impl Into<String>, verdict: Verdict, says: impl Into<String>) -> Self {
        Self {
            about: about.into(),
            verdict,
            says: says.into(),
            mend: None,
        }
    }

    fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }
}

/// Whether this is the computer that a profile describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It calls itself so.
    Yes,
    /// It calls itself otherwise, or has another processor.
    No,
    /// The profile names nothing to know it by, or the computer does not say its name.
    Unknown,
}

/// Whether this is the computer that `profile` describes.
#[must_use]
pub fn fit(profile: &BoardProfile, host: &Host) -> Fit {
    identity(profile, host).0
}

/// Holds all of `profile` against the computer. A clock that stands before `not_before_s` (seconds since 1970)
/// has lost its time.
#[must_use]
pub fn check(profile: &BoardProfile, host: &Host, not_before_s: i64) -> Vec<Finding> {
    let mut findings = vec![identity(profile, host).1];
    findings.extend(serial(profile, host));
    findings.push(clock(profile, host, not_before_s));
    findings.push(watchdog(profile, host));
    findings.extend(storage(profile, host.root.as_ref()));
    findings.extend(network(profile, host));
    findings
}

fn identity(profile: &BoardProfile, host: &Host) -> (Fit, Finding) {
    const ABOUT: &str = "computer";
    let wrong = |says: String| {
        let mend = "choose the profile of this computer (`holdfast board --list`), or write one";
        let found = Finding::new(ABOUT, Verdict::Wrong, says).mend(mend);
        (Fit::No, found)
    };
    let unknown = |says: String| (Fit::Unknown, Finding::new(ABOUT, Verdict::Note, says));
    if profile.arch != host.arch {
        return wrong(format!(
            "wrong board: the profile is for {}, this computer is {}",
            profile.arch, host.arch
        ));
    }
    let called = host.called();
    let called = called.map_or("this computer says no name".to_owned(), |name| {
        format!("this computer calls itself {name:?}")
    });
    let known = &profile.identity;
    if known.is_empty() {
        return unknown(format!(
            "{called}; the profile names nothing to know it by, so whether it is the right one cannot be told"
        ));
    }
    if !known.device_tree.is_empty() && !host.device_tree.is_empty() {
        return match known
            .device_tree
            .iter()
            .find(|n| host.device_tree.contains(n))
        {
            Some(name) => {
                let says = format!("{called}, in its device tree {name:?}, as the profile says");
                (Fit::Yes, Finding::new(ABOUT, Verdict::Ok, says))
            }
            None => wrong(format!(
                "wrong board: {called}; the profile is for {}",
                quoted(&known.device_tree)
            )),
        };
    }
    if known.dmi.is_empty() || host.dmi.is_empty() {
        return unknown(format!(
            "{called}, so whether it is the right one cannot be told"
        ));
    }
    for (field, part) in &known.dmi {
        match host.dmi.get(field) {
            Some(value) if value.contains(part.as_str()) => {}
            Some(value) => {
                return wrong(format!(
                    "wrong board: {called}; its {field} is {value:?}, the profile's {part:?}"
                ));
            }
            None => return unknown(format!("{called}; its firmware does not say {field}")),
        }
    }
    let fields: Vec<String> = known
        .dmi
        .iter()
        .map(|(f, v)| format!("{f} {v:?}"))
        .collect();
    let says = format!("{called}: {}, as the profile says", fields.join(", "));
    (Fit::Yes, Finding::new(ABOUT, Verdict::Ok, says))
}

fn serial(profile: &BoardProfile, host: &Host) -> Vec<Finding> {
    if profile.serial.is_empty() {
        let says = match profile.lacks(Fact::Serial) {
            true => "not documented: name the ports by their device files, or write an own profile",
            false => "the profile has no serial port",
        };
        return vec![Finding::new("serial", Verdict::Note, says)];
    }
    let missing = Port::default();
    let ports = profile.serial.iter();
    let one = |(name, port): (&String, &SerialPort)| {
        let found = host.ports.get(&port.device).unwrap_or(&missing);
        serial_port(&format!("serial {name}"), port, found)
    };
    ports.map(one).collect()
}

fn serial_port(about: &str, port: &SerialPort, found: &Port) -> Finding {
    let path = port.device.display();
    let enable =
        "enable the port in BIOS, device tree or udev, or correct `path` in a profile of your own";
    if !found.there {
        let says = format!("{path} is not there");
        return Finding::new(about, Verdict::Warn, says).mend(enable);
    }
    if found.empty {
        let says = format!("{path} is there, but its driver found no port behind it");
        return Finding::new(about, Verdict::Warn, says).mend(enable);
    }
    let target = found.target.as_ref();
    let mut says = path.to_string();
    if let Some(target) = target {
        says = format!("{says} is {}", target.display());
    }
    match (&port.driver, &found.driver) {
        (Some(wanted), Some(driver)) if !same(wanted, driver) => {
            let says = format!("{says}, with the driver {driver:?}; the profile says {wanted:?}");
            return Finding::new(about, Verdict::Warn, says)
                .mend("see whether it is the port that the profile means");
        }
        (_, Some(driver)) => says = format!("{says}, driver {driver:?}"),
        (_, None) => {}
    }
    Finding::new(about, Verdict::Ok, format!("{says}; {}", line(port)))
}

/// What a port is electrically, and who sees to it.
fn line(port: &SerialPort) -> String {
    if port.modes.is_empty() {
        return "whether RS-232, RS-422 or RS-485 is not documented".to_owned();
    }
    let names: Vec<&str> = port.modes.iter().map(|mode| mode_name(*mode)).collect();
    let names = names.join(", ");
    let who = match port.rs485 {
        Some(Rs485::Kernel) => "; for RS-485 the gateway tells the driver",
        Some(Rs485::Hardware) => "; RS-485 switches by itself",
        Some(Rs485::Jumper) => "; RS-485 by jumper, switch or BIOS, which cannot be seen from here",
        Some(Rs485::Tool) => "; RS-485 by the maker's program, before the gateway starts",
        None if port.modes.contains(&SerialMode::Rs485) => {
            "; who switches the direction of RS-485 is not documented"
        }
        None => "",
    };
    format!("{names}{who}")
}

fn mode_name(mode: SerialMode) -> &'static str {
    match mode {
        SerialMode::Rs232 => "RS-232",
        SerialMode::Rs422 => "RS-422",
        SerialMode::Rs485 => "RS-485",
    }
}

fn clock(profile: &BoardProfile, host: &Host, not_before_s: i64) -> Finding {
    const ABOUT: &str = "battery clock";
    let shown: Vec<String> = host
        .clocks
        .iter()
        .map(|clock| format!("{} ({})", clock.name, clock.driver))
        .collect();
    let shown = shown.join(", ");
    if !profile.battery_clock {
        let why = match profile.lacks(Fact::BatteryClock) {
            true => "not documented, so not trusted",
            false => "none, says the profile",
        };
        let after = "after a power cut wall time counts only once it is synchronised";
        if host.clocks.is_empty() {
            let says = format!("{why}; no clock is found either; {after}");
            return Finding::new(ABOUT, Verdict::Note, says);
        }
        let says = format!("{why}; {after}; found is {shown}");
        return Finding::new(ABOUT, Verdict::Note, says)
            .mend("if a battery is fitted, say battery_clock = true in a profile of your own");
    }
    let wrong = |says: String| {
        let mend = "see to the clock and its battery, or say battery_clock = false in a profile of your own";
        Finding::new(ABOUT, Verdict::Wrong, says).mend(mend)
    };
    // The one that the kernel asked at boot is the one that trust is put in.
    let asked = host.clocks.iter().find(|clock| clock.at_boot);
    match asked.or_else(|| host.clocks.first()) {
        None => wrong("the profile says there is one; the kernel has none, so wall time after a boot is a guess".to_owned()),
        Some(clock) => match clock.since_epoch_s {
            None => wrong(format!("{} has no valid time: its battery is empty, or it was never set", clock.name)),
            Some(time) if time < not_before_s => wrong(format!(
                "{} stands before this program was made: its battery is empty, or it was never set",
                clock.name
            )),
            Some(_) => Finding::new(ABOUT, Verdict::Ok, format!("{shown}, set; that its battery is good cannot be seen from here")),
        },
    }
}

fn watchdog(profile: &BoardProfile, host: &Host) -> Finding {
    const ABOUT: &str = "watchdog";
    let shown: Vec<String> = host
        .watchdogs
        .iter()
        .map(|found| format!("{} ({})", found.name, found.identity))
        .collect();
    let shown = shown.join(", ");
    let feed = "let systemd feed it: RuntimeWatchdogSec= in /etc/systemd/system.conf";
    let Some(path) = &profile.watchdog else {
        let says = match (profile.lacks(Fact::Watchdog), host.watchdogs.is_empty()) {
            (true, true) => "not documented, and none is found".to_owned(),
            (true, false) => format!("not documented; found is {shown}"),
            (false, true) => "none".to_owned(),
            (false, false) => format!("none in the profile; found is {shown}"),
        };
        return Finding::new(ABOUT, Verdict::Note, says);
    };
    let there = host.ports.get(path).is_some_and(|port| port.there);
    if !there || host.watchdogs.is_empty() {
        let path = path.display();
        let says = format!("{path} is not there: nothing restarts a computer that hangs");
        let mend = match &profile.watchdog_driver {
            Some(driver) => format!("load its driver, {driver:?}"),
            None => "load its driver".to_owned(),
        };
        return Finding::new(ABOUT, Verdict::Warn, says).mend(mend);
    }
    let wanted = profile.watchdog_driver.as_deref();
    let found = host.watchdogs.iter().find(|found| {
        wanted.is_none_or(|wanted| {
            // Old drivers have no device, and so no name here.
            let driver = found.driver.as_deref();
            driver.is_none_or(|driver| same(driver, wanted))
        })
    });
    match (found, wanted) {
        (None, wanted) => {
            let wanted = wanted.unwrap_or_default();
            let says = format!("found is {shown}; the profile says the driver {wanted:?}");
            Finding::new(ABOUT, Verdict::Warn, says).mend(format!("load {wanted:?}"))
        }
        (Some(found), _) if found.active == Some(false) => {
            let says = format!(
                "{} ({}) is there, and nobody feeds it",
                found.name, found.identity
            );
            Finding::new(ABOUT, Verdict::Warn, says).mend(feed)
        }
        (Some(found), _) => {
            let fed = match found.active {
                Some(_) => "fed",
                None => "whether it is fed the kernel does not say",
            };
            let says = format!("{} ({}), {fed}", found.name, found.identity);
            Finding::new(ABOUT, Verdict::Ok, says)
        }
    }
}

fn storage(profile: &BoardProfile, root: Option<&Storage>) -> Vec<Finding> {
    const ABOUT: &str = "storage";
    let kinds: Vec<&str> = profile
        .storage_kinds
        .iter()
        .map(|kind| kind_name(*kind))
        .collect();
    let kinds = kinds.join(", ");
    let mut findings = vec![match root {
        None => Finding::new(
            ABOUT,
            Verdict::Note,
            "what the root file system stands on cannot be told",
        ),
        Some(Storage { device, kind: None }) => Finding::new(
            ABOUT,
            Verdict::Note,
            format!("root stands on {device}, of which the kind cannot be told"),
        ),
        Some(Storage {
            device,
            kind: Some(kind),
        }) => {
            let stands = format!("root stands on {device}, {}", kind_name(*kind));
            if profile.storage_kinds.is_empty() {
                Finding::new(
                    ABOUT,
                    Verdict::Note,
                    format!("{stands}; what the board has is not documented"),
                )
            } else if profile.storage_kinds.contains(kind) {
                Finding::new(ABOUT, Verdict::Ok, stands)
            } else {
                Finding::new(
                    ABOUT,
                    Verdict::Warn,
                    format!("{stands}; the profile says {kinds}"),
                )
                .mend("see whether the system runs from where it should")
            }
        }
    }];
    if matches!(
        root,
        Some(Storage {
            kind: Some(StorageKind::Sd | StorageKind::Usb),
            ..
        })
    ) {
        findings.push(
            Finding::new(
                ABOUT,
                Verdict::Warn,
                "a card or stick wears out, and few of them keep a write when the power fails",
            )
            .mend(
                "keep the journal (state_dir) on better storage, or use an industrial-grade card",
            ),
        );
    }
    findings.push(match profile.power_loss_protection {
        Some(true) => Finding::new(
            "power loss",
            Verdict::Ok,
            "the storage finishes its writes, says the profile",
        ),
        Some(false) => Finding::new(
            "power loss",
            Verdict::Warn,
            "the storage does not finish its writes, says the profile",
        )
        .mend("supply the computer from a UPS, or use storage with power-loss protection"),
        None => Finding::new(
            "power loss",
            Verdict::Note,
            "whether the storage finishes its writes is not documented",
        ),
    });
    findings
}

fn kind_name(kind: StorageKind) -> &'static str {
    match kind {
        StorageKind::Emmc => "eMMC",
        StorageKind::Sd => "SD card",
        StorageKind::Ssd => "SSD",
        StorageKind::Nvme => "NVMe",
        StorageKind::Disk => "hard disk",
        StorageKind::Usb => "USB storage",
    }
}

fn network(profile: &BoardProfile, host: &Host) -> Vec<Finding> {
    let mut left: Vec<&HostNic> = host.nics.iter().collect();
    if profile.nics.is_empty() {
        let names: Vec<String> = left.iter().map(|nic| nic_name(nic)).collect();
        let found = match names.is_empty() {
            true => "none is found".to_owned(),
            false => format!("found: {}", names.join(", ")),
        };
        let says = match profile.lacks(Fact::Nic) {
            true => format!("not documented; {found}"),
            false => found,
        };
        return vec![Finding::new("network", Verdict::Note, says)];
    }
    let mut findings = Vec::new();
    for nic in &profile.nics {
        let about = format!("network {}", nic.label);
        match left.iter().position(|found| is(nic, found)) {
            Some(at) => {
                let says = nic_name(left.remove(at));
                findings.push(Finding::new(about, Verdict::Ok, says));
            }
            None => {
                let mut wanted: Vec<String> = Vec::new();
                wanted.extend(nic.name.as_ref().map(|name| format!("name {name:?}")));
                wanted.extend(
                    nic.driver
                        .as_ref()
                        .map(|driver| format!("driver {driver:?}")),
                );
                let says = format!("no network port with {} is left", wanted.join(", "));
                findings.push(
                    Finding::new(about, Verdict::Warn, says)
                        .mend("see whether its driver is loaded, and whether this is the board"),
                );
            }
        }
    }
    findings
}

fn is(nic: &Nic, found: &HostNic) -> bool {
    let name = nic.name.as_ref().is_none_or(|name| *name == found.name);
    let driver = nic.driver.as_ref().is_none_or(|driver| {
        let found = found.driver.as_deref();
        found.is_some_and(|found| same(found, driver))
    });
    name && driver
}

fn nic_name(nic: &HostNic) -> String {
    match &nic.driver {
        Some(driver) => format!("{} (driver {driver:?})", nic.name),
        None => nic.name.clone(),
    }
}

/// Linux writes a driver with `-` here and `_` there.
fn same(a: &str, b: &str) -> bool {
    a.replace('-', "_")
        .eq_ignore_ascii_case(&b.replace('-', "_"))
}

fn quoted(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    quoted.join(" or ")
}
