//! Owns: reading how a machine is reached: protocol, address, times, and what one request may hold.
//! May call: reader; board (the names of serial ports); core types.
//! Never: take a MELSEC family for granted: it decides which output an address means (F062).

use super::problem::Dialect;
use super::reader::{Node, Table};
use crate::board::{BoardProfile, SerialPort};
use crate::core::c24::{C24Format, C24Frame, C24Link, C24Route};
use crate::core::melsec::{Code, Family, Frame, McLink, Route, Transport};
use crate::core::place::Notation;
use crate::core::serial::{ModbusRtu, Parity, SerialLine, Way};
use crate::core::spec::{LinkSpec, ModbusTcp};
use crate::core::spread;
use rust_decimal::prelude::ToPrimitive;
use std::net::Ipv4Addr;
use std::path::Path;

/// Longest period or wait on a link, in milliseconds.
pub const LINK_MS_MAX: u64 = 3_600_000;
/// Longest wait between two connections unless the file says otherwise, in milliseconds: shorter than what
/// waits for the device is usually valid. A device that refuses connections while it keeps a dead one's
/// slot wants more (F141).
pub const RECONNECT_MS_MAX_DEFAULT: u64 = 5_000;
/// Most registers in one read (MODBUS Application Protocol V1.1b3, 6.3).
pub const READ_REGISTERS_MAX: u16 = 125;
/// Most words in one read or write of MC protocol (SH-080008, 8.1).
pub const MC_WORDS_MAX: u16 = 960;

/// Words in one read over a serial module unless the file says otherwise, and most with 1C: a command waits
/// for the request that is under way, and at 19200 bits per second so many take about 0.1 s.
const C24_WORDS_DEFAULT: u16 = 64;
/// So many single bits take as long on a line as a word does.
const C24_BITS_A_WORD: u16 = 4;
/// Station numbers on one line (SH-080008, 5.3).
const C24_STATION_MAX: i128 = 31;

/// Longest path of a serial port.
const PATH_BYTES_MAX: usize = 4_096;
/// Least settle time unless the file says otherwise, in milliseconds.
pub(super) const SETTLE_MS_MIN_DEFAULT: u64 = 100;
const SERIAL_EXPECTED: &str = "the serial port: a name of the board profile such as \"com1\", or a path such as \"/dev/serial/by-id/…\"";

/// How much one request holds.
#[derive(Clone, Copy)]
pub(super) struct Reach {
    pub(super) read_words: u16,
    pub(super) read_bits: u32,
    pub(super) write_words: usize,
    pub(super) write_bits: usize,
    /// The code of the frames that write places apart, if it has any.
    pub(super) apart: Option<Code>,
}

impl Reach {
    /// Over `link`; over Modbus TCP as long as it is not known.
    pub(super) fn of(link: Option<&LinkSpec>) -> Self {
        match link {
            // MODBUS Application Protocol V1.1b3, 6.1, 6.11, 6.12.
            None => Self {
                read_words: READ_REGISTERS_MAX,
                read_bits: 2_000,
                write_words: 123,
                write_bits: 1_968,
                // No message about it while another is due.
                apart: Some(Code::Binary),
            },
            Some(LinkSpec::ModbusTcp(tcp)) => Self {
                read_words: tcp.read_registers_max,
                apart: None,
                ..Self::of(None)
            },
            Some(LinkSpec::ModbusRtu(rtu)) => Self {
                read_words: rtu.read_registers_max,
                apart: None,
                ..Self::of(None)
            },
            Some(spec @ LinkSpec::Mc(link)) => {
                let bits = mc_bits_max(link.code);
                Self {
                    read_words: link.read_words_max,
                    read_bits: bits.into(),
                    write_words: MC_WORDS_MAX.into(),
                    write_bits: bits.into(),
                    apart: spread::code(spec),
                }
            }
            Some(spec @ LinkSpec::C24(link)) => {
                // SH-080008, ACPU common commands: 256 bits in a read, 160 in a write.
                let (read_bits, write_bits) = match link.frame {
                    C24Frame::C1 => (256, 160),
                    _ => (
                        mc_bits_max(link.format.code()),
                        mc_bits_max(link.format.code()),
                    ),
                };
                let line_bits = C24_BITS_A_WORD * link.read_words_max;
                Self {
                    read_words: link.read_words_max,
                    read_bits: line_bits.min(read_bits).into(),
                    write_words: c24_words_max(link.frame).into(),
                    write_bits: write_bits.into(),
                    apart: spread::code(spec),
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Protocol {
    ModbusTcp,
    ModbusRtu,
    ModbusRtuOverTcp,
    Mc(Frame),
    C24(C24Frame),
}

const PROTOCOLS: [(&str, Protocol); 9] = [
    ("modbus-tcp", Protocol::ModbusTcp),
    ("modbus-rtu", Protocol::ModbusRtu),
    ("modbus-rtu-over-tcp", Protocol::ModbusRtuOverTcp),
    ("mc-3e", Protocol::Mc(Frame::E3)),
    ("mc-4e", Protocol::Mc(Frame::E4)),
    ("mc-4c", Protocol::C24(C24Frame::C4)),
    ("mc-3c", Protocol::C24(C24Frame::C3)),
    ("mc-2c", Protocol::C24(C24Frame::C2)),
    ("mc-1c", Protocol::C24(C24Frame::C1)),
];

/// Reads `[link]`, and tells the document how its addresses are written.
pub(super) fn link(root: &Table<'_>, board: Option<&BoardProfile>) -> Option<LinkSpec> {
    let table = root.need("link", "a table [link]")?.table()?;
    let expected = "\"modbus-tcp\", \"modbus-rtu\", \"modbus-rtu-over-tcp\", \"mc-3e\", \"mc-4e\", \"mc-4c\", \"mc-3c\", \
                    \"mc-2c\" or \"mc-1c\"";
    let protocol = table.need("protocol", expected)?;
    let link = match protocol.choice(&PROTOCOLS)? {
        Protocol::ModbusTcp => modbus_tcp(&table).map(LinkSpec::ModbusTcp),
        Protocol::ModbusRtu => {
            let line = serial_line(&table, board).map(Way::Serial);
            modbus_rtu(&table, line).map(LinkSpec::ModbusRtu)
        }
        Protocol::ModbusRtuOverTcp => {
            let place = host_and_port(&table, 4001);
            let way = place.map(|(host, port)| Way::Tcp { host, port });
            modbus_rtu(&table, way).map(LinkSpec::ModbusRtu)
        }
        Protocol::Mc(frame) => mc(&table, frame).map(LinkSpec::Mc),
        Protocol::C24(frame) => {
            let line = serial_line(&table, board).map(Way::Serial);
            c24(&table, frame, line).map(LinkSpec::C24)
        }
    };
    table.finish();
    link
}

fn modbus_tcp(table: &Table<'_>) -> Option<ModbusTcp> {
    let place = host_and_port(table, 502);
    let unit = table.need(
        "unit",
        "the unit id, an integer from 0 to 255 (255 for most devices on Ethernet)",
    );
    let unit = unit.and_then(|node| node.integer(0, 255));
    let answering = table.get("answering_unit").and_then(|n| n.integer(0, 255));
    let times = times(table);
    let registers = number(table, "read_registers_max", 1, READ_REGISTERS_MAX.into());
    let (host, port) = place?;
    Some(ModbusTcp {
        host,
        port,
        unit: unit?.to_u8()?,
        answering_unit: answering.and_then(|unit| unit.to_u8()),
        timeout_ms: times.timeout_ms,
        read_registers_max: registers
            .and_then(|n| n.to_u16())
            .unwrap_or(READ_REGISTERS_MAX),
        reconnect_ms_min: times.reconnect_ms_min,
        reconnect_ms_max: times.reconnect_ms_max,
        heartbeat_ms: times.heartbeat_ms,
    })
}

/// A port of this computer and how its line is driven.
fn serial_line(table: &Table<'_>, board: Option<&BoardProfile>) -> Option<SerialLine> {
    let path = table.need("serial", SERIAL_EXPECTED);
    let path = path.and_then(|node| serial_path(&node, board));
    let baud = table.need("baud", "the line's speed in bits per second, such as 9600");
    let baud = baud.and_then(|node| node.integer(300, 4_000_000));
    let parities = [
        ("none", Parity::None),
        ("even", Parity::Even),
        ("odd", Parity::Odd),
    ];
    let parity = table.need("parity", "\"none\", \"even\" or \"odd\"");
    let parity = parity.and_then(|node| node.choice(&parities));
    let small = |key, min, max, default: u8| {
        let number = number(table, key, min, max);
        number.and_then(|n| n.to_u8()).unwrap_or(default)
    };
    let (data_bits, stop_bits) = (small("data_bits", 7, 8, 8), small("stop_bits", 1, 2, 1));
    let (path, rs485) = path?;
    Some(SerialLine {
        path,
        baud: baud?.to_u32()?,
        data_bits,
        parity: parity?,
        stop_bits,
        rs485,
    })
}

/// The device file, and whether its driver must be told to switch an RS-485 line.
fn serial_path(node: &Node<'_>, board: Option<&BoardProfile>) -> Option<(String, bool)> {
    let text = node.text()?;
    if text.starts_with('/') && text.len() <= PATH_BYTES_MAX && !text.contains('\0') {
        let known = board.and_then(|board| {
            let mut ports = board.serial.values();
            ports.find(|port| port.device == Path::new(text))
        });
        let rs485 = known.is_some_and(SerialPort::kernel_rs485);
        return Some((text.to_owned(), rs485));
    }
    // A profile that could not be read has been reported; its names are not known.
    let board = board?;
    if let Some(port) = board.serial.get(text) {
        return Some((port.device.display().to_string(), port.kernel_rs485()));
    }
    let names: Vec<&str> = board.serial.keys().map(String::as_str).collect();
    let names = match names.as_slice() {
        [] => format!("board {:?} names no serial port: write a path", board.name),
        names => format!("board {:?} has {}", board.name, names.join(", ")),
    };
    node.wrong(SERIAL_EXPECTED, Some(names))
}

fn modbus_rtu(table: &Table<'_>, way: Option<Way>) -> Option<ModbusRtu> {
    let expected = "the unit, an integer from 1 to 247 (0: all on the line, which nobody answers)";
    let unit = table.need("unit", expected);
    let unit = unit.and_then(|node| node.integer(0, 247));
    let times = times(table);
    let silences = silences(table, times.timeout_ms);
    let registers = number(table, "read_registers_max", 1, READ_REGISTERS_MAX.into());
    if table
        .get("data_bits")
        .is_some_and(|node| node.as_integer() == Some(7))
    {
        let node = table.get("data_bits")?;
        return node.wrong("8: RTU frames are of whole bytes", None);
    }
    Some(ModbusRtu {
        way: way?,
        unit: unit?.to_u8()?,
        timeout_ms: times.timeout_ms,
        settle_ms: silences.settle_ms,
        turnaround_ms: silences.turnaround_ms,
        echo: silences.echo,
        read_registers_max: registers
            .and_then(|n| n.to_u16())
            .unwrap_or(READ_REGISTERS_MAX),
        reconnect_ms_min: times.reconnect_ms_min,
        reconnect_ms_max: times.reconnect_ms_max,
        heartbeat_ms: times.heartbeat_ms,
    })
}

/// What a shared line needs between requests.
struct Silences {
    settle_ms: u64,
    turnaround_ms: u64,
    echo: bool,
}

fn silences(table: &Table<'_>, timeout_ms: u64) -> Silences {
    let ms = |key: &'static str, min: u64, default: u64| {
        let node = table.get(key);
        let given = node.and_then(|node| node.duration(min, LINK_MS_MAX));
        given.unwrap_or(default)
    };
    let echo = table.get("echo").and_then(|node| node.boolean());
    Silences {
        settle_ms: ms("settle", 10, timeout_ms.max(SETTLE_MS_MIN_DEFAULT)),
        turnaround_ms: ms("turnaround", 0, 0),
        echo: echo.unwrap_or(false),
    }
}

fn family(table: &Table<'_>) -> Option<Family> {
    let family = table.need(
        "family",
        "\"q\", \"l\", \"iqr\" or \"fx5\": it decides how X and Y are numbered, and has no default",
    );
    family.and_then(|node| node.choice(&Family::NAMES))
}

/// The format, as the module's parameters have it: it has no default, since a module in another does not answer.
fn c24_format(table: &Table<'_>, frame: C24Frame) -> Option<C24Format> {
    let most = match frame {
        C24Frame::C4 => 5,
        _ => 4,
    };
    let expected = match frame {
        C24Frame::C4 => "the format, an integer from 1 to 5 as set in the module's parameters",
        _ => "the format, an integer from 1 to 4 as set in the module's parameters",
    };
    let format = table.need("format", expected)?.integer(1, most)?;
    Some(match format {
        1 => C24Format::F1,
        2 => C24Format::F2,
        3 => C24Format::F3,
        4 => C24Format::F4,
        _ => C24Format::F5,
    })
}

/// What of a route the frame carries.
fn c24_route(table: &Table<'_>, frame: C24Frame) -> C24Route {
    let own = C24Route::default();
    let byte = |key, max: i128, default: u8| {
        let number = number(table, key, 0, max);
        number.and_then(|n| n.to_u8()).unwrap_or(default)
    };
    let mut route = C24Route {
        station: byte("station", C24_STATION_MAX, own.station),
        ..own
    };
    if matches!(frame, C24Frame::C4 | C24Frame::C3) {
        route.network = byte("network", 255, own.network);
    }
    if frame != C24Frame::C2 {
        route.pc = byte("pc", 255, own.pc);
    }
    if frame != C24Frame::C1 {
        route.self_station = byte("self_station", C24_STATION_MAX, own.self_station);
    }
    if frame == C24Frame::C4 {
        let io = number(table, "io", 0, 0xFFFF);
        route.io = io.and_then(|n| n.to_u16()).unwrap_or(own.io);
        route.module_station = byte("module_station", 255, own.module_station);
    }
    route
}

fn c24(table: &Table<'_>, frame: C24Frame, way: Option<Way>) -> Option<C24Link> {
    let family = family(table);
    let format = c24_format(table, frame);
    let sum_check = table.get("sum_check").and_then(|node| node.boolean());
    let route = c24_route(table, frame);
    let times = times(table);
    let silences = silences(table, times.timeout_ms);
    let most = c24_words_max(frame);
    let words = number(table, "read_words_max", 1, most.into());
    // What is still missing is the one thing to say.
    table.doc.dialect.set(Dialect::Melsec(Notation {
        family: family.unwrap_or(Family::Q),
        code: format.map_or(Code::Binary, C24Format::code),
        one_c: frame == C24Frame::C1,
    }));
    if let (Some(C24Format::F5), Some(node)) = (format, table.get("data_bits"))
        && node.as_integer() == Some(7)
    {
        return node.wrong("8: format 5 is binary", None);
    }
    Some(C24Link {
        way: way?,
        frame,
        format: format?,
        sum_check: sum_check.unwrap_or(true),
        family: family?,
        route,
        timeout_ms: times.timeout_ms,
        settle_ms: silences.settle_ms,
        turnaround_ms: silences.turnaround_ms,
        echo: silences.echo,
        read_words_max: words.and_then(|n| n.to_u16()).unwrap_or(C24_WORDS_DEFAULT),
        reconnect_ms_min: times.reconnect_ms_min,
        reconnect_ms_max: times.reconnect_ms_max,
        heartbeat_ms: times.heartbeat_ms,
    })
}

/// Most words in one request over a serial module.
fn c24_words_max(frame: C24Frame) -> u16 {
    match frame {
        C24Frame::C1 => C24_WORDS_DEFAULT,
        _ => MC_WORDS_MAX,
    }
}

fn mc_bits_max(code: Code) -> u16 {
    match code {
        Code::Binary => 7_168,
        Code::Ascii => 3_584,
    }
}

fn mc(table: &Table<'_>, frame: Frame) -> Option<McLink> {
    let place = host_and_port(table, 5007);
    let family = family(table);
    let codes = [("binary", Code::Binary), ("ascii", Code::Ascii)];
    let code = table.get("code").and_then(|node| node.choice(&codes));
    let code = code.unwrap_or(Code::Binary);
    let transports = [("tcp", Transport::Tcp), ("udp", Transport::Udp)];
    let transport = table.get("transport");
    let transport = transport.and_then(|node| node.choice(&transports));
    let own = Route::default();
    let byte = |key, default: u8| {
        let number = number(table, key, 0, 255);
        number.and_then(|n| n.to_u8()).unwrap_or(default)
    };
    let route = Route {
        network: byte("network", own.network),
        pc: byte("pc", own.pc),
        io: number(table, "io", 0, 0xFFFF)
            .and_then(|n| n.to_u16())
            .unwrap_or(own.io),
        station: byte("station", own.station),
    };
    let times = times(table);
    let words = number(table, "read_words_max", 1, MC_WORDS_MAX.into());
    // With a family that is still missing, its absence is the one thing to say.
    table.doc.dialect.set(Dialect::Melsec(Notation {
        family: family.unwrap_or(Family::Q),
        code,
        one_c: false,
    }));
    let (host, port) = place?;
    Some(McLink {
        host,
        port,
        transport: transport.unwrap_or(Transport::Tcp),
        frame,
        code,
        family: family?,
        route,
        timeout_ms: times.timeout_ms,
        read_words_max: words.and_then(|n| n.to_u16()).unwrap_or(MC_WORDS_MAX),
        reconnect_ms_min: times.reconnect_ms_min,
        reconnect_ms_max: times.reconnect_ms_max,
        heartbeat_ms: times.heartbeat_ms,
    })
}

fn number(table: &Table<'_>, key: &'static str, min: i128, max: i128) -> Option<i128> {
    table.get(key).and_then(|node| node.integer(min, max))
}

struct Times {
    timeout_ms: u64,
    reconnect_ms_min: u64,
    reconnect_ms_max: u64,
    heartbeat_ms: u64,
}

fn times(table: &Table<'_>) -> Times {
    let ms = |key: &'static str, min: u64, default: u64| {
        let node = table.get(key);
        node.and_then(|node| node.duration(min, LINK_MS_MAX))
            .unwrap_or(default)
    };
    let reconnect_ms_min = ms("reconnect_min", 10, 500);
    let times = Times {
        timeout_ms: ms("timeout", 10, 1_000),
        reconnect_ms_min,
        reconnect_ms_max: ms(
            "reconnect_max",
            10,
            RECONNECT_MS_MAX_DEFAULT.max(reconnect_ms_min),
        ),
        heartbeat_ms: ms("heartbeat", 100, 10_000),
    };
    if times.reconnect_ms_max < times.reconnect_ms_min
        && let Some(node) = table.get("reconnect_max")
    {
        node.wrong::<()>("at least reconnect_min", None);
    }
    times
}

fn host_and_port(table: &Table<'_>, usual: u16) -> Option<(String, u16)> {
    let expected = format!("host and port, such as \"10.0.0.5:{usual}\"");
    let node = &table.need("address", &expected)?;
    let text = node.text()?;
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.starts_with('[') => (host, port),
        _ => {
            let mend = format!("write {:?}", format!("{text}:{usual}"));
            return node.wrong(expected, Some(mend));
        }
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let fits = !bare.is_empty()
        && bare.len() <= 253
        && bare
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%'));
    // A name's last label is never all digits (RFC 1123, 2.1): this was meant as an address.
    let last = bare.rsplit('.').next().unwrap_or_default();
    let numeric = !last.is_empty() && last.chars().all(|c| c.is_ascii_digit());
    if fits && numeric && !bare.contains(':') && bare.parse::<Ipv4Addr>().is_err() {
        let mend = "an IPv4 address is four numbers from 0 to 255, without leading zeros";
        return node.wrong(expected, Some(mend.to_owned()));
    }
    match port.parse::<u16>() {
        Ok(port) if fits && port != 0 => Some((bare.to_owned(), port)),
        _ => node.wrong(expected, None),
    }
}
