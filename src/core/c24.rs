//! Owns: what a MELSEC link over a serial module (C24) is, as checked data: frame, format, route, line.
//! May call: melsec, serial of this room.
//! Never: know a frame's bytes (the adapters do).

use super::melsec::{Code, Family};
use super::serial::Way;
use std::fmt;

/// Which frame, by what it carries (SH-080008, 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum C24Frame {
    /// 4C: the whole route.
    C4,
    /// 3C: station, network, PC number, own station.
    C3,
    /// 2C: station and own station.
    C2,
    /// 1C: station and PC number, with commands of its own.
    C1,
}

impl C24Frame {
    /// As the manual calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::C4 => "4C",
            Self::C3 => "3C",
            Self::C2 => "2C",
            Self::C1 => "1C",
        }
    }
}

/// How a frame is wrapped (SH-080008, 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum C24Format {
    /// ENQ, and STX for replies with data.
    F1,
    /// As the first, with a block number that the reply repeats.
    F2,
    /// STX and ETX around everything.
    F3,
    /// As the first, with CR LF.
    F4,
    /// Binary, 4C only.
    F5,
}

impl C24Format {
    /// As the manual counts them.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::F1 => 1,
            Self::F2 => 2,
            Self::F3 => 3,
            Self::F4 => 4,
            Self::F5 => 5,
        }
    }

    /// How bodies are coded.
    #[must_use]
    pub fn code(self) -> Code {
        match self {
            Self::F5 => Code::Binary,
            _ => Code::Ascii,
        }
    }
}

/// Which station and module is meant; a frame carries a part of it (SH-080008, 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct C24Route {
    /// Station number of the module on the line, 0 to 31.
    pub station: u8,
    /// Network number, 0 for the own one.
    pub network: u8,
    /// PC number, FF for the connected station.
    pub pc: u8,
    /// Request destination module I/O number, 03FF for the own CPU.
    pub io: u16,
    /// Station on a multidrop line behind that module.
    pub module_station: u8,
    /// Number of this side on an m:n line, otherwise 0.
    pub self_station: u8,
}

impl Default for C24Route {
    /// The CPU that the module belongs to, alone on its line.
    fn default() -> Self {
        Self {
            station: 0,
            network: 0,
            pc: 0xFF,
            io: 0x03FF,
            module_station: 0,
            self_station: 0,
        }
    }
}

impl fmt::Display for C24Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "station {:02X} network {:02X} PC {:02X} own station {:02X}",
            self.station, self.network, self.pc, self.self_station
        )
    }
}

/// A MELSEC CPU behind a serial module, on a line that it may share with others.
#[derive(Clone, Debug, PartialEq)]
pub struct C24Link {
    /// See [`Way`].
    pub way: Way,
    /// See [`C24Frame`].
    pub frame: C24Frame,
    /// As set in the module's parameters.
    pub format: C24Format,
    /// As set in the module's parameters.
    pub sum_check: bool,
    /// See [`Family`].
    pub family: Family,
    /// See [`C24Route`].
    pub route: C24Route,
    /// Longest wait for a reply after the request has left, in milliseconds.
    pub timeout_ms: u64,
    /// Silence that must pass after any doubt before the line is used again, in milliseconds: at least as long
    /// as the module may answer late, since a reply does not say which request it answers.
    pub settle_ms: u64,
    /// Silence before a request, in milliseconds.
    pub turnaround_ms: u64,
    /// The line gives back what is sent on it, before the reply.
    pub echo: bool,
    /// Most words in one read.
    pub read_words_max: u16,
    /// First wait before a reconnection, in milliseconds; doubles, with full jitter.
    pub reconnect_ms_min: u64,
    /// Longest wait before a reconnection, in milliseconds.
    pub reconnect_ms_max: u64,
    /// A read is made at least this often, in milliseconds.
    pub heartbeat_ms: u64,
}
