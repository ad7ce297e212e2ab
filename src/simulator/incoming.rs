//! Owns: one request, whatever protocol carried it, and what is common to all.
//! May call: frame, rtu, mc, c24, fault, state, spec.
//! Never: wait, or reach a socket.

use super::c24;
use super::fault::{Act, Outgoing, Shape};
use super::frame::{self, Frame, Request};
use super::mc::{self, McFrame, McRequest, Store};
use super::rtu;
use super::spec::{McProgram, SimulatorSpec};
use super::state::State;
use crate::core::spec::ModbusArea;
use std::ops::Range;
use std::time::Instant;

/// One request as it came.
#[derive(Clone)]
pub(super) enum Incoming {
    Modbus(Frame),
    Mc(Box<McFrame>, McProgram),
}

/// Why the connection cannot go on, or goes on without an answer.
pub(super) enum Garbage {
    /// The end of the frame cannot be known: the connection is closed.
    Close,
    /// A port of MC protocol does not answer what it does not know.
    Ignore,
}

/// Takes one whole request off the front of `buffer`; `None`: more bytes are needed.
pub(super) fn take(
    buffer: &mut Vec<u8>,
    spec: &SimulatorSpec,
) -> Result<Option<Incoming>, Garbage> {
    if let Some(port) = &spec.c24 {
        let cpu = spec.mc.clone().unwrap_or_default();
        return Ok(c24::take(buffer, port).map(|found| Incoming::Mc(Box::new(found), cpu)));
    }
    match &spec.mc {
        None if spec.rtu.is_some() => Ok(rtu::take(buffer).map(Incoming::Modbus)),
        None => match frame::take(buffer) {
            Ok(found) => Ok(found.map(Incoming::Modbus)),
            Err(frame::NotModbus) => Err(Garbage::Close),
        },
        Some(port) => match mc::take(buffer, port) {
            Ok(found) => Ok(found.map(|found| Incoming::Mc(Box::new(found), port.clone()))),
            Err(mc::NotMc) => Err(Garbage::Ignore),
        },
    }
}

impl Incoming {
    /// Function code and data, or what says the same.
    pub(super) fn pdu(&self) -> Vec<u8> {
        match self {
            Self::Modbus(frame) => frame.pdu.clone(),
            Self::Mc(frame, _) => frame.as_pdu(),
        }
    }

    /// Transaction or serial number, unit or station.
    pub(super) fn ident(&self) -> (u16, u8) {
        match self {
            Self::Modbus(frame) => (u16::from_be_bytes(frame.transaction), frame.unit),
            Self::Mc(frame, _) => (frame.serial, frame.station),
        }
    }

    /// Whether it is for all units of its line, and none answers.
    pub(super) fn is_for_all(&self) -> bool {
        matches!(self, Self::Modbus(frame) if frame.rtu && frame.unit == 0)
    }

    /// The unit or station on a line of several that it is for.
    pub(super) fn on_line(&self) -> Option<u8> {
        match self {
            Self::Modbus(frame) => frame.rtu.then_some(frame.unit),
            Self::Mc(frame, _) => frame.wrap.as_ref().map(|_| frame.station),
        }
    }

    /// The holding registers that it writes.
    pub(super) fn writes(&self) -> Option<Range<usize>> {
        match self {
            Self::Modbus(frame) => match frame::parse(&frame.pdu) {
                Ok(Request::WriteWords { start, words }) => {
                    let start = usize::from(start);
                    Some(start..start + words.len())
                }
                _ => None,
            },
            Self::Mc(frame, _) => match &frame.request {
                Ok(McRequest::Write { runs }) => {
                    let (run, words) = runs.first()?;
                    let start = run.start as usize;
                    let holding = run.store == Store::Table(ModbusArea::Holding);
                    holding.then(|| start..start + words.len())
                }
                _ => None,
            },
        }
    }

    /// The refusal with a code of Modbus, or the one of MC protocol that says the same.
    pub(super) fn exception(&self, code: u8) -> Vec<u8> {
        match self {
            Self::Modbus(frame) => frame.exception(code),
            Self::Mc(frame, _) => frame.error(match code {
                1 => mc::NOT_POSSIBLE,
                2 => mc::OUT_OF_RANGE,
                3 => mc::TOO_MANY,
                other => 0x4F00 | u16::from(other),
            }),
        }
    }

    /// A refusal with this end code; over Modbus the exception 04.
    pub(super) fn end_code(&self, code: u16) -> Vec<u8> {
        match self {
            Self::Modbus(frame) => frame.exception(4),
            Self::Mc(frame, _) => frame.refused(code),
        }
    }

    /// Carries it out, and makes its reply.
    pub(super) fn execute(&self, state: &mut State, connection: u64, now: Instant) -> Vec<u8> {
        match self {
            Self::Modbus(frame) if !frame.rtu && frame.unit != state.spec.unit => {
                frame.exception(frame::TARGET_FAILED)
            }
            Self::Modbus(frame) => match state.execute(connection, &frame.pdu, now) {
                Ok(pdu) => frame.reply(&pdu),
                Err(code) => frame.exception(code),
            },
            Self::Mc(frame, _) => state.execute_mc(connection, frame, now),
        }
    }

    /// What `act` makes of the correct reply.
    pub(super) fn dress(&self, act: &Act, reply: Vec<u8>) -> Outgoing {
        act.dress(
            reply,
            match self {
                Self::Modbus(frame) if frame.rtu => Shape::Rtu,
                Self::Modbus(_) => Shape::Mbap,
                Self::Mc(frame, port) => match &frame.wrap {
                    Some(wrap) => Shape::C24(wrap),
                    None => Shape::Mc(port),
                },
            },
        )
    }
}
