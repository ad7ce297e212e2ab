//! Owns: places apart in one frame: the bytes of it, and what no frame does.
//! May call: ethernet, command of this room; exchange.
//! Never: take an expected byte from the code under test.

use super::command::Command;
use super::ethernet::command;
use crate::core::melsec::{Code, Device, Family};
use crate::core::spec::Address;
use crate::core::spread::Part;
use crate::plc::exchange::Ask;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn part(place: &str, words: &[u16]) -> Part {
    let (device, number) = Device::parse(place, Family::Q).unwrap();
    (Address::Melsec { device, number }, words.to_vec())
}

fn body(parts: &[Part], code: Code) -> Result<Vec<u8>, String> {
    command(&Ask::Scatter(parts.to_vec()), code)?.encode(code)
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// The frames of pymcprotocol 0.3 (`randomwrite`, `randomwrite_bitunits`) behind their timer. In ASCII it writes double
/// words, high word first; here they go out as words.
#[test]
fn words_double_words_and_bits_stand_in_one_frame_as_others_write_them() {
    let words = [
        part("D120", &[0x0550]),
        part("D1500", &[0x1202, 0x0439]),
        part("R10", &[1, 2, 3]),
    ];
    let binary = "0214 0000 02 02 780000a8 5005 0c0000af 0300 dc0500a8 02123904 0a0000af 01000200";
    assert_eq!(body(&words, Code::Binary), Ok(hex(binary)));
    let ascii =
        "140200000600D*0001200550D*0015001202D*0015010439R*0000100001R*0000110002R*0000120003";
    assert_eq!(body(&words, Code::Ascii), Ok(ascii.as_bytes().to_vec()));
    let bits = [part("M50", &[0]), part("M63", &[1])];
    let binary = "0214 0100 02 32000090 00 3f000090 01";
    assert_eq!(body(&bits, Code::Binary), Ok(hex(binary)));
    let ascii = b"1402000102M*00005000M*00006301";
    assert_eq!(body(&bits, Code::Ascii), Ok(ascii.to_vec()));
}

#[test]
fn what_takes_too_many_points_goes_out_in_blocks() {
    let long = |place| part(place, &[0x4241; 125]);
    let parts = [long("D0"), long("D1000"), long("D2000")];
    match command(&Ask::Scatter(parts.to_vec()), Code::Binary) {
        Ok(Command::WriteBlocks { words, bits }) => {
            assert_eq!((words.len(), bits.len()), (3, 0));
            assert!(words.iter().all(|(_, words)| words.len() == 125));
        }
        other => panic!("{other:?}"),
    }
    let frame = body(&parts, Code::Binary).unwrap();
    assert!(frame.starts_with(&hex("0614 0000 03 00 000000A8 7D00 4142 4142")));
    assert_eq!(frame.len(), 6 + 3 * (6 + 250));
}

#[test]
fn what_no_one_frame_writes_is_not_made() {
    for (parts, says) in [
        (vec![part("D0", &[1]), part("M0", &[1])], "bits and words"),
        (vec![part("M0", &[2]), part("M9", &[1])], "0 or 1"),
        (vec![part("M0", &[1, 1])], "0 or 1"),
        (vec![part("TC0", &[1])], "TC"),
        (vec![part("D0", &[]), part("D9", &[1])], "0 values"),
        (vec![part("D16777215", &[1, 2])], "2 values"),
        (vec![], "no units"),
        (vec![part("D0", &[1; 1000])], "more words"),
    ] {
        let said = body(&parts, Code::Binary).unwrap_err();
        assert!(said.contains(says), "{said}");
    }
}

/// What a device holds after the command, by the number of its D.
fn image(command: &Command) -> BTreeMap<u32, u16> {
    let mut image = BTreeMap::new();
    match command {
        Command::WriteRandom { words, doubles } => {
            image.extend(words.iter().map(|(place, word)| (place.number, *word)));
            for (place, double) in doubles {
                let (low, high) = (*double as u16, (*double >> 16) as u16);
                image.extend([(place.number, low), (place.number + 1, high)]);
            }
        }
        Command::WriteBlocks { words, .. } => {
            for (place, block) in words {
                image.extend((place.number..).zip(block.iter().copied()));
            }
        }
        other => panic!("{other:?}"),
    }
    image
}

proptest! {
    // covers: POL-11
    #[test]
    fn every_word_goes_to_its_place_whatever_the_command(
        parts in proptest::collection::vec(proptest::collection::vec(any::<u16>(), 1..40), 1..40),
        is_ascii in any::<bool>(),
    ) {
        let code = if is_ascii { Code::Ascii } else { Code::Binary };
        let numbered = (0u32..).step_by(100).zip(&parts);
        let expected: BTreeMap<u32, u16> = numbered
            .clone()
            .flat_map(|(at, words)| (at..).zip(words.iter().copied()))
            .collect();
        let parts: Vec<Part> = numbered.map(|(at, words)| part(&format!("D{at}"), words)).collect();
        if let Ok(command) = command(&Ask::Scatter(parts), code) {
            prop_assert_eq!(image(&command), expected);
            prop_assert!(command.encode(code).is_ok());
        }
    }
}
