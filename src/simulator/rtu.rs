//! Owns: Modbus RTU as a device on the line sees it (MODBUS over Serial Line V1.02): requests in, replies out.
//! May call: frame.
//! Never: share code with the gateway's client, so that each is proof against the other.

use super::frame::Frame;

/// Longest frame.
const FRAME_BYTES_MAX: usize = 256;

/// Bit by bit, as the specification's appendix has it.
pub(super) fn check_sum(bytes: &[u8]) -> [u8; 2] {
    let mut sum = 0xFFFF_u16;
    for byte in bytes {
        sum ^= u16::from(*byte);
        for _ in 0..8 {
            let low = sum & 1;
            sum >>= 1;
            if low == 1 {
                sum ^= 0xA001;
            }
        }
    }
    sum.to_le_bytes()
}

/// A frame with its check sum.
pub(super) fn frame(unit: u8, pdu: &[u8]) -> Vec<u8> {
    let mut bytes = vec![unit];
    bytes.extend_from_slice(pdu);
    let sum = check_sum(&bytes);
    bytes.extend_from_slice(&sum);
    bytes
}

/// Takes one whole request off the front of `buffer`; what begins none is dropped.
pub(super) fn take(buffer: &mut Vec<u8>) -> Option<Frame> {
    while buffer.len() >= 4 {
        let length = match buffer[1] {
            1..=6 => 8,
            15 | 16 => match buffer.get(6) {
                Some(bytes) => 9 + usize::from(*bytes),
                None => return None,
            },
            // Of a function that is not known only the silence behind it says the length.
            _ => buffer.len().min(FRAME_BYTES_MAX),
        };
        if length <= FRAME_BYTES_MAX {
            if buffer.len() < length {
                return None;
            }
            let (body, sum) = buffer[..length].split_at(length - 2);
            if check_sum(body) == sum {
                let found = Frame {
                    transaction: [0; 2],
                    unit: body[0],
                    pdu: body[1..].to_vec(),
                    rtu: true,
                };
                buffer.drain(..length);
                return Some(found);
            }
        }
        buffer.remove(0);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_found_whole_in_parts_and_behind_noise() {
        let request = [0x01, 0x03, 0x00, 0x00, 0x00, 0x01, 0x84, 0x0A];
        assert_eq!(frame(1, &request[1..6]), request);
        let mut buffer = [&[0x55, 0x01][..], &request, &request[..3]].concat();
        let found = take(&mut buffer).unwrap();
        assert_eq!((found.unit, found.pdu.as_slice()), (1, &request[1..6]));
        assert_eq!(take(&mut buffer), None);
        buffer.extend_from_slice(&request[3..]);
        assert_eq!(take(&mut buffer).unwrap().pdu, &request[1..6]);
        assert!(buffer.is_empty());
        let write = frame(3, &[16, 0, 9, 0, 2, 4, 0, 1, 0, 2]);
        let mut buffer = write[..6].to_vec();
        assert_eq!(take(&mut buffer), None);
        buffer.extend_from_slice(&write[6..]);
        assert_eq!(take(&mut buffer).unwrap().pdu, write[1..11]);
    }
}
