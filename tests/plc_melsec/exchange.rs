//! Owns: cases of one request over MC protocol and what came back for it, in every form of the link.
//! May call: the rig, the simulator.
//! Never: accept a guess.

use crate::rig::{
    Form, PATIENT_MS, SHORT_MS, address, connected, counter, cpu, cpu_with, forms, link, program,
    read, scalar, spec, values, write, written,
};
use holdfast::core::contract::{Job, MailboxRequest, Outcome, Reply};
use holdfast::core::melsec::{Code, Frame, Remote, Transport};
use holdfast::core::spec::{
    Address, DataType, EventClass, EventKind, EventSource, MailboxSpec, Quality, Tag, Value,
    WordOrder,
};
use holdfast::plc::link::LinkError;
use holdfast::plc::plan::PollPlan;
use holdfast::simulator::{
    Act, Cause, Fault, MailboxProgram, Matching, McProgram, Opcode, Order, Place, SimulatorSpec,
    Span,
};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const PLAIN: Form = Form(Frame::E3, Code::Binary, Transport::Tcp);

// covers: SEND-02, SEND-05
#[tokio::test]
async fn every_form_reads_and_writes_words_and_bits() {
    for form in forms() {
        let cpu = cpu(form).await;
        let device = cpu.device();
        device.set_holding(100, 0x5678);
        device.set_holding(101, 0x1234);
        // "AB": the first character in the low byte.
        device.set_holding(102, 0x4241);
        device.set_coil(7, true);
        device.set_discrete(0x1F, true);
        device.set_input(0x20, 99);
        let mut link = connected(form, cpu.address(), PATIENT_MS).await;

        let job = read(&[
            ("D100", DataType::U32),
            ("D102", DataType::Text(2)),
            ("M7", DataType::Bool),
            ("M8", DataType::Bool),
            ("X1F", DataType::Bool),
            ("W20", DataType::U16),
        ]);
        let exchange = link.run(&job).await;
        let expected = [
            Value::Int(0x1234_5678),
            Value::Text("AB".into()),
            Value::Bool(true),
            Value::Bool(false),
            Value::Bool(true),
            Value::Int(99),
        ];
        assert_eq!(values(&exchange), expected, "{form:?}");

        let wrote = link.run(&write("D200", &[1, 0xFFFF, 3])).await;
        assert_eq!(wrote.outcome, written(), "{form:?}");
        assert_eq!(wrote.bytes_sent, wrote.bytes_total);
        assert!(wrote.bytes_total > 0 && wrote.replied_at.is_some());
        let bits = link.run(&write("M20", &[1, 0, 1])).await;
        assert_eq!(bits.outcome, written(), "{form:?}");
        assert_eq!([200, 201, 202].map(|at| device.holding(at)), [1, 0xFFFF, 3]);
        let coils = [20, 21, 22, 23].map(|at| device.coil(at));
        assert_eq!(coils, [true, false, true, false], "{form:?}");
        assert_eq!(device.effects(), 2);
    }
}

// covers: SEND-04, F065
#[tokio::test]
async fn a_refusal_is_known_to_have_had_no_effect_and_the_link_stays() {
    for form in forms() {
        let cpu = cpu(form).await;
        let mut link = connected(form, cpu.address(), PATIENT_MS).await;
        let device = cpu.device();
        for (code, meaning) in [(0x0055, "while the CPU runs"), (0xC059, "no such command")] {
            device.set_fault(Fault::next(Matching::Writes, Act::EndCode(code)));
            let refused = link.run(&write("D10", &[1])).await;
            match &refused.outcome {
                Outcome::DeviceRefused(found) => {
                    assert_eq!((found.family.as_str(), found.code), ("mc", code.into()));
                    assert!(found.meaning.contains(meaning), "{found:?}");
                }
                other => panic!("{form:?}: {other:?}"),
            }
        }
        device.set_fault(Fault::next(Matching::Writes, Act::EndCode(0xC05E)));
        let unclear = link.run(&write("D10", &[1])).await;
        assert!(
            matches!(unclear.outcome, Outcome::DeviceUnclear(_)),
            "{unclear:?}"
        );
        let past = link.run(&write("D65535", &[1, 2])).await;
        match past.outcome {
            Outcome::DeviceRefused(found) => assert_eq!(found.code, 0xC056),
            other => panic!("{form:?}: {other:?}"),
        }
        assert_eq!(device.effects(), 0);
        assert!(link.is_connected());
    }
}

// covers: SEND-02, SEND-03, SEND-06
#[tokio::test]
async fn without_a_reply_the_outcome_is_unknown_whether_or_not_it_was_done() {
    for form in forms() {
        let cpu = cpu(form).await;
        let device = cpu.device();
        for (act, effects) in [(Act::Drop, 0), (Act::DropReply, 1)] {
            let before = device.effects();
            let mut link = connected(form, cpu.address(), SHORT_MS).await;
            device.set_fault(Fault::next(Matching::Writes, act));
            let lost = link.run(&write("D10", &[1])).await;
            assert!(
                matches!(lost.outcome, Outcome::SentNoReply { .. }),
                "{form:?} {lost:?}"
            );
            assert_eq!(lost.bytes_sent, lost.bytes_total);
            assert_eq!(device.effects() - before, effects, "{form:?}");
            assert!(!link.is_open(), "a link in doubt is closed");
            let not_sent = link.run(&write("D10", &[1])).await;
            assert!(
                matches!(not_sent.outcome, Outcome::NotSent { .. }),
                "{not_sent:?}"
            );
            assert_eq!(not_sent.bytes_sent, 0);
            assert_eq!(device.effects() - before, effects);
        }
    }
}

// covers: SEND-05
#[tokio::test]
async fn a_reply_from_elsewhere_or_cut_short_is_no_reply() {
    for form in forms() {
        let cpu = cpu(form).await;
        let device = cpu.device();
        let mut acts = vec![
            (Act::WrongUnit(9), "wrong_unit"),
            (
                Act::Truncated {
                    keep: 8,
                    rest_after: None,
                },
                "timeouts",
            ),
        ];
        if form.0 == Frame::E4 {
            acts.push((Act::WrongTransaction, "stale_reply"));
        }
        for (act, counted) in acts {
            let mut link = connected(form, cpu.address(), SHORT_MS).await;
            let before = counter(&link, counted);
            device.set_fault(Fault::next(Matching::Writes, act.clone()));
            let lost = link.run(&write("D10", &[1])).await;
            let unknown = matches!(lost.outcome, Outcome::SentNoReply { .. });
            assert!(unknown, "{form:?} {act:?} {lost:?}");
            assert!(counter(&link, counted) > before, "{form:?} {act:?}");
            assert!(!link.is_open());
        }
    }
}

// covers: SEND-05
#[tokio::test]
async fn a_reply_in_pieces_is_put_together() {
    for form in forms().into_iter().filter(|form| form.2 == Transport::Tcp) {
        let cpu = cpu(form).await;
        cpu.device().set_holding(1, 77);
        let mut link = connected(form, cpu.address(), PATIENT_MS).await;
        let bytewise = Act::Bytewise(Span::ms(1));
        cpu.device()
            .set_fault(Fault::next(Matching::Reads, bytewise));
        let exchange = link.run(&read(&[("D1", DataType::U16)])).await;
        assert_eq!(values(&exchange), [Value::Int(77)], "{form:?}");
    }
}

#[tokio::test]
async fn a_port_set_to_the_other_code_is_diagnosed_by_its_silence() {
    for (own, other) in [(Code::Binary, "ASCII"), (Code::Ascii, "binary")] {
        let theirs = match own {
            Code::Binary => Code::Ascii,
            Code::Ascii => Code::Binary,
        };
        let cpu = cpu(Form(Frame::E3, theirs, Transport::Tcp)).await;
        let form = Form(Frame::E3, own, Transport::Tcp);
        let mut link = link(&spec(form, cpu.address(), SHORT_MS));
        let said = link.connect().await.unwrap_err().to_string();
        assert!(
            said.contains(&format!("set to {other} does not answer")),
            "{said}"
        );
    }
}

#[tokio::test]
async fn a_reply_in_the_other_code_is_diagnosed_by_its_bytes() {
    let answers: [(Code, &[u8], &str); 2] = [
        (
            Code::Binary,
            b"D00000FF03FF00000800000000",
            "looks like ASCII",
        ),
        (
            Code::Ascii,
            &[0xD0, 0, 0, 0xFF, 0xFF, 3, 0, 4, 0, 0, 0, 0, 0],
            "looks like binary",
        ),
    ];
    for (code, answer, says) in answers {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 256];
            let _ = stream.read(&mut request).await.unwrap();
            stream.write_all(answer).await.unwrap();
            let _ = stream.read(&mut request).await;
        });
        let form = Form(Frame::E3, code, Transport::Tcp);
        let mut link = link(&spec(form, at, PATIENT_MS));
        let error = link.connect().await.unwrap_err();
        assert!(matches!(error, LinkError::NoReply(_)), "{error:?}");
        assert!(error.to_string().contains(says), "{error}");
        drop(link);
        server.await.unwrap();
    }
}

#[tokio::test]
async fn nobody_there_is_said() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    drop(listener);
    for (transport, frame) in [(Transport::Tcp, Frame::E3), (Transport::Udp, Frame::E4)] {
        let form = Form(frame, Code::Binary, transport);
        let mut link = link(&spec(form, at, SHORT_MS));
        let error = link.connect().await.unwrap_err();
        match transport {
            Transport::Tcp => assert!(matches!(error, LinkError::Refused { .. }), "{error:?}"),
            Transport::Udp => assert!(error.to_string().contains("nobody listens"), "{error}"),
        }
        assert!(!link.is_open());
    }
}

// covers: SEND-01
#[tokio::test]
async fn what_no_frame_can_do_is_not_sent_and_leaves_the_link_alone() {
    let cpu = cpu(PLAIN).await;
    let mut link = connected(PLAIN, cpu.address(), PATIENT_MS).await;
    for job in [
        write("D0", &[0; 961]),
        write("M0", &[2]),
        write("D16777215", &[1, 2]),
        Job::Write {
            start: Address::Modbus {
                area: holdfast::core::spec::ModbusArea::Holding,
                offset: 1,
            },
            words: vec![1],
        },
    ] {
        let exchange = link.run(&job).await;
        assert!(
            matches!(exchange.outcome, Outcome::NotSent { .. }),
            "{exchange:?}"
        );
        assert!(link.is_connected());
    }
    assert_eq!(cpu.device().effects(), 0);
    assert_eq!(counter(&link, "connects"), 1);
}

fn tag(name: &str, at: &str, data_type: DataType) -> Tag {
    Tag {
        name: name.into(),
        at: scalar(at, data_type),
        unit: None,
        poll_ms: 100,
        no_value: Vec::new(),
        group: None,
    }
}

/// When everything but what was refused for good is due, by the link's clock.
const LATER_NS: u64 = 31_000_000_000;

// covers: EVT-06, F065
#[tokio::test]
async fn polls_are_merged_within_the_limits_and_a_missing_place_costs_only_itself() {
    for form in forms() {
        let holes = vec![holdfast::simulator::Hole {
            at: Place::holding(5),
            count: 1,
        }];
        let cpu = cpu_with(SimulatorSpec {
            mc: Some(program(form)),
            holes,
            ..SimulatorSpec::default()
        })
        .await;
        let device = cpu.device();
        (0..20).for_each(|at| device.set_holding(at, 100 + at));
        device.set_coil(3, true);
        let mut spec = spec(form, cpu.address(), PATIENT_MS);
        spec.tags = vec![
            tag("a", "D0", DataType::U16),
            tag("b", "D2", DataType::U32),
            tag("missing", "D5", DataType::U16),
            tag("d", "D8", DataType::U16),
            tag("bit", "M3", DataType::Bool),
        ];
        spec.events = vec![EventSource {
            event_type: "e".into(),
            class: EventClass::Business,
            kind: EventKind::OnChange {
                at: scalar("D10", DataType::I16),
                unit: None,
                deadband: 0.0,
                no_value: Vec::new(),
                poll_ms: 100,
            },
        }];
        let mut link = link(&spec);
        link.connect().await.unwrap();
        let mut plan = PollPlan::new(&spec);
        assert_eq!(
            plan.due(1).len(),
            2,
            "{form:?}: one request for D, one for M"
        );
        let mut readings = Vec::new();
        // Refusals are narrowed down at once.
        for _ in 0..20 {
            for step in plan.due(LATER_NS) {
                readings.extend(link.poll(&mut plan, &step).await);
            }
        }
        let value = |name: &str| {
            let index = spec.tags.iter().position(|tag| tag.name == name).unwrap();
            let id = holdfast::plc::plan::PointId::Tag(index);
            let found = readings.iter().find(|reading| reading.id == id);
            found
                .map(|reading| (reading.value.clone(), reading.quality))
                .unwrap()
        };
        assert_eq!(
            value("a"),
            (Some(Value::Int(100)), Quality::Good),
            "{form:?}"
        );
        let wide = Value::Int(103 << 16 | 102);
        assert_eq!(value("b"), (Some(wide), Quality::Good), "low word first");
        assert_eq!(value("bit"), (Some(Value::Bool(true)), Quality::Good));
        assert_eq!(value("d"), (Some(Value::Int(108)), Quality::Good));
        assert_eq!(value("missing"), (None, Quality::Bad), "never a stand-in");
        let notes = plan.notes();
        assert!(
            notes.len() == 1 && notes[0].contains("D5") && notes[0].contains("C056"),
            "{notes:?}"
        );
        assert!(link.is_connected());
    }
}

fn mailbox_cpu(form: Form) -> SimulatorSpec {
    SimulatorSpec {
        mc: Some(program(form)),
        mailbox: Some(MailboxProgram {
            command: Place::holding(300),
            status: Place::holding(340),
            word_order: Order::LowFirst,
            scan: Span::ms(5),
            opcodes: vec![Opcode {
                opcode: 3,
                duration: Span::ZERO,
                result: 0,
                add: Vec::new(),
                set: Vec::new(),
            }],
        }),
        ..SimulatorSpec::default()
    }
}

// covers: VER-03
#[tokio::test]
async fn the_mailbox_stands_on_d_registers() {
    for form in forms() {
        let cpu = cpu_with(mailbox_cpu(form)).await;
        let mut spec = spec(form, cpu.address(), PATIENT_MS);
        spec.mailbox = Some(MailboxSpec {
            command: address("D300"),
            status: address("D340"),
            word_order: WordOrder::LowFirst,
        });
        let mut link = link(&spec);
        link.connect().await.unwrap();
        let request = MailboxRequest {
            session_epoch: 1,
            opcode: 3,
            request_id: 70_001,
            parameters: vec![1],
            expected_config_version: 0xFFFF,
            validity_ticks: 0,
        };
        let exchange = link.run(&Job::Mailbox(request)).await;
        match exchange.outcome {
            Outcome::DeviceReplied(Reply::Mailbox(echo)) => {
                assert_eq!((echo.request_id, echo.result), (70_001, 0), "{form:?}");
            }
            other => panic!("{form:?}: {other:?}"),
        }
        assert_eq!(cpu.device().effects_of_request(70_001), 1);
    }
}

// covers: SEND-04
#[tokio::test]
async fn a_remote_order_is_done_when_the_operating_state_says_so() {
    for form in forms() {
        let cpu = cpu(form).await;
        let device = cpu.device();
        let mut link = connected(form, cpu.address(), PATIENT_MS).await;
        for (order, state) in [(Remote::Stop, 2), (Remote::Pause, 3), (Remote::Run, 0)] {
            let done = link.run(&Job::Remote(order)).await;
            let name = order.name().to_uppercase();
            let by = format!("SD203 read back {state} ({name})");
            let replied = Outcome::DeviceReplied(Reply::Confirmed { by });
            assert_eq!(done.outcome, replied, "{form:?} {order:?}");
            assert_eq!(device.operating_state(), state);
        }
        let causes: Vec<Cause> = device.ledger().into_iter().map(|e| e.cause).collect();
        let orders = [0x1002, 0x1003, 0x1001].map(|order| Cause::Remote { order });
        assert_eq!(causes, orders);
    }
}

// covers: SEND-04
#[tokio::test]
async fn a_run_that_the_switch_holds_back_is_not_called_done() {
    let cpu = cpu_with(SimulatorSpec {
        mc: Some(McProgram {
            switch_stop: true,
            ..program(PLAIN)
        }),
        ..SimulatorSpec::default()
    })
    .await;
    let mut link = connected(PLAIN, cpu.address(), SHORT_MS * 4).await;
    let stop = link.run(&Job::Remote(Remote::Stop)).await;
    let by = "SD203 read back 2 (STOP)".into();
    assert_eq!(
        stop.outcome,
        Outcome::DeviceReplied(Reply::Confirmed { by })
    );
    let run = link.run(&Job::Remote(Remote::Run)).await;
    match run.outcome {
        Outcome::DeviceUnclear(code) => {
            assert!(
                code.meaning.contains("SD203 says 2, expected 0"),
                "{code:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(run.replied_at.is_some(), "it was answered");
    assert_eq!(cpu.device().operating_state(), 2);
}

// covers: SEND-06, F060
#[tokio::test]
async fn what_waited_behind_a_dead_cable_does_not_arrive_later() {
    let cpu = cpu(PLAIN).await;
    let device = cpu.device();
    let mut link = connected(PLAIN, cpu.address(), SHORT_MS).await;
    device.freeze(true);
    let lost = link.run(&write("D10", &[1])).await;
    assert!(
        matches!(lost.outcome, Outcome::SentNoReply { .. }),
        "{lost:?}"
    );
    device.freeze(false);
    let mut again = connected(PLAIN, cpu.address(), PATIENT_MS).await;
    let wrote = again.run(&write("D10", &[2])).await;
    assert_eq!(wrote.outcome, written());
    let only = device
        .wait_for(Duration::from_secs(5), |d| d.effects() == 1)
        .await;
    assert!(only && device.holding(10) == 2, "{:?}", device.ledger());
}
