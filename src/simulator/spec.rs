//! Owns: what a simulated PLC is, and its TOML file.
//! May call: core's names of the tables; fault.
//! Never: open a socket, or repair a file that is wrong.

use super::fault::Fault;
use crate::core::spec::ModbusArea;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Registers (or bits) in each Modbus table.
pub const TABLE_ITEMS: usize = 65_536;
/// Most connections at once when the file names no number of slots.
const SLOTS_DEFAULT: usize = 64;
/// Bits a second of a port whose file names none (MODBUS over Serial Line V1.02, 3.3).
const BAUD_DEFAULT: u32 = 19_200;

/// One simulated PLC. Every field has a default, so tests name only what they need.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SimulatorSpec {
    /// Where it listens; port 0 takes any free one.
    pub listen: SocketAddr,
    /// The unit id it answers to; others get exception 0B.
    pub unit: u8,
    /// Connections it can hold; one more is accepted and closed at once (F141).
    pub slots: usize,
    /// How long the slot of a connection that was lost without a FIN stays taken.
    pub slot_timeout: Span,
    /// A connection without a request for this long is closed with FIN (F081); zero: never.
    pub idle_close: Span,
    /// More registers in one read are answered with exception 02 (F049); over MC protocol see [`McProgram`].
    pub read_registers_max: u16,
    /// Speaks Modbus RTU: on a serial line, or over TCP at `listen`.
    pub rtu: Option<RtuProgram>,
    /// Other units on the same line; of each only what is inside the device counts.
    #[serde(rename = "also")]
    pub others: Vec<SimulatorSpec>,
    /// Speaks MC protocol in place of Modbus TCP; beside `c24` only what it says of the CPU counts.
    pub mc: Option<McProgram>,
    /// Speaks MC protocol as a serial module; `unit` is its station number.
    pub c24: Option<C24Program>,
    /// Initial values.
    pub registers: Registers,
    /// Addresses that do not exist: reading or writing one is exception 02.
    #[serde(rename = "hole")]
    pub holes: Vec<Hole>,
    /// Where identity, configuration version, mode and interlocks stand.
    pub points: Points,
    /// The idempotency mailbox's program, if the PLC has one.
    pub mailbox: Option<MailboxProgram>,
    /// Registers in which the PLC reports the last request id that it finished.
    pub done: Option<DoneProgram>,
    /// Registers that count by themselves.
    #[serde(rename = "counter")]
    pub counters: Vec<Counter>,
    /// Production counters.
    pub pieces: Vec<Pieces>,
    /// Items that are presented one by one, each until it is acknowledged.
    #[serde(rename = "handshake")]
    pub handshakes: Vec<Handshake>,
    /// Ring buffers.
    #[serde(rename = "ring")]
    pub rings: Vec<Ring>,
    /// Coils that make something happen when they are written.
    #[serde(rename = "rule")]
    pub rules: Vec<Rule>,
    /// Faults that wait for their requests from the start.
    #[serde(rename = "fault")]
    pub faults: Vec<Fault>,
}

impl Default for SimulatorSpec {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            unit: 1,
            slots: SLOTS_DEFAULT,
            slot_timeout: Span::ZERO,
            idle_close: Span::ZERO,
            read_registers_max: 125,
            rtu: None,
            others: Vec::new(),
            mc: None,
            c24: None,
            registers: Registers::default(),
            holes: Vec::new(),
            points: Points::default(),
            mailbox: None,
            done: None,
            counters: Vec::new(),
            pieces: Vec::new(),
            handshakes: Vec::new(),
            rings: Vec::new(),
            rules: Vec::new(),
            faults: Vec::new(),
        }
    }
}

/// Why a file describes no simulated PLC.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSpec {
    /// TOML or a value in it, with line and column.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// Values that do not fit together.
    #[error("{0}")]
    Value(String),
}

impl SimulatorSpec {
    /// Reads the file format that `config/sim/press-1.toml` documents.
    ///
    /// # Errors
    /// What was found, where, and what was expected.
    pub fn from_toml(text: &str) -> Result<Self, InvalidSpec> {
        let spec: Self = toml::from_str(text)?;
        spec.check()?;
        Ok(spec)
    }

    /// Whether the values fit together.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), InvalidSpec> {
        let wrong = |text: String| Err(InvalidSpec::Value(text));
        if self.slots == 0 {
            return wrong("slots: found 0, expected at least 1".into());
        }
        if self.line().is_none() && !self.others.is_empty() {
            return wrong("also: only units on a serial line share it; add [rtu] or [c24]".into());
        }
        if self.rtu.is_some() && (self.mc.is_some() || self.c24.is_some()) {
            return wrong("[rtu] and [mc] or [c24]: a port speaks one of them".into());
        }
        if let Some(port) = &self.c24 {
            let most = if port.frame == C24FrameKind::C4 { 5 } else { 4 };
            if port.format == 0 || port.format > most {
                let format = port.format;
                return wrong(format!("c24.format: found {format}, expected 1 to {most}"));
            }
        }
        for other in &self.others {
            other.check()?;
        }
        let words = self.word_places();
        if let Some((key, place, _)) = words.iter().find(|(_, place, _)| place.area.is_bits()) {
            return wrong(format!("{key}: found {place}, expected holding or input"));
        }
        for (key, place, items) in words {
            if usize::from(place.offset) + items > TABLE_ITEMS {
                return wrong(format!("{key}: {place} and {items} words end after 65535"));
            }
        }
        if let Some(mailbox) = &self.mailbox {
            let (a, b) = (mailbox.command, mailbox.status);
            if a.area != ModbusArea::Holding {
                return wrong(format!("mailbox.command: found {a}, expected holding"));
            }
            let (low, high) = (usize::from(a.offset), usize::from(b.offset));
            if a.area == b.area && low < high + 33 && high < low + 19 {
                return wrong(format!(
                    "mailbox: command {a} (19 words) and status {b} (33 words) overlap; move one"
                ));
            }
            if let Some(zero) = mailbox.opcodes.iter().find(|row| row.opcode == 0) {
                return wrong(format!(
                    "mailbox.opcode: {} is the no-op, expected 1 to 65535",
                    zero.opcode
                ));
            }
        }
        self.check_sources()?;
        match self
            .rules
            .iter()
            .find(|rule| rule.when.area != ModbusArea::Coil)
        {
            Some(rule) => wrong(format!("rule.when: found {}, expected coil", rule.when)),
            None => Ok(()),
        }
    }

    /// The line that it is on, whatever it speaks.
    pub(super) fn line(&self) -> Option<&RtuProgram> {
        self.rtu
            .as_ref()
            .or(self.c24.as_ref().map(|port| &port.line))
    }

    /// Most words in one read over MC protocol.
    pub(super) fn read_words_max(&self) -> u32 {
        self.mc.as_ref().map_or(960, |mc| mc.read_words_max.into())
    }

    fn check_sources(&self) -> Result<(), InvalidSpec> {
        let wrong = |text: String| Err(InvalidSpec::Value(text));
        if let Some(pieces) = self.pieces.iter().find(|p| !matches!(p.words, 1 | 2 | 4)) {
            return wrong(format!(
                "pieces.words: found {}, expected 1, 2 or 4",
                pieces.words
            ));
        }
        for program in &self.handshakes {
            if let Some(place) = [program.ready, program.ack]
                .iter()
                .find(|p| !p.area.is_bits())
            {
                return wrong(format!(
                    "handshake: found {place}, expected a coil or discrete input"
                ));
            }
        }
        for ring in &self.rings {
            if ring.entries == 0 || ring.words < 2 {
                return wrong(format!(
                    "ring: found {} entries of {} words, expected at least 1 of 2",
                    ring.entries, ring.words
                ));
            }
        }
        Ok(())
    }

    fn source_places(&self) -> Vec<(&'static str, Place, usize)> {
        let mut places = Vec::new();
        places.extend(self.pieces.iter().map(|p| ("pieces.at", p.at, p.words)));
        for program in &self.handshakes {
            places.push(("handshake.item", program.item, 2));
            places.extend(
                program
                    .data
                    .map(|at| ("handshake.data", at, program.data_words)),
            );
        }
        for ring in &self.rings {
            places.push(("ring.head", ring.head, 2));
            let words = ring.entries.saturating_mul(ring.words);
            places.push(("ring.base", ring.base, words));
        }
        places
    }

    fn word_places(&self) -> Vec<(&'static str, Place, usize)> {
        let mut places = Vec::new();
        if let Some(mailbox) = &self.mailbox {
            places.push(("mailbox.command", mailbox.command, 19));
            places.push(("mailbox.status", mailbox.status, 33));
            for row in &mailbox.opcodes {
                places.extend(
                    row.add
                        .iter()
                        .map(|step| ("mailbox.opcode.add.at", step.at, 1)),
                );
                places.extend(
                    row.set
                        .iter()
                        .map(|step| ("mailbox.opcode.set.at", step.at, 1)),
                );
            }
        }
        if let Some(done) = &self.done {
            places.push(("done.request_id", done.request_id, 2));
            places.push(("done.id", done.id, 2));
            places.extend(done.result.map(|place| ("done.result", place, 1)));
        }
        places.extend(
            self.counters
                .iter()
                .map(|counter| ("counter.at", counter.at, 1)),
        );
        places.extend(self.source_places());
        for rule in &self.rules {
            places.extend(rule.add.iter().map(|step| ("rule.add.at", step.at, 1)));
        }
        places
    }
}

/// A line on which the device speaks Modbus RTU; without a port the frames go over TCP, at `listen`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RtuProgram {
    /// A name that is given to a new pseudo-terminal; unplugged and plugged in by [`Device::cut`] and
    /// [`Device::restore`].
    ///
    /// [`Device::cut`]: super::Device::cut
    /// [`Device::restore`]: super::Device::restore
    pub pty: Option<PathBuf>,
    /// A port of this computer.
    pub serial: Option<PathBuf>,
    /// Of that port.
    pub baud: u32,
    /// Of that port.
    pub parity: RtuParity,
    /// The line gives back what is sent on it.
    pub echo: bool,
    /// Requests that begin before so much silence are not heard.
    pub gap: Span,
}

impl Default for RtuProgram {
    fn default() -> Self {
        Self {
            pty: None,
            serial: None,
            baud: BAUD_DEFAULT,
            parity: RtuParity::default(),
            echo: false,
            gap: Span::ZERO,
        }
    }
}

/// A serial module that speaks MC protocol (C24); the CPU behind it is as [`McProgram`] says.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct C24Program {
    /// Which C frame.
    pub frame: C24FrameKind,
    /// 1 to 5; 5 only with 4C.
    pub format: u8,
    /// Whether frames carry a sum.
    pub sum_check: bool,
    /// Where it is plugged in; without a port the frames go over TCP, at `listen`.
    pub line: RtuProgram,
}

impl Default for C24Program {
    fn default() -> Self {
        Self {
            frame: C24FrameKind::C4,
            format: 5,
            sum_check: true,
            line: RtuProgram::default(),
        }
    }
}

/// Which C frame a module takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum C24FrameKind {
    /// With the whole route.
    #[serde(rename = "4c")]
    C4,
    /// Without the module's I/O number.
    #[serde(rename = "3c")]
    C3,
    /// With station numbers alone.
    #[serde(rename = "2c")]
    C2,
    /// With station and PC number, and commands of its own.
    #[serde(rename = "1c")]
    C1,
}

/// How a port's characters are checked.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RtuParity {
    /// By an even number of ones.
    #[default]
    Even,
    /// By an odd number of ones.
    Odd,
    /// Not at all.
    None,
}

impl From<RtuParity> for tokio_serial::Parity {
    fn from(parity: RtuParity) -> Self {
        match parity {
            RtuParity::Even => Self::Even,
            RtuParity::Odd => Self::Odd,
            RtuParity::None => Self::None,
        }
    }
}

/// A CPU's port that speaks MC protocol. D shows the holding registers, M the coils, W the input registers,
/// X the discrete inputs; every other device has values of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct McProgram {
    /// 3E or 4E.
    pub frame: McFrameKind,
    /// How frames are coded; a request in the other code gets no answer.
    pub code: McCode,
    /// Datagrams in place of connections.
    pub udp: bool,
    /// More words in one read are answered with C051.
    pub read_words_max: u16,
    /// What 0101 says.
    pub model: String,
    /// The code beside it.
    pub model_code: u16,
    /// Commands that the port does not know: a QnUDV's own has no 0101, 0406 and 1406.
    pub unknown_commands: Vec<u16>,
    /// The switch is on STOP: remote RUN and PAUSE are answered and have no effect.
    pub switch_stop: bool,
}

impl Default for McProgram {
    fn default() -> Self {
        Self {
            frame: McFrameKind::E3,
            code: McCode::Binary,
            udp: false,
            read_words_max: 960,
            model: "Q06UDVCPU".into(),
            model_code: 0x0368,
            unknown_commands: Vec::new(),
            switch_stop: false,
        }
    }
}

/// Which frame a port takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum McFrameKind {
    /// Without a serial number.
    #[serde(rename = "3e")]
    E3,
    /// With one.
    #[serde(rename = "4e")]
    E4,
}

/// How frames are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum McCode {
    /// Bytes.
    Binary,
    /// Hexadecimal digits.
    Ascii,
}

/// `area:offset`, zero-based.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Place {
    /// The table.
    pub area: ModbusArea,
    /// 0 to 65535.
    pub offset: u16,
}

impl Place {
    /// A holding register.
    #[must_use]
    pub fn holding(offset: u16) -> Self {
        Self {
            area: ModbusArea::Holding,
            offset,
        }
    }
    /// A coil.
    #[must_use]
    pub fn coil(offset: u16) -> Self {
        Self {
            area: ModbusArea::Coil,
            offset,
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.area.name(), self.offset)
    }
}

impl TryFrom<String> for Place {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let expected = "expected coil:N, discrete:N, input:N or holding:N with N from 0 to 65535";
        let wrong = || format!("found {text:?}, {expected}");
        let (area, offset) = text.split_once(':').ok_or_else(wrong)?;
        let area = match area {
            "coil" => ModbusArea::Coil,
            "discrete" => ModbusArea::Discrete,
            "input" => ModbusArea::Input,
            "holding" => ModbusArea::Holding,
            _ => return Err(wrong()),
        };
        let offset = offset.parse().map_err(|_| wrong())?;
        Ok(Self { area, offset })
    }
}

/// A duration in the file: `500ms`, `10s`, `2min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(try_from = "String")]
pub struct Span(pub Duration);

impl Span {
    /// None at all.
    pub const ZERO: Self = Self(Duration::ZERO);
    /// From milliseconds.
    #[must_use]
    pub const fn ms(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }
}

impl TryFrom<String> for Span {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("found {text:?}, expected a duration such as \"500ms\" or \"10s\"");
        let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u32 = text[..digits].parse().map_err(|_| wrong())?;
        let factor_ms = match &text[digits..] {
            "ms" => 1,
            "s" => 1_000,
            "min" => 60_000,
            _ => return Err(wrong()),
        };
        Ok(Self::ms(u64::from(number) * factor_ms))
    }
}

/// Which word of a 32-bit value stands first; the same words as in a machine's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Most significant first.
    #[default]
    HighFirst,
    /// Least significant first.
    LowFirst,
}

impl Order {
    /// The two registers of `value`.
    #[must_use]
    pub fn split(self, value: u32) -> [u16; 2] {
        let [a, b, c, d] = value.to_be_bytes();
        let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        match self {
            Self::HighFirst => [high, low],
            Self::LowFirst => [low, high],
        }
    }
    /// The value of two registers.
    #[must_use]
    pub fn join(self, first: u16, second: u16) -> u32 {
        let (high, low) = match self {
            Self::HighFirst => (first, second),
            Self::LowFirst => (second, first),
        };
        u32::from(high) << 16 | u32::from(low)
    }
}

/// Initial values: offset = value, or offset = [values from there on].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Registers {
    /// Coils.
    pub coil: BTreeMap<Offset, Run<bool>>,
    /// Discrete inputs.
    pub discrete: BTreeMap<Offset, Run<bool>>,
    /// Input registers.
    pub input: BTreeMap<Offset, Run<u16>>,
    /// Holding registers.
    pub holding: BTreeMap<Offset, Run<u16>>,
}

/// A key under `[registers.…]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Offset(pub u16);

impl TryFrom<String> for Offset {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
            .map(Self)
            .map_err(|_| format!("found key {text:?}, expected an offset from 0 to 65535"))
    }
}

/// One value or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected one value or a list of values")]
pub enum Run<T> {
    /// One.
    One(T),
    /// From the offset on.
    Many(Vec<T>),
}

impl<T: Clone> Run<T> {
    /// As a list.
    #[must_use]
    pub fn values(&self) -> Vec<T> {
        match self {
            Self::One(value) => vec![value.clone()],
            Self::Many(values) => values.clone(),
        }
    }
}

/// Addresses that do not exist.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hole {
    /// The first.
    pub at: Place,
    /// How many.
    pub count: u16,
}

/// Where the PLC keeps what a gateway checks before it commands.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Points {
    /// Program or device identity.
    pub identity: Option<Place>,
    /// Configuration version; also the one that the mailbox compares with.
    pub config_version: Option<Place>,
    /// Mode.
    pub mode: Option<Place>,
    /// Coils or discrete inputs that must all be set before the mailbox acts.
    pub interlocks: Vec<Place>,
}

/// The PLC's side of the mailbox.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MailboxProgram {
    /// First register of the gateway's block.
    pub command: Place,
    /// First register of the PLC's block.
    pub status: Place,
    /// For the 32-bit values of both blocks.
    #[serde(default)]
    pub word_order: Order,
    /// Time between two scans; zero: also within every write, so that its effect is there before its reply.
    #[serde(default = "scan_default")]
    pub scan: Span,
    /// What the machine can do; any other opcode is refused with result 5.
    #[serde(default, rename = "opcode")]
    pub opcodes: Vec<Opcode>,
}

fn scan_default() -> Span {
    Span::ms(10)
}

/// One thing that the machine can do.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opcode {
    /// Its number.
    pub opcode: u16,
    /// From acceptance to the effect; zero: in the same scan.
    #[serde(default)]
    pub duration: Span,
    /// 0, or the machine's own failure code (100 and up): then there is no effect.
    #[serde(default)]
    pub result: u16,
    /// Registers that it counts up.
    #[serde(default)]
    pub add: Vec<Add>,
    /// Registers that take a parameter.
    #[serde(default)]
    pub set: Vec<Set>,
}

/// `at += by`, wrapping.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Add {
    /// The register.
    pub at: Place,
    /// By how much.
    #[serde(default = "one")]
    pub by: u16,
}

fn one() -> u16 {
    1
}

/// `at = parameter`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// The register.
    pub at: Place,
    /// Which parameter word, counted from 0.
    pub parameter: usize,
}

/// A write that covers `request_id` is reported in `id` and `result` when the machine is done.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoneProgram {
    /// First of the two registers in which writes carry their request id.
    pub request_id: Place,
    /// First of the two registers that hold the last id done.
    pub id: Place,
    /// Its result.
    pub result: Option<Place>,
    /// For both ids.
    #[serde(default)]
    pub word_order: Order,
    /// From the write to the report.
    #[serde(default)]
    pub delay: Span,
    /// What is reported: 0 is done.
    #[serde(default)]
    pub result_code: u16,
}

/// A register that counts by itself.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counter {
    /// The register.
    pub at: Place,
    /// How often.
    pub every: Span,
    /// By how much.
    #[serde(default = "one")]
    pub by: u16,
}

/// Writing 1 to a coil does something each time: a relative action without any idempotency.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The coil.
    pub when: Place,
    /// What counts up.
    pub add: Vec<Add>,
    /// The PLC clears the coil again.
    #[serde(default)]
    pub clears: bool,
}

/// A production counter of 1, 2 or 4 registers.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pieces {
    /// The first register.
    pub at: Place,
    /// How many registers.
    #[serde(default = "one_word")]
    pub words: usize,
    /// Which stands first.
    #[serde(default)]
    pub word_order: Order,
    /// What it shows at first.
    #[serde(default)]
    pub start: u64,
    /// How often it makes `by` pieces; zero: only when told to.
    #[serde(default)]
    pub every: Span,
    /// How many at a time.
    #[serde(default = "one_piece")]
    pub by: u64,
    /// The highest count; 0 comes after it. As much as the registers hold unless stated.
    #[serde(default)]
    pub wraps_after: Option<u64>,
}

impl Pieces {
    /// The highest count.
    #[must_use]
    pub fn wraps_after(&self) -> u64 {
        let most = u64::MAX >> (64 - 16 * self.words.clamp(1, 4));
        self.wraps_after.unwrap_or(most)
    }
}

fn one_word() -> usize {
    1
}
fn one_piece() -> u64 {
    1
}
fn two_words() -> usize {
    2
}
fn first_number() -> u32 {
    1
}
fn last_number() -> u32 {
    u32::MAX
}

/// Items are presented: number and data, then ready; until ack is seen; the next once ack is gone.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handshake {
    /// Set by the PLC.
    pub ready: Place,
    /// Set by the gateway.
    pub ack: Place,
    /// Two registers: the item's number.
    pub item: Place,
    /// The first data register.
    #[serde(default)]
    pub data: Option<Place>,
    /// How many data registers.
    #[serde(default = "two_words")]
    pub data_words: usize,
    /// For the number.
    #[serde(default)]
    pub word_order: Order,
    /// How often a new item comes to wait; zero: only when told to.
    #[serde(default)]
    pub every: Span,
    /// The first number.
    #[serde(default = "first_number")]
    pub numbers_from: u32,
    /// The last, before it begins again.
    #[serde(default = "last_number")]
    pub numbers_to: u32,
}

/// A ring buffer: entry n in slot n mod `entries`, its number in its first two words.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ring {
    /// Two registers: the newest entry's number.
    pub head: Place,
    /// The first register of slot 0.
    pub base: Place,
    /// How many slots.
    pub entries: usize,
    /// Registers of an entry.
    pub words: usize,
    /// For numbers.
    #[serde(default)]
    pub word_order: Order,
    /// How often an entry is written; zero: only when told to.
    #[serde(default)]
    pub every: Span,
    /// The first number.
    #[serde(default = "first_number")]
    pub numbers_from: u32,
    /// The last, before it begins again.
    #[serde(default = "last_number")]
    pub numbers_to: u32,
}
