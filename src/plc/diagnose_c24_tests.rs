//! Owns: the proof that what a serial module sends names the setting that differs: bytes of the reference vectors,
//! and the same with one thing wrong.
//! May call: the diagnosis; core link types.
//! Never: build a frame by the code under test.

use super::super::diagnose::{Diagnosis, Facts, diagnose};
use super::super::link::LinkError;
use super::*;
use crate::core::melsec::Family;
use crate::core::serial::{Parity, SerialLine};
use crate::core::spec::LinkSpec;
use C24Format::{F1, F2, F3, F4, F5};
use C24Frame::{C1, C3, C4};
use proptest::prelude::*;

fn link(frame: C24Frame, format: C24Format) -> C24Link {
    C24Link {
        way: Way::Serial(SerialLine {
            path: "/dev/ttyS0".into(),
            baud: 19_200,
            data_bits: 8,
            parity: Parity::Even,
            stop_bits: 2,
            rs485: false,
        }),
        frame,
        format,
        sum_check: true,
        family: Family::Q,
        route: C24Route::default(),
        timeout_ms: 1_000,
        settle_ms: 10,
        turnaround_ms: 0,
        echo: false,
        read_words_max: 64,
        reconnect_ms_min: 1,
        reconnect_ms_max: 1,
        heartbeat_ms: 1_000,
    }
}

fn no_sum(link: C24Link) -> C24Link {
    C24Link {
        sum_check: false,
        ..link
    }
}

fn echoing(link: C24Link) -> C24Link {
    C24Link { echo: true, ..link }
}

/// M100, two words, format 5 (vector "4c-f5 0401 M100 x2 words").
const ASKED: &[u8] = b"\x10\x02\x12\x00\xF8\x00\x00\xFF\xFF\x03\x00\x00\x01\x04\x00\x00\x64\x00\x00\x90\x02\x00\x10\x0306";
/// Its reply 1234H 1010H (vector "4c-f5 read reply 1234H 1010H").
const REPLY: &[u8] = b"\x10\x02\x10\x10\x00\xF8\x00\x00\xFF\xFF\x03\x00\x00\xFF\xFF\x00\x00\x34\x12\x10\x10\x10\x10\x10\x036D";
const LATE: &str = "no reply within 1s; bytes came that are no reply to this request";

fn counted(framing: u32, parity: u32, overrun: u32) -> LineErrors {
    LineErrors {
        received: 20,
        framing,
        parity,
        overrun,
        breaks: 0,
    }
}

fn told_with(link: &C24Link, received: &[u8], why: &str, errors: Option<LineErrors>) -> Diagnosis {
    let spec = LinkSpec::C24(link.clone());
    let found = diagnose(&Facts {
        link: &spec,
        error: &LinkError::NoReply(why.into()),
        sent: ASKED,
        received,
        line_errors: errors,
        port: None,
    });
    assert!(!found.mend.is_empty(), "{found:?}");
    found
}

#[track_caller]
fn is(link: &C24Link, received: &[u8], code: &str, words: &[&str]) {
    let found = told_with(link, received, LATE, None);
    let text = format!("{} {}", found.text, found.mend.join(" "));
    assert_eq!(found.code, code, "{text}");
    for part in words {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// `bytes` with the sum that stands in its last two characters taken off.
fn unsummed(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len() - 2]
}

// covers: F013
#[test]
fn the_requests_own_bytes_are_an_echo_whatever_follows_them() {
    let own = link(C4, F5);
    is(&own, ASKED, "echo", &["echo = true", "no device answers"]);
    let both = [ASKED, REPLY].concat();
    is(&own, &both, "echo", &["before the reply"]);
    // A transceiver that turns round late swallows the first of them.
    is(&own, &ASKED[1..], "echo", &["echo = true"]);
    let echoing = echoing(own);
    is(&echoing, REPLY, "no_echo", &["echo = false"]);
    is(&echoing, b"", "no_echo", &["not even the request's own"]);
    // As it is expected, and then nothing.
    is(
        &echoing,
        ASKED,
        "no_bytes",
        &["beside the request's own", "19200 baud 8E2"],
    );
    let of_3 = [ASKED, FROM_3].concat();
    is(&echoing, &of_3, "wrong_unit", &["station = 3"]);
}

/// Station 3 answers 1234H in format 5; the sum by hand: F8+03+FF+FF+03+FF+FF+34+12+0E = 54EH.
const FROM_3: &[u8] =
    b"\x10\x02\x0E\x00\xF8\x03\x00\xFF\xFF\x03\x00\x00\xFF\xFF\x00\x00\x34\x12\x10\x034E";

#[test]
fn another_stations_reply_is_named_in_every_format() {
    is(
        &link(C4, F5),
        FROM_3,
        "wrong_unit",
        &["station = 3", "station 0 was asked"],
    );
    let from_5 = b"\x15F80500FF03FF00007F24";
    is(&link(C4, F1), from_5, "wrong_unit", &["station = 5"]);
    // Cut off, and still telling.
    is(&link(C4, F1), &from_5[..12], "wrong_unit", &["station 5"]);
    // The right station by another way to it.
    let pc_3 = b"\x15F800000303FF00007F24";
    is(
        &link(C4, F1),
        pc_3,
        "wrong_unit",
        &["pc = 3", "pc 255 was asked"],
    );
    is(
        &link(C4, F2),
        b"\x1500F80500FF03FF00007F24",
        "wrong_unit",
        &["station = 5"],
    );
    is(
        &link(C3, F3),
        b"\x02F90500FF00QNAK7E40\x03",
        "wrong_unit",
        &["station = 5"],
    );
    is(&link(C1, F1), b"\x1505FF06", "wrong_unit", &["station = 5"]);
}

#[test]
fn a_sum_at_one_side_only_is_told_from_a_wrong_one() {
    // 1234H; the sum over "F80000FF03FF0000" "1234" and ETX by hand: 379 + CA + 3 = 446H.
    let format_1 = b"\x02F80000FF03FF00001234\x0346";
    let missing = &["sum_check = false", "no sum of two digits"];
    let present = &["sum_check = true", "none is configured"];
    is(&link(C4, F1), unsummed(format_1), "check_sum", missing);
    is(&no_sum(link(C4, F1)), format_1, "check_sum", present);
    is(&link(C4, F5), unsummed(REPLY), "check_sum", missing);
    is(&no_sum(link(C4, F5)), REPLY, "check_sum", present);
    let format_4 = [&format_1[..], b"\r\n"].concat();
    is(&no_sum(link(C4, F4)), &format_4, "check_sum", present);
    let bare = [unsummed(format_1), b"\r\n"].concat();
    is(&link(C4, F4), &bare, "check_sum", missing);
    let format_3 = b"\x02F90000FF00QACK1234\x03";
    is(&link(C3, F3), format_3, "check_sum", missing);
    let wrong = told_with(
        &link(C4, F1),
        b"\x02F80000FF03FF00001234\x0312",
        "no reply within 1s; the sum is 12, over these bytes it is 46",
        None,
    );
    assert!(
        wrong.code == "check_sum" && wrong.text.contains("the sum is 12"),
        "{wrong:?}"
    );
    assert!(!wrong.mend.join(" ").contains("sum_check"), "{wrong:?}");
}

#[test]
fn a_reply_in_another_format_or_frame_names_it() {
    let format_1 = b"\x02F80000FF03FF00001234\x0346";
    is(
        &link(C4, F5),
        format_1,
        "wrong_format",
        &["format = 1", "format 5 is configured"],
    );
    is(
        &link(C4, F1),
        REPLY,
        "wrong_format",
        &["format = 5", "binary"],
    );
    // All that differs at once.
    is(
        &no_sum(link(C3, F1)),
        FROM_3,
        "wrong_format",
        &["format = 5", "mc-4c", "station = 3", "sum_check = true"],
    );
    is(
        &link(C4, F1),
        b"\x06F80000FF03FF0000\r\n",
        "wrong_format",
        &["format = 4"],
    );
    is(
        &link(C4, F4),
        b"\x06F80000FF03FF0000",
        "wrong_format",
        &["format = 1"],
    );
    is(
        &link(C3, F3),
        b"\x15F90000FF007E40",
        "wrong_format",
        &["format = 1"],
    );
    is(
        &link(C4, F1),
        b"\x15F90000FF007E40",
        "wrong_frame",
        &["mc-3c", "frame 4C is configured"],
    );
    // Only the beginning came.
    is(
        &link(C4, F5),
        b"\x02F80000FF03",
        "wrong_format",
        &["ASCII formats 1 to 4"],
    );
    is(
        &link(C4, F1),
        b"\x10\x02\x12\x00\xF8",
        "wrong_format",
        &["format 5"],
    );
    is(&link(C4, F1), b"\x02F90000FF00", "wrong_frame", &["3C"]);
}

#[test]
fn what_the_driver_counts_and_how_the_line_is_set_are_said() {
    let own = link(C4, F5);
    let noise = [0xFF, 0x7F, 0xFE];
    for (bytes, errors, code) in [
        (&noise[..], counted(9, 2, 0), "wrong_baud"),
        (&noise[..], counted(0, 9, 0), "wrong_parity"),
        (&[][..], counted(9, 0, 0), "wrong_baud"),
        (&noise[..], counted(0, 0, 3), "line_noise"),
    ] {
        let found = told_with(&own, bytes, LATE, Some(errors));
        assert_eq!(found.code, code, "{found:?}");
        assert!(
            found.text.contains("19200 baud 8E2") || code == "line_noise",
            "{found:?}"
        );
        assert!(
            found.text.contains("overruns in 20 characters"),
            "{found:?}"
        );
    }
    is(
        &own,
        &noise,
        "garbage",
        &["no control code", "19200 baud 8E2", "sum check on"],
    );
    let silent = told_with(&own, b"", "no reply within 1s", Some(counted(0, 0, 0)));
    assert_eq!(silent.code, "no_bytes");
    let text = format!("{} {}", silent.text, silent.mend.join(" "));
    for part in [
        "19200 baud 8E2",
        "no line error",
        "station 0",
        "format 5",
        "sum check on",
    ] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    // A whole reply is none by a wrong speed, whatever was counted before it.
    let sound = told_with(&own, FROM_3, LATE, Some(counted(9, 0, 0)));
    assert_eq!(sound.code, "wrong_unit", "{sound:?}");
}

#[test]
fn a_sound_reply_to_something_else_is_called_one() {
    is(
        &link(C4, F5),
        REPLY,
        "no_valid_reply",
        &["not to what was asked"],
    );
}

proptest! {
    #[test]
    fn nothing_that_comes_is_too_strange_to_be_named(
        received in proptest::collection::vec(
            prop_oneof![any::<u8>(), Just(DLE), Just(STX), Just(ETX), Just(ACK), Just(b'F'), Just(b'0')],
            0..60,
        ),
        cut in 0..ASKED.len(),
        echo in any::<bool>(),
        sum_check in any::<bool>(),
    ) {
        for format in [F1, F2, F3, F4, F5] {
            for frame in [C4, C3, C1] {
                let link = C24Link { echo, sum_check, ..link(frame, format) };
                for came in [received.clone(), [&ASKED[..cut], &received].concat()] {
                    let found = told_with(&link, &came, LATE, None);
                    prop_assert!(!found.text.is_empty());
                }
            }
        }
    }
}
