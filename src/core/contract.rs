//! Owns: what a protocol adapter may say about one exchange with a device (SEND-02), and nothing else.
//! May call: time, spec, spread.
//! Never: call a guess a fact: every variant says what is proven, and carries its bytes.

use super::spec::{Quality, Value};
use super::time::Stamp;
use serde::{Deserialize, Serialize};

/// Most bytes of a device's reply that are kept with an attempt.
pub const REPLY_BYTES_MAX: usize = 300;

/// Everything that is known about one try, kept with the attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// What happened.
    pub outcome: Outcome,
    /// Bytes of the request that the operating system took. For a mailbox command the request is the
    /// commit frame: until that, the device acts on nothing.
    pub bytes_sent: u32,
    /// Length of the request.
    pub bytes_total: u32,
    /// How the request was identified on the wire, such as `tid=0x0061 unit=1`; empty if it was not.
    pub request_ident: String,
    /// When its first byte was handed over.
    pub sent_at: Option<Stamp>,
    /// When its reply stood complete.
    pub replied_at: Option<Stamp>,
    /// The reply as it came, at most [`REPLY_BYTES_MAX`] bytes.
    pub reply: Vec<u8>,
}

/// Exactly one of these ends an exchange (SEND-02).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// No byte of the request was handed over: known to have had no effect.
    NotSent {
        /// Why not.
        why: String,
    },
    /// Some bytes were handed over, not all; see [`Exchange::bytes_sent`].
    PartlySent {
        /// What ended it.
        why: String,
    },
    /// All bytes were handed over; no matching reply came.
    SentNoReply {
        /// What was waited for, and what came instead.
        why: String,
    },
    /// A matching reply refuses: known to have had no effect.
    DeviceRefused(DeviceCode),
    /// A matching reply says "busy": known not to have been executed (Modbus 06).
    DeviceBusy(DeviceCode),
    /// A matching reply whose code proves nothing (SEND-04).
    DeviceUnclear(DeviceCode),
    /// The device took it and has not reported completion.
    DeviceAccepted,
    /// A matching reply that completes the exchange. Whether it completes the *operation* is for the
    /// row's completion contract to say (POL-10).
    DeviceReplied(Reply),
}

/// A device's own code: a Modbus exception code, a MELSEC end code, a mailbox result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCode {
    /// Such as `modbus`, `mc`, `mailbox`.
    pub family: String,
    /// The number as the device sent it.
    pub code: u32,
    /// Its name in the manual.
    pub meaning: String,
}

/// As its manual writes it: `exception 02 (illegal data address)`, `end code C056 (…)`.
impl std::fmt::Display for DeviceCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (code, meaning) = (self.code, &self.meaning);
        match self.family.as_str() {
            "mc" => write!(f, "end code {code:04X} ({meaning})"),
            _ => write!(f, "exception {code:02X} ({meaning})"),
        }
    }
}

/// What a matching reply carried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// A write was echoed as sent.
    WriteEcho,
    /// Values, in the order asked.
    Values(Vec<(String, Value)>),
    /// The mailbox's record of our request (VER-03).
    Mailbox(MailboxEcho),
    /// A write was confirmed otherwise than by an echo.
    Confirmed {
        /// What proves it, in plain words.
        by: String,
    },
}

/// The mailbox's final record of one request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailboxEcho {
    /// The id that the record is of.
    pub request_id: u32,
    /// 0 ok, 1 to 99 refused before any effect, 100 and up the machine's own.
    pub result: u16,
    /// The device's count of effects, low word.
    pub effect_counter: u16,
}

/// One request to an adapter. Every variant but the reads is handed over only after its `Sending`
/// record is durable (SEND-01).
#[derive(Clone, Debug, PartialEq)]
pub enum Job {
    /// Read named values.
    Read {
        /// What to read.
        points: Vec<(String, super::spec::Scalar)>,
    },
    /// One write frame.
    Write {
        /// First place.
        start: super::spec::Address,
        /// For coils: one word a bit, 0 or 1.
        words: Vec<u16>,
    },
    /// One write frame for places that stand apart.
    Scatter {
        /// In the order in which they are written.
        parts: Vec<super::spread::Part>,
    },
    /// Block, read back, commit (design of the mailbox).
    Mailbox(MailboxRequest),
    /// One remote operation of a MELSEC CPU, then a look at its operating state.
    Remote(super::melsec::Remote),
}

/// A mailbox command as the core decided it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailboxRequest {
    /// Session epoch, words 1-2.
    pub session_epoch: u32,
    /// 0 is the no-op by which an id is given up.
    pub opcode: u16,
    /// Never reused.
    pub request_id: u32,
    /// At most 8 words.
    pub parameters: Vec<u16>,
    /// 0xFFFF: none.
    pub expected_config_version: u16,
    /// In 100 ms ticks; 0: none.
    pub validity_ticks: u16,
}

/// What the gate's registers said (POL-06).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GateReading {
    /// When it stood complete.
    pub at: Stamp,
    /// The fingerprint, if one is configured.
    pub identity: Option<Value>,
    /// The configuration version, if one is configured.
    pub config_version: Option<i64>,
    /// The mode, if one is configured.
    pub mode: Option<i64>,
    /// Each interlock's name and value.
    pub interlocks: Vec<(String, Value)>,
    /// Good only if every part was read, and the device calls its data good.
    pub quality: Quality,
    /// Both mailbox blocks, if the machine has one.
    pub mailbox: Option<MailboxBlocks>,
}

/// Both mailbox blocks as words, read in two requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailboxBlocks {
    /// Gateway to PLC, 19 words.
    pub command: Vec<u16>,
    /// PLC to gateway, 33 words.
    pub status: Vec<u16>,
}

/// What a verifier asks the device (VER-01); it only reads (VER-04).
#[derive(Clone, Debug, PartialEq)]
pub enum Probe {
    /// Both mailbox blocks.
    Mailbox,
    /// The last finished id and its result.
    Done(super::spec::DoneSpec),
    /// The values that were written, read back.
    Readback {
        /// Name and place of each.
        points: Vec<(String, super::spec::Scalar)>,
    },
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq)]
pub enum ProbeAnswer {
    /// See [`Probe::Mailbox`].
    Mailbox(MailboxBlocks),
    /// See [`Probe::Done`].
    Done {
        /// The last finished id.
        id: u32,
        /// Its result.
        result: i64,
    },
    /// See [`Probe::Readback`].
    Values(Vec<(String, Value)>),
    /// The read failed.
    Failed(String),
}

/// What a device presents for an acknowledgement, as it stood at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presented {
    /// The device says that item and data stand.
    pub ready: bool,
    /// The acknowledgement stands.
    pub ack: bool,
    /// `None`: not ready, or it changed while it was read.
    pub item: Option<PresentedItem>,
}

/// One item, whole: ready and number were the same before and after its data were read (EVT-06).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentedItem {
    /// The device's own number.
    pub number: u32,
    /// The words of each data value, in the order of the configuration.
    pub words: Vec<Vec<u16>>,
}

/// Entries of a device's ring, and its head as it was read after them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingReading {
    /// When the head was read.
    pub at: Stamp,
    /// The number whose slot was read first.
    pub first: u32,
    /// The words of that slot and those after it; each entry is of one request.
    pub entries: Vec<Vec<u16>>,
    /// The number of the newest entry: what lies a whole ring behind it was overwritten meanwhile.
    pub head: u32,
}
