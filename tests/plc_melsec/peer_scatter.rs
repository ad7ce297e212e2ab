//! Owns: random reads, block reads and the loopback test against CPUs that nobody here wrote, and what goes in their
//! place where such a CPU does not know them.
//! May call: the rig, the peers.
//! Never: count requests anywhere but in the peer's own account of them.

use crate::peers::{Peer, address_in, virtual_plc};
use crate::rig::{Form, PATIENT_MS, link, scalar, spec, until_connected, write};
use holdfast::core::melsec::{Code, Frame, Transport};
use holdfast::core::spec::{DataType, MachineSpec, Quality, Tag, Value};
use holdfast::plc::link::Link;
use holdfast::plc::plan::{PointId, PollPlan};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// More double words than one random read takes: 100 blocks of four words.
const WIDE_COUNT: u32 = 100;
const FORMS: [Form; 4] = [
    Form(Frame::E3, Code::Binary, Transport::Tcp),
    Form(Frame::E4, Code::Binary, Transport::Tcp),
    Form(Frame::E3, Code::Ascii, Transport::Tcp),
    Form(Frame::E4, Code::Ascii, Transport::Tcp),
];

/// A place and what stands there.
struct Placed(u32, DataType, u64);

/// Ten words and five double words, far apart.
fn narrow() -> Vec<Placed> {
    let words = (0..10).map(|n| Placed(700 * n, DataType::U16, 40_000 + u64::from(n)));
    let doubles = (0..5).map(|n| Placed(8_000 + 50 * n, DataType::U32, 0xABCD_0100 + u64::from(n)));
    words.chain(doubles).collect()
}

fn wide() -> Vec<Placed> {
    let value = |n| 0x0004_0003_0002_0100 + u64::from(n);
    let placed = (0..WIDE_COUNT).map(|n| Placed(90 * n, DataType::U64, value(n)));
    placed.collect()
}

async fn connected(form: Form, at: SocketAddr, places: &[Placed]) -> (Link, PollPlan) {
    let tag = |Placed(number, data_type, _): &Placed| Tag {
        name: format!("D{number}"),
        at: scalar(&format!("D{number}"), *data_type),
        unit: None,
        poll_ms: 1_000,
        no_value: Vec::new(),
        group: None,
    };
    let machine = MachineSpec {
        tags: places.iter().map(tag).collect(),
        ..spec(form, at, PATIENT_MS)
    };
    let mut link = link(&machine);
    until_connected(&mut link).await;
    for Placed(number, data_type, value) in places {
        let bytes = value.to_le_bytes();
        let words = bytes
            .chunks(2)
            .map(|two| u16::from_le_bytes([two[0], two[1]]));
        let words: Vec<u16> = words.take(data_type.registers().into()).collect();
        let wrote = link.run(&write(&format!("D{number}"), &words)).await;
        assert!(wrote.replied_at.is_some(), "{form:?} {wrote:?}");
    }
    let plan = PollPlan::new(&machine);
    (link, plan)
}

/// One cycle of polls reads each place's own value.
async fn all_read(form: Form, link: &mut Link, plan: &mut PollPlan, places: &[Placed]) {
    let mut read = BTreeMap::new();
    let now_ns = plan.next_due_ns().unwrap() + 500_000_000;
    while let Some(step) = plan.due(now_ns).into_iter().next() {
        for reading in link.poll(plan, &step).await {
            read.insert(reading.id, reading);
        }
    }
    assert_eq!(read.len(), places.len(), "{form:?}");
    for (n, Placed(number, _, value)) in places.iter().enumerate() {
        let reading = &read[&PointId::Tag(n)];
        let expected = Some(Value::Int(i128::from(*value)));
        assert_eq!(
            (&reading.value, reading.quality),
            (&expected, Quality::Good),
            "{form:?} D{number} {:?}",
            reading.reason
        );
    }
}

/// What virtual-plc says it was asked since the last look, by command.
async fn asked(peer: &Peer, link: &mut Link) -> BTreeMap<String, usize> {
    // The model is asked last, so that the account is whole.
    link.ask_model().await.unwrap().unwrap();
    let mut count = BTreeMap::new();
    for line in peer.lines_until("command=0101") {
        if let Some((_, rest)) = line.split_once("command=") {
            *count.entry(rest[..4].to_owned()).or_default() += 1;
        }
    }
    count
}

fn times(count: &BTreeMap<String, usize>, command: &str) -> usize {
    count.get(command).copied().unwrap_or_default()
}

#[tokio::test]
async fn virtual_plc_gives_scattered_places_by_one_random_read() {
    let (peer, at) = virtual_plc(&["-v", "--ascii-dword-order", "client"]);
    let places = narrow();
    for form in FORMS {
        let (mut link, mut plan) = connected(form, at, &places).await;
        let opened = asked(&peer, &mut link).await;
        let tests = usize::from(form.0 == Frame::E3);
        assert_eq!(times(&opened, "0619"), tests, "{form:?} {opened:?}");
        all_read(form, &mut link, &mut plan, &places).await;
        let polled = asked(&peer, &mut link).await;
        assert_eq!(
            (times(&polled, "0403"), times(&polled, "0401")),
            (1, 0),
            "{form:?} {polled:?}"
        );
    }
}

#[tokio::test]
async fn where_virtual_plc_knows_no_block_read_random_reads_go_in_its_place() {
    let (peer, at) = virtual_plc(&["-v"]);
    let places = wide();
    let form = FORMS[1];
    let (mut link, mut plan) = connected(form, at, &places).await;
    asked(&peer, &mut link).await;
    all_read(form, &mut link, &mut plan, &places).await;
    let by_command = |polled: &BTreeMap<String, usize>| {
        ["0406", "0403", "0401"].map(|command| times(polled, command))
    };
    // It is asked once, and 200 double words take two random reads.
    let polled = asked(&peer, &mut link).await;
    assert_eq!(by_command(&polled), [1, 2, 0]);
    // And not asked for again over this connection.
    all_read(form, &mut link, &mut plan, &places).await;
    let polled = asked(&peer, &mut link).await;
    assert_eq!(by_command(&polled), [0, 2, 0]);
}

// covers: SEND-06
#[tokio::test]
async fn a_cpu_that_answers_the_test_with_something_else_is_served_all_the_same() {
    let file = tempfile::NamedTempFile::new().unwrap();
    // An end code in front of the digits, as nobody's manual has it.
    let steps = r#"{"steps": [{"match": {"command": "0x0619"}, "times": 1000, "action": {"type": "bad_end_code", "code": 49241}}]}"#;
    std::fs::write(file.path(), steps).unwrap();
    let (peer, at) = virtual_plc(&["-v", "--fault-plan", file.path().to_str().unwrap()]);
    let places = narrow();
    let form = FORMS[0];
    let (mut link, mut plan) = connected(form, at, &places).await;
    let opened = asked(&peer, &mut link).await;
    assert_eq!(times(&opened, "0619"), 3, "{opened:?}");
    all_read(form, &mut link, &mut plan, &places).await;
    link.disconnect("a test");
    until_connected(&mut link).await;
    assert_eq!(times(&asked(&peer, &mut link).await, "0619"), 0);
}

/// What aslmp says it was asked since the last look: the frames of one command.
async fn frames(peer: &Peer, link: &mut Link, form: Form, commands: &[u16]) -> Vec<usize> {
    let shown = |command: u16| match form.1 {
        Code::Binary => format!("{:02X} {:02X} 00 00", command & 0xFF, command >> 8),
        Code::Ascii => format!("{command:04X}0000")
            .bytes()
            .map(|digit| format!("{digit:02X}"))
            .collect::<Vec<_>>()
            .join(" "),
    };
    link.ask_model().await.unwrap().unwrap();
    let lines = peer.lines_until(&shown(0x0101));
    let asked = |command: &u16| {
        let command = shown(*command);
        let of = lines
            .iter()
            .filter(|line| line.contains("] <- ") && line.contains(&command));
        of.count()
    };
    commands.iter().map(asked).collect()
}

#[tokio::test]
async fn aslmp_gives_scattered_places_by_random_and_block_reads_in_every_form_it_has() {
    let serve = ["serve", "--healthy", "--target", "r04cpu", "--transcript"];
    let peer = Peer::start("aslmp", &serve);
    let entries = ["tcp ", "tcp-4e ", "udp ", "udp-4e ", "tcp-ascii "];
    let at = entries.map(|entry| address_in(&peer.line(entry)));
    let forms = [
        Form(Frame::E3, Code::Binary, Transport::Tcp),
        Form(Frame::E4, Code::Binary, Transport::Tcp),
        Form(Frame::E3, Code::Binary, Transport::Udp),
        Form(Frame::E4, Code::Binary, Transport::Udp),
        Form(Frame::E3, Code::Ascii, Transport::Tcp),
    ];
    for (form, at) in forms.into_iter().zip(at) {
        for (places, expected) in [(narrow(), [1, 0, 0]), (wide(), [0, 1, 0])] {
            let (mut link, mut plan) = connected(form, at, &places).await;
            let tests = frames(&peer, &mut link, form, &[0x0619]).await;
            assert_eq!(tests, [usize::from(form.0 == Frame::E3)], "{form:?}");
            all_read(form, &mut link, &mut plan, &places).await;
            let found = frames(&peer, &mut link, form, &[0x0403, 0x0406, 0x0401]).await;
            assert_eq!(found, expected, "{form:?}");
        }
    }
}
