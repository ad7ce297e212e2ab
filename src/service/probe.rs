//! Owns: asking one machine, without a gateway, whether it answers, how, and if not why; and how a trace is shown.
//! May call: plc, api types, the clock.
//! Never: write to a device; leave a connection behind.

use super::clock::Clock;
use crate::api::types::TraceLine;
use crate::core::contract::GateReading;
use crate::core::event::rfc3339;
use crate::core::melsec::{Code, Frame, Transport};
use crate::core::serial::{SerialLine, Way};
use crate::core::spec::{GateSpec, LinkSpec, MachineSpec};
use crate::core::time::{NS_PER_MS, Stamp, elapsed_ns};
use crate::plc::diagnose::{Diagnosis, Facts, diagnose, others};
use crate::plc::link::{Link, LinkError};
use crate::plc::serial::trouble;
use crate::plc::tap::{Look, TRACE_MS_MAX, TraceEntry, TraceWay};
use serde::Serialize;

/// Most connections for one answer.
const CONNECTS_MAX: usize = 5;

/// How a machine is probed.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProbeOptions {
    /// Keep the bytes in the report.
    pub trace: bool,
    /// Also try other settings of a serial line.
    pub search: bool,
}

/// What a probe found.
#[derive(Clone, Debug, Serialize)]
pub struct ProbeReport {
    /// The machine's name.
    pub machine: String,
    /// Protocol, frame and transport, in words.
    pub frame: String,
    /// Host and port, or device file.
    pub address: String,
    /// Unit or station number.
    pub unit: u8,
    /// Which of them.
    pub unit_is: &'static str,
    /// `answers`, `refuses` (alive, with a code of its own), `silent`, `unconfirmable` (a broadcast).
    pub result: &'static str,
    /// The device is the one that the configuration means, as far as the gate can tell.
    pub is_ours: bool,
    /// What the CPU calls itself, where the protocol asks and the device says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The read by which it was asked.
    pub asked: String,
    /// From the beginning to the first byte of the first request.
    pub connect_ms: Option<f64>,
    /// From that byte to the last of the reply; `None`: no valid one came.
    pub reply_ms: Option<f64>,
    /// What the gate's places say.
    pub gate: Vec<GateLine>,
    /// Why it does not answer, or not as it must.
    pub diagnosis: Option<DiagnosisView>,
    /// Settings that were tried beside the configured ones.
    pub tried: Vec<Tried>,
    /// The bytes, if they were asked for.
    pub trace: Vec<TraceLine>,
    /// Entries of the trace beyond its bound.
    pub left_out: u64,
}

/// One place of the gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GateLine {
    /// `identity`, `config_version`, `mode`, or an interlock's name.
    pub name: String,
    /// What it reads; `None`: the device refused it.
    pub found: Option<String>,
    /// What it must be, where the configuration says.
    pub expected: Option<String>,
    /// Whether commands may go as far as this is concerned.
    pub ok: bool,
}

/// See [`Diagnosis`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiagnosisView {
    /// Stable, for scripts.
    pub code: String,
    /// What was seen, and what that means.
    pub text: String,
    /// What to look at, the likeliest first.
    pub look_at: Vec<String>,
}

impl From<Diagnosis> for DiagnosisView {
    fn from(found: Diagnosis) -> Self {
        Self {
            code: found.code.to_owned(),
            text: found.text,
            look_at: found.mend,
        }
    }
}

/// Another setting that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tried {
    /// What was set otherwise, as the configuration writes it.
    pub setting: String,
    /// Whether the device answered then.
    pub answers: bool,
}

/// An entry of a trace, for people and scripts.
#[must_use]
pub fn trace_line(entry: &TraceEntry) -> TraceLine {
    let hex: Vec<String> = entry
        .bytes
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect();
    let shown = |byte: &u8| match byte {
        0x20..=0x7E => char::from(*byte),
        _ => '.',
    };
    TraceLine {
        at: rfc3339(entry.at.wall_us),
        way: entry.way.name().to_owned(),
        length: entry.length,
        hex: hex.join(" "),
        ascii: entry.bytes.iter().map(shown).collect(),
        hidden: entry.hidden,
    }
}

/// Asks `spec`'s device over a connection of its own; only reads.
pub async fn probe(spec: &MachineSpec, clock: &Clock, options: ProbeOptions) -> ProbeReport {
    let mut link = Link::new(spec, clock.reader());
    let began = clock.now();
    let look = link.tap().open(&began, TRACE_MS_MAX);
    let mut report = empty(spec, &link);
    let mut connected = connect(&mut link).await;
    let mut reply_ns = None;
    if connected.is_ok() && !spec.link.is_broadcast() {
        let proof = link.ask_proof().await;
        connected = proof.map(|ns| reply_ns = ns);
    }
    let gate = match &connected {
        Ok(()) if !spec.link.is_broadcast() => Some(link.read_gate().await),
        _ => None,
    };
    // After all that decides: a device that does not know the request has answered already.
    let model = match &gate {
        Some(Ok(_)) => link.ask_model().await.unwrap_or_default(),
        _ => None,
    };
    let line_errors = link.line_errors();
    link.disconnect("the probe is over");
    drop(link);
    let (entries, left_out) = look.map(Look::end).unwrap_or_default();
    (report.connect_ms, report.reply_ms) = times(&began, &entries);
    // Before it there may have been a loopback test.
    let proof_ms = reply_ns.map(|ns| ns as f64 / NS_PER_MS as f64);
    report.reply_ms = proof_ms.or(report.reply_ms);
    report.model = model.as_ref().map(ToString::to_string);
    let failed = match (connected, gate) {
        (Err(error), _) | (Ok(()), Some(Err(error))) => Some(error),
        (Ok(()), Some(Ok(reading))) => {
            report.gate = gate_lines(&spec.gate, &reading);
            None
        }
        (Ok(()), None) => None,
    };
    report.result = match &failed {
        None if spec.link.is_broadcast() => "unconfirmable",
        None => "answers",
        Some(LinkError::Exception { .. }) => "refuses",
        Some(_) => "silent",
    };
    if report.result == "silent" {
        // Whatever came was no reply.
        report.reply_ms = None;
    }
    if let Some(error) = &failed {
        let (sent, received) = last_exchange(&entries);
        let port = match (error, &spec.link) {
            (LinkError::Port(_), LinkSpec::ModbusRtu(link)) => Some(trouble(&link.way.address())),
            (LinkError::Port(_), LinkSpec::C24(link)) => Some(trouble(&link.way.address())),
            _ => None,
        };
        let found = diagnose(&Facts {
            link: &spec.link,
            error,
            sent: &sent,
            received: &received,
            line_errors,
            port,
        });
        report.diagnosis = Some(found.into());
        try_others(spec, clock, options, &mut report).await;
    } else if let Some(wrong) = report
        .gate
        .iter()
        .find(|line| line.name == "identity" && line.found.is_some() && !line.ok)
    {
        report.is_ours = false;
        report.diagnosis = Some(another_device(wrong));
    }
    if options.trace {
        report.trace = entries.iter().map(trace_line).collect();
        report.left_out = left_out;
    }
    report
}

/// Until it is clear whether a device that is silent to the loopback test answers anything else.
async fn connect(link: &mut Link) -> Result<(), LinkError> {
    let mut connected = link.connect().await;
    for _ in 1..CONNECTS_MAX {
        if connected.is_ok() || !link.may_yet_answer() {
            break;
        }
        connected = link.connect().await;
    }
    connected
}

fn empty(spec: &MachineSpec, link: &Link) -> ProbeReport {
    ProbeReport {
        machine: spec.name.clone(),
        frame: spoken(&spec.link),
        address: spec.link.address(),
        unit: spec.link.unit(),
        unit_is: match spec.link {
            LinkSpec::Mc(_) | LinkSpec::C24(_) => "station",
            LinkSpec::ModbusTcp(_) | LinkSpec::ModbusRtu(_) => "unit",
        },
        result: "silent",
        is_ours: true,
        model: None,
        asked: link.proof().to_string(),
        connect_ms: None,
        reply_ms: None,
        gate: Vec::new(),
        diagnosis: None,
        tried: Vec::new(),
        trace: Vec::new(),
        left_out: 0,
    }
}

fn another_device(wrong: &GateLine) -> DiagnosisView {
    let found = wrong.found.as_deref().unwrap_or("nothing");
    let expected = wrong.expected.as_deref().unwrap_or("something else");
    DiagnosisView {
        code: "identity_mismatch".into(),
        text: format!(
            "a device answers, and it is not the configured one, or its program is another: identity {found}, expected {expected}"
        ),
        look_at: vec![
            "is the address that of another machine, or was the controller exchanged?".into(),
            "if this device is the right one, set equals in [gate] identity".into(),
        ],
    }
}

/// Other settings, until one is answered.
async fn try_others(
    spec: &MachineSpec,
    clock: &Clock,
    options: ProbeOptions,
    report: &mut ProbeReport,
) {
    let Some(found) = report.diagnosis.as_mut() else {
        return;
    };
    for (setting, link) in others(&spec.link, &found.code, options.search) {
        let other = MachineSpec {
            link,
            ..spec.clone()
        };
        let mut link = Link::new(&other, clock.reader());
        let answers = matches!(
            connect(&mut link).await,
            Ok(()) | Err(LinkError::Exception { .. })
        );
        link.disconnect("the probe is over");
        report.tried.push(Tried {
            setting: setting.clone(),
            answers,
        });
        if answers {
            found.code = "wrong_setting".into();
            found.text = format!("{}; asked with {setting}, the device answers", found.text);
            found.look_at = vec![format!(
                "set {setting} in [link], if that is the device you mean"
            )];
            return;
        }
    }
}

/// Protocol, frame and transport.
fn spoken(link: &LinkSpec) -> String {
    match link {
        LinkSpec::ModbusTcp(_) => "Modbus TCP".into(),
        LinkSpec::ModbusRtu(link) => match &link.way {
            Way::Serial(line) => format!("Modbus RTU, {}", set(line)),
            Way::Tcp { .. } => "Modbus RTU over TCP".into(),
        },
        LinkSpec::C24(link) => format!(
            "MC protocol {} frame, format {}, {} sum check, {}",
            link.frame.name(),
            link.format.number(),
            if link.sum_check { "with" } else { "without" },
            match &link.way {
                Way::Serial(line) => set(line),
                Way::Tcp { .. } => "over TCP".into(),
            }
        ),
        LinkSpec::Mc(link) => format!(
            "MC protocol {} frame, {}, over {}",
            match link.frame {
                Frame::E3 => "3E",
                Frame::E4 => "4E",
            },
            match link.code {
                Code::Binary => "binary",
                Code::Ascii => "ASCII",
            },
            match link.transport {
                Transport::Tcp => "TCP",
                Transport::Udp => "UDP",
            }
        ),
    }
}

fn set(line: &SerialLine) -> String {
    format!(
        "{} baud, {} data bits, {:?} parity, {} stop bit(s)",
        line.baud, line.data_bits, line.parity, line.stop_bits
    )
}

/// Until the first byte went, and from it to the last byte of its reply.
fn times(began: &Stamp, entries: &[TraceEntry]) -> (Option<f64>, Option<f64>) {
    let Some(first) = entries.iter().position(|e| e.way == TraceWay::Sent) else {
        return (None, None);
    };
    let ms = |from: &Stamp, to: &Stamp| elapsed_ns(from, to) as f64 / NS_PER_MS as f64;
    let sent = &entries[first];
    let reply = entries[first..]
        .iter()
        .skip_while(|e| e.way == TraceWay::Sent)
        .take_while(|e| e.way == TraceWay::Received)
        .last();
    (
        Some(ms(began, &sent.at)),
        reply.map(|reply| ms(&sent.at, &reply.at)),
    )
}

/// The last request, and all that came after it.
fn last_exchange(entries: &[TraceEntry]) -> (Vec<u8>, Vec<u8>) {
    let last = entries.iter().rposition(|e| e.way == TraceWay::Sent);
    let sent = last.map_or_else(Vec::new, |at| entries[at].bytes.clone());
    let after = &entries[last.map_or(0, |at| at + 1)..];
    (sent, after.iter().flat_map(|e| e.bytes.clone()).collect())
}

fn gate_lines(gate: &GateSpec, reading: &GateReading) -> Vec<GateLine> {
    let mut lines = Vec::new();
    if let Some(check) = &gate.identity {
        lines.push(GateLine {
            name: "identity".into(),
            found: reading.identity.as_ref().map(ToString::to_string),
            expected: Some(check.equals.to_string()),
            ok: reading.identity.as_ref() == Some(&check.equals),
        });
    }
    if gate.config_version.is_some() {
        lines.push(GateLine {
            name: "config_version".into(),
            found: reading.config_version.map(|version| version.to_string()),
            expected: None,
            ok: reading.config_version.is_some(),
        });
    }
    if let Some(check) = &gate.mode {
        let allowed: Vec<String> = check.allowed.iter().map(ToString::to_string).collect();
        lines.push(GateLine {
            name: "mode".into(),
            found: reading.mode.map(|mode| mode.to_string()),
            expected: Some(allowed.join(" or ")),
            ok: reading
                .mode
                .is_some_and(|mode| check.allowed.contains(&mode)),
        });
    }
    for lock in &gate.interlocks {
        let found = reading
            .interlocks
            .iter()
            .find(|(name, _)| *name == lock.name);
        lines.push(GateLine {
            name: lock.name.clone(),
            found: found.map(|(_, value)| value.to_string()),
            expected: Some(lock.equals.to_string()),
            ok: found.is_some_and(|(_, value)| *value == lock.equals),
        });
    }
    lines
}
