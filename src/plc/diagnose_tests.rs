use super::*;
use crate::core::melsec::{Family, McLink, Route};
use crate::core::serial::SerialLine;

fn serial(echo: bool) -> LinkSpec {
    LinkSpec::ModbusRtu(ModbusRtu {
        way: Way::Serial(SerialLine {
            path: "/dev/ttyS0".into(),
            baud: 19_200,
            data_bits: 8,
            parity: Parity::Even,
            stop_bits: 1,
            rs485: false,
        }),
        unit: 1,
        timeout_ms: 200,
        settle_ms: 0,
        turnaround_ms: 0,
        echo,
        read_registers_max: 125,
        reconnect_ms_min: 1,
        reconnect_ms_max: 1,
        heartbeat_ms: 1,
    })
}

fn tcp() -> LinkSpec {
    let LinkSpec::ModbusRtu(link) = serial(false) else {
        unreachable!()
    };
    LinkSpec::ModbusTcp(as_tcp(&link, "plc", 502))
}

fn mc(code: Code, frame: Frame) -> LinkSpec {
    LinkSpec::Mc(McLink {
        host: "plc".into(),
        port: 5007,
        transport: Transport::Tcp,
        frame,
        code,
        family: Family::Q,
        route: Route::default(),
        timeout_ms: 200,
        read_words_max: 960,
        reconnect_ms_min: 1,
        reconnect_ms_max: 1,
        heartbeat_ms: 1,
    })
}

const REQUEST: [u8; 8] = [0x01, 0x03, 0x00, 0x00, 0x00, 0x01, 0x84, 0x0A];

fn code_of(
    link: &LinkSpec,
    error: &LinkError,
    received: &[u8],
    errors: Option<LineErrors>,
) -> &'static str {
    let found = diagnose(&Facts {
        link,
        error,
        sent: &REQUEST,
        received,
        line_errors: errors,
        port: None,
    });
    assert!(
        !found.text.is_empty() && !found.mend.is_empty(),
        "{found:?}"
    );
    found.code
}

fn silence(why: &str) -> LinkError {
    LinkError::NoReply(why.into())
}

// The counters of a driver are no pseudo-terminal's, so that they are given here.
#[test]
fn what_the_driver_counts_tells_speed_from_parity_from_noise() {
    let late = silence("no reply within 200ms");
    let counts = |received, framing, parity| {
        Some(LineErrors {
            received,
            framing,
            parity,
            ..LineErrors::default()
        })
    };
    let link = serial(false);
    assert_eq!(
        code_of(&link, &late, &[0, 0xF8], counts(2, 2, 0)),
        "wrong_baud"
    );
    assert_eq!(code_of(&link, &late, &[], counts(3, 2, 1)), "wrong_baud");
    assert_eq!(
        code_of(&link, &late, &[1, 3], counts(7, 0, 4)),
        "wrong_parity"
    );
    assert_eq!(
        code_of(&link, &late, &[9, 9, 9], counts(90, 1, 1)),
        "line_noise"
    );
    assert_eq!(code_of(&link, &late, &[], counts(0, 0, 0)), "no_bytes");
}

#[test]
fn bytes_on_a_serial_line_tell_what_is_wrong() {
    let late = silence("no reply within 200ms; bytes came that are no reply to this request");
    let link = serial(false);
    assert_eq!(code_of(&link, &late, &REQUEST, None), "echo");
    assert_eq!(code_of(&link, &late, &[0xFF, 0x80, 0x13], None), "garbage");
    // A whole reply of unit 2, and the same of unit 1 with a disturbed byte, and cut off.
    let of_unit_2 = [2, 3, 2, 0, 7, 0xBD, 0x86];
    assert_eq!(code_of(&link, &late, &of_unit_2, None), "wrong_unit");
    let bad = silence("no reply within 200ms; a reply with a wrong check sum came");
    assert_eq!(
        code_of(&link, &bad, &[1, 3, 2, 0, 9, 1, 1], None),
        "check_sum"
    );
    assert_eq!(code_of(&link, &late, &[1, 3, 2], None), "check_sum");
    let no_echo = silence("no reply within 200ms; the request's echo did not come");
    assert_eq!(code_of(&serial(true), &no_echo, &[7; 9], None), "no_echo");
    // The whole reply, where the request should have come back first: shorter than the request, and no echo.
    let whole = [1, 3, 2, 0, 7, 0xF9, 0x86];
    assert_eq!(code_of(&serial(true), &late, &whole, None), "no_echo");
    let mbap = [0, 1, 0, 0, 0, 5, 1, 3, 2, 0, 7];
    assert_eq!(code_of(&link, &late, &mbap, None), "wrong_protocol");
    // The echo that is expected came, and nothing else did: that is no reply that breaks off.
    assert_eq!(code_of(&serial(true), &late, &REQUEST, None), "no_bytes");
    assert_eq!(code_of(&serial(true), &late, &[], None), "no_echo");
    let of_2_behind = [&REQUEST[..], &of_unit_2].concat();
    assert_eq!(
        code_of(&serial(true), &late, &of_2_behind, None),
        "wrong_unit"
    );
    let noisy = LinkError::Lost("/dev/ttyS0 does not fall silent: another master".into());
    assert_eq!(code_of(&link, &noisy, &[], None), "line_never_silent");
}

#[test]
fn bytes_over_a_network_tell_what_is_wrong() {
    let late = silence("no reply within 200ms");
    assert_eq!(code_of(&tcp(), &late, &[], None), "silent");
    assert_eq!(
        code_of(&tcp(), &late, &[0xD0, 0, 0, 0xFF], None),
        "wrong_protocol"
    );
    assert_eq!(code_of(&tcp(), &late, b"HTTP/1.1 400", None), "garbage");
    let closed = silence("the device closed the connection");
    assert_eq!(code_of(&tcp(), &closed, &[], None), "closed_at_once");
    let binary = mc(Code::Binary, Frame::E3);
    assert_eq!(
        code_of(&binary, &late, b"D00000FF03FF00", None),
        "wrong_code"
    );
    assert_eq!(code_of(&binary, &late, &[0xD4, 0, 0], None), "wrong_frame");
    assert_eq!(
        code_of(&mc(Code::Ascii, Frame::E4), &late, b"D000", None),
        "wrong_frame"
    );
    assert_eq!(code_of(&binary, &late, &[], None), "silent");
    assert_eq!(
        code_of(&binary, &late, &[0xD0, 0, 9], None),
        "no_valid_reply"
    );
}

#[test]
fn other_settings_are_bounded_and_on_a_serial_line_only_asked_for() {
    assert!(others(&serial(false), "no_bytes", false).is_empty());
    let all = others(&serial(false), "no_bytes", true);
    assert!(all.len() > 20 && all.len() <= TRIES_MAX);
    assert!(all.iter().all(|(_, link)| *link != serial(false)));
    assert!(
        others(&tcp(), "refused", true).is_empty(),
        "no other setting opens a port"
    );
    let others = others(&mc(Code::Binary, Frame::E3), "silent", false);
    assert_eq!(others.len(), 3);
}

#[test]
fn a_name_that_nobody_knows_is_no_missing_way() {
    let unreachable = |why: &str| LinkError::Unreachable {
        address: "plc:502".into(),
        why: why.into(),
    };
    let unknown = unreachable("failed to lookup address information: Name or service not known");
    assert_eq!(code_of(&tcp(), &unknown, &[], None), "name_unknown");
    let no_way = unreachable("No route to host (os error 113)");
    assert_eq!(code_of(&tcp(), &no_way, &[], None), "no_route");
}
