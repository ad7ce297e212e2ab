//! Owns: one exchange of the gateway's client, with a simulated PLC or with whatever bytes come, and requests to one.
//! May call: the doors of plc and simulator; core's links.
//! Never: open a socket; let a client and a simulator that share code stand for each other (they do not).
//!
//! An input is a head and the bytes that come. See [`Head`].

use crate::core::c24::{C24Format, C24Frame, C24Link, C24Route};
use crate::core::melsec::{Code, Device, Family, Frame, Kind, McLink, Route, Transport};
use crate::core::serial::{ModbusRtu, Way};
use crate::core::spec::{Address, LinkSpec, ModbusArea, ModbusTcp};
use crate::plc::fuzz::{Heard, Order, exchange};
use crate::simulator::fuzz::Served;
use crate::simulator::{
    C24FrameKind, C24Program, McCode, McFrameKind, McProgram, RtuProgram, SimulatorSpec,
};

/// Most places of one order here: more than any protocol takes.
const COUNT_POINTS_MAX: u16 = 2_100;
const TIMEOUT_MS: u64 = 60_000;

/// The first bytes of an input.
struct Head {
    /// Which frame, format, code.
    form: u8,
    /// Bit 0: a write. Bit 1: single bits. Bits 2 and 3: raw bytes, the device's reply, or that one altered.
    /// Bits 4 and above: how many bytes come at a time.
    mode: u8,
    at: u16,
    count: u16,
}

fn split(data: &[u8]) -> Option<(Head, &[u8])> {
    let ([form, mode, a, b, c, d], rest) = data.split_first_chunk()?;
    let head = Head {
        form: *form,
        mode: *mode,
        at: u16::from_le_bytes([*a, *b]),
        count: u16::from_le_bytes([*c, *d]) % COUNT_POINTS_MAX,
    };
    Some((head, rest))
}

/// Modbus TCP and RTU.
pub fn modbus(data: &[u8]) {
    let Some((head, rest)) = split(data) else {
        return;
    };
    let (link, spec) = match head.form % 3 {
        0 => (modbus_tcp(), SimulatorSpec::default()),
        form => (modbus_rtu(form == 2), rtu_device()),
    };
    let area = match head.mode & 2 {
        0 => ModbusArea::Holding,
        _ => ModbusArea::Coil,
    };
    play(&link, spec, modbus_place(area, head.at), &head, rest);
}

/// MC protocol in 3E and 4E frames, binary and ASCII.
pub fn melsec(data: &[u8]) {
    let Some((head, rest)) = split(data) else {
        return;
    };
    let (link, spec) = mc(head.form);
    play(&link, spec, device_place(head.mode, head.at), &head, rest);
}

/// C frames: 4C, 3C, 2C, 1C in the formats that they have.
pub fn c24(data: &[u8]) {
    let Some((head, rest)) = split(data) else {
        return;
    };
    let (link, spec) = c_frame(head.form);
    play(&link, spec, device_place(head.mode, head.at), &head, rest);
}

/// Whatever comes to a simulated PLC, in two parts.
pub fn requests(data: &[u8]) {
    let [choice, cut, rest @ ..] = data else {
        return;
    };
    let spec = match choice % 16 {
        0 | 1 => SimulatorSpec::default(),
        2 => rtu_device(),
        form @ 3..=6 => mc(form).1,
        _ => c_frame(choice >> 3).1,
    };
    let mut served = Served::new(spec);
    let cut = usize::from(*cut).min(rest.len());
    served.take(&rest[..cut]);
    served.take(&rest[cut..]);
}

/// The links over which a write of words or of bits and the reading of it do not come through: then the wire targets
/// prove nothing of them.
#[must_use]
pub fn not_understood() -> Vec<String> {
    let mut links = vec![(modbus_tcp(), SimulatorSpec::default())];
    links.extend([false, true].map(|echo| (modbus_rtu(echo), rtu_device())));
    links.extend((0..8).map(mc));
    links.extend((0..0x80).map(c_frame));
    let mut silent = Vec::new();
    for (link, spec) in links {
        for bits in [false, true] {
            let at = match (&link, bits) {
                (LinkSpec::Mc(_) | LinkSpec::C24(_), _) => device_place(u8::from(bits) * 2, 100),
                (_, false) => modbus_place(ModbusArea::Holding, 100),
                (_, true) => modbus_place(ModbusArea::Coil, 100),
            };
            let words = vec![1, 0, 1];
            if !written_and_read(&link, spec.clone(), at, words, 2) {
                silent.push(format!("{link:?} {at}"));
            }
        }
    }
    silent
}

fn modbus_place(area: ModbusArea, offset: u16) -> Address {
    Address::Modbus { area, offset }
}

/// One link of each kind.
pub(super) fn links() -> [LinkSpec; 6] {
    [
        modbus_tcp(),
        modbus_rtu(false),
        mc(0).0,
        mc(3).0,
        c_frame(0).0,
        c_frame(3).0,
    ]
}

fn device_place(mode: u8, at: u16) -> Address {
    let kind = match mode & 2 {
        0 => Kind::D,
        _ => Kind::M,
    };
    Address::Melsec {
        device: Device::of(kind, Family::Q),
        number: at.into(),
    }
}

/// The exchange that `head` describes.
fn play(link: &LinkSpec, spec: SimulatorSpec, at: Address, head: &Head, rest: &[u8]) {
    let words = words_for(head, rest);
    let order = match head.mode & 1 {
        0 => Order::Read {
            at,
            count: head.count,
        },
        _ => Order::Write {
            at,
            words: words.clone(),
        },
    };
    let chunk = match head.mode >> 4 {
        0 => usize::MAX,
        some => usize::from(some),
    };
    let echo = is_echoing(link);
    match head.mode >> 2 & 3 {
        0 | 1 => {
            let bytes = rest.to_vec();
            run(exchange(link, &order, chunk, move |request| {
                [&request[..if echo { request.len() } else { 0 }], &bytes[..]].concat()
            }));
        }
        2 => {
            written_and_read(link, spec, at, words, chunk);
        }
        _ => altered(link, spec, &order, chunk, rest),
    }
}

/// What to write: of the input, and of its place where that is too short.
fn words_for(head: &Head, rest: &[u8]) -> Vec<u16> {
    let bits = head.mode & 2 != 0;
    let word = |n: u16| {
        let at = 2 * usize::from(n);
        let pair = [at, at + 1].map(|at| rest.get(at).copied().unwrap_or(n as u8));
        let word = u16::from_le_bytes(pair);
        if bits { word & 1 } else { word }
    };
    (0..head.count).map(word).collect()
}

/// What the client writes, the device holds, and the client reads: both were made from the specification alone.
fn written_and_read(
    link: &LinkSpec,
    spec: SimulatorSpec,
    at: Address,
    words: Vec<u16>,
    chunk: usize,
) -> bool {
    let count = words.len() as u16;
    let write = Order::Write {
        at,
        words: words.clone(),
    };
    let (done, read) = run(async {
        let served = std::sync::Arc::new(std::sync::Mutex::new(Served::new(spec)));
        let device = std::sync::Arc::clone(&served);
        let echo = is_echoing(link);
        let answer = move |request: &[u8]| {
            let mut device = device.lock().expect("nobody else has it");
            let reply = device.take(request);
            assert!(
                device.is_done(),
                "a request of which something is left over"
            );
            match echo {
                true => [request, &reply].concat(),
                false => reply,
            }
        };
        let done = exchange(link, &write, chunk, answer.clone()).await;
        let read = exchange(link, &Order::Read { at, count }, chunk, answer).await;
        (done, read)
    });
    match done {
        Heard::Done => {}
        // No frame can do it, or the device has said so.
        Heard::Doubt(_) | Heard::Code(_) => return false,
        Heard::Words(words) => panic!("{words:?} for a write"),
    }
    match read {
        Heard::Words(found) => {
            assert_eq!(found, words, "{link:?} {at}");
            true
        }
        // More may be written than one frame reads.
        Heard::Doubt(_) | Heard::Code(_) => false,
        Heard::Done => panic!("done for a read"),
    }
}

/// The device's reply with bytes altered, left out, or put before it.
fn altered(link: &LinkSpec, spec: SimulatorSpec, order: &Order, chunk: usize, rest: &[u8]) {
    let mut served = Served::new(spec);
    let changes = rest.to_vec();
    let echo = is_echoing(link);
    run(exchange(link, order, chunk, move |request| {
        let mut reply = served.take(request);
        for change in changes.chunks_exact(3) {
            let at = usize::from(change[1]).min(reply.len());
            match (change[0] % 4, reply.get_mut(at)) {
                (0, _) => reply.insert(at, change[2]),
                (1, Some(_)) => drop(reply.remove(at)),
                (2, _) => reply.truncate(at),
                (_, Some(byte)) => *byte ^= change[2],
                _ => {}
            }
        }
        let own = if echo { request } else { &[] };
        [own, &reply].concat()
    }));
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime.expect("a runtime of one thread").block_on(future)
}

fn is_echoing(link: &LinkSpec) -> bool {
    match link {
        LinkSpec::ModbusRtu(link) => link.echo,
        LinkSpec::C24(link) => link.echo,
        LinkSpec::ModbusTcp(_) | LinkSpec::Mc(_) => false,
    }
}

fn modbus_tcp() -> LinkSpec {
    LinkSpec::ModbusTcp(ModbusTcp {
        host: "plc".into(),
        port: 502,
        unit: 1,
        answering_unit: None,
        timeout_ms: TIMEOUT_MS,
        read_registers_max: 125,
        reconnect_ms_min: 1,
        reconnect_ms_max: 1,
        heartbeat_ms: 1,
    })
}

fn way() -> Way {
    Way::Tcp {
        host: "line".into(),
        port: 1,
    }
}

fn modbus_rtu(echo: bool) -> LinkSpec {
    LinkSpec::ModbusRtu(ModbusRtu {
        way: way(),
        unit: 1,
        timeout_ms: TIMEOUT_MS,
        settle_ms: 1,
        turnaround_ms: 0,
        echo,
        read_registers_max: 125,
        reconnect_ms_min: 1,
        reconnect_ms_max: 1,
        heartbeat_ms: 1,
    })
}

fn rtu_device() -> SimulatorSpec {
    SimulatorSpec {
        rtu: Some(RtuProgram::default()),
        ..SimulatorSpec::default()
    }
}

fn mc(form: u8) -> (LinkSpec, SimulatorSpec) {
    let (frame, kind) = match form & 1 {
        0 => (Frame::E3, McFrameKind::E3),
        _ => (Frame::E4, McFrameKind::E4),
    };
    let (code, coded) = match form & 2 {
        0 => (Code::Binary, McCode::Binary),
        _ => (Code::Ascii, McCode::Ascii),
    };
    let link = LinkSpec::Mc(McLink {
        host: "plc".into(),
        port: 5007,
        transport: Transport::Tcp,
        frame,
        code,
        family: if form & 4 == 0 {
            Family::Q
        } else {
            Family::Fx5
        },
        route: Route::default(),
        timeout_ms: TIMEOUT_MS,
        read_words_max: 960,
        reconnect_ms_min: 1,
        reconnect_ms_max: 1,
        heartbeat_ms: 1,
    });
    let port = McProgram {
        frame: kind,
        code: coded,
        ..McProgram::default()
    };
    let spec = SimulatorSpec {
        mc: Some(port),
        ..SimulatorSpec::default()
    };
    (link, spec)
}

fn c_frame(form: u8) -> (LinkSpec, SimulatorSpec) {
    let (frame, kind) = match form & 3 {
        0 => (C24Frame::C4, C24FrameKind::C4),
        1 => (C24Frame::C3, C24FrameKind::C3),
        2 => (C24Frame::C2, C24FrameKind::C2),
        _ => (C24Frame::C1, C24FrameKind::C1),
    };
    let (format, number) = match (form >> 2 & 7, frame) {
        (0, _) => (C24Format::F1, 1),
        (1, _) => (C24Format::F2, 2),
        (2, _) => (C24Format::F3, 3),
        (3, _) | (_, C24Frame::C3 | C24Frame::C2 | C24Frame::C1) => (C24Format::F4, 4),
        (_, C24Frame::C4) => (C24Format::F5, 5),
    };
    let sum_check = form & 0x20 == 0;
    let link = LinkSpec::C24(C24Link {
        way: way(),
        frame,
        format,
        sum_check,
        family: Family::Q,
        route: C24Route {
            station: 1,
            ..C24Route::default()
        },
        timeout_ms: TIMEOUT_MS,
        settle_ms: 1,
        turnaround_ms: 0,
        echo: form & 0x40 != 0,
        read_words_max: 960,
        reconnect_ms_min: 1,
        reconnect_ms_max: 1,
        heartbeat_ms: 1,
    });
    let port = C24Program {
        frame: kind,
        format: number,
        sum_check,
        ..C24Program::default()
    };
    let spec = SimulatorSpec {
        c24: Some(port),
        ..SimulatorSpec::default()
    };
    (link, spec)
}
