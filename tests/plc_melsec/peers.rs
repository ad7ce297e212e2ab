//! Owns: MC protocol against peers that nobody here wrote: virtual-plc and aslmp as CPUs, pymcprotocol as client.
//! May call: the rig, the simulator, tests/peers, target/venv.
//! Never: call our own two sides proof of each other.

use crate::rig::{Form, PATIENT_MS, SHORT_MS, connected, cpu, read, values, write, written};
use holdfast::core::contract::Outcome;
use holdfast::core::melsec::{Code, Frame, Transport};
use holdfast::core::spec::{DataType, Value};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

const STARTUP: Duration = Duration::from_secs(60);

fn venv(program: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("target/venv/bin")
        .join(program);
    assert!(
        path.exists(),
        "{} is missing: tests/run makes it, or: python3 -m venv target/venv && target/venv/bin/pip install \
         virtual-plc aslmp pymcprotocol 'omniplc[serial]'",
        path.display()
    );
    path
}

/// A program of theirs, and what it prints.
pub(crate) struct Peer {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Peer {
    pub(crate) fn start(program: &str, args: &[&str]) -> Self {
        let mut child = Command::new(venv(program))
            .args(args)
            .env("PYTHONUNBUFFERED", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (told, lines) = mpsc::channel();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let also = told.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = told.send(line);
            }
        });
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = also.send(line);
            }
        });
        Self { child, lines }
    }

    /// The first line that has `text` in it.
    pub(crate) fn line(&self, text: &str) -> String {
        self.lines_until(text).pop().unwrap()
    }

    /// The lines up to the first that has `text` in it.
    pub(crate) fn lines_until(&self, text: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let line = self.lines.recv_timeout(STARTUP);
            let line = line.unwrap_or_else(|e| panic!("no line with {text:?}: {e}: {lines:?}"));
            let found = line.contains(text);
            lines.push(line);
            if found {
                return lines;
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn address_in(line: &str) -> SocketAddr {
    let word = line
        .split_whitespace()
        .find(|word| word.starts_with("127.0.0.1:"));
    word.unwrap_or_else(|| panic!("no address in {line:?}"))
        .parse()
        .unwrap()
}

/// `word` names a word device beside D.
async fn round_trip(form: Form, at: SocketAddr, word: &str) {
    let mut link = connected(form, at, PATIENT_MS).await;
    for (place, words) in [
        ("D100", &[0x1234, 0xABCD, 7][..]),
        (word, &[9]),
        ("M5", &[1, 0, 1]),
    ] {
        let wrote = link.run(&write(place, words)).await;
        let replied = written();
        assert_eq!(wrote.outcome, replied, "{form:?} {place}");
    }
    let job = read(&[
        ("D100", DataType::U32),
        ("D102", DataType::U16),
        (word, DataType::U16),
        ("M5", DataType::Bool),
        ("M6", DataType::Bool),
        ("M7", DataType::Bool),
    ]);
    let expected = [
        Value::Int(0xABCD_1234),
        Value::Int(7),
        Value::Int(9),
        Value::Bool(true),
        Value::Bool(false),
        Value::Bool(true),
    ];
    assert_eq!(values(&link.run(&job).await), expected, "{form:?}");
}

pub(crate) fn virtual_plc(args: &[&str]) -> (Peer, SocketAddr) {
    let peer = Peer::start("virtual-plc", &[&["--port", "0"], args].concat());
    let at = address_in(&peer.line("listening on "));
    (peer, at)
}

#[tokio::test]
async fn the_client_reads_and_writes_virtual_plc_in_every_form_it_has() {
    let (_peer, at) = virtual_plc(&[]);
    for frame in [Frame::E3, Frame::E4] {
        for code in [Code::Binary, Code::Ascii] {
            // It takes hexadecimal devices for decimal ones in ASCII, as it says itself.
            let word = if code == Code::Ascii { "R31" } else { "W1F" };
            round_trip(Form(frame, code, Transport::Tcp), at, word).await;
        }
    }
}

// covers: SEND-03, SEND-04
#[tokio::test]
async fn what_virtual_plc_does_and_does_not_answer_is_unknown() {
    let plan = tempfile::NamedTempFile::new().unwrap();
    let write_drop =
        r#"{"steps": [{"match": {"command": "0x1401"}, "times": 4, "action": {"type": "drop"}}]}"#;
    std::fs::write(plan.path(), write_drop).unwrap();
    let (_peer, at) = virtual_plc(&["--fault-plan", plan.path().to_str().unwrap()]);
    for (n, frame) in [(1, Frame::E3), (2, Frame::E4)] {
        for code in [Code::Binary, Code::Ascii] {
            let form = Form(frame, code, Transport::Tcp);
            let place = format!("D{}", 500 + n);
            let mut link = connected(form, at, SHORT_MS * 4).await;
            let lost = link.run(&write(&place, &[n])).await;
            assert!(
                matches!(lost.outcome, Outcome::SentNoReply { .. }),
                "{form:?} {lost:?}"
            );
            assert!(!link.is_open());
            // The write was carried out, and nothing but a look shows it.
            let mut again = connected(form, at, PATIENT_MS).await;
            let found = again.run(&read(&[(&place, DataType::U16)])).await;
            assert_eq!(values(&found), [Value::Int(n.into())]);
        }
    }
}

// covers: SEND-04
#[tokio::test]
async fn a_place_that_virtual_plc_does_not_have_is_refused() {
    let (_peer, at) = virtual_plc(&["--limit", "D:0-102"]);
    let mut link = connected(
        Form(Frame::E4, Code::Binary, Transport::Tcp),
        at,
        PATIENT_MS,
    )
    .await;
    let refused = link.run(&write("D102", &[1, 2])).await;
    match &refused.outcome {
        Outcome::DeviceRefused(code) => assert_eq!(code.family, "mc"),
        other => panic!("{other:?}"),
    }
    assert!(link.is_connected());
    let inside = link.run(&read(&[("D102", DataType::U16)])).await;
    assert_eq!(
        values(&inside),
        [Value::Int(0)],
        "half of it was not written"
    );
}

#[tokio::test]
async fn the_client_reads_and_writes_aslmp_in_every_form_it_has() {
    let peer = Peer::start("aslmp", &["serve", "--healthy", "--target", "r04cpu"]);
    let forms = [
        ("tcp ", Form(Frame::E3, Code::Binary, Transport::Tcp)),
        ("tcp-4e ", Form(Frame::E4, Code::Binary, Transport::Tcp)),
        ("udp ", Form(Frame::E3, Code::Binary, Transport::Udp)),
        ("udp-4e ", Form(Frame::E4, Code::Binary, Transport::Udp)),
        ("tcp-ascii ", Form(Frame::E3, Code::Ascii, Transport::Tcp)),
    ];
    for (entry, form) in forms {
        let at = address_in(&peer.line(entry));
        round_trip(form, at, "W1F").await;
        // Its error replies carry nine bytes of information.
        let mut link = connected(form, at, PATIENT_MS).await;
        let refused = link.run(&write("D999999", &[1])).await;
        assert!(
            matches!(refused.outcome, Outcome::DeviceRefused(_)),
            "{form:?} {refused:?}"
        );
        assert!(link.is_connected(), "{form:?}");
    }
}

/// Runs one of our scripts on their library, and gives back what it prints.
pub(crate) async fn run_python(script: &Path, args: &[String]) -> String {
    let (script, args) = (script.to_owned(), args.to_vec());
    let run = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(venv("python"));
        command.arg(script).args(args).output().unwrap()
    });
    let output = run.await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(
        output.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

/// What pymcprotocol does with the simulator, and prints as one line.
async fn pymcprotocol(form: Form) -> String {
    let cpu = cpu(form).await;
    let device = cpu.device();
    device.set_holding(10, 0x1234);
    device.set_holding(11, 0xFFFE);
    device.set_coil(3, true);
    let frame = if form.0 == Frame::E3 { "3e" } else { "4e" };
    let code = if form.1 == Code::Binary {
        "binary"
    } else {
        "ascii"
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/pymcprotocol_client.py");
    let port = cpu.address().port().to_string();
    let said = run_python(&script, &[frame.into(), code.into(), port]).await;
    assert_eq!(
        [20, 21].map(|at| device.holding(at)),
        [7, 0xFFFF],
        "{form:?}"
    );
    assert_eq!([30, 31, 32].map(|at| device.coil(at)), [true, false, true]);
    assert_eq!(
        (device.holding(40), device.holding_u32(42)),
        (5, 0x5678_1234)
    );
    assert!(device.coil(50), "{form:?}");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pymcprotocol_reads_and_writes_the_simulator() {
    for frame in [Frame::E3, Frame::E4] {
        for code in [Code::Binary, Code::Ascii] {
            let said = pymcprotocol(Form(frame, code, Transport::Tcp)).await;
            let expected = "[4660, -2] [0, 1, 0] [4660] [-126412] Q06UDVCPU 0368 2";
            assert_eq!(said, expected, "{frame:?} {code:?}");
        }
    }
}
