//! What a technician needs at the line: `check --probe`, raw bytes, a value by its place; each fault with its words.

use super::harness::{HOLDFAST, PRESS, PRESS_SIM, Rig};
use super::link_kind::LinkKind;
use holdfast::simulator::{ALWAYS, Act, Fault, Matching};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value as Json, json};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};
use std::thread;
use tempfile::TempDir;

/// A configuration of one machine, without a gateway.
struct Bench(TempDir);

impl Bench {
    fn new(link: &str, tag: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("hf").tempdir().unwrap();
        let machine = format!(
            "schema = 1\nname = \"m\"\nowner = \"gw\"\n[link]\n{link}\ntimeout = \"150ms\"\n\
             [[tag]]\nname = \"a\"\nread = \"{tag}\"\ntype = \"u16\"\npoll = \"1s\"\n"
        );
        let at = dir.path().display();
        let gateway = format!(
            "schema = 1\ngateway = \"gw\"\nboard = \"generic-x86_64\"\nstate_dir = \"{at}/state\"\n\
             machines = [\"m.toml\"]\n[api]\nunix = \"{at}/api.sock\"\n"
        );
        std::fs::write(dir.path().join("m.toml"), machine).unwrap();
        std::fs::write(dir.path().join("holdfast.toml"), gateway).unwrap();
        Self(dir)
    }
    fn tcp(address: &str) -> Self {
        let link = format!("protocol = \"modbus-tcp\"\naddress = \"{address}\"\nunit = 1");
        Self::new(&link, "holding:0")
    }
    fn serial(path: &str) -> Self {
        let link = format!(
            "protocol = \"modbus-rtu\"\nserial = \"{path}\"\nbaud = 19200\nparity = \"even\"\nunit = 1\nsettle = \"20ms\""
        );
        Self::new(&link, "holding:0")
    }
    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(["check", "--probe", "m"])
            .args(args)
            .arg("--config")
            .arg(self.0.path().join("holdfast.toml"))
            .arg("--socket")
            .arg(self.0.path().join("api.sock"));
        command
    }
    fn run(&self, args: &[&str]) -> Output {
        self.command(HOLDFAST, args).output().unwrap()
    }
    /// The probe's report.
    fn probe(&self, args: &[&str]) -> (Option<i32>, Json) {
        let output = self.run(&[args, &["--json"]].concat());
        report(&output)
    }
}

fn report(output: &Output) -> (Option<i32>, Json) {
    let mut found: Json =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    (output.status.code(), found["probes"][0].take())
}

#[track_caller]
fn assert_found(found: &(Option<i32>, Json), exit: i32, code: &str, words: &str) {
    let (status, report) = found;
    assert_eq!(report["diagnosis"]["code"], code, "{report:#}");
    assert_eq!(*status, Some(exit), "{report:#}");
    let text = report["diagnosis"].to_string();
    assert!(text.contains(words), "{words:?} is not in {text}");
}

/// A server that does this with every connection.
fn tcp_peer(each: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let each = std::sync::Arc::new(each);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let each = std::sync::Arc::clone(&each);
            thread::spawn(move || each(stream));
        }
    });
    address
}

/// Reads until the other end has gone.
fn drain(mut stream: TcpStream) {
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
}

/// The far end of a serial line: what it says to what it hears, by the speed that the near end is set to.
struct Pty {
    path: String,
    /// Kept open, so that the far end is never told that nobody is there.
    _near: File,
}

fn pty(answer: impl Fn(&[u8], u32) -> Vec<u8> + Send + 'static) -> Pty {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let near = File::options().read(true).write(true).open(&path).unwrap();
    let mut master = File::from(master);
    thread::spawn(move || {
        let mut bytes = [0; 256];
        while let Ok(read) = master.read(&mut bytes) {
            let speed = rustix::termios::tcgetattr(&master).map_or(0, |t| t.output_speed());
            if master.write_all(&answer(&bytes[..read], speed)).is_err() {
                return;
            }
        }
    });
    Pty { path, _near: near }
}

fn rtu(unit: u8, pdu: &[u8]) -> Vec<u8> {
    let mut bytes = [&[unit], pdu].concat();
    let sum = bytes.iter().fold(0xFFFF_u16, |sum, byte| {
        (0..8).fold(sum ^ u16::from(*byte), |sum, _| match sum & 1 {
            0 => sum >> 1,
            _ => sum >> 1 ^ 0xA001,
        })
    });
    bytes.extend(sum.to_le_bytes());
    bytes
}

// covers: IF-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_answers_is_shown_with_its_gate_its_times_and_its_bytes() {
    let rig = Rig::over(LinkKind::ModbusTcp, PRESS, PRESS_SIM).await;
    rig.write_config();
    let run = |args: &[&str]| rig.command(args).output().unwrap();
    let (exit, found) = report(&run(&["check", "--probe", "press-1", "--trace", "--json"]));
    assert_eq!(
        (exit, found["result"].as_str()),
        (Some(0), Some("answers")),
        "{found:#}"
    );
    assert_eq!(found["frame"], "Modbus TCP");
    assert_eq!(
        found["gate"][0],
        json!({"name": "identity", "found": "4711", "expected": "4711", "ok": true})
    );
    assert_eq!(found["gate"][1]["found"], "7");
    assert_eq!(found["gate"][2]["found"], "1");
    assert!(found["reply_ms"].as_f64().unwrap() > 0.0);
    // The first request: function 03, holding:110, one register.
    let sent = found["trace"][0]["hex"].as_str().unwrap();
    assert!(sent.ends_with("01 03 00 6E 00 01"), "{sent}");
    assert_eq!(
        (&found["trace"][0]["way"], &found["trace"][1]["way"]),
        (&json!("sent"), &json!("received"))
    );
    let shown = String::from_utf8(run(&["check", "--probe", "--trace"]).stdout).unwrap();
    for words in [
        "press-1: answers",
        "identity 4711, as it must be",
        "> 12 bytes",
        "01 03 00 6E 00 01",
    ] {
        assert!(shown.contains(words), "{words:?} is not in\n{shown}");
    }
    // It only reads.
    assert_eq!(rig.device.effects(), 0);
    // Another device under that address.
    assert!(rig.device.set_identity(9999));
    assert_found(
        &report(&run(&["check", "--probe", "--json"])),
        3,
        "identity_mismatch",
        "9999",
    );
    let unknown = run(&["check", "--probe", "press-2"]);
    assert_eq!(unknown.status.code(), Some(2));
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    let said: Vec<&str> = said.split_whitespace().collect();
    assert!(
        said.join(" ").contains("did you mean \"press-1\""),
        "{said:?}"
    );
}

// covers: F043
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exception_codes_are_explained_and_a_gateways_are_told_from_the_units_own() {
    let rig = Rig::over(LinkKind::ModbusTcp, PRESS, PRESS_SIM).await;
    rig.write_config();
    for (code, exit, name, words) in [
        (0x02, 4, "exception", "zero-based"),
        (0x06, 4, "exception", "busy"),
        (0x0A, 3, "unit_offline", "no path to it"),
        (0x0B, 3, "unit_offline", "no answer from it"),
    ] {
        rig.device.clear_faults();
        rig.device
            .push_fault(Fault::next(Matching::Any, Act::Exception(code)).times(ALWAYS));
        let output = rig
            .command(&["check", "--probe", "--json"])
            .output()
            .unwrap();
        assert_found(&report(&output), exit, name, words);
    }
}

#[test]
fn over_a_network_each_silence_has_its_name() {
    let refused = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    assert_found(
        &Bench::tcp(&refused.to_string()).probe(&[]),
        3,
        "refused",
        "nothing listens",
    );
    // A broadcast address is no peer of a connection: the system finds no way, whatever its networks.
    assert_found(
        &Bench::tcp("255.255.255.255:502").probe(&[]),
        3,
        "no_route",
        "no way",
    );
    // A full queue takes no connection, and says nothing.
    let full = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(
        &full,
        &"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap(),
    )
    .unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let address = TcpListener::from(full.try_clone().unwrap())
        .local_addr()
        .unwrap();
    let _queued = TcpStream::connect(address).unwrap();
    assert_found(
        &Bench::tcp(&address.to_string()).probe(&[]),
        3,
        "connect_timeout",
        "nobody answered",
    );
    let silent = tcp_peer(drain);
    assert_found(&Bench::tcp(&silent).probe(&[]), 3, "silent", "no byte came");
    let full_slots = tcp_peer(|stream| drop(stream.shutdown(Shutdown::Both)));
    assert_found(
        &Bench::tcp(&full_slots).probe(&[]),
        3,
        "closed_at_once",
        "connections taken",
    );
    let other = tcp_peer(|mut stream| {
        let _ = stream.read(&mut [0; 64]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        drain(stream);
    });
    assert_found(
        &Bench::tcp(&other).probe(&[]),
        3,
        "garbage",
        "not in Modbus TCP",
    );
}

#[test]
fn a_device_that_answers_another_setting_is_found_by_asking_with_it() {
    // A gateway that drops what is not for unit 255.
    let picky = tcp_peer(|mut stream| {
        let mut bytes = [0; 64];
        while let Ok(read @ 1..) = stream.read(&mut bytes) {
            if read == 12 && bytes[6] == 255 {
                let reply = [bytes[0], bytes[1], 0, 0, 0, 5, 255, 3, 2, 0, 7];
                let _ = stream.write_all(&reply);
            }
        }
    });
    assert_found(
        &Bench::tcp(&picky).probe(&[]),
        3,
        "wrong_setting",
        "unit = 255",
    );
    // A serial device server that passes RTU frames through.
    let transparent = tcp_peer(|mut stream| {
        let mut bytes = [0; 64];
        while let Ok(read @ 1..) = stream.read(&mut bytes) {
            if read == 8 {
                let _ = stream.write_all(&rtu(1, &[3, 2, 0, 7]));
            }
        }
    });
    assert_found(
        &Bench::tcp(&transparent).probe(&[]),
        3,
        "wrong_setting",
        "modbus-rtu-over-tcp",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binary_asked_of_an_ascii_port_is_silent_and_found() {
    let mc = "listen = \"127.0.0.1:0\"\n[registers.holding]\n0 = 7\n[mc]\nframe = \"3e\"\ncode = \"ascii\"\n";
    let spec = holdfast::simulator::SimulatorSpec::from_toml(mc).unwrap();
    let plc = holdfast::simulator::Simulator::start(spec).await.unwrap();
    let link = |code: &str| {
        format!(
            "protocol = \"mc-3e\"\naddress = \"{}\"\nfamily = \"q\"\ncode = \"{code}\"",
            plc.address()
        )
    };
    let wrong = Bench::new(&link("binary"), "D0").probe(&[]);
    assert_found(&wrong, 3, "wrong_setting", "code = \\\"ascii\\\"");
    let (exit, right) = Bench::new(&link("ascii"), "D0").probe(&["--trace"]);
    assert_eq!(
        (exit, right["frame"].as_str()),
        (Some(0), Some("MC protocol 3E frame, ASCII, over TCP"))
    );
    assert!(
        right["trace"][1]["ascii"]
            .as_str()
            .unwrap()
            .starts_with("D000"),
        "{right:#}"
    );
}

#[test]
fn on_a_serial_line_each_fault_has_its_name() {
    let silent = pty(|_, _| Vec::new());
    assert_found(
        &Bench::serial(&silent.path).probe(&[]),
        3,
        "no_bytes",
        "A and B",
    );
    let echo = pty(|heard, _| heard.to_vec());
    assert_found(
        &Bench::serial(&echo.path).probe(&[]),
        3,
        "echo",
        "echo = true",
    );
    let noise = pty(|_, _| vec![0x00, 0xFE, 0x80, 0xF8]);
    assert_found(&Bench::serial(&noise.path).probe(&[]), 3, "garbage", "baud");
    let other = pty(|_, _| rtu(2, &[3, 2, 0, 7]));
    assert_found(
        &Bench::serial(&other.path).probe(&[]),
        3,
        "wrong_unit",
        "unit 2 answers",
    );
    let disturbed = pty(|_, _| vec![1, 3, 2, 0, 7, 0, 0]);
    assert_found(
        &Bench::serial(&disturbed.path).probe(&[]),
        3,
        "check_sum",
        "check sum does not hold",
    );
}

#[test]
fn a_device_at_another_baud_rate_is_found_by_a_search() {
    // At any other speed it does not understand what it hears.
    let slow = pty(|_, speed| match speed {
        9_600 => rtu(1, &[3, 2, 0, 7]),
        _ => Vec::new(),
    });
    let bench = Bench::serial(&slow.path);
    assert_found(&bench.probe(&["--search"]), 3, "wrong_setting", "9600 baud");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_melsec_place_that_is_mistyped_or_past_the_last_one_is_said_to_be_so() {
    let kind = LinkKind::Mc {
        frame: "3e",
        ascii: false,
        udp: false,
    };
    let mut rig = Rig::over(kind, PRESS, PRESS_SIM).await;
    rig.start_up().await;
    let read = |place: &str| {
        let output = rig.command(&["read", "press-1", place]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let said: Vec<&str> = said.split_whitespace().collect();
        (output.status.code(), said.join(" "))
    };
    let (exit, said) = read("D1O0");
    assert_eq!(exit, Some(2), "{said}");
    assert!(
        said.contains("\"D1O0\"; expected D with a decimal number"),
        "{said}"
    );
    // It is a name, and none that is known.
    let (exit, said) = read("spead");
    assert_eq!(exit, Some(2), "{said}");
    assert!(said.contains("did you mean \"speed\""), "{said}");
    let (exit, said) = read("D99999");
    assert_ne!(exit, Some(0), "{said}");
    assert!(
        said.contains("end code C056 (request past the last address"),
        "{said}"
    );
}

#[test]
fn a_port_that_does_not_open_says_why() {
    let missing = Bench::serial("/dev/serial/by-id/none-of-that-name");
    assert_found(&missing.probe(&[]), 3, "port_missing", "plugged in");
    let line = pty(|_, _| Vec::new());
    let held = tokio::runtime::Runtime::new().unwrap();
    let _guard = held.enter();
    let _master = tokio_serial::SerialStream::open(&tokio_serial::new(&line.path, 19_200)).unwrap();
    let own = format!("process {}", std::process::id());
    assert_found(
        &Bench::serial(&line.path).probe(&[]),
        3,
        "port_in_use",
        &own,
    );
}

#[test]
fn a_port_of_a_group_that_the_user_is_not_in_says_which() {
    let line = pty(|_, _| Vec::new());
    let bench = Bench::serial(&line.path);
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(std::path::Path::new(&line.path), 0o000);
    let program = bench.0.path().join("holdfast");
    std::fs::copy(HOLDFAST, &program).unwrap();
    mode(bench.0.path(), 0o755);
    let mut command = bench.command(&program.display().to_string(), &["--json"]);
    // Root may open anything: then it is somebody else who tries.
    if rustix::process::getuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    assert_found(
        &report(&command.output().unwrap()),
        3,
        "port_forbidden",
        "usermod -aG",
    );
}

// covers: OPS-02, CMD-10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_gateway_keeps_its_link_and_shows_its_bytes_on_record_without_secrets() {
    let press = PRESS.replace(
        "type = \"u16\", unit = \"rpm\", min",
        "secret = true, type = \"u16\", unit = \"rpm\", min",
    );
    let press = format!(
        "{press}[[command]]\nname = \"unlock\"\nclass = \"relative_action\"\nmailbox = {{ opcode = 3 }}\n\
         verify = \"mailbox\"\nargs = {{ pin = {{ type = \"u16\", min = 0, max = 9999, secret = true }} }}\n"
    );
    let mut rig = Rig::over(LinkKind::ModbusTcp, &press, PRESS_SIM).await;
    rig.start_up().await;
    let refused = rig.command(&["check", "--probe"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("running gateway holds its link"));
    let beside = rig
        .command(&["check", "--probe", "--beside"])
        .output()
        .unwrap();
    assert_eq!(beside.status.code(), Some(0), "{beside:?}");

    let traced = rig.post("/v1/machines/press-1/trace", json!({"for": "2s"}));
    let commanded = async { rig.submit_wait(&rig.set_speed("OP1", 0x0ABC)).await };
    let unlock = rig.request("OP2", "unlock", json!({"pin": 0x0DEF}));
    let unlocked = rig.submit_wait(&unlock);
    let ((status, traced), (_, operation), (_, unlocked)) =
        tokio::join!(traced, commanded, unlocked);
    assert_eq!(unlocked["state"], "completed", "{unlocked}");
    assert!(!traced.to_string().contains("0D EF"), "{traced}");
    assert_eq!(operation["state"], "completed", "{operation}");
    let kept = operation["attempts"].to_string().to_lowercase();
    assert!(
        !kept.replace(' ', "").contains("0abc"),
        "the reply that repeats the secret is on record: {kept}"
    );
    assert_eq!((status, &traced["left_out"]), (200, &json!(0)), "{traced}");
    let lines = traced["trace"].as_array().unwrap();
    let hidden: Vec<&Json> = lines.iter().filter(|line| line["hidden"] == true).collect();
    assert!(hidden.iter().any(|line| line["way"] == "sent"), "{traced}");
    assert!(
        hidden.iter().any(|line| line["way"] == "received"),
        "{traced}"
    );
    assert!(lines.iter().any(|line| line["hidden"] == false), "{traced}");
    assert!(
        hidden
            .iter()
            .all(|line| line["hex"] == "" && line["ascii"] == ""),
        "{traced}"
    );
    assert_eq!(rig.device.holding(100), 0x0ABC);
    assert!(!traced.to_string().contains("0A BC"), "{traced}");

    let read = |place: &str| rig.command(&["read", "press-1", place]).output().unwrap();
    let value = read("holding:5160");
    assert!(
        String::from_utf8_lossy(&value.stdout).contains("77"),
        "{value:?}"
    );
    assert_eq!(
        read("holding:100/u16").status.code(),
        Some(2),
        "a secret is written there"
    );
    for (typed, expected) in [
        ("houlding:1", "holding"),
        ("holding:1O0", "zero-based offset"),
        ("holding:1/u61", "u64"),
    ] {
        let refused = read(typed);
        assert_eq!(refused.status.code(), Some(2), "{typed}");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            said.contains(&format!("{typed:?}; expected")) && said.contains(expected),
            "{said}"
        );
    }

    assert!(rig.stop().await.success());
    let journal = rig.journal_dir().display().to_string();
    let export = rig
        .command(&["journal", "export", &journal])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&export.stdout);
    assert!(text.contains("trace machine press-1 for 2000 ms"), "{text}");
}
