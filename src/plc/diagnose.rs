//! Owns: what a link that does not serve most likely suffers from, in plain words, and what else is worth asking.
//! May call: link, rtu, echo, serial of this room, its own parts; core link types, sys's counters.
//! Never: send anything; call a guess a finding: each text says what was seen.

use super::link::LinkError;
use super::matching::hex;
use super::serial::Trouble;
use super::{diagnose_c24, diagnose_line, echo, rtu};
use crate::core::contract::DeviceCode;
use crate::core::melsec::{Code, Frame, Transport};
use crate::core::serial::{ModbusRtu, Parity, Way};
use crate::core::spec::{LinkSpec, ModbusTcp};
use crate::sys::LineErrors;

/// Most settings that are tried beside the configured ones.
pub const TRIES_MAX: usize = 40;
/// Most bytes shown in a text.
const SHOWN_BYTES_MAX: usize = 24;

/// What was seen of a link that does not serve.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// As configured.
    pub link: &'a LinkSpec,
    /// How the last try ended.
    pub error: &'a LinkError,
    /// The last request, as it went out; empty: none went.
    pub sent: &'a [u8],
    /// What came after it.
    pub received: &'a [u8],
    /// What the serial driver counted since the opening.
    pub line_errors: Option<LineErrors>,
    /// Why the serial port does not open.
    pub port: Option<Trouble>,
}

/// What it most likely is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// Stable, for scripts.
    pub code: &'static str,
    /// What was seen, and what that means.
    pub text: String,
    /// What to look at, the likeliest first.
    pub mend: Vec<String>,
}

impl Facts<'_> {
    /// What came beside the request's own bytes, where the line is known to give them back.
    fn heard(&self) -> &[u8] {
        let echoes = self.link.on_line().is_some_and(|line| line.echo);
        let own = echo::own_bytes(self.sent, self.received).filter(|_| echoes);
        &self.received[own.unwrap_or(0)..]
    }
}

pub(super) fn found(code: &'static str, text: impl Into<String>, mend: &[&str]) -> Diagnosis {
    Diagnosis {
        code,
        text: text.into(),
        mend: mend.iter().map(|step| (*step).to_owned()).collect(),
    }
}

/// What `facts` most likely mean.
#[must_use]
pub fn diagnose(facts: &Facts<'_>) -> Diagnosis {
    let address = facts.link.address();
    match facts.error {
        LinkError::Unreachable { why, .. } => unreachable(&address, why),
        LinkError::Refused { .. } => found(
            "refused",
            format!(
                "{address} is there, and refuses the connection at once: nothing listens on that port"
            ),
            &[
                "compare the port with the PLC's parameters (Modbus TCP is usually 502)",
                "see that the service is switched on in the PLC; an MC protocol port must be opened in its parameters",
                "a device whose connections are all taken may refuse too: end other clients",
            ],
        ),
        LinkError::ConnectTimeout { timeout_ms, .. } => found(
            "connect_timeout",
            format!(
                "{address}: the network took the request for a connection, and nobody answered within {timeout_ms} ms"
            ),
            &[
                "is the device on, and is the network cable's lamp lit at both ends?",
                "is the address right? Try `ping` from this computer",
                "a firewall that drops packets looks the same",
            ],
        ),
        LinkError::Port(why) => port(&address, why, facts.port.as_ref()),
        LinkError::UnitOffline { unit, code, .. } => unit_offline(&address, *unit, *code),
        LinkError::Exception { what, code, .. } => exception(what, code),
        LinkError::Lost(why) | LinkError::NoReply(why) => no_reply(facts, why),
        other => found("not_possible", other.to_string(), &[]),
    }
}

fn unreachable(address: &str, why: &str) -> Diagnosis {
    if why.contains("lookup") {
        return found(
            "name_unknown",
            format!("{address}: no name server knows that host name ({why})"),
            &["write the IP address, or mend the name service of this computer"],
        );
    }
    found(
        "no_route",
        format!("{address}: this computer has no way to that network ({why})"),
        &[
            "is the network interface up, and its cable in (`ip link`)?",
            "are this computer and the PLC in one network (`ip route get ADDRESS`)?",
        ],
    )
}

fn port(path: &str, why: &str, trouble: Option<&Trouble>) -> Diagnosis {
    match trouble {
        Some(Trouble::Missing) => found(
            "port_missing",
            format!("the device file {path} is not there"),
            &[
                "is the adapter plugged in? `ls -l /dev/serial/by-id` shows those that are",
                "does the name in the configuration fit the board profile (`holdfast board`)?",
            ],
        ),
        Some(Trouble::InUse(holders)) => found(
            "port_in_use",
            format!("{path} is in use by {}", holders.join(", ")),
            &["end that process, or ask it; two masters on one serial line disturb each other"],
        ),
        Some(Trouble::Forbidden { group }) => Diagnosis {
            code: "port_forbidden",
            text: format!("this user may not open {path}, which belongs to group {group}"),
            mend: vec![format!(
                "add the user to that group: sudo usermod -aG {group} USER, then log in again"
            )],
        },
        Some(Trouble::Other) | None => found(
            "port_failed",
            why,
            &[
                "does the device file belong to a serial port? `dmesg` says what the driver thinks of it",
            ],
        ),
    }
}

fn unit_offline(address: &str, unit: u8, code: u32) -> Diagnosis {
    let what = match code {
        0x0A => "has no path to it (0A, gateway path unavailable)",
        _ => "got no answer from it (0B, gateway target device failed to respond)",
    };
    found(
        "unit_offline",
        format!("the gateway at {address} answers, and for unit {unit} it {what}"),
        &[
            "is the unit number right? It is the device's address behind the gateway, not the gateway's",
            "is the device behind the gateway on, and its line connected?",
            "do the gateway's own serial settings (baud, parity) fit the device?",
        ],
    )
}

fn exception(what: &str, code: &DeviceCode) -> Diagnosis {
    let text = format!("the device is alive: it answers {what} with {code}");
    let mend: &[&str] = match (code.family.as_str(), code.code) {
        ("modbus", 1) => &[
            "the device does not know this function: read another table (input for holding), or see its manual",
        ],
        ("modbus", 2) => &[
            "the place is not there: addresses are zero-based here, manuals often count from 1 (40001 is holding:0)",
            "is it the right table, and the right unit?",
        ],
        ("modbus", 3) => &["the device takes no such length: lower read_registers_max"],
        ("modbus", 4) => &["the device failed while it did it: look at its own diagnosis"],
        ("modbus", 5 | 6) => &["the device is busy: ask again later, or poll more slowly"],
        ("modbus", 8) => &["the device's memory failed its check: look at its own diagnosis"],
        ("mc", 0x7F24) => {
            &["sum check on or off must be the same in the serial module's settings and here"]
        }
        ("mc", 0xC059) => {
            &["the port knows no such command: compare frame, family and code with its parameters"]
        }
        ("mc", 0xC056 | 0x4031) => &[
            "the place is past the last one: the number's base is the family's own (X and Y may be octal or hexadecimal)",
        ],
        ("mc", 0xC200..=0xC204) => {
            &["a remote password is set: unlock the port, or take the password off it"]
        }
        _ => &["see the device's manual for this code"],
    };
    found("exception", text, mend)
}

fn no_reply(facts: &Facts<'_>, why: &str) -> Diagnosis {
    if why.contains("does not fall silent") {
        return found(
            "line_never_silent",
            format!("{why}; bytes come all the time without being asked for"),
            &[
                "is another master on the line? There may be one only",
                "at a wrong baud rate another master's traffic looks like noise: compare the settings",
                "a line without bias or termination picks up noise",
            ],
        );
    }
    if why.contains("nobody listens") {
        return found(
            "refused",
            format!("{}: nobody listens on that UDP port", facts.link.address()),
            &["compare the port, and whether it is set to UDP or TCP, with the PLC's parameters"],
        );
    }
    match (facts.heard(), facts.link) {
        ([], _) if is_closed(why) => closed(facts),
        ([], link) if link.on_line().is_some_and(|line| line.echo) && facts.received.is_empty() => {
            diagnose_line::no_echo(facts.link, None)
        }
        ([], LinkSpec::ModbusRtu(link)) => rtu_silent(link, facts.line_errors),
        ([], LinkSpec::ModbusTcp(link)) => found(
            "silent",
            format!(
                "{} takes connections, and answers nothing to unit {} (no byte came)",
                facts.link.address(),
                link.unit
            ),
            &[
                "is the unit number right? Many gateways drop a request for a unit they do not know; try 255 or 1",
                "does that port speak Modbus TCP at all?",
                "a device that serves its connections one by one is silent on all others: end other clients",
            ],
        ),
        ([], LinkSpec::Mc(link)) => {
            let (own, other) = codes(link.code);
            found(
                "silent",
                format!(
                    "{}: a request in {own} was sent, and no byte came back; a port that is set to {other} stays \
                     silent like that",
                    facts.link.address()
                ),
                &[
                    "compare code (binary or ASCII), frame (3E or 4E) and protocol of that port with the PLC's parameters",
                    "network, PC number and station must be those of the CPU that is asked (0, 255, 0 for the port's own)",
                    "over UDP a wrong address is as silent as that",
                ],
            )
        }
        ([], LinkSpec::C24(link)) => diagnose_c24::silent(link, facts.line_errors),
        (bytes, LinkSpec::C24(link)) => diagnose_c24::diagnose(facts, link, bytes, why),
        (bytes, LinkSpec::ModbusRtu(link)) => rtu_bytes(facts, link, bytes, why),
        (bytes, LinkSpec::ModbusTcp(link)) => tcp_bytes(link, bytes, why),
        (bytes, LinkSpec::Mc(link)) => mc_bytes(link.code, link.frame, bytes, why),
    }
}

fn is_closed(why: &str) -> bool {
    [
        "closed the connection",
        "had closed",
        "reset",
        "Broken pipe",
    ]
    .iter()
    .any(|part| why.contains(part))
}

fn closed(facts: &Facts<'_>) -> Diagnosis {
    let when = match facts.sent {
        [] => "before a request was sent",
        _ => "after the request, without a reply",
    };
    found(
        "closed_at_once",
        format!(
            "{} takes the connection and closes it {when}",
            facts.link.address()
        ),
        &[
            "are all of the device's connections taken? Many have a handful, some one: end other clients, then wait a minute",
            "is this computer's address in the device's list of those who may connect?",
            "another protocol on that port may close at the first frame that it does not know",
        ],
    )
}

fn rtu_silent(link: &ModbusRtu, errors: Option<LineErrors>) -> Diagnosis {
    let address = link.way.address();
    if let Some(found) = diagnose_line::errors(&link.way, errors) {
        return found;
    }
    let counted = diagnose_line::none_counted(errors);
    let beside = diagnose_line::beside_echo(link.echo);
    let text = format!(
        "{address}: unit {} was asked, and no byte came back{beside}{counted}: nothing hears the request, or nothing on \
         the line feels addressed",
        link.unit
    );
    match link.way {
        Way::Serial(_) => Diagnosis {
            code: "no_bytes",
            text,
            mend: vec![
                "is the cable in, and are A and B (or TX and RX) the right way round? Swapped wires are silent".into(),
                format!("is unit {} there, is it on, and is that its number?", link.unit),
                format!(
                    "is it set to {}? At another baud rate or parity a device drops what it hears and stays silent; \
                     `--search` tries others",
                    diagnose_line::settings(&link.way)
                ),
                "on RS-485: does the driver switch the direction (board profile), and is the line terminated?".into(),
            ],
        },
        Way::Tcp { .. } => found(
            "no_bytes",
            text,
            &[
                "does the server pass RTU frames through, or does it speak Modbus TCP (protocol = \"modbus-tcp\")?",
                "do the server's serial settings fit the device, and is the unit's number right?",
            ],
        ),
    }
}

pub(super) fn shown(bytes: &[u8]) -> String {
    let more = if bytes.len() > SHOWN_BYTES_MAX {
        " …"
    } else {
        ""
    };
    let first = &bytes[..bytes.len().min(SHOWN_BYTES_MAX)];
    format!("{} bytes: {}{more}", bytes.len(), hex(first))
}

fn rtu_bytes(facts: &Facts<'_>, link: &ModbusRtu, bytes: &[u8], why: &str) -> Diagnosis {
    let address = link.way.address();
    let request = facts.sent;
    if let Some(found) = diagnose_line::unexpected_echo(facts) {
        return found;
    }
    // Here the line's own bytes are gone already, if they came.
    let all = bytes.len() == facts.received.len();
    if link.echo
        && all
        && (why.contains("echo did not come") || rtu::unit_of_sound_frame(bytes).is_some())
    {
        return diagnose_line::no_echo(facts.link, Some(bytes));
    }
    if let Some(unit) = rtu::unit_of_sound_frame(bytes).filter(|unit| *unit != link.unit) {
        return found(
            "wrong_unit",
            format!(
                "{address}: unit {} was asked, and unit {unit} answers ({})",
                link.unit,
                shown(bytes)
            ),
            &["set unit to the number that answers, or find out who else has the line"],
        );
    }
    if bytes.len() > 7 && bytes[2..4] == [0, 0] && usize::from(bytes[5]) + 6 == bytes.len() {
        return found(
            "wrong_protocol",
            format!("{address}: a Modbus TCP frame came back ({})", shown(bytes)),
            &[
                "set protocol = \"modbus-tcp\": this server translates, it does not pass RTU frames through",
            ],
        );
    }
    if let Some(found) = diagnose_line::errors(&link.way, facts.line_errors) {
        return found;
    }
    if bytes.first() == Some(&link.unit) && bytes.get(1) == request.get(1) {
        let what = match why.contains("check sum") {
            true => "its check sum does not hold: single bytes were disturbed",
            false => "it breaks off: bytes were lost",
        };
        return found(
            "check_sum",
            format!(
                "{address}: a reply of unit {} came, and {what} ({})",
                link.unit,
                shown(bytes)
            ),
            &[
                "the settings fit; look at shield, termination and bias of the line",
                "a second master that talks at the same time disturbs like that",
                "a reply that breaks off: a transceiver that turns round too early, or a buffer that overran",
            ],
        );
    }
    found(
        "garbage",
        format!(
            "{address}: bytes came that make no frame ({})",
            shown(bytes)
        ),
        &[
            "a wrong baud rate or parity makes such bytes: compare with the device; `--search` tries others",
            "another protocol on the line looks like that too",
            "swapped A and B on RS-485, or a line without bias",
        ],
    )
}

fn tcp_bytes(link: &ModbusTcp, bytes: &[u8], why: &str) -> Diagnosis {
    let address = format!("{}:{}", link.host, link.port);
    if rtu::unit_of_sound_frame(bytes).is_some() {
        return found(
            "wrong_protocol",
            format!("{address}: a Modbus RTU frame came back ({})", shown(bytes)),
            &["set protocol = \"modbus-rtu-over-tcp\": this server passes RTU frames through"],
        );
    }
    if why.contains("reply from unit") {
        return found(
            "wrong_unit",
            format!(
                "{address}: unit {} was asked, and another answers: {why}",
                link.unit
            ),
            &[
                "set unit, or answering_unit where the device is known to answer with another number",
            ],
        );
    }
    if matches!(
        bytes,
        [0xD0 | 0xD4, 0, ..] | [b'D', b'0' | b'4', b'0', b'0', ..]
    ) {
        return found(
            "wrong_protocol",
            format!(
                "{address}: an MC protocol frame came back ({})",
                shown(bytes)
            ),
            &["set protocol to mc-3e or mc-4e, or take the port that the PLC serves Modbus TCP on"],
        );
    }
    found(
        "garbage",
        format!(
            "{address}: something answers, and not in Modbus TCP ({}; {why})",
            shown(bytes)
        ),
        &["is it the right port? Another service, or another protocol, is behind this one"],
    )
}

fn codes(own: Code) -> (&'static str, &'static str) {
    match own {
        Code::Binary => ("binary", "ASCII"),
        Code::Ascii => ("ASCII", "binary"),
    }
}

fn mc_bytes(own: Code, frame: Frame, bytes: &[u8], why: &str) -> Diagnosis {
    let seen = match bytes {
        [0xD0, 0, ..] => Some((Code::Binary, Frame::E3)),
        [0xD4, 0, ..] => Some((Code::Binary, Frame::E4)),
        [b'D', b'0', b'0', b'0', ..] => Some((Code::Ascii, Frame::E3)),
        [b'D', b'4', b'0', b'0', ..] => Some((Code::Ascii, Frame::E4)),
        _ => None,
    };
    match seen {
        Some((code, _)) if code != own => found(
            "wrong_code",
            format!(
                "a request in {} was answered in {} ({})",
                codes(own).0,
                codes(code).0,
                shown(bytes)
            ),
            &["set code in [link] as the port's parameters have it"],
        ),
        Some((_, other)) if other != frame => found(
            "wrong_frame",
            format!(
                "the answer is another frame than was asked in ({})",
                shown(bytes)
            ),
            &["set protocol to mc-3e or mc-4e, as the device answers"],
        ),
        Some(_) => found(
            "no_valid_reply",
            format!("the right kind of frame came, and not as it must be: {why}"),
            &["keep the bytes (`--trace`), and compare them with the manual of that port"],
        ),
        None => found(
            "garbage",
            format!(
                "something answers, and not in MC protocol ({}; {why})",
                shown(bytes)
            ),
            &["is it the right port? Another service, or another protocol, is behind this one"],
        ),
    }
}

/// Settings that are worth asking with when the configured ones are met with `code`, each named by what to set.
/// On a serial line only if the `search` is asked for: it goes on among others' frames.
#[must_use]
pub fn others(link: &LinkSpec, code: &str, search: bool) -> Vec<(String, LinkSpec)> {
    if !matches!(
        code,
        "silent"
            | "no_bytes"
            | "garbage"
            | "closed_at_once"
            | "unit_offline"
            | "wrong_unit"
            | "wrong_baud"
            | "wrong_parity"
    ) {
        return Vec::new();
    }
    let mut all = match link {
        LinkSpec::ModbusTcp(link) => other_units(link),
        LinkSpec::Mc(link) => {
            let mut all = Vec::new();
            for (code, code_name) in [(Code::Binary, "binary"), (Code::Ascii, "ascii")] {
                for (frame, frame_name) in [(Frame::E3, "mc-3e"), (Frame::E4, "mc-4e")] {
                    if (code, frame) != (link.code, link.frame) {
                        let mut other = link.clone();
                        (other.code, other.frame) = (code, frame);
                        let name = format!("protocol = \"{frame_name}\", code = \"{code_name}\"");
                        all.push((name, LinkSpec::Mc(other)));
                    }
                }
            }
            // Over UDP a frame that nobody takes costs the same, and says as little.
            all.retain(|_| link.transport == Transport::Tcp || code == "silent");
            all
        }
        LinkSpec::ModbusRtu(link) => match (&link.way, search) {
            (Way::Tcp { host, port }, _) => vec![(
                "protocol = \"modbus-tcp\"".to_owned(),
                LinkSpec::ModbusTcp(as_tcp(link, host, *port)),
            )],
            (Way::Serial(_), true) => other_lines(link),
            (Way::Serial(_), false) => Vec::new(),
        },
        // A wrong frame on a shared line may be what another station waits for.
        LinkSpec::C24(_) => Vec::new(),
    };
    all.truncate(TRIES_MAX);
    all
}

fn as_tcp(link: &ModbusRtu, host: &str, port: u16) -> ModbusTcp {
    ModbusTcp {
        host: host.to_owned(),
        port,
        unit: link.unit,
        answering_unit: None,
        timeout_ms: link.timeout_ms,
        read_registers_max: link.read_registers_max,
        reconnect_ms_min: link.reconnect_ms_min,
        reconnect_ms_max: link.reconnect_ms_max,
        heartbeat_ms: link.heartbeat_ms,
    }
}

fn other_units(link: &ModbusTcp) -> Vec<(String, LinkSpec)> {
    let units = [1, 255, 0, 2].into_iter().filter(|unit| *unit != link.unit);
    let mut all: Vec<(String, LinkSpec)> = units
        .map(|unit| {
            let link = ModbusTcp {
                unit,
                ..link.clone()
            };
            (format!("unit = {unit}"), LinkSpec::ModbusTcp(link))
        })
        .collect();
    let rtu = ModbusRtu {
        way: Way::Tcp {
            host: link.host.clone(),
            port: link.port,
        },
        unit: link.unit.max(1),
        timeout_ms: link.timeout_ms,
        settle_ms: 0,
        turnaround_ms: 0,
        echo: false,
        read_registers_max: link.read_registers_max,
        reconnect_ms_min: link.reconnect_ms_min,
        reconnect_ms_max: link.reconnect_ms_max,
        heartbeat_ms: link.heartbeat_ms,
    };
    all.push((
        "protocol = \"modbus-rtu-over-tcp\"".to_owned(),
        LinkSpec::ModbusRtu(rtu),
    ));
    all
}

fn other_lines(link: &ModbusRtu) -> Vec<(String, LinkSpec)> {
    let Way::Serial(own) = &link.way else {
        return Vec::new();
    };
    let mut all = Vec::new();
    let mut add = |baud, parity, stop_bits, unit| {
        let mut line = own.clone();
        (line.baud, line.parity, line.stop_bits) = (baud, parity, stop_bits);
        if line == *own && unit == link.unit {
            return;
        }
        let other = ModbusRtu {
            way: Way::Serial(line),
            unit,
            ..link.clone()
        };
        let name = format!("{}, unit = {unit}", diagnose_line::settings(&other.way));
        all.push((name, LinkSpec::ModbusRtu(other)));
    };
    for parity in [Parity::Even, Parity::None, Parity::Odd] {
        add(own.baud, parity, 1, link.unit);
    }
    for baud in [9_600, 19_200, 38_400, 57_600, 115_200, 4_800, 2_400, 1_200] {
        if baud != own.baud {
            for parity in [Parity::Even, Parity::None] {
                add(baud, parity, 1, link.unit);
            }
        }
    }
    for unit in 1..=10 {
        if unit != link.unit {
            add(own.baud, own.parity, own.stop_bits, unit);
        }
    }
    all
}

#[cfg(test)]
#[path = "diagnose_tests.rs"]
mod tests;
