//! Owns: what a MELSEC link is, as checked data: family, frame, route, devices and how their numbers are written.
//! May call: nothing.
//! Never: know a device code or a frame (the adapters do); guess the family: it decides which output Y20 is.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Greatest device number: 24 bits on the wire.
pub const NUMBER_MAX: u32 = 0xFF_FFFF;

/// The families of CPUs, by how device numbers are written and which command forms they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// MELSEC-Q.
    Q,
    /// MELSEC-L.
    L,
    /// MELSEC iQ-R.
    IqR,
    /// MELSEC iQ-F (FX5): X and Y are octal.
    Fx5,
}

impl Family {
    /// By the name used in configuration.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("q", Self::Q),
        ("l", Self::L),
        ("iqr", Self::IqR),
        ("fx5", Self::Fx5),
    ];

    /// The name used in configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        let named = Self::NAMES.iter().find(|(_, family)| *family == self);
        named.map_or("", |(name, _)| name)
    }
}

/// How a device's number is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Radix {
    /// D100.
    Decimal,
    /// Y20 is output 16 of an FX.
    Octal,
    /// Y20 is output 32 of a Q.
    Hex,
}

impl Radix {
    /// As a number.
    #[must_use]
    pub fn base(self) -> u32 {
        match self {
            Self::Decimal => 10,
            Self::Octal => 8,
            Self::Hex => 16,
        }
    }

    /// In plain words, with its article.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Decimal => "a decimal",
            Self::Octal => "an octal",
            Self::Hex => "a hexadecimal",
        }
    }
}

/// The kinds of devices that can be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the manual's own letters")]
pub enum Kind {
    X,
    Y,
    M,
    L,
    F,
    V,
    B,
    D,
    W,
    R,
    Zr,
    Sm,
    Sd,
    Sb,
    Sw,
    Ts,
    Tc,
    Tn,
    Ss,
    Sc,
    Sn,
    Cs,
    Cc,
    Cn,
    Z,
    Dx,
    Dy,
}

impl Kind {
    /// Every kind, by the letters that name it.
    pub const NAMES: [(&'static str, Self); 27] = [
        ("X", Self::X),
        ("Y", Self::Y),
        ("M", Self::M),
        ("L", Self::L),
        ("F", Self::F),
        ("V", Self::V),
        ("B", Self::B),
        ("D", Self::D),
        ("W", Self::W),
        ("R", Self::R),
        ("ZR", Self::Zr),
        ("SM", Self::Sm),
        ("SD", Self::Sd),
        ("SB", Self::Sb),
        ("SW", Self::Sw),
        ("TS", Self::Ts),
        ("TC", Self::Tc),
        ("TN", Self::Tn),
        ("SS", Self::Ss),
        ("SC", Self::Sc),
        ("SN", Self::Sn),
        ("CS", Self::Cs),
        ("CC", Self::Cc),
        ("CN", Self::Cn),
        ("Z", Self::Z),
        ("DX", Self::Dx),
        ("DY", Self::Dy),
    ];

    /// The letters that name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        let named = Self::NAMES.iter().find(|(_, kind)| *kind == self);
        named.map_or("", |(name, _)| name)
    }

    /// Whether it holds single bits.
    #[must_use]
    pub fn is_bits(self) -> bool {
        use Kind::{D, R, Sd, Sn, Sw, Tn, W, Z, Zr};
        !matches!(self, D | W | R | Zr | Sd | Sw | Tn | Sn | Self::Cn | Z)
    }

    /// How `family` writes its numbers (F062).
    #[must_use]
    pub fn radix(self, family: Family) -> Radix {
        match self {
            Self::X | Self::Y | Self::Dx | Self::Dy if family == Family::Fx5 => Radix::Octal,
            Self::X | Self::Y | Self::Dx | Self::Dy | Self::B | Self::W | Self::Sb | Self::Sw => {
                Radix::Hex
            }
            _ => Radix::Decimal,
        }
    }
}

/// A kind of device, in the family's way of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Device {
    /// Which.
    pub kind: Kind,
    /// How its numbers are written.
    pub radix: Radix,
}

impl Device {
    /// The device as `family` writes it.
    #[must_use]
    pub fn of(kind: Kind, family: Family) -> Self {
        let radix = kind.radix(family);
        Self { kind, radix }
    }

    /// The name of one place, as people write it.
    #[must_use]
    pub fn place(self, number: u32) -> String {
        let name = self.kind.name();
        match self.radix {
            Radix::Decimal => format!("{name}{number}"),
            Radix::Octal => format!("{name}{number:o}"),
            Radix::Hex => format!("{name}{number:X}"),
        }
    }

    /// The device and number that `text` names in `family`: `D100`, `X1F`, `ZR32768`.
    ///
    /// # Errors
    /// What is wrong, and what is expected instead.
    pub fn parse(text: &str, family: Family) -> Result<(Self, u32), String> {
        let upper = text.trim().to_ascii_uppercase();
        // The longest name first: SW10 is not a step 10 of something W.
        let mut names: Vec<_> = Kind::NAMES.iter().collect();
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        let found = names
            .into_iter()
            .find_map(|(name, kind)| Some((*kind, upper.strip_prefix(name)?)));
        let Some((kind, digits)) = found else {
            return Err("a device and its number, such as \"D100\", \"M10\" or \"X1F\"".into());
        };
        let device = Self::of(kind, family);
        let (name, radix) = (kind.name(), device.radix);
        let number = match digits.is_empty() || digits.starts_with('+') {
            true => None,
            false => u32::from_str_radix(digits, radix.base()).ok(),
        };
        match number {
            Some(number) if number <= NUMBER_MAX => Ok((device, number)),
            _ => Err(format!(
                "{name} with {} number up to {}: {name} is numbered so on family {}",
                radix.name(),
                device.place(NUMBER_MAX).trim_start_matches(name),
                family.name()
            )),
        }
    }
}

/// 3E or 4E (SH-080008, 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Without a serial number: a reply carries no identity.
    E3,
    /// With a serial number that the reply repeats.
    E4,
}

/// How a frame is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Bytes, the low one first.
    Binary,
    /// Hexadecimal digits, the high one first.
    Ascii,
}

/// What carries the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A connection.
    Tcp,
    /// One datagram a frame.
    Udp,
}

/// Which station and CPU is meant (SH-080008, 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Network number, 0 for the own one.
    pub network: u8,
    /// PC number, FF for the connected station.
    pub pc: u8,
    /// Request destination module I/O number, 03FF for the own CPU.
    pub io: u16,
    /// Station on a multidrop line behind that module.
    pub station: u8,
}

impl Default for Route {
    /// The CPU that the port belongs to.
    fn default() -> Self {
        Self {
            network: 0,
            pc: 0xFF,
            io: 0x03FF,
            station: 0,
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "network {:02X} PC {:02X} I/O {:04X} station {:02X}",
            self.network, self.pc, self.io, self.station
        )
    }
}

/// A MELSEC CPU behind an Ethernet port that speaks MC protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct McLink {
    /// Host name or IP address.
    pub host: String,
    /// TCP or UDP port, as set in the PLC's parameters.
    pub port: u16,
    /// See [`Transport`].
    pub transport: Transport,
    /// See [`Frame`].
    pub frame: Frame,
    /// As set in the PLC's parameters.
    pub code: Code,
    /// See [`Family`].
    pub family: Family,
    /// See [`Route`].
    pub route: Route,
    /// Longest wait for a reply, and for a connection to open, in milliseconds.
    pub timeout_ms: u64,
    /// Most words in one read, 1 to 960.
    pub read_words_max: u16,
    /// First wait before a reconnection, in milliseconds; doubles, with full jitter.
    pub reconnect_ms_min: u64,
    /// Longest wait before a reconnection, in milliseconds.
    pub reconnect_ms_max: u64,
    /// A read is made at least this often, in milliseconds.
    pub heartbeat_ms: u64,
}

/// What a CPU can be told from afar (SH-080008, remote operation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remote {
    /// Run, if the switch allows it; clears no device.
    Run,
    /// Stop.
    Stop,
    /// Pause: outputs are held.
    Pause,
}

impl Remote {
    /// By the name used in configuration.
    pub const NAMES: [(&'static str, Self); 3] = [
        ("run", Self::Run),
        ("stop", Self::Stop),
        ("pause", Self::Pause),
    ];

    /// The name used in configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Stop => "stop",
            Self::Pause => "pause",
        }
    }

    /// What the low four bits of SD203 say when it was done.
    #[must_use]
    pub fn operating_state(self) -> u16 {
        match self {
            Self::Run => 0,
            Self::Stop => 2,
            Self::Pause => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str, family: Family) -> Option<u32> {
        Device::parse(text, family).ok().map(|(_, number)| number)
    }

    // covers: F062
    #[test]
    fn the_family_decides_which_output_is_meant() {
        for family in [Family::Q, Family::L, Family::IqR] {
            assert_eq!(number("Y20", family), Some(0x20));
            assert_eq!(number("Y1F", family), Some(0x1F));
            assert_eq!(number("YA0", family), Some(0xA0));
            assert_eq!(number("DX1F", family), Some(0x1F));
        }
        assert_eq!(number("Y20", Family::Fx5), Some(0o20));
        assert_eq!(number("Y18", Family::Fx5), None);
        assert_eq!(number("X1F", Family::Fx5), None);
        for name in ["B", "W", "SB", "SW"] {
            assert_eq!(number(&format!("{name}1f"), Family::Fx5), Some(0x1F));
        }
        for name in ["M", "D", "R", "SM", "SD", "ZR", "TN", "L", "Z"] {
            assert_eq!(number(&format!("{name}10"), Family::Q), Some(10));
            assert_eq!(number(&format!("{name}1F"), Family::Q), None);
        }
        let wrong = Device::parse("Y18", Family::Fx5).unwrap_err();
        assert!(wrong.contains("octal") && wrong.contains("fx5"), "{wrong}");
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        for (name, kind) in Kind::NAMES {
            for family in Family::NAMES.map(|(_, family)| family) {
                let device = Device::of(kind, family);
                for number in [0, 7, 8, 0x1F, NUMBER_MAX] {
                    let text = device.place(number);
                    assert!(text.starts_with(name));
                    assert_eq!(Device::parse(&text, family), Ok((device, number)), "{text}");
                }
            }
        }
        for text in [
            "",
            "D",
            "D-1",
            "D+1",
            "Q1",
            "100",
            "D16777216",
            "D1 2",
            "M1.5",
        ] {
            assert!(Device::parse(text, Family::Q).is_err(), "{text}");
        }
    }
}
