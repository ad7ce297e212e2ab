//! Owns: a machine behind MC protocol, in each of its eight forms, and a CPU that speaks the same.
//! May call: plc, core types, the simulator.
//! Never: wait for a time to pass; a condition has a deadline.

use holdfast::core::contract::{Exchange, Job, Outcome, Reply};
use holdfast::core::ids::BootId;
use holdfast::core::melsec::{Code, Device, Family, Frame, McLink, Route, Transport};
use holdfast::core::spec::{
    Address, DataType, GateSpec, LinkSpec, MachineSpec, Scalar, Value, WordOrder,
};
use holdfast::core::time::Now;
use holdfast::plc::link::Link;
use holdfast::plc::modbus::Clock;
use holdfast::simulator::{McCode, McFrameKind, McProgram, Simulator, SimulatorSpec};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For what must not fail on a busy machine, in milliseconds.
pub(crate) const PATIENT_MS: u64 = 5_000;
/// For what is to run out, in milliseconds.
pub(crate) const SHORT_MS: u64 = 150;

/// Frame, code, transport.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form(pub(crate) Frame, pub(crate) Code, pub(crate) Transport);

pub(crate) fn forms() -> Vec<Form> {
    let mut forms = Vec::new();
    for frame in [Frame::E3, Frame::E4] {
        for code in [Code::Binary, Code::Ascii] {
            for transport in [Transport::Tcp, Transport::Udp] {
                forms.push(Form(frame, code, transport));
            }
        }
    }
    forms
}

/// What a write comes to that the CPU says is done.
pub(crate) fn written() -> Outcome {
    let by = "the device answered: end code 0000".into();
    Outcome::DeviceReplied(Reply::Confirmed { by })
}

pub(crate) fn program(form: Form) -> McProgram {
    McProgram {
        frame: match form.0 {
            Frame::E3 => McFrameKind::E3,
            Frame::E4 => McFrameKind::E4,
        },
        code: match form.1 {
            Code::Binary => McCode::Binary,
            Code::Ascii => McCode::Ascii,
        },
        udp: form.2 == Transport::Udp,
        ..McProgram::default()
    }
}

/// A simulated CPU whose port speaks `form`.
pub(crate) async fn cpu(form: Form) -> Simulator {
    cpu_with(SimulatorSpec {
        mc: Some(program(form)),
        ..SimulatorSpec::default()
    })
    .await
}

pub(crate) async fn cpu_with(spec: SimulatorSpec) -> Simulator {
    Simulator::start(spec).await.unwrap()
}

pub(crate) fn spec(form: Form, at: SocketAddr, timeout_ms: u64) -> MachineSpec {
    machine(LinkSpec::Mc(McLink {
        host: at.ip().to_string(),
        port: at.port(),
        transport: form.2,
        frame: form.0,
        code: form.1,
        family: Family::Q,
        route: Route::default(),
        timeout_ms,
        read_words_max: 960,
        reconnect_ms_min: 10,
        reconnect_ms_max: 100,
        heartbeat_ms: 1000,
    }))
}

/// A machine that is nothing but its link.
pub(crate) fn machine(link: LinkSpec) -> MachineSpec {
    MachineSpec {
        name: "press-1".into(),
        owner: "gw".into(),
        read_only: false,
        link,
        gate: GateSpec::default(),
        tags: Vec::new(),
        groups: Vec::new(),
        events: Vec::new(),
        commands: Vec::new(),
        mailbox: None,
    }
}

fn clock() -> Clock {
    let begun = Instant::now();
    Arc::new(move || Now {
        boot_id: BootId([1; 16]),
        boottime_ns: 1_000_000_000 + u64::try_from(begun.elapsed().as_nanos()).unwrap(),
        wall_us: 1_800_000_000_000_000,
        wall_trusted: true,
    })
}

pub(crate) fn link(spec: &MachineSpec) -> Link {
    Link::new(spec, clock())
}

pub(crate) async fn connected(form: Form, at: SocketAddr, timeout_ms: u64) -> Link {
    let mut link = link(&spec(form, at, timeout_ms));
    until_connected(&mut link).await;
    link
}

/// Tries until a read was answered: on a busy machine a short timeout may run out.
pub(crate) async fn until_connected(link: &mut Link) {
    let until = Instant::now() + Duration::from_secs(30);
    while let Err(error) = link.connect().await {
        assert!(Instant::now() < until, "never connected: {error}");
    }
}

pub(crate) fn address(text: &str) -> Address {
    let (device, number) = Device::parse(text, Family::Q).unwrap();
    Address::Melsec { device, number }
}

pub(crate) fn scalar(text: &str, data_type: DataType) -> Scalar {
    Scalar {
        address: address(text),
        data_type,
        word_order: WordOrder::LowFirst,
    }
}

pub(crate) fn read(points: &[(&str, DataType)]) -> Job {
    let point = |(at, data_type): &(&str, DataType)| ((*at).to_owned(), scalar(at, *data_type));
    Job::Read {
        points: points.iter().map(point).collect(),
    }
}

pub(crate) fn write(at: &str, words: &[u16]) -> Job {
    Job::Write {
        start: address(at),
        words: words.to_vec(),
    }
}

pub(crate) fn values(exchange: &Exchange) -> Vec<Value> {
    match &exchange.outcome {
        Outcome::DeviceReplied(Reply::Values(values)) => {
            values.iter().map(|(_, value)| value.clone()).collect()
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) fn counter(link: &Link, name: &str) -> u64 {
    let found = link.counters().into_iter().find(|(n, _)| n == name);
    found.unwrap().1
}
