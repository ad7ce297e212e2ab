//! Owns: MC protocol: its frames over Ethernet and serial lines, its commands, what its end codes prove.
//! May call: exchange, metered, wire of this room; core melsec, spec.
//! Never: take a reply for another request's where the frame tells them apart.

mod command;
mod end_code;
mod ethernet;
mod field;
mod one_c;
mod serial;
#[cfg(test)]
mod tests;

use super::exchange::Framed;
use super::metered::{Clock, Line, Tally};
use super::wire::{self, RetiredPorts};
use crate::core::melsec::{McLink, Transport};
use std::sync::Arc;
use std::time::Duration;

/// Most words and bits in one read over this link.
pub(super) fn read_limits(link: &McLink) -> (u16, u16) {
    let words = link.read_words_max.clamp(1, command::WORDS_MAX as u16);
    (words, command::bits_max(link.code) as u16)
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
    let framing = Box::new(ethernet::Head::of(link));
    let line = Line::new(wire, framing, clock, Arc::clone(&tally));
    let codec = Box::new(ethernet::McCodec::new(link));
    let timeout = Duration::from_millis(link.timeout_ms);
    Ok(Framed::over(codec, line, tally, timeout))
}
