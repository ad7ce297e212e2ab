//! Owns: what tells this computer from another one that runs a copy of its disk.
//! May call: the files of the kernel.
//! Never: count what a copy carries along, or what changes by itself, as hardware.

use std::fs;
use std::path::Path;

/// Kernel files with a serial number of the board, one of which may be readable.
const SERIALS: [&str; 2] = [
    "/sys/class/dmi/id/product_uuid",
    "/proc/device-tree/serial-number",
];
/// The address of a card is its own (`NET_ADDR_PERM`), neither random nor set by somebody.
const PERMANENT: &str = "0";

/// This computer in one line, as `journal::Options` wants it.
#[must_use]
pub fn describe() -> String {
    #[cfg(feature = "test-hooks")]
    if let Ok(told) = std::env::var("HOLDFAST_TEST_COMPUTER") {
        return told;
    }
    let mut line = read("/etc/machine-id");
    for (kind, values) in [("mac", cards()), ("serial", serials())] {
        if !values.is_empty() {
            line += &format!(" {kind}={}", values.join(","));
        }
    }
    line
}

fn read(path: impl AsRef<Path>) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    // One word of the line.
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | ':' | '.');
    text.chars().filter(plain).collect()
}

/// Addresses of network cards that are hardware.
fn cards() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten();
    let mut cards: Vec<String> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|card| card.join("device").exists())
        .filter(|card| read(card.join("addr_assign_type")) == PERMANENT)
        .map(|card| read(card.join("address")))
        .filter(|address| address.chars().any(|c| !matches!(c, '0' | ':')))
        .collect();
    cards.sort();
    cards.dedup();
    cards
}

fn serials() -> Vec<String> {
    SERIALS
        .iter()
        .map(read)
        .filter(|serial| !serial.is_empty())
        .collect()
}
