//! Owns: the ways in which the simulated PLC misbehaves, and what each makes of a reply.
//! May call: spec, frame, rtu, mc, c24 (which bytes of a reply say what).
//! Never: decide whether a request has an effect by anything but its own rule.

use super::c24::Wrap;
use super::frame::HEADER_BYTES;
use super::spec::{McProgram, Span};
use super::{mc, rtu};
use serde::Deserialize;
use std::time::Duration;

/// The block of a reply to nobody's request.
const OTHER_BLOCK: u8 = 0xFE;
/// For [`Fault::times`]: never used up.
pub const ALWAYS: u32 = u32::MAX;

/// Misbehaviour that waits for matching requests.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Which requests.
    #[serde(default, rename = "on")]
    pub matching: Matching,
    /// How often it strikes; [`ALWAYS`] for ever.
    #[serde(default = "once")]
    pub times: u32,
    /// Strikes at every n-th matching request.
    #[serde(default = "once")]
    pub every: u32,
    /// What happens.
    pub act: Act,
    #[serde(skip)]
    matched: u32,
}

fn once() -> u32 {
    1
}

impl Fault {
    /// `act` at the next matching request, once.
    #[must_use]
    pub fn next(matching: Matching, act: Act) -> Self {
        Self {
            matching,
            times: 1,
            every: 1,
            act,
            matched: 0,
        }
    }
    /// The same, `times` times.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }
    /// The same, at every `every`-th matching request.
    #[must_use]
    pub fn every(mut self, every: u32) -> Self {
        self.every = every.max(1);
        self
    }
    /// Whether it strikes at this request; counts it.
    pub(super) fn strikes(&mut self, request: &Traits) -> bool {
        if self.times == 0 || !self.matching.fits(request) {
            return false;
        }
        self.matched = self.matched.wrapping_add(1);
        if !self.matched.is_multiple_of(self.every.max(1)) {
            return false;
        }
        if self.times != ALWAYS {
            self.times -= 1;
        }
        true
    }
}

/// What a fault can see of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    pub(super) function: u8,
    pub(super) commit: bool,
}

/// Which requests a fault strikes.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Matching {
    /// All.
    #[default]
    Any,
    /// These function codes.
    Functions(Vec<u8>),
    /// Functions 01 to 04.
    Reads,
    /// Functions 05, 06, 0F, 10.
    Writes,
    /// Writes that cover the mailbox's commit word.
    Commit,
}

impl Matching {
    fn fits(&self, request: &Traits) -> bool {
        match self {
            Self::Any => true,
            Self::Functions(codes) => codes.contains(&request.function),
            Self::Reads => (1..=4).contains(&request.function),
            Self::Writes => matches!(request.function, 5 | 6 | 15 | 16),
            Self::Commit => request.commit,
        }
    }
}

/// What a fault does.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Not applied, not answered.
    Drop,
    /// Applied, not answered.
    DropReply,
    /// Applied at once, answered this much later; other requests are served meanwhile.
    LateReply(Span),
    /// Applied this much later even if the connection has gone: a frame held up on the way.
    LateApply(Span),
    /// Nothing happens for this long; then applied and answered, unless the connection has gone.
    Hold(Span),
    /// Applied; the reply's transaction id is another.
    WrongTransaction,
    /// Applied; the reply comes from this unit (F007).
    WrongUnit(u8),
    /// Applied; the reply carries this function code.
    WrongFunction(u8),
    /// Applied; the echoed address is another. A read's reply is left alone.
    WrongEchoAddress,
    /// Applied; the echoed value or quantity is another. A read's reply is left alone.
    WrongEchoValue,
    /// A read's byte count is two less than its bytes. A write's reply is left alone.
    WrongByteCount,
    /// Applied; the last byte of the reply is inverted: a block whose CRC does not hold.
    Corrupt,
    /// Applied; only the first `keep` bytes of the reply, the rest later or never (F004).
    Truncated {
        /// Bytes sent at once.
        keep: usize,
        /// When the rest follows.
        rest_after: Option<Span>,
    },
    /// Applied; the reply is split after these byte counts, with a gap between the parts (F009).
    Split {
        /// Positions, ascending.
        at: Vec<usize>,
        /// Between two parts.
        gap: Span,
    },
    /// Applied; the reply comes byte by byte, with this gap.
    Bytewise(Span),
    /// Not applied; this exception code. Over MC protocol 1, 2 and 3 are C059, C056 and C051, any other
    /// is an end code that no manual lists.
    Exception(u8),
    /// Not applied; this end code of MC protocol. Over Modbus exception 04.
    EndCode(u16),
    /// Exception 05 (acknowledge) at once, applied this much later.
    Acknowledge(Span),
    /// Applied, then FIN without a reply.
    ApplyClose,
    /// Applied, then RST without a reply.
    ApplyReset,
    /// Not applied, FIN.
    Close,
    /// Not applied, RST.
    Reset,
}

/// When the request takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Apply {
    Never,
    Now,
    /// Even if the connection goes.
    Later(Duration),
    /// Only if the connection stays.
    Held(Duration),
}

/// How a connection goes on after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Open,
    Fin,
    Rst,
}

/// Parts of a reply, each after a pause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outgoing {
    pub(super) parts: Vec<(Duration, Vec<u8>)>,
    pub(super) end: End,
}

impl Outgoing {
    pub(super) fn whole(frame: Vec<u8>) -> Self {
        Self {
            parts: vec![(Duration::ZERO, frame)],
            end: End::Open,
        }
    }
    fn nothing(end: End) -> Self {
        Self {
            parts: Vec::new(),
            end,
        }
    }
}

impl Act {
    pub(super) fn apply(&self) -> Apply {
        match self {
            Self::Drop | Self::Exception(_) | Self::EndCode(_) | Self::Close | Self::Reset => {
                Apply::Never
            }
            Self::LateApply(delay) | Self::Acknowledge(delay) => Apply::Later(delay.0),
            Self::Hold(delay) => Apply::Held(delay.0),
            _ => Apply::Now,
        }
    }

    /// What is sent in place of the correct `frame`.
    pub(super) fn dress(&self, mut frame: Vec<u8>, shape: Shape<'_>) -> Outgoing {
        let last = frame.len() - 1;
        match self {
            Self::Drop | Self::DropReply => return Outgoing::nothing(End::Open),
            Self::ApplyClose | Self::Close => return Outgoing::nothing(End::Fin),
            Self::ApplyReset | Self::Reset => return Outgoing::nothing(End::Rst),
            Self::LateReply(delay) => {
                return Outgoing {
                    parts: vec![(delay.0, frame)],
                    end: End::Open,
                };
            }
            Self::Truncated { keep, rest_after } => {
                let rest = frame.split_off((*keep).min(frame.len()));
                let mut parts = vec![(Duration::ZERO, frame)];
                parts.extend(rest_after.map(|delay| (delay.0, rest)));
                return Outgoing {
                    parts,
                    end: End::Open,
                };
            }
            Self::Split { at, gap } => return split(&frame, at, gap.0),
            Self::Bytewise(gap) => {
                let at: Vec<usize> = (1..frame.len()).collect();
                return split(&frame, &at, gap.0);
            }
            Self::Corrupt => frame[last] = !frame[last],
            _ => match shape {
                Shape::Mbap => self.falsify(&mut frame),
                Shape::Rtu => self.falsify_rtu(&mut frame),
                Shape::Mc(port) => self.falsify_mc(&mut frame, port),
                Shape::C24(wrap) => frame = self.falsify_c24(frame, wrap),
            },
        }
        Outgoing::whole(frame)
    }

    /// One field of an MBAP header or PDU.
    fn falsify(&self, frame: &mut [u8]) {
        let function = frame[7];
        let write = matches!(function, 5 | 6 | 15 | 16);
        let last = frame.len() - 1;
        match self {
            Self::WrongTransaction => frame[1] = frame[1].wrapping_add(0x40),
            Self::WrongUnit(unit) => frame[6] = *unit,
            Self::WrongFunction(code) => frame[7] = *code,
            Self::WrongEchoAddress if write => frame[9] = frame[9].wrapping_add(1),
            Self::WrongEchoValue if write => frame[last] = frame[last].wrapping_add(1),
            Self::WrongByteCount if function <= 4 => frame[8] = frame[8].wrapping_sub(2),
            _ => {}
        }
    }

    /// One field of an RTU frame, under a check sum that holds; there is no transaction id.
    fn falsify_rtu(&self, frame: &mut Vec<u8>) {
        // The same fields, as far behind the header that RTU does not have.
        let mut with_header = vec![0; HEADER_BYTES - 1];
        with_header.extend_from_slice(&frame[..frame.len() - 2]);
        self.falsify(&mut with_header);
        *frame = rtu::frame(with_header[HEADER_BYTES - 1], &with_header[HEADER_BYTES..]);
    }

    /// One field of a 3E or 4E reply; it echoes no command and no address.
    fn falsify_mc(&self, frame: &mut [u8], port: &McProgram) {
        match self {
            Self::WrongTransaction => mc::other_serial(frame, port),
            Self::WrongUnit(station) => mc::other_station(frame, port, *station),
            _ => {}
        }
    }
}

impl Act {
    /// One field of a C frame's reply; only format 2 says which request it answers.
    fn falsify_c24(&self, frame: Vec<u8>, wrap: &Wrap) -> Vec<u8> {
        match self {
            Self::WrongTransaction => wrap.other_block(&frame, OTHER_BLOCK),
            Self::WrongUnit(station) => wrap.other_station(&frame, *station),
            _ => frame,
        }
    }
}

/// What a reply looks like, so that a field of it can be falsified.
#[derive(Clone, Copy)]
pub(super) enum Shape<'a> {
    Mbap,
    Rtu,
    Mc(&'a McProgram),
    C24(&'a Wrap),
}

fn split(frame: &[u8], at: &[usize], gap: Duration) -> Outgoing {
    let mut parts = Vec::new();
    let mut from = 0;
    for &to in at.iter().chain([&frame.len()]) {
        let to = to.clamp(from, frame.len());
        if to > from {
            let pause = if from == 0 { Duration::ZERO } else { gap };
            parts.push((pause, frame[from..to].to_vec()));
            from = to;
        }
    }
    Outgoing {
        parts,
        end: End::Open,
    }
}
