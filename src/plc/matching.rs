//! Owns: whether a Modbus TCP frame answers a request (SEND-05), byte by byte.
//! May call: metered, for what a framing is.
//! Never: let through a frame that the codec above could misread: what fits is whole and of the length asked.

use super::metered::{Fit, Framing};
use crate::seeded::{self, Fault};

/// Bytes of the header: transaction, protocol, length, unit.
pub(super) const HEADER_BYTES: usize = 7;
/// Longest frame (MODBUS Messaging on TCP/IP V1.0b, 4.1).
pub(super) const FRAME_BYTES_MAX: usize = 260;

/// The frames of Modbus TCP.
///
/// Transaction ids are counted by the link, over all its connections: the codec begins at 0 with each, and
/// a reply that some gateway kept from an earlier connection could then fit a request of the next.
pub(super) struct MbapFraming {
    answering_unit: Option<u8>,
    tid: u16,
    /// The id and unit that the codec awaits.
    codec_header: [u8; HEADER_BYTES],
}

impl MbapFraming {
    pub(super) fn new(answering_unit: Option<u8>) -> Self {
        Self {
            answering_unit,
            tid: 0,
            codec_header: [0; HEADER_BYTES],
        }
    }
}

impl Framing for MbapFraming {
    fn begin(&mut self, ident: u16) {
        self.tid = ident;
    }
    fn outgoing(&mut self, request: &mut [u8]) -> Result<(), String> {
        let header = request.first_chunk_mut::<HEADER_BYTES>();
        let header = header.ok_or_else(|| "no whole frame".to_owned())?;
        self.codec_header = *header;
        header[..2].copy_from_slice(&self.tid.to_be_bytes());
        Ok(())
    }
    fn frame_bytes(&self, bytes: &[u8]) -> Result<Option<usize>, String> {
        frame_bytes(bytes)
    }
    fn fit(&self, request: &[u8], frame: &[u8]) -> Fit {
        fit(request, self.answering_unit, frame)
    }
    fn incoming(&self, frame: &mut [u8]) {
        frame[..2].copy_from_slice(&self.codec_header[..2]);
        frame[6] = self.codec_header[6];
    }
    fn frame_bytes_max(&self) -> usize {
        FRAME_BYTES_MAX
    }
    fn has_identity(&self) -> bool {
        true
    }
    #[cfg(feature = "test-hooks")]
    fn is_write(&self, request: &[u8]) -> bool {
        matches!(request.get(7), Some(5 | 6 | 15 | 16))
    }
}

/// Length of the frame that `bytes` begin with; `None`: its header is not complete.
///
/// # Errors
/// In plain words: this is no Modbus TCP header, the frame boundary is lost.
pub(super) fn frame_bytes(bytes: &[u8]) -> Result<Option<usize>, String> {
    if bytes.len() < HEADER_BYTES {
        return Ok(None);
    }
    let protocol = word(bytes, 2);
    if protocol != 0 {
        return Err(format!(
            "protocol id {protocol:#06x} in the header, expected 0"
        ));
    }
    let total = 6 + usize::from(word(bytes, 4));
    // Unit, function and one byte at least.
    if !(HEADER_BYTES + 2..=FRAME_BYTES_MAX).contains(&total) {
        return Err(format!(
            "length {} in the header, expected 3 to 254",
            total - 6
        ));
    }
    Ok(Some(total))
}

/// Compares a whole `frame` with the whole `request`.
pub(super) fn fit(request: &[u8], answering_unit: Option<u8>, frame: &[u8]) -> Fit {
    let tid = word(frame, 0);
    if tid != word(request, 0) && !seeded::is_on(Fault::TransactionUnchecked) {
        return Fit::Stale(format!("a reply to transaction {tid:#06x}"));
    }
    let unit = frame[6];
    if unit != request[6] && Some(unit) != answering_unit {
        let expected = request[6];
        return Fit::WrongUnit(format!("reply from unit {unit}, expected {expected}"));
    }
    match pdu_misfit(&request[HEADER_BYTES..], &frame[HEADER_BYTES..]) {
        None => Fit::Reply,
        Some(why) => Fit::Misfit(why),
    }
}

/// Function, byte count and echo; `None` if they fit.
fn pdu_misfit(request: &[u8], reply: &[u8]) -> Option<String> {
    let function = request[0];
    if reply[0] == function | 0x80 {
        return (reply.len() != 2)
            .then(|| format!("an exception of {} bytes, expected 2", reply.len()));
    }
    if reply[0] != function {
        return Some(format!(
            "function {:#04x} in the reply, expected {function:#04x}",
            reply[0]
        ));
    }
    let quantity = usize::from(word(request, 3));
    match function {
        0x01 | 0x02 => count_misfit(reply, quantity.div_ceil(8)),
        0x03 | 0x04 => count_misfit(reply, quantity * 2),
        0x05 | 0x06 | 0x0F | 0x10 if seeded::is_on(Fault::EchoUnchecked) => None,
        // Single writes echo address and value, multiple ones address and quantity.
        0x05 | 0x06 | 0x0F | 0x10 => (reply != &request[..5])
            .then(|| format!("echo {}, expected {}", hex(reply), hex(&request[..5]))),
        _ => Some(format!("function {function:#04x} is never asked for")),
    }
}

fn count_misfit(reply: &[u8], expected: usize) -> Option<String> {
    let (stated, found) = (usize::from(reply[1]), reply.len() - 2);
    (stated != expected || found != expected)
        .then(|| format!("byte count {stated} with {found} bytes of data, expected {expected}"))
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn hex(bytes: &[u8]) -> String {
    let all: Vec<String> = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const READ_FOUR: [u8; 12] = [0, 1, 0, 0, 0, 6, 1, 3, 0, 0, 0, 4];
    const WRITE_ONE: [u8; 12] = [0, 5, 0, 0, 0, 6, 1, 6, 0, 16, 0, 1];

    fn changed(frame: &[u8], at: usize, byte: u8) -> Vec<u8> {
        let mut frame = frame.to_vec();
        frame[at] = byte;
        frame
    }

    // covers: SEND-05, F001, F007, F009
    #[test]
    fn each_field_of_a_read_reply_is_compared() {
        let good = [0, 1, 0, 0, 0, 11, 1, 3, 8, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(fit(&READ_FOUR, None, &good), Fit::Reply);
        let stale = Fit::Stale("a reply to transaction 0x0000".into());
        assert_eq!(fit(&READ_FOUR, None, &changed(&good, 1, 0)), stale);
        let other_unit = changed(&good, 6, 9);
        let wrong = Fit::WrongUnit("reply from unit 9, expected 1".into());
        assert_eq!(fit(&READ_FOUR, None, &other_unit), wrong);
        assert_eq!(fit(&READ_FOUR, Some(9), &other_unit), Fit::Reply);
        assert_eq!(fit(&READ_FOUR, Some(8), &other_unit), wrong);
        for misfit in [
            changed(&good, 7, 4),
            changed(&good, 8, 6),
            good[..15].to_vec(),
            good[..9].to_vec(),
        ] {
            assert!(
                matches!(fit(&READ_FOUR, None, &misfit), Fit::Misfit(_)),
                "{misfit:?}"
            );
        }
    }

    // covers: SEND-05
    #[test]
    fn each_byte_of_a_write_echo_is_compared() {
        assert_eq!(fit(&WRITE_ONE, None, &WRITE_ONE), Fit::Reply);
        for at in 7..12 {
            let misfit = changed(&WRITE_ONE, at, 0x77);
            assert!(
                matches!(fit(&WRITE_ONE, None, &misfit), Fit::Misfit(_)),
                "byte {at}"
            );
        }
        let many = [0, 5, 0, 0, 0, 11, 1, 16, 0, 16, 0, 2, 4, 0, 1, 0, 2];
        let echo = [0, 5, 0, 0, 0, 6, 1, 16, 0, 16, 0, 2];
        assert_eq!(fit(&many, None, &echo), Fit::Reply);
        assert!(matches!(
            fit(&many, None, &changed(&echo, 11, 1)),
            Fit::Misfit(_)
        ));
        let exception = [0, 5, 0, 0, 0, 3, 1, 0x90, 2];
        assert_eq!(fit(&many, None, &exception), Fit::Reply);
    }

    #[test]
    fn a_header_that_is_none_loses_the_frame_boundary() {
        assert_eq!(frame_bytes(&[0, 1, 0, 0, 0]), Ok(None));
        assert_eq!(frame_bytes(&READ_FOUR), Ok(Some(12)));
        for (at, byte) in [(2, 1), (4, 1), (5, 2)] {
            assert!(frame_bytes(&changed(&READ_FOUR, at, byte)).is_err());
        }
    }

    proptest! {
        // covers: OPS-03
        #[test]
        fn any_whole_frame_is_judged_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 9..300)) {
            if let Ok(Some(total)) = frame_bytes(&bytes) && total <= bytes.len() {
                fit(&READ_FOUR, None, &bytes[..total]);
            }
            let same = [&READ_FOUR[..7], &bytes[7..]].concat();
            fit(&READ_FOUR, None, &same);
        }
    }
}
