//! Owns: a line that gives back what is sent on it.
//! May call: metered of this room.
//! Never: take a reply for an echo: only the request's own bytes are one.

use super::metered::Skip;

/// A transceiver that turns around late may swallow so many bytes at the front of a local echo.
const BYTES_LOST_MAX: usize = 2;

/// Skips to the end of the request's own bytes.
pub(super) fn skip(request: &[u8], bytes: &[u8], frame_bytes_max: usize) -> Skip {
    for lost in 0..=BYTES_LOST_MAX.min(request.len().saturating_sub(1)) {
        let own = &request[lost..];
        if let Some(at) = bytes.windows(own.len()).position(|part| part == own) {
            return Skip::Echo(at + own.len());
        }
    }
    // What is longer than two frames cannot be the beginning of an echo any more.
    match bytes.len().checked_sub(2 * frame_bytes_max) {
        Some(more) if more > 0 => Skip::Noise(more, "the request's echo did not come".into()),
        _ => Skip::Nothing,
    }
}

/// Why an echo that nobody expects leaves the line in doubt.
pub(super) fn unexpected() -> String {
    "the request's own bytes came back: local echo? Set echo = true, or switch the transceiver's echo off".into()
}
