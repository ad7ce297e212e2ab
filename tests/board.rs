//! Owns: the proof that board profiles are read exactly, say where they have it from, and are held against the computer.
//! May call: the crate's board and config; the program, for its command line.
//! Never: need a particular computer.

use holdfast::board::check::{Finding, Fit, Verdict, check, fit};
use holdfast::board::host::{Host, Storage};
use holdfast::board::{BUILT_IN, BoardProfile, Fact, Rs485, SerialMode, StorageKind};
use holdfast::config::{self, Problem};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A moment before which no clock of a computer in use stands, in seconds since 1970.
const NOT_BEFORE_S: i64 = 1_795_996_800;

fn shipped(name: &str) -> BoardProfile {
    let nowhere = Path::new("/nonexistent");
    match config::board(name, nowhere) {
        Ok(Some(profile)) => profile,
        Ok(None) => panic!("{name} is not shipped"),
        Err(problems) => panic!("{}", text(&problems)),
    }
}

fn text(problems: &[Problem]) -> String {
    problems.iter().map(|p| format!("{p}\n")).collect()
}

fn own(profile: &str) -> Result<BoardProfile, Vec<Problem>> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("own.toml"), profile).unwrap();
    config::board("own", dir.path()).map(|found| found.expect("it was just written"))
}

#[test]
fn every_shipped_profile_is_valid_names_its_sources_and_says_what_nobody_documents() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("boards");
    let mut files: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    let mut compiled: Vec<String> = BUILT_IN.iter().map(|b| b.0.to_owned()).collect();
    files.sort();
    compiled.sort();
    assert_eq!(
        files, compiled,
        "a profile is not compiled in, or its file is gone"
    );
    let real = compiled.iter().filter(|name| !name.starts_with("generic-"));
    assert!(real.count() >= 8);
    for name in &compiled {
        let board = shipped(name);
        assert!(!board.description.is_empty(), "{name}");
        assert!(!board.sources.is_empty(), "{name} names no source");
        for source in &board.sources {
            let where_in_it = source.split_once(": ").map(|(place, _)| place);
            let named = where_in_it.is_some_and(|place| {
                name.starts_with("generic-") || place.contains(", ") && place.len() > 20
            });
            assert!(named, "{name}: {source:?} does not say where in which work");
        }
        let said = [
            (Fact::Identity, !board.identity.is_empty()),
            (Fact::Serial, !board.serial.is_empty()),
            (Fact::Watchdog, board.watchdog.is_some()),
            (Fact::WatchdogDriver, board.watchdog_driver.is_some()),
            (Fact::StorageKinds, !board.storage_kinds.is_empty()),
            (
                Fact::PowerLossProtection,
                board.power_loss_protection.is_some(),
            ),
            (Fact::Nic, !board.nics.is_empty()),
        ];
        for (fact, is_said) in said {
            assert_ne!(
                is_said,
                board.lacks(fact),
                "{name}: {fact:?} is neither said nor missed"
            );
        }
        assert!(
            !(board.battery_clock && board.lacks(Fact::BatteryClock)),
            "{name}"
        );
    }
}

// covers: TIME-04
#[test]
fn a_clock_that_nobody_documents_is_not_trusted() {
    let board = shipped("kunbus-revpi-connect-4");
    assert!(board.lacks(Fact::BatteryClock) && !board.battery_clock);
    assert!(shipped("siemens-ipc427e").battery_clock);
}

#[test]
fn a_port_is_found_by_the_name_on_the_case() {
    let board = shipped("siemens-iot2050-advanced-pg2");
    assert_eq!(board.serial_path("x30"), Some(Path::new("/dev/ttyX30")));
    assert_eq!(board.serial_path("com1"), None);
    let port = &board.serial["x30"];
    assert_eq!(
        port.modes,
        [SerialMode::Rs232, SerialMode::Rs422, SerialMode::Rs485]
    );
    assert_eq!(
        (port.rs485, port.kernel_rs485()),
        (Some(Rs485::Tool), false)
    );
    assert!(shipped("generic-aarch64").serial["com2"].kernel_rs485());
}

const OWN: &str = r#"schema = 1
name = "own"
arch = "x86_64"
battery_clock = true
watchdog = "/dev/watchdog"
storage_kinds = ["ssd"]
not_documented = ["nic"]
[identity]
dmi = { sys_vendor = "ACME" }
[[serial]]
name = "com1"
path = "/dev/ttyS0"
modes = ["rs232", "rs485"]
rs485 = "kernel"
"#;

// covers: CFG-01
#[test]
fn what_is_wrong_in_a_profile_is_said_where_it_stands() {
    own(OWN).unwrap_or_else(|problems| panic!("{}", text(&problems)));
    let cases = [
        (
            "\"rs232\", \"rs485\"",
            "\"rs232\", \"rs458\"",
            (13, 19),
            "did you mean \"rs485\"?",
        ),
        (
            "\"rs232\", \"rs485\"",
            "\"rs485\", \"rs485\"",
            (13, 19),
            "each word once",
        ),
        (
            "\"rs232\", \"rs485\"",
            "\"rs232\"",
            (14, 9),
            "modes does not name \"rs485\"",
        ),
        (
            "rs485 = \"kernel\"",
            "rs485 = true",
            (14, 9),
            "\"kernel\", \"hardware\", \"jumper\", \"tool\"",
        ),
        (
            "/dev/ttyS0",
            "/etc/passwd",
            (12, 8),
            "a device file under /dev",
        ),
        (
            "[\"nic\"]",
            "[\"watchdog\"]",
            (7, 18),
            "remove \"watchdog\" here",
        ),
        ("[\"nic\"]", "[\"nics\"]", (7, 19), "did you mean \"nic\"?"),
        (
            "sys_vendor =",
            "vendor =",
            (9, 18),
            "the unknown field \"vendor\"",
        ),
        (
            "storage_kinds",
            "storage_kind",
            (6, 1),
            "did you mean \"storage_kinds\"?",
        ),
        (
            "[\"ssd\"]",
            "[\"flash\"]",
            (6, 18),
            "\"emmc\", \"sd\", \"ssd\"",
        ),
        (
            "battery_clock = true\n",
            "",
            (1, 1),
            "whether a battery keeps the clock",
        ),
    ];
    for (from, to, place, says) in cases {
        assert!(OWN.contains(from), "{from}");
        let problems = own(&OWN.replacen(from, to, 1)).expect_err(to);
        let found = problems.iter().any(|problem| {
            (problem.line, problem.column) == place && problem.to_string().contains(says)
        });
        assert!(
            found,
            "{to}: no {place:?} with {says:?} in\n{}",
            text(&problems)
        );
    }
    let twice = format!("{OWN}[[serial]]\nname = \"com1\"\npath = \"/dev/ttyS0\"\n");
    let problems = text(&own(&twice).unwrap_err());
    assert!(
        problems.contains("own.toml:16:8: serial[1].name"),
        "{problems}"
    );
    assert!(
        problems.contains("own.toml:17:8: serial[1].path"),
        "{problems}"
    );
}

#[test]
fn a_profile_of_the_first_shape_is_still_read() {
    let first = "schema = 1\nname = \"own\"\narch = \"aarch64\"\nbattery_clock = false\nwatchdog = \"/dev/watchdog\"\n\
                 storage = \"SD\"\n[serial]\ncom1 = { device = \"/dev/ttyAMA0\", rs485 = false }\n\
                 com2 = { device = \"/dev/ttyAMA1\", rs485 = true }\n";
    let board = own(first).unwrap_or_else(|problems| panic!("{}", text(&problems)));
    assert_eq!(board.serial_path("com1"), Some(Path::new("/dev/ttyAMA0")));
    assert!(board.serial["com2"].kernel_rs485() && !board.serial["com1"].kernel_rs485());
}

/// A computer made of files.
struct Fake(tempfile::TempDir);

impl Fake {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn file(&self, path: &str, content: &str) -> &Self {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    fn link(&self, path: &str, target: &str) -> &Self {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        self
    }

    fn probe(&self, board: &BoardProfile) -> Host {
        let ports = board.serial.values().map(|port| port.device.as_path());
        let paths: Vec<&Path> = ports.chain(board.watchdog.as_deref()).collect();
        Host::probe(self.0.path(), &board.arch, &paths)
    }
}

/// An IOT2050 as its kernel shows it.
fn iot2050() -> Fake {
    let fake = Fake::new();
    fake.file("proc/device-tree/model", "SIMATIC IOT2050 Advanced PG2\0")
        .file(
            "proc/device-tree/compatible",
            "siemens,iot2050-advanced-pg2\0ti,am654\0",
        )
        .file("dev/ttyUSB0", "")
        .link("dev/ttyX30", "ttyUSB0")
        .file("sys/class/tty/ttyUSB0/device/power", "")
        .link(
            "sys/class/tty/ttyUSB0/device/driver",
            "../../../../bus/usb-serial/drivers/cp210x",
        )
        .file("sys/class/rtc/rtc0/name", "rtc-pcf8563 0-0051\n")
        .file("sys/class/rtc/rtc0/since_epoch", "1796000000\n")
        .file("sys/class/rtc/rtc0/hctosys", "1\n")
        .file(
            "proc/self/mountinfo",
            "22 1 179:2 / / rw - ext4 /dev/mmcblk1p2 rw\n",
        )
        .file("sys/devices/mmc1/block/mmcblk1/mmcblk1p2/partition", "2\n")
        .file("sys/devices/mmc1/block/mmcblk1/device/type", "MMC\n")
        .link(
            "sys/dev/block/179:2",
            "../../devices/mmc1/block/mmcblk1/mmcblk1p2",
        );
    for name in ["eno1", "eno2"] {
        let device = format!("sys/class/net/{name}/device");
        fake.file(&format!("{device}/power"), "");
        fake.link(
            &format!("{device}/driver"),
            "../../../../bus/platform/drivers/icssg-prueth",
        );
    }
    fake.file("sys/class/net/lo/mtu", "65536\n");
    fake
}

fn finding<'a>(findings: &'a [Finding], about: &str) -> &'a Finding {
    let found = findings.iter().find(|found| found.about == about);
    found.unwrap_or_else(|| panic!("nothing about {about} in {findings:#?}"))
}

#[test]
fn the_right_computer_agrees_with_its_profile() {
    let board = shipped("siemens-iot2050-advanced-pg2");
    let fake = iot2050();
    let host = fake.probe(&board);
    let root = Storage {
        device: "mmcblk1".into(),
        kind: Some(StorageKind::Emmc),
    };
    assert_eq!(host.root, Some(root));
    assert_eq!(host.nics.len(), 2, "a port without hardware is none");
    let findings = check(&board, &host, NOT_BEFORE_S);
    assert_eq!(fit(&board, &host), Fit::Yes);
    for about in [
        "computer",
        "serial x30",
        "battery clock",
        "storage",
        "network icssg0, p1",
    ] {
        let found = finding(&findings, about);
        assert_eq!(found.verdict, Verdict::Ok, "{found:?}");
    }
    let port = &finding(&findings, "serial x30").says;
    assert!(
        port.contains("/dev/ttyX30 is /dev/ttyUSB0, driver \"cp210x\""),
        "{port}"
    );
    let undocumented = finding(&findings, "power loss");
    assert_eq!(undocumented.verdict, Verdict::Note);
    assert!(
        undocumented.says.contains("not documented"),
        "{undocumented:?}"
    );
}

#[test]
fn the_wrong_board_is_said_to_be_wrong() {
    let fake = iot2050();
    let other = shipped("dh-drc02-imx8mp");
    let host = fake.probe(&other);
    let found = &check(&other, &host, NOT_BEFORE_S)[0];
    assert_eq!(
        (fit(&other, &host), found.verdict),
        (Fit::No, Verdict::Wrong)
    );
    for part in [
        "wrong board",
        "SIMATIC IOT2050 Advanced PG2",
        "dh,imx8mp-dhcom-drc02",
    ] {
        assert!(found.says.contains(part), "{found:?}");
    }
    let mut processor = host.clone();
    processor.arch = "x86_64".into();
    assert_eq!(fit(&other, &processor), Fit::No);

    let siemens = shipped("siemens-ipc227e");
    let mut pc = Host {
        arch: "x86_64".into(),
        ..Host::default()
    };
    assert_eq!(fit(&siemens, &pc), Fit::Unknown, "it does not say its name");
    pc.dmi.insert("sys_vendor".into(), "QEMU".into());
    assert_eq!(fit(&siemens, &pc), Fit::No);
    pc.dmi.insert("sys_vendor".into(), "SIEMENS AG".into());
    assert_eq!(fit(&siemens, &pc), Fit::Yes);
    assert_eq!(fit(&shipped("generic-x86_64"), &pc), Fit::Unknown);
}

// covers: TIME-04
#[test]
fn a_battery_clock_that_lost_its_time_is_not_called_good() {
    let board = shipped("siemens-iot2050-advanced-pg2");
    let verdict = |change: &dyn Fn(&Fake)| {
        let fake = iot2050();
        change(&fake);
        let findings = check(&board, &fake.probe(&board), NOT_BEFORE_S);
        finding(&findings, "battery clock").verdict
    };
    assert_eq!(verdict(&|_| {}), Verdict::Ok);
    let set = |fake: &Fake, text: &str| {
        fake.file("sys/class/rtc/rtc0/since_epoch", text);
    };
    assert_eq!(verdict(&|fake| set(fake, "946684800\n")), Verdict::Wrong);
    assert_eq!(verdict(&|fake| set(fake, "")), Verdict::Wrong);
    let gone = |fake: &Fake| fs::remove_dir_all(fake.path("sys/class/rtc")).unwrap();
    assert_eq!(verdict(&gone), Verdict::Wrong);
}

#[test]
fn what_is_missing_or_another_is_said() {
    let board = shipped("kontron-bl-imx8mm");
    let fake = Fake::new();
    // Since Linux 6.5 two devices of the serial core stand between a port and its hardware.
    let uart = "sys/devices/30860000.serial";
    fake.file("dev/ttymxc0", "")
        .file(
            &format!("{uart}/30860000.serial:0/30860000.serial:0.0/tty/ttymxc0/type"),
            "62\n",
        )
        .link(
            &format!("{uart}/driver"),
            "../../bus/platform/drivers/imx-uart",
        )
        .link(
            &format!("{uart}/30860000.serial:0/driver"),
            "../../bus/serial-base/drivers/ctrl",
        )
        .link(
            &format!("{uart}/30860000.serial:0/30860000.serial:0.0/driver"),
            "../../bus/serial-base/drivers/port",
        )
        .link(
            &format!("{uart}/30860000.serial:0/30860000.serial:0.0/tty/ttymxc0/device"),
            "../../../30860000.serial:0.0",
        )
        .link(
            "sys/class/tty/ttymxc0",
            "../../devices/30860000.serial/30860000.serial:0/30860000.serial:0.0/tty/ttymxc0",
        )
        .file("dev/ttymxc1", "")
        .file("sys/class/tty/ttymxc1/type", "0\n")
        .file("dev/watchdog", "")
        .file("sys/class/watchdog/watchdog0/identity", "imx2+ watchdog\n")
        .file("sys/class/watchdog/watchdog0/state", "inactive\n")
        .link(
            "sys/class/watchdog/watchdog0/device/driver",
            "../../bus/platform/drivers/imx2-wdt",
        )
        .file(
            "proc/self/mountinfo",
            "22 1 179:1 / / rw - ext4 /dev/mmcblk0 rw\n",
        )
        .file("sys/devices/mmcblk0/device/type", "SD\n")
        .link("sys/dev/block/179:1", "../../devices/mmcblk0");
    let findings = check(&board, &fake.probe(&board), NOT_BEFORE_S);
    let port = finding(&findings, "serial uart1");
    assert_eq!(port.verdict, Verdict::Ok, "{port:?}");
    assert!(port.says.contains("driver \"imx-uart\""), "{port:?}");
    let cases = [
        ("serial rs485", "found no port behind it"),
        ("watchdog", "nobody feeds it"),
        ("network fec1", "driver \"fec\""),
    ];
    for (about, says) in cases {
        let found = finding(&findings, about);
        assert_eq!(found.verdict, Verdict::Warn, "{found:?}");
        assert!(
            found.says.contains(says) && found.mend.is_some(),
            "{found:?}"
        );
    }
    let worn = findings
        .iter()
        .find(|found| found.says.contains("wears out"));
    assert!(
        worn.is_some_and(|found| found.verdict == Verdict::Warn),
        "{findings:#?}"
    );

    let mut other = fake.probe(&board);
    other.watchdogs[0].driver = Some("softdog".into());
    let findings = check(&board, &other, NOT_BEFORE_S);
    assert!(
        finding(&findings, "watchdog")
            .says
            .contains("the profile says the driver \"imx2-wdt\"")
    );
}

fn holdfast(args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    let done = command.args(args).output().unwrap();
    (done.status.code(), String::from_utf8(done.stdout).unwrap())
}

// covers: IF-02
#[test]
fn the_command_lists_shows_and_checks() {
    let (code, list) = holdfast(&["board", "--list", "--json"]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let names: Vec<&str> = list["boards"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["name"].as_str())
        .collect();
    assert_eq!(code, Some(0));
    assert!(
        BUILT_IN.iter().all(|(name, _)| names.contains(name)),
        "{names:?}"
    );

    let foreign = match std::env::consts::ARCH {
        "aarch64" => "siemens-ipc227e",
        _ => "siemens-iot2050-advanced-pg2",
    };
    let (code, shown) = holdfast(&["board", foreign]);
    assert_eq!(code, Some(78), "{shown}");
    assert!(
        shown.contains("wrong board") && shown.contains("source: "),
        "{shown}"
    );
    assert!(
        shown.lines().all(|line| line.chars().count() <= 80),
        "{shown}"
    );
    let (_, shown) = holdfast(&["board", foreign, "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        (&shown["fits"], &shown["board"]["name"]),
        (&false.into(), &foreign.into())
    );
    assert_eq!(shown["findings"][0]["verdict"], "wrong");

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("holdfast.toml");
    let generic = format!("generic-{}", std::env::consts::ARCH);
    // Whatever else is wrong in the file, the board can be looked at.
    fs::write(
        &file,
        format!("board = \"{generic}\"\nmachines = [\"nowhere.toml\"]\n"),
    )
    .unwrap();
    let (_, shown) = holdfast(&["--config", file.to_str().unwrap(), "board", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["board"]["name"], generic.as_str());
    assert_eq!(holdfast(&["board", "no-such-board"]).0, Some(2));
}

#[test]
fn what_the_manual_says_of_profiles_is_so() {
    let manual = include_str!("../docs/boards.md");
    for (name, _) in BUILT_IN {
        assert!(
            manual.contains(&format!("`{name}`")),
            "{name} is not in docs/boards.md"
        );
    }
    let (_, example) = manual.split_once("```toml\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let profile = example.replace("name = \"line3-box\"", "name = \"own\"");
    let board = own(&profile).unwrap_or_else(|problems| panic!("{}", text(&problems)));
    assert!(board.serial["com1"].kernel_rs485() && board.battery_clock);
    assert!(board.lacks(Fact::PowerLossProtection));
}
