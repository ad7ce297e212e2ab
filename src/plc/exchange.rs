//! Owns: the seam between protocols: what the link asks, how an exchange ended, what a device's code proves.
//! May call: metered of this room; core contract, spec, spread.
//! Never: know a frame; call anything proven that the protocol's own table does not.

use super::matching::hex;
use super::metered::{Line, Meter, Tally, count};
use super::plan::Span;
use super::scatter::Scattered;
use crate::core::contract::{DeviceCode, Exchange, Outcome};
use crate::core::melsec::Remote;
use crate::core::spec::Address;
use crate::core::spread::Part;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

/// What a link asks of a device: one request, one reply.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ask {
    /// The words of a span; a bit is a word of 0 or 1.
    Read(Span),
    /// One frame that writes these from `start` on.
    Write { start: Address, words: Vec<u16> },
    /// One frame that writes all of these.
    Scatter(Vec<Part>),
    /// A remote operation.
    Remote(Remote),
    /// The words of several spans in one request, one span after another.
    Scattered(Scattered),
    /// The model of the CPU.
    Model,
    /// These digits, given back: a reply to anything else carries others.
    Loopback(Vec<u8>),
}

impl Ask {
    /// Whether it can change the device.
    pub(super) fn is_order(&self) -> bool {
        matches!(
            self,
            Self::Write { .. } | Self::Scatter(_) | Self::Remote(_)
        )
    }
}

/// What a device's code proves (SEND-04), and what the link may do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Judged and refused: no effect.
    Refused,
    /// As [`Proof::Refused`], because the command is not known here: another may pass.
    RefusedCommand,
    /// As [`Proof::Refused`], because a place is not there: a request without it may pass.
    RefusedPlace,
    /// As [`Proof::Refused`], perhaps because of one place or value among several.
    RefusedPart,
    /// As [`Proof::Refused`], because of the length: a shorter request may pass.
    RefusedLength,
    /// Taken, and under way.
    Accepted,
    /// Not executed; may be asked again.
    Busy,
    /// From something on the way that does not reach the unit (F043): of a write it proves nothing.
    Offline,
    /// Nothing.
    Unclear,
}

/// A device's code and what it proves.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Coded {
    pub(super) code: DeviceCode,
    pub(super) proof: Proof,
}

impl Coded {
    /// What it proves about a write.
    pub(super) fn of_write(self) -> Outcome {
        let code = self.code;
        match self.proof {
            Proof::Refused
            | Proof::RefusedCommand
            | Proof::RefusedPlace
            | Proof::RefusedPart
            | Proof::RefusedLength => Outcome::DeviceRefused(code),
            Proof::Accepted => Outcome::DeviceAccepted,
            Proof::Busy => Outcome::DeviceBusy(code),
            Proof::Offline | Proof::Unclear => Outcome::DeviceUnclear(code),
        }
    }

    /// What it proves about a write of several places: no manual says that a CPU which refuses one of them has
    /// looked at all before it wrote the first.
    pub(super) fn of_scattered_write(mut self) -> Outcome {
        if matches!(self.proof, Proof::RefusedPlace | Proof::RefusedPart) {
            self.code.meaning += "; it may be one place of several, and the others written";
            self.proof = Proof::Unclear;
        }
        self.of_write()
    }

    /// What it proves about a read: "acknowledge" has nothing to accept.
    pub(super) fn of_read(self) -> Outcome {
        match self.proof {
            Proof::Accepted => Outcome::DeviceUnclear(self.code),
            _ => self.of_write(),
        }
    }
}

/// How an exchange ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// The values asked for, exactly as many; a bit is a word of 0 or 1.
    Words(Vec<u16>),
    /// The write, the order or the loopback was acknowledged by its own reply.
    Echo,
    /// The CPU's name, and its code.
    Model(String, u16),
    /// A matching reply with this code.
    Code(Coded),
    /// All of it was sent, and nothing ever answers it.
    Unconfirmable(String),
    NotSent(String),
    PartlySent(String),
    NoReply(String),
}

impl End {
    /// Whether the reply was the request's own, so that the line is in no doubt.
    pub(super) fn is_matched(&self) -> bool {
        matches!(
            self,
            Self::Words(_) | Self::Echo | Self::Model(..) | Self::Code(_) | Self::Unconfirmable(_)
        )
    }

    /// Whether the unit itself has judged the request: it is alive.
    pub(super) fn is_judged(&self) -> bool {
        use Proof::{Refused, RefusedCommand, RefusedLength, RefusedPart, RefusedPlace};
        matches!(self, Self::Code(c)
            if matches!(c.proof, Refused | RefusedCommand | RefusedPlace | RefusedPart | RefusedLength))
    }

    /// Whether the device does not know the command.
    pub(super) fn is_unknown_command(&self) -> bool {
        matches!(self, Self::Code(coded) if coded.proof == Proof::RefusedCommand)
    }

    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Code(coded) if coded.proof == Proof::Busy)
    }
}

/// One exchange, with its evidence.
#[derive(Clone, Debug)]
pub(super) struct Called {
    pub(super) end: End,
    pub(super) meter: Meter,
    /// How the request was identified on the wire; empty if it was not.
    pub(super) ident: String,
    /// A whole reply came, and it answers some other request.
    pub(super) other: bool,
}

impl Called {
    /// Takes out the bytes that came, and words that repeat them: they may carry a secret argument (CMD-10).
    pub(super) fn conceal(&mut self) {
        self.meter.reply.clear();
        if let End::NoReply(why) | End::PartlySent(why) = &mut self.end {
            "no reply to this request; what came is not shown, since it may carry a secret argument"
                .clone_into(why);
        }
    }

    pub(super) fn not_sent(why: impl Into<String>) -> Self {
        Self {
            end: End::NotSent(why.into()),
            meter: Meter::default(),
            ident: String::new(),
            other: false,
        }
    }

    /// The exchange as the core keeps it, with `outcome`.
    pub(super) fn exchange(&self, outcome: Outcome) -> Exchange {
        let meter = &self.meter;
        let length = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Exchange {
            outcome,
            bytes_sent: length(meter.sent),
            bytes_total: length(meter.request.len()),
            request_ident: self.ident.clone(),
            sent_at: meter.sent_at,
            replied_at: meter.replied_at,
            reply: meter.reply.clone(),
        }
    }
}

/// Aborts the line unless the exchange reached a matching reply: also when its future is dropped.
pub(super) struct AbortUnlessMatched<'a> {
    pub(super) line: &'a Line,
    pub(super) matched: bool,
}

impl Drop for AbortUnlessMatched<'_> {
    fn drop(&mut self) {
        if !self.matched {
            self.line.abort();
        }
    }
}

/// The end of an exchange that no matching reply ended, by what the kernel took.
pub(super) fn broken(meter: &Meter, why: String) -> End {
    let total = meter.request.len();
    let why = match &meter.instead {
        Some(instead) if *instead != why => format!("{why}; {instead}"),
        _ => why,
    };
    let why = match meter.reply.as_slice() {
        [] => why,
        bytes => format!("{why} [{}]", hex(bytes)),
    };
    if meter.sent == 0 {
        End::NotSent(why)
    } else if meter.sent < total {
        End::PartlySent(format!("{} of {total} bytes were sent; {why}", meter.sent))
    } else {
        End::NoReply(why)
    }
}

/// A protocol whose frames this room makes itself; pure.
pub(super) trait Codec: Send {
    /// The frame of a request.
    ///
    /// # Errors
    /// In plain words: no one frame can do it.
    fn encode(&self, ask: &Ask, ident: u16) -> Result<Vec<u8>, String>;
    /// What a frame says that fits the request.
    ///
    /// # Errors
    /// In plain words: it is no reply to this request after all, and the line is in doubt.
    fn decode(&self, ask: &Ask, reply: &[u8]) -> Result<End, String>;
    /// How a request is identified on the wire.
    fn ident(&self, ident: u16) -> String;
    /// What a device that never answers anything may mean, in plain words.
    fn silence(&self) -> String;
    /// Whether requests are answered at all.
    fn is_answered(&self) -> bool {
        true
    }
    /// How long a request and its reply are on the line, beside what the device takes.
    fn line_time(&self, ask: &Ask, request: &[u8]) -> Duration {
        let _ = (ask, request);
        Duration::ZERO
    }
}

/// One connection of a [`Codec`].
pub(super) struct Framed {
    codec: Box<dyn Codec>,
    line: Line,
    tally: Arc<Tally>,
    timeout: Duration,
    /// A reply fitted once, over this connection.
    answered: bool,
}

impl Framed {
    /// Over `line`, which must know the codec's frames.
    pub(super) fn over(
        codec: Box<dyn Codec>,
        line: Line,
        tally: Arc<Tally>,
        timeout: Duration,
    ) -> Self {
        Self {
            codec,
            line,
            tally,
            timeout,
            answered: false,
        }
    }

    /// Whether the connection can no longer be used.
    pub(super) fn is_closed(&self) -> bool {
        self.line.is_closed()
    }

    /// Ends the connection, so that nothing that is still queued arrives later.
    pub(super) fn abort(&self) {
        self.line.abort();
    }

    /// One request, one reply, within the timeout.
    pub(super) async fn call(&mut self, ident: u16, ask: &Ask) -> Called {
        let request = match self.codec.encode(ask, ident) {
            Ok(request) => request,
            Err(why) => return Called::not_sent(why),
        };
        let mut guard = AbortUnlessMatched {
            line: &self.line,
            matched: false,
        };
        if let Err(why) = self.line.begin(ident) {
            return Called::not_sent(why);
        }
        count(&self.tally.requests);
        let answered = self.codec.is_answered();
        let exchange = exchange(self.line.clone(), &request, answered);
        let exchanged = timeout(self.timeout + self.codec.line_time(ask, &request), exchange).await;
        let mut meter = self.line.meter();
        let mut other = false;
        let end = match exchanged {
            Ok(Ok(_)) if !answered => End::Unconfirmable("sent, unconfirmable".into()),
            Ok(Ok(frame)) => match self.codec.decode(ask, &frame) {
                Ok(end) => end,
                Err(why) => {
                    count(&self.tally.misfits);
                    meter.replied_at = None;
                    other = true;
                    broken(&meter, why)
                }
            },
            Ok(Err(error)) => broken(&meter, error.to_string()),
            Err(_) => {
                count(&self.tally.timeouts);
                let mut why = format!("no reply within {:?}", self.timeout);
                if let Some(error) = self.line.pending_error() {
                    why = format!("{why}; {error}");
                } else if !self.answered && meter.reply.is_empty() {
                    why = format!("{why}; {}", self.codec.silence());
                }
                broken(&meter, why)
            }
        };
        if matches!(end, End::Code(_)) {
            count(&self.tally.exceptions);
        }
        self.answered |= answered && end.is_matched();
        guard.matched = end.is_matched();
        let ident = self.codec.ident(ident);
        Called {
            end,
            meter,
            ident,
            other,
        }
    }
}

impl Drop for Framed {
    fn drop(&mut self) {
        self.line.abort();
    }
}

/// The reply; of what is never answered, nothing.
async fn exchange(mut line: Line, request: &[u8], answered: bool) -> std::io::Result<Vec<u8>> {
    line.write_all(request).await?;
    line.flush().await?;
    match answered {
        true => line.frame().await,
        false => Ok(Vec::new()),
    }
}

/// One connection, whatever is spoken over it.
pub(super) enum Session {
    /// Through tokio-modbus.
    Modbus(super::modbus::Session),
    /// Through this room's own frames.
    Framed(Framed),
    /// The same, on a line that others use too.
    Shared(super::port::OnPort),
}

impl Session {
    /// Whether the connection can no longer be used.
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Modbus(session) => session.is_closed(),
            Self::Framed(session) => session.is_closed(),
            Self::Shared(session) => session.is_closed(),
        }
    }

    /// Ends the connection with a reset.
    pub(super) fn abort(&self) {
        match self {
            Self::Modbus(session) => session.abort(),
            Self::Framed(session) => session.abort(),
            Self::Shared(session) => session.abort(),
        }
    }

    /// One request, one reply, within the timeout. What no frame can do leaves the connection as it is.
    pub(super) async fn call(&mut self, ident: u16, ask: &Ask) -> Called {
        match self {
            Self::Modbus(session) => session.call(ident, ask).await,
            Self::Framed(session) => session.call(ident, ask).await,
            Self::Shared(session) => session.call(ident, ask).await,
        }
    }
}
