//! Owns: writes to places apart over MC protocol: one frame each, what it did at the device, what its end codes prove.
//! May call: the rig, the peers, the simulator.
//! Never: count an effect anywhere but at the device.

use crate::peers::{Peer, address_in, virtual_plc};
use crate::rig::{
    Form, PATIENT_MS, SHORT_MS, address, connected, cpu, cpu_with, forms, program, read, scalar,
    values, write, written,
};
use crate::serial::{Line, formats, until_ready};
use holdfast::core::c24::{C24Format, C24Frame};
use holdfast::core::contract::{Job, Outcome, Probe, ProbeAnswer, Reply};
use holdfast::core::melsec::{Code, Frame, Transport};
use holdfast::core::spec::{DataType, Value};
use holdfast::plc::link::Link;
use holdfast::simulator::{Act, Device, Fault, Hole, Matching, McProgram, Place, SimulatorSpec};

fn apart(parts: &[(&str, &[u16])]) -> Job {
    let part = |(at, words): &(&str, &[u16])| (address(at), words.to_vec());
    Job::Scatter {
        parts: parts.iter().map(part).collect(),
    }
}

/// A word, a double word, three words; W beside D.
fn words() -> Job {
    apart(&[
        ("D120", &[7]),
        ("D1500", &[0x5678, 0x1234]),
        ("W1F", &[9]),
        ("D4000", &[1, 2, 3]),
    ])
}

fn bits() -> Job {
    apart(&[("M50", &[1]), ("M63", &[0]), ("X1F", &[1])])
}

fn stands(device: &Device, what: &str) {
    let found = [120, 1500, 1501, 4000, 4001, 4002].map(|at| device.holding(at));
    assert_eq!(found, [7, 0x5678, 0x1234, 1, 2, 3], "{what}");
    assert_eq!(device.input(0x1F), 9, "{what}");
}

/// One request, one effect, and every place of it.
async fn writes(link: &mut Link, device: &Device, replied: &Outcome, what: &str) {
    device.set_coil(63, true);
    let before = (device.requests().len(), device.effects());
    let wrote = link.run(&words()).await;
    assert_eq!(wrote.outcome, *replied, "{what}");
    stands(device, what);
    let wrote = link.run(&bits()).await;
    assert_eq!(wrote.outcome, *replied, "{what}");
    assert!(device.coil(50) && !device.coil(63) && device.discrete(0x1F));
    let after = (device.requests().len(), device.effects());
    assert_eq!(after, (before.0 + 2, before.1 + 2), "{what}");
    assert_eq!(device.effects_of_register(4001), 1, "{what}");
    assert_eq!(device.effects_of_coil(63), 1, "{what}");
}

// covers: POL-11, SEND-02
#[tokio::test]
async fn every_form_writes_places_apart_in_one_frame() {
    for form in forms() {
        let cpu = cpu(form).await;
        let mut link = connected(form, cpu.address(), PATIENT_MS).await;
        writes(&mut link, &cpu.device(), &written(), &format!("{form:?}")).await;
        // What takes too many points goes out in blocks.
        let long = [0x4241; 125];
        let job = apart(&[("D5000", &long), ("D6000", &long), ("D7000", &long)]);
        let before = cpu.device().effects();
        assert_eq!(link.run(&job).await.outcome, written(), "{form:?}");
        let ends = [5000, 5124, 6000, 7124, 7125].map(|at| cpu.device().holding(at));
        assert_eq!(ends, [0x4241, 0x4241, 0x4241, 0x4241, 0], "{form:?}");
        assert_eq!(cpu.device().effects(), before + 1);
    }
}

// covers: POL-11, SEND-02
#[tokio::test]
async fn a_serial_module_takes_places_apart_in_one_frame() {
    let by = "the serial module acknowledged the write (ACK)".into();
    let replied = Outcome::DeviceReplied(Reply::Confirmed { by });
    for frame in [C24Frame::C4, C24Frame::C3] {
        for format in formats(frame) {
            let line = Line::new(frame, format, true, false).await;
            let mut link = until_ready(&line, frame, format).await;
            let what = format!("{frame:?} {format:?}");
            writes(&mut link, &line.device(), &replied, &what).await;
        }
    }
}

// covers: SEND-04, F065
#[tokio::test]
async fn a_refusal_of_the_frame_proves_no_effect_and_one_of_a_place_proves_nothing() {
    for form in forms() {
        let hole = Hole {
            at: Place::holding(1501),
            count: 1,
        };
        let cpu = cpu_with(SimulatorSpec {
            mc: Some(program(form)),
            holes: vec![hole],
            ..SimulatorSpec::default()
        })
        .await;
        let device = cpu.device();
        let mut link = connected(form, cpu.address(), PATIENT_MS).await;
        // Write protection while the CPU runs, an unknown command, too many points, a locked port.
        for code in [0x0055, 0xC059, 0xC054, 0xC201] {
            device.set_fault(Fault::next(Matching::Writes, Act::EndCode(code)));
            match link.run(&words()).await.outcome {
                Outcome::DeviceRefused(found) => assert_eq!(found.code, u32::from(code)),
                other => panic!("{form:?} {code:04X}: {other:?}"),
            }
        }
        // The CPU was too slow; a bit that is neither 0 nor 1, which may be one of several.
        for code in [0xC05E, 0xC060] {
            device.set_fault(Fault::next(Matching::Writes, Act::EndCode(code)));
            let unclear = link.run(&bits()).await.outcome;
            assert!(matches!(unclear, Outcome::DeviceUnclear(_)), "{unclear:?}");
        }
        // One of the places is not there: what became of the others the code does not say.
        match link.run(&words()).await.outcome {
            Outcome::DeviceUnclear(found) => {
                assert_eq!(found.code, 0xC056);
                assert!(found.meaning.contains("the others written"), "{found:?}");
            }
            other => panic!("{form:?}: {other:?}"),
        }
        assert_eq!(device.effects(), 0);
        assert!(link.is_connected());
    }
}

// covers: SEND-04, F065
#[tokio::test]
async fn a_serial_modules_refusal_that_may_mean_one_place_proves_nothing() {
    let (frame, format) = (C24Frame::C4, C24Format::F5);
    let line = Line::new(frame, format, true, false).await;
    let mut link = until_ready(&line, frame, format).await;
    let refuse = |code| Fault::next(Matching::Writes, Act::EndCode(code));
    // 7F22: command or device in error; C060: a bit that is neither 0 nor 1.
    for code in [0x7F22, 0x7E43, 0xC060, 0xC056] {
        line.device().set_fault(refuse(code));
        let outcome = link.run(&words()).await.outcome;
        assert!(matches!(outcome, Outcome::DeviceUnclear(_)), "{outcome:?}");
        // Of neighbours one frame is judged as a whole.
        line.device().set_fault(refuse(code));
        let outcome = link.run(&write("D100", &[7])).await.outcome;
        assert!(matches!(outcome, Outcome::DeviceRefused(_)), "{outcome:?}");
    }
    assert_eq!(line.device().effects(), 0);
    assert!(link.is_connected());
}

// covers: SEND-03, VER-02
#[tokio::test]
async fn a_lost_reply_leaves_a_doubt_and_one_request_reads_the_places_back() {
    let form = Form(Frame::E4, Code::Binary, Transport::Tcp);
    // The second port knows no random read, and no block read either.
    for (unknown, requests) in [(vec![], 1), (vec![0x0403], 2), (vec![0x0403, 0x0406], 5)] {
        let cpu = cpu_with(SimulatorSpec {
            mc: Some(McProgram {
                unknown_commands: unknown,
                ..program(form)
            }),
            ..SimulatorSpec::default()
        })
        .await;
        let device = cpu.device();
        let mut link = connected(form, cpu.address(), SHORT_MS).await;
        device.set_fault(Fault::next(Matching::Writes, Act::DropReply));
        let lost = link.run(&words()).await;
        assert!(
            matches!(lost.outcome, Outcome::SentNoReply { .. }),
            "{lost:?}"
        );
        assert_eq!(device.effects(), 1);
        let mut again = connected(form, cpu.address(), PATIENT_MS).await;
        let before = device.requests().len();
        let points = [
            ("one", "D120", DataType::U16),
            ("two", "D1500", DataType::U32),
            ("three", "W1F", DataType::U16),
        ];
        let points = points.map(|(name, at, kind)| (name.to_owned(), scalar(at, kind)));
        let probe = Probe::Readback {
            points: points.to_vec(),
        };
        let expected = [7, 0x1234_5678, 9].map(Value::Int);
        match again.probe(&probe).await {
            ProbeAnswer::Values(found) => {
                let found: Vec<Value> = found.into_iter().map(|(_, value)| value).collect();
                assert_eq!(found, expected);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(device.requests().len() - before, requests);
        // A query of places apart is the same request.
        let before = device.requests().len();
        let job = read(&[
            ("D120", DataType::U16),
            ("D1500", DataType::U32),
            ("W1F", DataType::U16),
        ]);
        assert_eq!(values(&again.run(&job).await), expected);
        let known = if requests == 5 { 3 } else { 1 };
        assert_eq!(device.requests().len() - before, known);
    }
}

/// What another's CPU holds after both writes, by contiguous reads alone; `word` is a word device beside D.
async fn round_trip(form: Form, at: std::net::SocketAddr, word: &str) {
    let job = apart(&[
        ("D120", &[7]),
        ("D1500", &[0x5678, 0x1234]),
        (word, &[9]),
        ("D4000", &[1, 2, 3]),
    ]);
    let mut link = connected(form, at, PATIENT_MS).await;
    assert_eq!(link.run(&job).await.outcome, written(), "{form:?}");
    let bits = apart(&[("M50", &[1]), ("M63", &[0]), ("M70", &[1])]);
    assert_eq!(link.run(&bits).await.outcome, written(), "{form:?}");
    let mut found = Vec::new();
    for (place, data_type) in [
        ("D120", DataType::U16),
        ("D1500", DataType::U32),
        (word, DataType::U16),
        ("D4000", DataType::U32),
        ("D4002", DataType::U16),
        ("M50", DataType::Bool),
        ("M63", DataType::Bool),
        ("M70", DataType::Bool),
    ] {
        found.extend(values(&link.run(&read(&[(place, data_type)])).await));
    }
    let words = [7, 0x1234_5678, 9, 0x0002_0001, 3].map(Value::Int);
    let bits = [true, false, true].map(Value::Bool);
    assert_eq!(found, [&words[..], &bits[..]].concat(), "{form:?}");
}

// covers: POL-11
#[tokio::test]
async fn cpus_that_others_wrote_take_places_apart() {
    let (_peer, at) = virtual_plc(&[]);
    for frame in [Frame::E3, Frame::E4] {
        for code in [Code::Binary, Code::Ascii] {
            round_trip(Form(frame, code, Transport::Tcp), at, "R31").await;
        }
    }
    let peer = Peer::start("aslmp", &["serve", "--healthy", "--target", "r04cpu"]);
    for (entry, form) in [
        ("tcp ", Form(Frame::E3, Code::Binary, Transport::Tcp)),
        ("tcp-4e ", Form(Frame::E4, Code::Binary, Transport::Tcp)),
        ("udp ", Form(Frame::E3, Code::Binary, Transport::Udp)),
        ("tcp-ascii ", Form(Frame::E3, Code::Ascii, Transport::Tcp)),
    ] {
        let at = address_in(&peer.line(entry));
        round_trip(form, at, "W1F").await;
    }
}
