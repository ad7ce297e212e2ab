//! Owns: what a line itself shows, whatever is spoken on it: its settings, what its driver counts, its echo.
//! May call: diagnose, echo of this room; core link types, sys's counters.
//! Never: send anything; know a frame.

use super::diagnose::{Diagnosis, Facts, found, shown};
use super::echo;
use crate::core::serial::{Parity, Way};
use crate::core::spec::LinkSpec;
use crate::sys::LineErrors;

/// Of so many characters one with a line error means settings, not noise.
const ERROR_SHARE: u32 = 4;

/// How the line is set, such as `19200 baud 8E1`.
pub(super) fn settings(way: &Way) -> String {
    match way {
        Way::Serial(line) => {
            let parity = match line.parity {
                Parity::None => "N",
                Parity::Even => "E",
                Parity::Odd => "O",
            };
            format!(
                "{} baud {}{parity}{}",
                line.baud, line.data_bits, line.stop_bits
            )
        }
        Way::Tcp { .. } => "the server's serial settings".to_owned(),
    }
}

/// What the driver counted, if it counted anything wrong.
pub(super) fn errors(way: &Way, errors: Option<LineErrors>) -> Option<Diagnosis> {
    let errors = errors?;
    let wrong = errors.framing + errors.parity + errors.breaks + errors.overrun;
    (wrong > 0).then(|| counted(&way.address(), &settings(way), errors))
}

/// That the driver counted nothing wrong, where it counts.
pub(super) fn none_counted(errors: Option<LineErrors>) -> &'static str {
    match errors {
        Some(_) => "; the driver counted no line error either",
        None => "",
    }
}

fn counted(address: &str, settings: &str, errors: LineErrors) -> Diagnosis {
    let counts = format!(
        "{} framing errors, {} parity errors, {} breaks and {} overruns in {} characters",
        errors.framing, errors.parity, errors.breaks, errors.overrun, errors.received
    );
    if errors.framing + errors.parity + errors.breaks == 0 {
        return found(
            "line_noise",
            format!(
                "{address}: the driver counted {counts}: the settings fit, and this computer lost characters before it \
                 took them"
            ),
            &["take a lower baud rate, or an adapter whose driver has a larger buffer"],
        );
    }
    if errors.framing == 0 && errors.breaks == 0 {
        return found(
            "wrong_parity",
            format!(
                "{address}: the driver counted {counts}: the device sends with another parity than {settings}"
            ),
            &["set parity as the device has it; without framing errors the baud rate fits"],
        );
    }
    if errors.received / ERROR_SHARE > errors.framing + errors.parity {
        return found(
            "line_noise",
            format!(
                "{address}: the driver counted {counts}: the settings fit, and the line is disturbed"
            ),
            &["look at shield, bias and termination of the line, and at what runs beside it"],
        );
    }
    found(
        "wrong_baud",
        format!(
            "{address}: the driver counted {counts}: the device sends at another speed than {settings}"
        ),
        &[
            "set baud, data bits and stop bits as the device has them; on Modbus RTU `--search` tries others",
            "swapped A and B on RS-485 look the same",
        ],
    )
}

/// Behind "no byte came back", where the request's own bytes did.
pub(super) fn beside_echo(echo: bool) -> &'static str {
    match echo {
        true => " beside the request's own, as echo = true expects them",
        false => "",
    }
}

/// The request's own bytes came back, and nobody expected them.
pub(super) fn unexpected_echo(facts: &Facts<'_>) -> Option<Diagnosis> {
    if facts.link.on_line().is_none_or(|line| line.echo) {
        return None;
    }
    let end = echo::own_bytes(facts.sent, facts.received)?;
    let more = match facts.received.len() > end {
        true => "the line gives back what is sent on it, before the reply",
        false => "and nothing else: the line gives back what is sent on it, and no device answers",
    };
    Some(found(
        "echo",
        format!(
            "{}: the request's own bytes came back ({}); {more}",
            facts.link.address(),
            shown(facts.received)
        ),
        &[
            "set echo = true in [link], or switch the transceiver's echo off (a two-wire adapter's receiver stays on)",
        ],
    ))
}

/// They were expected, and did not come; in their place these bytes, or none.
pub(super) fn no_echo(link: &LinkSpec, bytes: Option<&[u8]>) -> Diagnosis {
    let address = link.address();
    match bytes {
        Some(bytes) => found(
            "no_echo",
            format!(
                "{address}: echo = true, and the request's own bytes did not come back ({})",
                shown(bytes)
            ),
            &["set echo = false in [link]: this line gives nothing back"],
        ),
        None => found(
            "no_echo",
            format!(
                "{address}: echo = true, and not one byte came back, not even the request's own: either this line gives \
                 nothing back, or the request did not get onto it"
            ),
            &[
                "is it the right port, and is the transceiver connected and supplied? One with an echo needs no device for it",
                "set echo = false in [link], if this line gives nothing back",
            ],
        ),
    }
}
