//! Owns: MC protocol over a serial module: every frame and format on a pseudo-terminal, late replies, omniplc.
//! May call: the rig, the simulator, tests/peers, target/venv.
//! Never: count a read that failed as one that was right.

use crate::peers::run_python;
use crate::rig::{link, machine, read, scalar, until_connected, values, write};
use holdfast::core::c24::{C24Format, C24Frame, C24Link, C24Route};
use holdfast::core::contract::{Job, Outcome, Reply};
use holdfast::core::ids::BootId;
use holdfast::core::jitter::Jitter;
use holdfast::core::melsec::{Family, Remote};
use holdfast::core::serial::{Parity, SerialLine, Way};
use holdfast::core::spec::{DataType, HandshakeSpec, LinkSpec, Numbering, Value};
use holdfast::core::time::{Deadline, Now};
use holdfast::plc::link::Link;
use holdfast::simulator::{
    Act, C24FrameKind, C24Program, Device, Fault, Hole, Matching, Place, RtuProgram, Simulator,
    SimulatorSpec, Span,
};
use std::path::Path;
use tempfile::TempDir;

const FORMATS: [C24Format; 5] = [
    C24Format::F1,
    C24Format::F2,
    C24Format::F3,
    C24Format::F4,
    C24Format::F5,
];
const FRAMES: [C24Frame; 4] = [C24Frame::C4, C24Frame::C3, C24Frame::C2, C24Frame::C1];
const STATION: u8 = 3;

/// Only 4C has format 5.
pub(crate) fn formats(frame: C24Frame) -> impl Iterator<Item = C24Format> {
    let has = move |format: &C24Format| *format != C24Format::F5 || frame == C24Frame::C4;
    FORMATS.into_iter().filter(has)
}

/// A line with a module at its other end.
pub(crate) struct Line {
    dir: TempDir,
    simulator: Simulator,
}

impl Line {
    pub(crate) async fn new(
        frame: C24Frame,
        format: C24Format,
        sum_check: bool,
        echo: bool,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = C24Program {
            frame: match frame {
                C24Frame::C4 => C24FrameKind::C4,
                C24Frame::C3 => C24FrameKind::C3,
                C24Frame::C2 => C24FrameKind::C2,
                C24Frame::C1 => C24FrameKind::C1,
            },
            format: format.number(),
            sum_check,
            line: RtuProgram {
                pty: Some(dir.path().join("line")),
                echo,
                ..RtuProgram::default()
            },
        };
        let spec = SimulatorSpec {
            c24: Some(program),
            unit: STATION,
            holes: vec![Hole {
                at: Place::holding(9000),
                count: 1,
            }],
            ..SimulatorSpec::default()
        };
        let simulator = Simulator::start(spec).await.unwrap();
        Self { dir, simulator }
    }

    fn path(&self) -> String {
        self.dir.path().join("line").display().to_string()
    }

    pub(crate) fn device(&self) -> Device {
        self.simulator.device()
    }
}

fn c24(path: String, frame: C24Frame, format: C24Format) -> C24Link {
    C24Link {
        way: Way::Serial(SerialLine {
            path,
            baud: 115_200,
            data_bits: 8,
            parity: Parity::None,
            stop_bits: 1,
            rs485: false,
        }),
        frame,
        format,
        sum_check: true,
        family: Family::Q,
        route: C24Route {
            station: STATION,
            ..C24Route::default()
        },
        timeout_ms: 5_000,
        settle_ms: 10,
        turnaround_ms: 0,
        echo: false,
        read_words_max: 64,
        reconnect_ms_min: 1,
        reconnect_ms_max: 1,
        heartbeat_ms: 1_000,
    }
}

/// A link that the module at the line's other end has answered.
pub(crate) async fn until_ready(line: &Line, frame: C24Frame, format: C24Format) -> Link {
    connected(&c24(line.path(), frame, format)).await
}

async fn connected(spec: &C24Link) -> Link {
    let mut link = link(&machine(LinkSpec::C24(spec.clone())));
    until_connected(&mut link).await;
    link
}

// covers: SEND-02, SEND-04, SEND-05
#[tokio::test]
async fn every_frame_and_format_reads_writes_and_is_refused() {
    for frame in FRAMES {
        for format in formats(frame) {
            for (sum_check, echo) in [(true, false), (false, true)] {
                let which = format!("{frame:?} {format:?} sum {sum_check} echo {echo}");
                let line = Line::new(frame, format, sum_check, echo).await;
                let device = line.device();
                // 10H is doubled in format 5.
                device.set_holding(100, 0x1010);
                device.set_coil(7, true);
                let mut spec = c24(line.path(), frame, format);
                (spec.sum_check, spec.echo) = (sum_check, echo);
                let mut link = connected(&spec).await;
                let job = read(&[
                    ("D100", DataType::U16),
                    ("M7", DataType::Bool),
                    ("M8", DataType::Bool),
                ]);
                let expected = [Value::Int(0x1010), Value::Bool(true), Value::Bool(false)];
                assert_eq!(values(&link.run(&job).await), expected, "{which}");
                let done = link.run(&write("D200", &[0x1003, 2])).await.outcome;
                assert!(
                    matches!(done, Outcome::DeviceReplied(_)),
                    "{which} {done:?}"
                );
                assert_eq!([device.holding(200), device.holding(201)], [0x1003, 2]);
                let done = link.run(&write("M40", &[1, 0, 1])).await.outcome;
                assert!(
                    matches!(done, Outcome::DeviceReplied(_)),
                    "{which} {done:?}"
                );
                assert!(device.coil(40) && !device.coil(41) && device.coil(42));
                device.push_fault(Fault::next(Matching::Writes, Act::EndCode(0x7E40)));
                let refused = link.run(&write("D200", &[9])).await.outcome;
                match (frame, refused) {
                    (C24Frame::C1, Outcome::DeviceUnclear(_)) => {}
                    (_, Outcome::DeviceRefused(code)) => assert_eq!(code.code, 0x7E40),
                    (_, other) => panic!("{which}: {other:?}"),
                }
                assert_eq!(device.holding(200), 0x1003, "{which}");
                assert!(link.is_connected(), "{which}");
            }
        }
    }
}

// covers: SEND-04
#[tokio::test]
async fn a_remote_stop_over_a_serial_module_is_seen_in_sd203() {
    for (frame, format) in [(C24Frame::C4, C24Format::F5), (C24Frame::C3, C24Format::F4)] {
        let line = Line::new(frame, format, true, false).await;
        let mut link = connected(&c24(line.path(), frame, format)).await;
        for (order, state) in [(Remote::Stop, 2), (Remote::Run, 0), (Remote::Pause, 3)] {
            let outcome = link.run(&Job::Remote(order)).await.outcome;
            let Outcome::DeviceReplied(Reply::Confirmed { by }) = &outcome else {
                panic!("{outcome:?}");
            };
            assert!(by.contains(&format!("SD203 read back {state}")), "{by}");
            assert_eq!(line.device().operating_state(), state);
        }
    }
}

/// Half of what was promised, the rest never; then the line resynchronises and goes on.
// covers: SEND-05, SEND-06
#[tokio::test]
async fn after_a_reply_that_broke_off_the_line_goes_on_with_the_next_request() {
    for (frame, format) in [(C24Frame::C4, C24Format::F5), (C24Frame::C3, C24Format::F3)] {
        let line = Line::new(frame, format, true, false).await;
        let device = line.device();
        device.set_holding(7, 77);
        let mut spec = c24(line.path(), frame, format);
        (spec.timeout_ms, spec.settle_ms) = (200, 50);
        let mut link = connected(&spec).await;
        let act = Act::Truncated {
            keep: 9,
            rest_after: None,
        };
        device.push_fault(Fault::next(Matching::Reads, act));
        let broken = link.run(&read(&[("D7", DataType::U16)])).await.outcome;
        assert!(matches!(broken, Outcome::SentNoReply { .. }), "{broken:?}");
        until_connected(&mut link).await;
        let exchange = link.run(&read(&[("D7", DataType::U16)])).await;
        assert_eq!(values(&exchange), [Value::Int(77)]);
    }
}

/// One line's rounds: how many were right, how many were lost.
async fn rounds(frame: C24Frame, format: C24Format, seed: u64, rounds: u16) -> (u32, u32) {
    let line = Line::new(frame, format, true, false).await;
    let device = line.device();
    (0..rounds).for_each(|at| device.set_holding(at, at));
    let mut spec = c24(line.path(), frame, format);
    // Both sides run on one thread here: what a loaded computer holds up must not pass for silence.
    (spec.timeout_ms, spec.settle_ms) = (25, 350);
    let mut link = link(&machine(LinkSpec::C24(spec)));
    let mut random = Jitter::new(seed);
    let (mut right, mut lost) = (0, 0);
    for round in 0..rounds {
        until_connected(&mut link).await;
        // After the timeout and the request's time on the line, and before the line has settled.
        let late = Span::ms(50 + random.below(30));
        match random.below(6) {
            0 => device.push_fault(Fault::next(Matching::Reads, Act::LateReply(late))),
            1 => {
                // A write whose acknowledgement comes late, and one that is never carried out.
                device.push_fault(Fault::next(Matching::Writes, Act::LateReply(late)));
                let first = link.run(&write("D5000", &[round])).await.outcome;
                device.clear_faults();
                let late = matches!(first, Outcome::SentNoReply { .. });
                assert!(late, "{first:?}");
                until_connected(&mut link).await;
                device.push_fault(Fault::next(Matching::Writes, Act::Drop));
                let second = link.run(&write("D5001", &[round])).await.outcome;
                device.clear_faults();
                assert!(
                    matches!(second, Outcome::SentNoReply { .. }),
                    "{frame:?} {format:?} seed {seed} round {round}: {second:?}"
                );
                until_connected(&mut link).await;
            }
            _ => {}
        }
        let place = format!("D{round}");
        let exchange = link.run(&read(&[(&place, DataType::U16)])).await;
        device.clear_faults();
        match &exchange.outcome {
            Outcome::DeviceReplied(Reply::Values(_)) => {
                let expected = [Value::Int(round.into())];
                assert_eq!(
                    values(&exchange),
                    expected,
                    "{frame:?} {format:?} seed {seed}"
                );
                right += 1;
            }
            Outcome::SentNoReply { .. } => lost += 1,
            other => panic!("{frame:?} {format:?} seed {seed} round {round}: {other:?}"),
        }
    }
    (right, lost)
}

async fn thousand(frame: C24Frame, format: C24Format) {
    const LINES: u64 = 50;
    const ROUNDS: u16 = 20;
    let lines = (0..LINES).map(|seed| rounds(frame, format, seed, ROUNDS));
    let all = futures_util::future::join_all(lines).await;
    let right: u32 = all.iter().map(|(right, _)| right).sum();
    let lost: u32 = all.iter().map(|(_, lost)| lost).sum();
    assert_eq!(right + lost, 1_000);
    assert!(right > 300 && lost > 50, "{right} right, {lost} lost");
}

/// All formats of a frame at once: they do little but wait.
async fn late_over(frame: C24Frame) {
    let all = formats(frame).map(|format| thousand(frame, format));
    futures_util::future::join_all(all).await;
}

// covers: SEND-05, SEND-06
#[tokio::test]
async fn late_replies_over_4c_are_nobodys() {
    late_over(C24Frame::C4).await;
}

// covers: SEND-05, SEND-06
#[tokio::test]
async fn late_replies_over_3c_are_nobodys() {
    late_over(C24Frame::C3).await;
}

// covers: SEND-05, SEND-06
#[tokio::test]
async fn late_replies_over_2c_are_nobodys() {
    late_over(C24Frame::C2).await;
}

// covers: SEND-05, SEND-06
#[tokio::test]
async fn late_replies_over_1c_are_nobodys() {
    late_over(C24Frame::C1).await;
}

/// What omniplc does with the simulated module, and prints as one line.
async fn omniplc(frame: C24Frame, format: C24Format) -> String {
    let line = Line::new(frame, format, true, false).await;
    let device = line.device();
    device.set_holding(10, 0x1210);
    device.set_holding(11, 0x1003);
    device.set_coil(3, true);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/omniplc_client.py");
    let args = [frame.name().to_owned(), line.path(), STATION.to_string()];
    let said = run_python(&script, &args).await;
    assert_eq!([device.holding(20), device.holding(21)], [0x1010, 7]);
    assert!(device.coil(30) && !device.coil(31));
    said
}

// covers: SEND-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn omniplc_reads_and_writes_the_simulated_module() {
    for (frame, format) in [
        (C24Frame::C4, C24Format::F5),
        (C24Frame::C3, C24Format::F4),
        (C24Frame::C1, C24Format::F4),
    ] {
        let said = omniplc(frame, format).await;
        assert_eq!(
            said, "[4624, 4099] [False, True, False] refused",
            "{frame:?}"
        );
    }
}

// covers: EVT-03, TIME-02
#[tokio::test]
async fn an_acknowledgement_is_not_held_back_by_the_validity_of_an_order_before_it() {
    let line = Line::new(C24Frame::C4, C24Format::F5, true, false).await;
    let device = line.device();
    let mut link = until_ready(&line, C24Frame::C4, C24Format::F5).await;
    let over = Deadline {
        from: Now {
            boot_id: BootId([1; 16]),
            boottime_ns: 0,
            wall_us: 0,
            wall_trusted: true,
        },
        ttl_ms: 1,
    };
    let late = link.run_before(&write("D100", &[7]), Some(over)).await;
    assert!(matches!(late.outcome, Outcome::NotSent { .. }), "{late:?}");
    let handshake = HandshakeSpec {
        ready: scalar("M20", DataType::Bool),
        ack: scalar("M21", DataType::Bool),
        item: scalar("D220", DataType::U32),
        numbering: Numbering {
            first: 1,
            last: u32::MAX,
        },
        data: Vec::new(),
        poll_ms: 100,
    };
    device.set_coil(20, true);
    device.set_holding(220, 8);
    assert_eq!(link.acknowledge(&handshake, Some(8)).await, Ok(true));
    assert!(device.coil(21) && device.effects_of_coil(21) == 1);
    assert_eq!(device.effects_of_register(100), 0);
}
