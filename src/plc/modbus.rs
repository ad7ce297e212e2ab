//! Owns: one Modbus TCP connection and one exchange on it; what each exception code proves (SEND-04).
//! May call: metered, matching; tokio-modbus for the codec.
//! Never: use a connection again after anything but a matching reply; use the codec's typed helpers, which
//! check an echo only in debug builds.

pub use super::metered::Clock;

use super::exchange::{AbortUnlessMatched, Ask, Called, Coded, End, Proof, broken};
use super::matching::MbapFraming;
use super::metered::{Line, Tally, Wire, count};
use super::plan::Span;
use crate::core::contract::DeviceCode;
use crate::core::spec::{Address, Area, ModbusArea, ModbusTcp};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tokio_modbus::client::{Client as _, Context};
use tokio_modbus::{Request, Response, Slave};

/// Most registers in one write (MODBUS Application Protocol V1.1b3, 6.12).
pub const WRITE_REGISTERS_MAX: usize = 123;
/// Most coils in one write (6.11).
pub const WRITE_COILS_MAX: usize = 1968;
/// Most registers in one read (6.3).
pub const READ_REGISTERS_MAX: u16 = 125;
/// Most bits in one read (6.1).
pub const READ_BITS_MAX: u16 = 2000;

/// One connection.
pub(super) struct Session {
    context: Context,
    line: Line,
    tally: Arc<Tally>,
    timeout: Duration,
}

impl Session {
    /// Opens a connection. The old one must be gone: a device may have only one slot (F141).
    pub(super) async fn open(
        link: &ModbusTcp,
        clock: Clock,
        tally: Arc<Tally>,
    ) -> std::io::Result<Self> {
        let wire = super::wire::tcp(&link.host, link.port, link.timeout_ms).await?;
        Ok(Self::over(wire, link, clock, tally))
    }

    pub(super) fn over(
        wire: Box<dyn Wire>,
        link: &ModbusTcp,
        clock: Clock,
        tally: Arc<Tally>,
    ) -> Self {
        let framing = Box::new(MbapFraming::new(link.answering_unit));
        let line = Line::new(wire, framing, clock, Arc::clone(&tally));
        Self {
            context: tokio_modbus::client::tcp::attach_slave(line.clone(), Slave(link.unit)),
            line,
            tally,
            timeout: Duration::from_millis(link.timeout_ms),
        }
    }

    /// Whether the connection can no longer be used.
    pub(super) fn is_closed(&self) -> bool {
        self.line.is_closed()
    }

    /// Ends the connection with a reset.
    pub(super) fn abort(&self) {
        self.line.abort();
    }

    /// One request, one reply, within the timeout.
    pub(super) async fn call(&mut self, tid: u16, ask: &Ask) -> Called {
        let request = match request(ask) {
            Ok(request) => request,
            Err(why) => return Called::not_sent(why),
        };
        let mut guard = AbortUnlessMatched {
            line: &self.line,
            matched: false,
        };
        if let Err(why) = self.line.begin(tid) {
            return Called::not_sent(why);
        }
        count(&self.tally.requests);
        let reply = timeout(self.timeout, self.context.call(request.clone())).await;
        let meter = self.line.meter();
        let end = match reply {
            Ok(Ok(Ok(response))) => ended(&request, response),
            Ok(Ok(Err(code))) => {
                count(&self.tally.exceptions);
                End::Code(coded(code.into()))
            }
            Ok(Err(error)) => broken(&meter, error.to_string()),
            Err(_) => {
                count(&self.tally.timeouts);
                broken(&meter, format!("no reply within {:?}", self.timeout))
            }
        };
        guard.matched = end.is_matched();
        let ident = match meter.request.as_slice() {
            [high, low, _, _, _, _, unit, ..] => format!("tid=0x{high:02x}{low:02x} unit={unit}"),
            _ => String::new(),
        };
        Called {
            end,
            meter,
            ident,
            other: false,
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.line.abort();
    }
}

/// The frame was compared byte by byte below; what is left is to take its values.
fn ended(request: &Request<'_>, response: Response) -> End {
    match (request, response) {
        (
            Request::ReadCoils(_, quantity) | Request::ReadDiscreteInputs(_, quantity),
            Response::ReadCoils(bits) | Response::ReadDiscreteInputs(bits),
        ) if bits.len() >= usize::from(*quantity) => End::Words(
            bits.into_iter()
                .take(usize::from(*quantity))
                .map(u16::from)
                .collect(),
        ),
        (
            Request::ReadHoldingRegisters(_, quantity) | Request::ReadInputRegisters(_, quantity),
            Response::ReadHoldingRegisters(words) | Response::ReadInputRegisters(words),
        ) if words.len() == usize::from(*quantity) => End::Words(words),
        (
            Request::WriteSingleCoil(..)
            | Request::WriteMultipleCoils(..)
            | Request::WriteSingleRegister(..)
            | Request::WriteMultipleRegisters(..),
            Response::WriteSingleCoil(..)
            | Response::WriteMultipleCoils(..)
            | Response::WriteSingleRegister(..)
            | Response::WriteMultipleRegisters(..),
        ) => End::Echo,
        (_, response) => End::NoReply(format!("a reply that was not asked for: {response:?}")),
    }
}

/// The one frame for `ask`.
///
/// # Errors
/// In plain words: no frame can.
pub(super) fn request(ask: &Ask) -> Result<Request<'static>, String> {
    match ask {
        Ask::Read(span) => read_request(*span),
        Ask::Write { start, words } => write_request(*start, words),
        Ask::Remote(order) => Err(format!("Modbus has no remote {}", order.name())),
        Ask::Scatter(_) => Err("Modbus writes neighbouring places only".into()),
        Ask::Scattered(_) => Err("Modbus reads neighbouring places only".into()),
        Ask::Model | Ask::Loopback(_) => Err("Modbus has no such request here".into()),
    }
}

fn read_request(span: Span) -> Result<Request<'static>, String> {
    let Span { area, start, count } = span;
    let Area::Modbus(area) = area else {
        return Err(format!("{span} is no place of a Modbus device"));
    };
    let start = u16::try_from(start).map_err(|_| format!("{span} goes past 65535"))?;
    Ok(match area {
        ModbusArea::Coil => Request::ReadCoils(start, count),
        ModbusArea::Discrete => Request::ReadDiscreteInputs(start, count),
        ModbusArea::Input => Request::ReadInputRegisters(start, count),
        ModbusArea::Holding => Request::ReadHoldingRegisters(start, count),
    })
}

/// The one frame that writes `words` from `start` on.
///
/// # Errors
/// In plain words: no frame can.
fn write_request(start: Address, words: &[u16]) -> Result<Request<'static>, String> {
    let Address::Modbus { area, offset } = start else {
        return Err(format!("{start} is no place of a Modbus device"));
    };
    let max = match area {
        ModbusArea::Coil => WRITE_COILS_MAX,
        ModbusArea::Holding => WRITE_REGISTERS_MAX,
        ModbusArea::Discrete | ModbusArea::Input => {
            return Err(format!(
                "{start} cannot be written: {} is read-only",
                area.name()
            ));
        }
    };
    if words.is_empty() || words.len() > max {
        return Err(format!(
            "{} values for one write, expected 1 to {max}",
            words.len()
        ));
    }
    if usize::from(offset) + words.len() > 1 << 16 {
        return Err(format!("{} values from {start} go past 65535", words.len()));
    }
    if area == ModbusArea::Coil && words.iter().any(|word| *word > 1) {
        return Err(format!("a coil is 0 or 1: {words:?}"));
    }
    let bits = || words.iter().map(|word| *word != 0).collect::<Vec<_>>();
    Ok(match (area, words) {
        (ModbusArea::Coil, [bit]) => Request::WriteSingleCoil(offset, *bit != 0),
        (ModbusArea::Coil, _) => Request::WriteMultipleCoils(offset, bits().into()),
        (_, [word]) => Request::WriteSingleRegister(offset, *word),
        _ => Request::WriteMultipleRegisters(offset, words.to_vec().into()),
    })
}

/// An exception code with its name (MODBUS Application Protocol V1.1b3, 7).
#[must_use]
pub fn exception(code: u8) -> DeviceCode {
    let meaning = match code {
        0x01 => "illegal function",
        0x02 => "illegal data address",
        0x03 => "illegal data value",
        0x04 => "server device failure",
        0x05 => "acknowledge",
        0x06 => "server device busy",
        0x08 => "memory parity error",
        0x0A => "gateway path unavailable",
        0x0B => "gateway target device failed to respond",
        _ => "not in the specification",
    };
    DeviceCode {
        family: "modbus".into(),
        code: code.into(),
        meaning: meaning.into(),
    }
}

/// What an exception proves (SEND-04).
pub(super) fn coded(code: u8) -> Coded {
    let proof = match code {
        0x01 => Proof::Refused,
        0x02 => Proof::RefusedPlace,
        0x03 => Proof::RefusedLength,
        0x05 => Proof::Accepted,
        0x06 => Proof::Busy,
        0x0A | 0x0B => Proof::Offline,
        _ => Proof::Unclear,
    };
    Coded {
        code: exception(code),
        proof,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::contract::Outcome;
    use crate::core::ids::BootId;
    use crate::core::time::Now;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    impl Wire for DuplexStream {
        fn closed_by_peer(&self) -> Option<String> {
            None
        }
        fn abort_on_close(&self) {}
    }

    /// A session over a pipe that takes `room` bytes, and the pipe's other end.
    fn session(room: usize) -> (Session, DuplexStream) {
        let (near, far) = duplex(room);
        let link = ModbusTcp {
            host: "pipe".into(),
            port: 502,
            unit: 1,
            answering_unit: None,
            timeout_ms: 50,
            read_registers_max: 125,
            reconnect_ms_min: 1,
            reconnect_ms_max: 1,
            heartbeat_ms: 1,
        };
        let clock: Clock = Arc::new(|| Now {
            boot_id: BootId::default(),
            boottime_ns: 1,
            wall_us: 1,
            wall_trusted: true,
        });
        (
            Session::over(Box::new(near), &link, clock, Arc::default()),
            far,
        )
    }

    fn write_of_seven() -> Ask {
        Ask::Write {
            start: HOLDING_16,
            words: vec![1, 2, 3, 4, 5, 6, 7],
        }
    }

    const HOLDING_16: Address = Address::Modbus {
        area: ModbusArea::Holding,
        offset: 16,
    };

    // covers: SEND-02, SEND-06, F060
    #[tokio::test]
    async fn a_frame_cut_short_is_counted_and_never_continued() {
        let (mut session, mut far) = session(10);
        let called = session.call(0x61, &write_of_seven()).await;
        assert_eq!((called.meter.sent, called.meter.request.len()), (10, 27));
        assert!(matches!(&called.end, End::PartlySent(why) if why.contains("10 of 27")));
        assert!(session.is_closed());

        let again = session.call(0x62, &write_of_seven()).await;
        assert!(matches!(again.end, End::NotSent(_)), "{again:?}");
        let mut arrived = Vec::new();
        far.read_to_end(&mut arrived).await.unwrap();
        assert_eq!(arrived, [0, 0x61, 0, 0, 0, 21, 1, 16, 0, 16]);
    }

    // covers: SEND-06
    #[tokio::test]
    async fn a_dropped_future_leaves_no_frame_to_go_on_later() {
        let (mut session, mut far) = session(10);
        let write = write_of_seven();
        tokio::select! {
            biased;
            called = session.call(1, &write) => panic!("ended: {called:?}"),
            () = tokio::task::yield_now() => {}
        }
        assert!(session.is_closed());
        let again = session.call(2, &write).await;
        assert!(matches!(again.end, End::NotSent(_)), "{again:?}");
        let mut arrived = Vec::new();
        far.read_to_end(&mut arrived).await.unwrap();
        assert_eq!(arrived.len(), 10);
    }

    // covers: SEND-04
    #[test]
    fn only_01_02_03_and_06_prove_that_a_write_had_no_effect() {
        for code in 0..=255 {
            let outcome = coded(code).of_write();
            match code {
                1..=3 => assert!(matches!(outcome, Outcome::DeviceRefused(_)), "{code}"),
                5 => assert_eq!(outcome, Outcome::DeviceAccepted),
                6 => assert!(matches!(outcome, Outcome::DeviceBusy(_))),
                _ => assert!(matches!(outcome, Outcome::DeviceUnclear(_)), "{code}"),
            }
        }
    }

    #[test]
    fn what_no_frame_can_write_is_refused_before_any_byte() {
        let at = |area, offset| Address::Modbus { area, offset };
        assert!(write_request(at(ModbusArea::Input, 0), &[1]).is_err());
        assert!(write_request(at(ModbusArea::Holding, 0), &[]).is_err());
        assert!(write_request(at(ModbusArea::Holding, 0), &[0; 124]).is_err());
        assert!(write_request(at(ModbusArea::Holding, 0), &[0; 123]).is_ok());
        assert!(write_request(at(ModbusArea::Holding, 65535), &[1]).is_ok());
        assert!(write_request(at(ModbusArea::Holding, 65535), &[1, 2]).is_err());
        assert!(write_request(at(ModbusArea::Coil, 0), &[2]).is_err());
        assert!(write_request(at(ModbusArea::Coil, 0), &[1; 1969]).is_err());
    }
}
