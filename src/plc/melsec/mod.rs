//! Owns: MC protocol: its frames over Ethernet and serial lines, its commands, what its end codes prove.
//! May call: exchange, metered, wire, echo of this room; core c24, melsec, spec.
//! Never: take a reply for another request's where the frame tells them apart.

mod c24;
mod command;
mod end_code;
mod ethernet;
mod field;
#[cfg(test)]
mod frame_tests;
mod one_c;
#[cfg(test)]
mod scatter_tests;
mod serial;
#[cfg(test)]
mod tests;
mod told;

pub(super) use told::{Told, told};

use super::exchange::{Codec, Framed};
use super::metered::{Clock, Framing, Line, Tally, Wire};
use super::scatter::Scatter;
use super::wire::{self, RetiredPorts};
use crate::core::c24::{C24Frame, C24Link};
use crate::core::melsec::{McLink, Transport};
use std::sync::Arc;
use std::time::Duration;

/// So many single bits take as long on a line as a word does.
const BITS_A_WORD: u16 = 4;

/// Most words and bits in one read over this link.
pub(super) fn read_limits(link: &McLink) -> (u16, u16) {
    let words = link.read_words_max.clamp(1, command::WORDS_MAX as u16);
    (words, command::bits_max(link.code) as u16)
}

/// The same over a serial module: bits take no more of the line than words do.
pub(super) fn serial_read_limits(link: &C24Link) -> (u16, u16) {
    let (words, bits) = match link.frame {
        C24Frame::C1 => (one_c::WORDS_MAX, one_c::READ_BITS_MAX),
        _ => (command::WORDS_MAX, command::bits_max(link.format.code())),
    };
    let words = link.read_words_max.clamp(1, words as u16);
    (words, (words * BITS_A_WORD).min(bits as u16))
}

/// What one request of this link may read of scattered words.
pub(super) fn scatter(link: &McLink) -> Scatter {
    Scatter {
        random_places_max: command::RANDOM_READ_MAX,
        blocks_max: command::BLOCKS_MAX,
        words_max: usize::from(read_limits(link).0),
    }
}

/// The same over a serial module: 3C and 4C only, for 2C and 1C nobody has shown it.
pub(super) fn serial_scatter(link: &C24Link) -> Scatter {
    match link.frame {
        C24Frame::C4 | C24Frame::C3 => Scatter {
            random_places_max: command::RANDOM_READ_MAX,
            blocks_max: command::BLOCKS_MAX,
            words_max: usize::from(serial_read_limits(link).0),
        },
        C24Frame::C2 | C24Frame::C1 => Scatter::default(),
    }
}

/// What is spoken on a line with a serial module.
pub(super) fn on_line(link: &C24Link) -> (Box<dyn Framing>, Box<dyn Codec>) {
    let framing = c24::C24Framing::new(link);
    (Box::new(framing), Box::new(c24::C24Codec::new(link)))
}

/// See [`serial::SerialHead::resync`].
pub(super) fn resync(link: &C24Link) -> Vec<u8> {
    serial::SerialHead::of(link).resync()
}

/// Opens a connection, or, over UDP, a local port that no earlier reply can reach.
pub(super) async fn open(
    link: &McLink,
    retired: &mut RetiredPorts,
    clock: Clock,
    tally: Arc<Tally>,
) -> std::io::Result<Framed> {
    let wire = match link.transport {
        Transport::Tcp => wire::tcp(&link.host, link.port, link.timeout_ms).await?,
        Transport::Udp => wire::udp(&link.host, link.port, link.timeout_ms, retired).await?,
    };
    Ok(over(wire, link, clock, tally))
}

/// Over a wire that is open.
pub(super) fn over(wire: Box<dyn Wire>, link: &McLink, clock: Clock, tally: Arc<Tally>) -> Framed {
    let framing = Box::new(ethernet::Head::of(link));
    let line = Line::new(wire, framing, clock, Arc::clone(&tally));
    let codec = Box::new(ethernet::McCodec::new(link));
    let timeout = Duration::from_millis(link.timeout_ms);
    Framed::over(codec, line, tally, timeout)
}
