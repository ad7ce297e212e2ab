//! Owns: MC protocol: its frames over Ethernet and serial lines, its commands, what its end codes prove.
//! May call: exchange, metered of this room; core melsec, spec.
//! Never: take a reply for another request's where the frame tells them apart.

use crate::core::melsec::{Code, McLink};

/// Most words in one read or write (SH-080008, 8.1).
pub(super) const WORDS_MAX: u16 = 960;

/// Most words and bits in one read over this link.
pub(super) fn read_limits(link: &McLink) -> (u16, u16) {
    let bits = match link.code {
        Code::Binary => 7168,
        Code::Ascii => 3584,
    };
    (link.read_words_max.clamp(1, WORDS_MAX), bits)
}
