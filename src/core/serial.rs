//! Owns: what a serial line and a Modbus RTU link are, as checked data, and how long a character takes on the line.
//! May call: nothing.
//! Never: open a port; know the names that a board gives its ports (config resolves them).

/// Above this speed the silences around a frame no longer shrink (MODBUS over Serial Line V1.02, 2.5.1.1).
pub const GAP_FIXED_BAUD: u32 = 19_200;
/// Least silence before a frame above [`GAP_FIXED_BAUD`], in microseconds.
pub const GAP_US_MIN: u64 = 1_750;

/// How a character's bits are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parity {
    /// Not at all.
    None,
    /// By an even number of ones.
    Even,
    /// By an odd number of ones.
    Odd,
}

/// A serial port and how its line is driven.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SerialLine {
    /// The device file; a link such as those in `/dev/serial/by-id` is followed anew at every opening.
    pub path: String,
    /// Bits per second.
    pub baud: u32,
    /// 7 or 8.
    pub data_bits: u8,
    /// See [`Parity`].
    pub parity: Parity,
    /// 1 or 2.
    pub stop_bits: u8,
    /// The driver is told to switch the direction of an RS-485 line.
    pub rs485: bool,
}

impl SerialLine {
    /// How long `characters` take on the line, in microseconds.
    #[must_use]
    pub fn time_us(&self, characters: usize) -> u64 {
        // A start bit goes before, and the parity bit after the data.
        let parity = u64::from(self.parity != Parity::None);
        let bits = 1 + u64::from(self.data_bits) + parity + u64::from(self.stop_bits);
        let characters = u64::try_from(characters).unwrap_or(u64::MAX);
        (characters.saturating_mul(bits * 1_000_000)).div_ceil(u64::from(self.baud.max(1)))
    }

    /// Least silence between two frames: 3.5 characters, and never less than [`GAP_US_MIN`].
    #[must_use]
    pub fn gap_us(&self) -> u64 {
        if self.baud > GAP_FIXED_BAUD {
            return GAP_US_MIN;
        }
        self.time_us(7).div_ceil(2).max(GAP_US_MIN)
    }
}

/// What RTU frames travel over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// A port of this computer.
    Serial(SerialLine),
    /// A serial device server that passes bytes through: no header, the same frames.
    Tcp {
        /// Host name or IP address.
        host: String,
        /// TCP port.
        port: u16,
    },
}

impl Way {
    /// For people: the path, or host and port.
    #[must_use]
    pub fn address(&self) -> String {
        match self {
            Self::Serial(line) => line.path.clone(),
            Self::Tcp { host, port } => format!("{host}:{port}"),
        }
    }
}

/// A Modbus RTU device on a line that it may share with others.
#[derive(Clone, Debug, PartialEq)]
pub struct ModbusRtu {
    /// See [`Way`].
    pub way: Way,
    /// 1 to 247; 0 is every device on the line, and none of them answers.
    pub unit: u8,
    /// Longest wait for a reply after the request has left, in milliseconds.
    pub timeout_ms: u64,
    /// Silence that must pass after any doubt before the line is used again, in milliseconds: at least as long
    /// as the slowest device may answer late, since a reply does not say which request it answers.
    pub settle_ms: u64,
    /// Silence before a request, beside the least one of the protocol, in milliseconds.
    pub turnaround_ms: u64,
    /// The line gives back what is sent on it, before the reply.
    pub echo: bool,
    /// Most registers in one read, 1 to 125.
    pub read_registers_max: u16,
    /// First wait before a reconnection, in milliseconds; doubles, with full jitter.
    pub reconnect_ms_min: u64,
    /// Longest wait before a reconnection, in milliseconds.
    pub reconnect_ms_max: u64,
    /// A read is made at least this often, in milliseconds.
    pub heartbeat_ms: u64,
}

impl ModbusRtu {
    /// Whether it stands for all devices on the line: written to, never answered (V1.02, 2.1).
    #[must_use]
    pub fn is_broadcast(&self) -> bool {
        self.unit == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: F025
    #[test]
    fn the_gap_follows_the_baud_rate_down_to_its_named_least() {
        let line = |baud, parity, stop_bits| SerialLine {
            path: "/dev/null".into(),
            baud,
            data_bits: 8,
            parity,
            stop_bits,
            rs485: false,
        };
        // 9600 8E1: 11 bits a character, 3.5 characters.
        assert_eq!(line(9_600, Parity::Even, 1).gap_us(), 4_011);
        assert_eq!(line(19_200, Parity::None, 1).gap_us(), 1_823);
        assert_eq!(line(38_400, Parity::Even, 1).gap_us(), GAP_US_MIN);
        assert_eq!(line(115_200, Parity::None, 2).gap_us(), GAP_US_MIN);
        assert_eq!(line(9_600, Parity::None, 1).time_us(96), 100_000);
    }
}
