//! Owns: what a machine is, as checked data: link, gate, tags, event sources, command policy rows.
//! May call: value types of this room.
//! Never: parse a file (config does), reach a device (plc does), or hold a value that `holdfast check`
//! would refuse.

use super::c24::C24Link;
use super::melsec::{Device, McLink, NUMBER_MAX, Remote};
use super::serial::{ModbusRtu, Way};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// One PLC and its configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineSpec {
    /// Also the `source` of its events (EVT-02).
    pub name: String,
    /// The gateway that alone may command it (AGT-01).
    pub owner: String,
    /// Blocks every write to the device (OPS-04).
    pub read_only: bool,
    /// How to reach it.
    pub link: LinkSpec,
    /// What is read after every reconnection, before any command (POL-06).
    pub gate: GateSpec,
    /// Values that are polled and shown.
    pub tags: Vec<Tag>,
    /// Groups of tags that must be read as one (EVT-06).
    pub groups: Vec<TagGroup>,
    /// Where its events come from (EVT-03).
    pub events: Vec<EventSource>,
    /// The command policy table (POL).
    pub commands: Vec<Row>,
    /// The device's idempotency mailbox, if it has one.
    pub mailbox: Option<MailboxSpec>,
}

impl MachineSpec {
    /// The policy row of `command`.
    #[must_use]
    pub fn row(&self, command: &str) -> Option<&Row> {
        self.commands.iter().find(|row| row.name == command)
    }
}

/// How to reach a device.
#[derive(Clone, Debug, PartialEq)]
pub enum LinkSpec {
    /// Modbus TCP (MODBUS Messaging on TCP/IP Implementation Guide V1.0b).
    ModbusTcp(ModbusTcp),
    /// Modbus RTU (MODBUS over Serial Line V1.02), on a port or through a serial device server.
    ModbusRtu(ModbusRtu),
    /// MC protocol over Ethernet (SH-080008).
    Mc(McLink),
    /// MC protocol over a serial module (SH-080008, C frames).
    C24(C24Link),
}

impl LinkSpec {
    /// Host and port, or the serial port, for people.
    #[must_use]
    pub fn address(&self) -> String {
        match self {
            Self::ModbusTcp(link) => format!("{}:{}", link.host, link.port),
            Self::ModbusRtu(link) => link.way.address(),
            Self::Mc(link) => format!("{}:{}", link.host, link.port),
            Self::C24(link) => link.way.address(),
        }
    }

    /// The unit or station that is asked.
    #[must_use]
    pub fn unit(&self) -> u8 {
        match self {
            Self::ModbusTcp(link) => link.unit,
            Self::ModbusRtu(link) => link.unit,
            Self::Mc(link) => link.route.station,
            Self::C24(link) => link.route.station,
        }
    }

    /// Longest wait for a reply, in milliseconds.
    #[must_use]
    pub fn timeout_ms(&self) -> u64 {
        match self {
            Self::ModbusTcp(link) => link.timeout_ms,
            Self::ModbusRtu(link) => link.timeout_ms,
            Self::Mc(link) => link.timeout_ms,
            Self::C24(link) => link.timeout_ms,
        }
    }

    /// First and longest wait before a reconnection, in milliseconds.
    #[must_use]
    pub fn reconnect_ms(&self) -> (u64, u64) {
        match self {
            Self::ModbusTcp(link) => (link.reconnect_ms_min, link.reconnect_ms_max),
            Self::ModbusRtu(link) => (link.reconnect_ms_min, link.reconnect_ms_max),
            Self::Mc(link) => (link.reconnect_ms_min, link.reconnect_ms_max),
            Self::C24(link) => (link.reconnect_ms_min, link.reconnect_ms_max),
        }
    }

    /// Longest time without a reply before one is asked for, in milliseconds.
    #[must_use]
    pub fn heartbeat_ms(&self) -> u64 {
        match self {
            Self::ModbusTcp(link) => link.heartbeat_ms,
            Self::ModbusRtu(link) => link.heartbeat_ms,
            Self::Mc(link) => link.heartbeat_ms,
            Self::C24(link) => link.heartbeat_ms,
        }
    }

    /// Whether nothing behind it ever answers.
    #[must_use]
    pub fn is_broadcast(&self) -> bool {
        matches!(self, Self::ModbusRtu(link) if link.is_broadcast())
    }

    /// The line that it may share with others; nothing where the connection is its own.
    #[must_use]
    pub fn on_line(&self) -> Option<OnLine<'_>> {
        match self {
            Self::ModbusTcp(_) | Self::Mc(_) => None,
            Self::ModbusRtu(link) => Some(OnLine {
                way: &link.way,
                settle_ms: link.settle_ms,
                turnaround_ms: link.turnaround_ms,
                echo: link.echo,
            }),
            Self::C24(link) => Some(OnLine {
                way: &link.way,
                settle_ms: link.settle_ms,
                turnaround_ms: link.turnaround_ms,
                echo: link.echo,
            }),
        }
    }
}

/// How a machine is on a shared line, whatever it speaks.
#[derive(Clone, Copy, Debug)]
pub struct OnLine<'a> {
    /// See [`Way`].
    pub way: &'a Way,
    /// Silence after any doubt, in milliseconds.
    pub settle_ms: u64,
    /// Silence before a request, in milliseconds.
    pub turnaround_ms: u64,
    /// The line gives back what is sent on it.
    pub echo: bool,
}

/// A Modbus TCP server.
#[derive(Clone, Debug, PartialEq)]
pub struct ModbusTcp {
    /// Host name or IP address.
    pub host: String,
    /// TCP port, usually 502.
    pub port: u16,
    /// Unit id, 0 to 255.
    pub unit: u8,
    /// Another unit id that this device is known to answer with; `None`: only `unit` is accepted.
    pub answering_unit: Option<u8>,
    /// Longest wait for a reply, and for a connection to open, in milliseconds.
    pub timeout_ms: u64,
    /// Most registers in one read, 1 to 125 (MODBUS Application Protocol V1.1b3, 6.3).
    pub read_registers_max: u16,
    /// First wait before a reconnection, in milliseconds; doubles, with full jitter.
    pub reconnect_ms_min: u64,
    /// Longest wait before a reconnection, in milliseconds.
    pub reconnect_ms_max: u64,
    /// A read is made at least this often, in milliseconds, so that a dead connection is found by it
    /// and not by a command.
    pub heartbeat_ms: u64,
}

/// A place in a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Address {
    /// `area:offset`, zero-based.
    Modbus {
        /// The table.
        area: ModbusArea,
        /// 0 to 65535.
        offset: u16,
    },
    /// Such as D100.
    Melsec {
        /// The device, in the family's way of writing.
        device: Device,
        /// 0 to [`NUMBER_MAX`].
        number: u32,
    },
}

impl Address {
    /// Where its neighbours stand.
    #[must_use]
    pub fn area(&self) -> Area {
        match *self {
            Self::Modbus { area, .. } => Area::Modbus(area),
            Self::Melsec { device, .. } => Area::Melsec(device),
        }
    }

    /// Its number among them.
    #[must_use]
    pub fn number(&self) -> u32 {
        match *self {
            Self::Modbus { offset, .. } => offset.into(),
            Self::Melsec { number, .. } => number,
        }
    }

    /// The place that stands `count` further; `None` past the last one.
    #[must_use]
    pub fn plus(&self, count: u32) -> Option<Self> {
        self.area().at(self.number().checked_add(count)?)
    }
}

/// Places that stand one after another and can be read together: a Modbus table, a MELSEC device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Area {
    /// A table.
    Modbus(ModbusArea),
    /// A device.
    Melsec(Device),
}

impl Area {
    /// The name used in configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Modbus(area) => area.name(),
            Self::Melsec(device) => device.kind.name(),
        }
    }
    /// Whether it holds single bits.
    #[must_use]
    pub fn is_bits(self) -> bool {
        match self {
            Self::Modbus(area) => area.is_bits(),
            Self::Melsec(device) => device.kind.is_bits(),
        }
    }
    /// Whether the protocol can write to it.
    #[must_use]
    pub fn is_writable(self) -> bool {
        match self {
            Self::Modbus(area) => area.is_writable(),
            Self::Melsec(_) => true,
        }
    }
    /// Which word of a wider value stands first, unless the configuration says otherwise.
    #[must_use]
    pub fn word_order(self) -> WordOrder {
        match self {
            Self::Modbus(_) => WordOrder::HighFirst,
            Self::Melsec(_) => WordOrder::LowFirst,
        }
    }
    /// The number of the last place.
    #[must_use]
    pub fn last(self) -> u32 {
        match self {
            Self::Modbus(_) => u16::MAX.into(),
            Self::Melsec(_) => NUMBER_MAX,
        }
    }
    /// The place with this number, if there is one.
    #[must_use]
    pub fn at(self, number: u32) -> Option<Address> {
        (number <= self.last()).then_some(())?;
        Some(match self {
            Self::Modbus(area) => Address::Modbus {
                area,
                offset: u16::try_from(number).ok()?,
            },
            Self::Melsec(device) => Address::Melsec { device, number },
        })
    }
    /// `count` places from `start` on, for people.
    #[must_use]
    pub fn range(self, start: u32, count: u32) -> String {
        let end = start.saturating_add(count.saturating_sub(1));
        match (self, count) {
            (Self::Modbus(area), 0 | 1) => format!("{}:{start}", area.name()),
            (Self::Modbus(area), _) => format!("{}:{start}..{end}", area.name()),
            (Self::Melsec(device), 0 | 1) => device.place(start),
            (Self::Melsec(device), _) => {
                format!("{}..{}", device.place(start), device.place(end))
            }
        }
    }
}

/// The four Modbus tables (MODBUS Application Protocol V1.1b3, 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ModbusArea {
    /// Single bits, read and write.
    Coil,
    /// Single bits, read only.
    Discrete,
    /// 16-bit registers, read only.
    Input,
    /// 16-bit registers, read and write.
    Holding,
}

impl ModbusArea {
    /// The name used in configuration: `coil`, `discrete`, `input`, `holding`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Coil => "coil",
            Self::Discrete => "discrete",
            Self::Input => "input",
            Self::Holding => "holding",
        }
    }
    /// Whether the table holds single bits.
    #[must_use]
    pub fn is_bits(self) -> bool {
        matches!(self, Self::Coil | Self::Discrete)
    }
    /// Whether the protocol can write to the table.
    #[must_use]
    pub fn is_writable(self) -> bool {
        matches!(self, Self::Coil | Self::Holding)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Modbus { area, offset } => write!(f, "{}:{offset}", area.name()),
            Self::Melsec { device, number } => f.write_str(&device.place(*number)),
        }
    }
}

/// How bits and registers make a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataType {
    /// One bit, or one register that is 0 or not.
    Bool,
    /// 16 bits, signed.
    I16,
    /// 16 bits, unsigned.
    U16,
    /// 32 bits, signed.
    I32,
    /// 32 bits, unsigned.
    U32,
    /// 64 bits, signed.
    I64,
    /// 64 bits, unsigned.
    U64,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// Text of this many bytes, two to a register, first in the high byte, ended by NUL.
    Text(u16),
}

impl DataType {
    /// How many 16-bit registers a value takes.
    #[must_use]
    pub fn registers(self) -> u16 {
        match self {
            Self::Bool | Self::I16 | Self::U16 => 1,
            Self::I32 | Self::U32 | Self::F32 => 2,
            Self::I64 | Self::U64 | Self::F64 => 4,
            Self::Text(bytes) => bytes.div_ceil(2),
        }
    }
    /// The name used in configuration.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Bool => "bool".into(),
            Self::I16 => "i16".into(),
            Self::U16 => "u16".into(),
            Self::I32 => "i32".into(),
            Self::U32 => "u32".into(),
            Self::I64 => "i64".into(),
            Self::U64 => "u64".into(),
            Self::F32 => "f32".into(),
            Self::F64 => "f64".into(),
            Self::Text(bytes) => format!("string({bytes})"),
        }
    }
}

/// Which register of a wider value stands first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum WordOrder {
    /// The most significant register has the lowest address.
    #[default]
    HighFirst,
    /// The least significant register has the lowest address.
    LowFirst,
}

/// One value in a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scalar {
    /// Where it begins.
    pub address: Address,
    /// How it is coded.
    pub data_type: DataType,
    /// For types of more than one register.
    pub word_order: WordOrder,
}

/// What was read, before any unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// A bit.
    Bool(bool),
    /// Any signed or unsigned integer of up to 64 bits.
    Int(i128),
    /// A floating-point number.
    Float(f64),
    /// Text.
    Text(String),
}

impl Value {
    /// The value as a whole number, if it is one; a bit counts as 0 or 1.
    #[must_use]
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Self::Bool(bit) => Some(i128::from(*bit)),
            Self::Int(number) => Some(*number),
            Self::Float(_) | Self::Text(_) => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(bit) => bit.fmt(f),
            Self::Int(number) => number.fmt(f),
            Self::Float(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// OPC quality of a value (EVT-06).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    /// Read, and inside its cycle.
    Good,
    /// Read, but something about it is in doubt.
    Uncertain,
    /// Not read: an error, a "no value" code, a configuration mismatch.
    Bad,
    /// The last good value, too old to be called good.
    Stale,
}

/// A polled value.
#[derive(Clone, Debug, PartialEq)]
pub struct Tag {
    /// Unique in the machine.
    pub name: String,
    /// Where and how.
    pub at: Scalar,
    /// Its unit, shown beside it.
    pub unit: Option<String>,
    /// How often it is read, in milliseconds.
    pub poll_ms: u64,
    /// Raw values by which the device says "no value" (F045).
    pub no_value: Vec<Value>,
    /// The [`TagGroup`] it is read with.
    pub group: Option<String>,
}

/// Tags that mean something only together: read in one request, or bracketed by a guard value that
/// must be the same before and after (EVT-06, F051).
#[derive(Clone, Debug, PartialEq)]
pub struct TagGroup {
    /// Unique in the machine.
    pub name: String,
    /// A version counter or heartbeat that the device changes with the group, if one request cannot
    /// hold it all.
    pub guard: Option<Scalar>,
}

/// What happens to events at a full journal (FWD-04).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventClass {
    /// Never dropped: no longer taken from the device.
    Business,
    /// The oldest are dropped, and one event says which.
    Telemetry,
}

/// Where events of one type come from (EVT-03).
#[derive(Clone, Debug, PartialEq)]
pub struct EventSource {
    /// Such as `piece.good`.
    pub event_type: String,
    /// See [`EventClass`].
    pub class: EventClass,
    /// How it is watched.
    pub kind: EventKind,
}

/// The ways to watch a device.
#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    /// An event whenever the value, or its quality, changes by more than the deadband.
    OnChange {
        /// The value.
        at: Scalar,
        /// Its unit.
        unit: Option<String>,
        /// A numeric change of this much or less is none; 0 for "any change".
        deadband: f64,
        /// Raw values by which the device says "no value" (F045).
        no_value: Vec<Value>,
        /// How often it is read, in milliseconds.
        poll_ms: u64,
    },
    /// One event whenever the device's count is higher than it was, with the difference as its quantity.
    Counter(CounterSpec),
    /// One event for each item that the device presents and holds until it is acknowledged.
    Handshake(HandshakeSpec),
    /// One event for each entry of a ring buffer in the device.
    Ring(RingSpec),
}

impl EventKind {
    /// The name used in configuration.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::OnChange { .. } => "on_change",
            Self::Counter(_) => "counter",
            Self::Handshake(_) => "handshake",
            Self::Ring(_) => "ring",
        }
    }
    /// How often it is looked at, in milliseconds.
    #[must_use]
    pub fn poll_ms(&self) -> u64 {
        match self {
            Self::OnChange { poll_ms, .. } => *poll_ms,
            Self::Counter(counter) => counter.poll_ms,
            Self::Handshake(handshake) => handshake.poll_ms,
            Self::Ring(ring) => ring.poll_ms,
        }
    }
    /// The place that is read first.
    #[must_use]
    pub fn first_place(&self) -> Scalar {
        match self {
            Self::OnChange { at, .. } => *at,
            Self::Counter(counter) => counter.at,
            Self::Handshake(handshake) => handshake.ready,
            Self::Ring(ring) => ring.head,
        }
    }
}

/// A count that the device keeps, and that only grows, until it wraps or the device is reset.
#[derive(Clone, Debug, PartialEq)]
pub struct CounterSpec {
    /// The count: u16, u32 or u64.
    pub at: Scalar,
    /// What is counted.
    pub unit: Option<String>,
    /// The highest count; 0 comes after it.
    pub wraps_after: u64,
    /// What a reset device begins at.
    pub reset_to: u64,
    /// The most that it can grow in one cycle; `None`: not stated, and a wrap is told from a reset by a guess.
    pub max_step: Option<u64>,
    /// How often it is read, in milliseconds.
    pub poll_ms: u64,
}

/// How a device numbers its items: `first` to `last`, then `first` again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    /// The least number, also that of a reset device's first item.
    pub first: u32,
    /// The highest.
    pub last: u32,
}

/// A named value of an item or an entry.
#[derive(Clone, Debug, PartialEq)]
pub struct DataPoint {
    /// Unique in the event.
    pub name: String,
    /// Where it stands.
    pub at: Scalar,
    /// Its unit.
    pub unit: Option<String>,
}

/// Ready bit, item number, data, acknowledgement.
#[derive(Clone, Debug, PartialEq)]
pub struct HandshakeSpec {
    /// Set by the device when item and data stand; they stand until the acknowledgement.
    pub ready: Scalar,
    /// Set by the gateway once the item's event is durable; the device then clears `ready`, the gateway this.
    pub ack: Scalar,
    /// The device's own number of the item: u16 or u32.
    pub item: Scalar,
    /// How it numbers.
    pub numbering: Numbering,
    /// What belongs to the item.
    pub data: Vec<DataPoint>,
    /// How often it is looked at, in milliseconds.
    pub poll_ms: u64,
}

/// A ring buffer in the device: entry n stands in slot n mod `entries`, its number in its first two words.
#[derive(Clone, Debug, PartialEq)]
pub struct RingSpec {
    /// The number of the newest entry (u32).
    pub head: Scalar,
    /// The first word of slot 0.
    pub base: Address,
    /// How many slots.
    pub entries: u16,
    /// How many words an entry takes, its number included.
    pub words: u16,
    /// How entries are numbered.
    pub numbering: Numbering,
    /// Whether the first contact takes what the ring holds already, or only what comes later.
    pub from_oldest: bool,
    /// What the words mean, each from the entry's word of that number on (its address means nothing); without any,
    /// an event carries the words.
    pub data: Vec<(u16, DataPoint)>,
    /// How often the head is read, in milliseconds.
    pub poll_ms: u64,
}

/// What is read after every reconnection and kept fresh, before any command (POL-06).
#[derive(Clone, Debug, PartialEq, Default)]
pub struct GateSpec {
    /// Says which device this is.
    pub identity: Option<IdentityCheck>,
    /// The device's configuration version.
    pub config_version: Option<Scalar>,
    /// The PLC's mode.
    pub mode: Option<ModeCheck>,
    /// Conditions that must hold.
    pub interlocks: Vec<Interlock>,
    /// A gate reading older than this, in milliseconds, is read again before a command is sent.
    pub age_ms_max: u64,
}

/// `value at == equals`, or this is another device or another program.
#[derive(Clone, Debug, PartialEq)]
pub struct IdentityCheck {
    /// Where the fingerprint stands.
    pub at: Scalar,
    /// What it must be.
    pub equals: Value,
}

/// The mode must be one of `allowed`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModeCheck {
    /// Where the mode stands.
    pub at: Scalar,
    /// Modes in which commands may be sent.
    pub allowed: Vec<i64>,
}

/// A named condition.
#[derive(Clone, Debug, PartialEq)]
pub struct Interlock {
    /// Such as `door closed`.
    pub name: String,
    /// Where it stands.
    pub at: Scalar,
    /// What it must be.
    pub equals: Value,
}

/// Where the two blocks of the mailbox stand (layout: `docs/mailbox.md`).
#[derive(Clone, Debug, PartialEq)]
pub struct MailboxSpec {
    /// First register of the gateway's block (19 words).
    pub command: Address,
    /// First register of the PLC's block (33 words).
    pub status: Address,
    /// Which word of a 32-bit value stands first.
    pub word_order: WordOrder,
}

/// What kind of thing a command does (POL-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A reading that can be taken again.
    Query,
    /// A target value.
    AbsoluteSet,
    /// Increment, eject one, start a cycle.
    RelativeAction,
    /// Start, stop, remote RUN/STOP.
    ModeChange,
    /// A recipe.
    RecipeWrite,
}

impl Class {
    /// The name used in configuration and in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::AbsoluteSet => "absolute_set",
            Self::RelativeAction => "relative_action",
            Self::ModeChange => "mode_change",
            Self::RecipeWrite => "recipe_write",
        }
    }
    /// Whether the device may change by it.
    #[must_use]
    pub fn has_side_effect(self) -> bool {
        !matches!(self, Self::Query)
    }
}

/// Who may replace an operation that still waits (POL-05).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplaceRule {
    /// Nobody.
    Never,
    /// The one who submitted it.
    SameOperator,
}

/// What a restart does to a validity that cannot be proven (TIME-04).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRestart {
    /// It is over.
    Expire,
    /// A person decides.
    Hold,
}

/// What proves that a command was done (POL-10).
#[derive(Clone, Debug, PartialEq)]
pub enum Completion {
    /// A matched write reply.
    Reply,
    /// The mailbox's record.
    Mailbox,
    /// The device puts the request id into registers that are watched.
    Event(DoneSpec),
    /// The device can be asked for the last request id it finished.
    Query(DoneSpec),
    /// Nothing does: an accepted command ends as unknown at its completion timeout (ST-04).
    None,
}

impl Completion {
    /// The name used in configuration.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Reply => "reply",
            Self::Mailbox => "mailbox",
            Self::Event(_) => "event",
            Self::Query(_) => "query",
            Self::None => "none",
        }
    }
}

/// Where a device without a mailbox says what it finished last.
#[derive(Clone, Debug, PartialEq)]
pub struct DoneSpec {
    /// The request id (u32) it finished.
    pub id: Scalar,
    /// Its result: 0 is done, anything else the device's failure code. Read with the id in one request.
    pub result: Option<Scalar>,
}

/// How an unknown outcome is looked into (VER-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Read the mailbox.
    Mailbox,
    /// Read the [`DoneSpec`] registers.
    ResultQuery,
    /// Watch the [`DoneSpec`] registers.
    Event,
    /// Read the value back: a finding, never a proof (VER-02).
    Readback,
    /// A person.
    Manual,
}

impl Verify {
    /// The name used in configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mailbox => "mailbox",
            Self::ResultQuery => "result_query",
            Self::Event => "event",
            Self::Readback => "readback",
            Self::Manual => "manual",
        }
    }
}

/// What is done at the device.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Read these, in one request where the protocol allows it.
    Read {
        /// Name and place of each value.
        points: Vec<(String, Scalar)>,
    },
    /// Write the arguments, in their order, from here on, in one frame (POL-11).
    Write {
        /// Where the first argument goes.
        start: Address,
        /// The request id (u32) follows the arguments, so that the device can report it.
        request_id: bool,
    },
    /// Write each argument to a place of its own, all of them in one frame (POL-11).
    Scatter {
        /// In the order of the arguments.
        places: Vec<Address>,
        /// Where the request id (u32, in the last argument's word order) goes, so that the device can report it.
        request_id: Option<Address>,
    },
    /// Hand the opcode and the arguments to the mailbox.
    Mailbox {
        /// The machine's number for it, 1 to 65535.
        opcode: u16,
    },
    /// Tell the CPU itself (MELSEC).
    Remote {
        /// What.
        order: Remote,
    },
}

impl Action {
    /// Whether it writes to places of the device, other than those of its mailbox.
    #[must_use]
    pub fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Scatter { .. })
    }

    /// Whether it writes the request id too.
    #[must_use]
    pub fn writes_request_id(&self) -> bool {
        match self {
            Self::Write { request_id, .. } => *request_id,
            Self::Scatter { request_id, .. } => request_id.is_some(),
            Self::Read { .. } | Self::Mailbox { .. } | Self::Remote { .. } => false,
        }
    }
}

/// One argument of a command.
#[derive(Clone, Debug, PartialEq)]
pub struct ArgSpec {
    /// As callers name it.
    pub name: String,
    /// How it goes over the wire.
    pub data_type: DataType,
    /// For types of more than one register.
    pub word_order: WordOrder,
    /// Values in other units of the same kind are converted to this one (CMD-04).
    pub unit: Option<String>,
    /// Least value, in `unit`.
    pub min: Option<Decimal>,
    /// Greatest value, in `unit`.
    pub max: Option<Decimal>,
    /// Used when the caller gives none; the same as giving it (CMD-04).
    pub default: Option<ArgValue>,
    /// Appears nowhere but in the frame and, while open, in the stored intent (CMD-10).
    pub secret: bool,
}

/// A checked, normalised argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArgValue {
    /// A bit.
    Bool(bool),
    /// A number, in the schema's unit, without trailing zeros.
    Number(#[serde(with = "decimal_text")] Decimal),
    /// Text in Unicode NFC.
    Text(String),
    /// A secret of an operation that has ended: only its SHA-256 is kept (CMD-10).
    Redacted([u8; 32]),
}

/// Decimals are stored as text: exact, and readable in a dump.
mod decimal_text {
    use rust_decimal::Decimal;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &Decimal, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Decimal, D::Error> {
        let text = String::deserialize(from)?;
        Decimal::from_str_exact(&text).map_err(D::Error::custom)
    }
}

/// Where a cell of the policy table got its value (POL-12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The machine's file says so.
    Row,
    /// The class's default.
    ClassDefault,
}

/// One row of the command policy table (POL).
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Unique in the machine.
    pub name: String,
    /// See [`Class`].
    pub class: Class,
    /// Whether it may wait while the link is down (POL-02).
    pub queueable: bool,
    /// Validity, in milliseconds, when the caller states none; also the longest a caller may state.
    pub ttl_ms: u64,
    /// Most that may wait (POL-04).
    pub max_queued: u32,
    /// A stop: one that cannot be delivered is `Rejected{NotDelivered}` at once (POL-03).
    pub stop: bool,
    /// See [`ReplaceRule`].
    pub replace: ReplaceRule,
    /// Callers must state the configuration version they expect (`precondition = "config_version"`).
    pub precondition: bool,
    /// See [`OnRestart`].
    pub on_restart: OnRestart,
    /// See [`Completion`].
    pub completion: Completion,
    /// How long an accepted command may take before its outcome is unknown, in milliseconds.
    pub completion_timeout_ms: u64,
    /// See [`Verify`].
    pub verify: Verify,
    /// Names of the machine's interlocks that must hold; all of them unless the row names fewer.
    pub interlocks: Vec<String>,
    /// In the order in which they are written.
    pub args: Vec<ArgSpec>,
    /// See [`Action`].
    pub action: Action,
    /// The device itself knows request ids, so the same request may be handed over again (SEND-08).
    pub device_contract_mailbox: bool,
    /// `duplicates = "merge"`, rule `latest` (CMD-11): an older one that still waits gives way to a
    /// newer one of the same caller without being named.
    pub merge_latest: bool,
    /// The device contract that justifies being laxer than the class.
    pub i_accept: Option<String>,
    /// Where each cell's value came from, by configuration key.
    pub origins: BTreeMap<String, Origin>,
}

impl Row {
    /// Which word of the request id stands first: as in the last argument.
    #[must_use]
    pub fn id_order(&self) -> WordOrder {
        self.args
            .last()
            .map(|arg| arg.word_order)
            .unwrap_or_default()
    }

    /// Where each argument is written, in their order; `None`: to no place of its own.
    #[must_use]
    pub fn written(&self) -> Option<Vec<Scalar>> {
        let mut next = match &self.action {
            Action::Write { start, .. } => Some(*start),
            _ => None,
        };
        let place = |(n, arg): (usize, &ArgSpec)| {
            let address = match &self.action {
                Action::Write { .. } => next?,
                Action::Scatter { places, .. } => *places.get(n)?,
                Action::Read { .. } | Action::Mailbox { .. } | Action::Remote { .. } => None?,
            };
            next = address.plus(arg.data_type.registers().into());
            Some(Scalar {
                address,
                data_type: arg.data_type,
                word_order: arg.word_order,
            })
        };
        self.args.iter().enumerate().map(place).collect()
    }
}
