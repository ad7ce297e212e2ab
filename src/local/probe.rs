//! Owns: `holdfast check --probe`: asks machines without a gateway, and says what was found.
//! May call: service's probe, the interface's client, the command line's printer.
//! Never: open a link that a running gateway holds, unless it is told that there is room for two.

use holdfast::cli::client::Client;
use holdfast::cli::exit::{Exit, Failure};
use holdfast::cli::text::{Out, Tone, tell};
use holdfast::cli::trace::show_trace;
use holdfast::cli::{CheckArgs, Global};
use holdfast::config::GatewayConfig;
use holdfast::core::intent::nearest;
use holdfast::core::spec::{LinkSpec, MachineSpec};
use holdfast::service::clock::Clock;
use holdfast::service::probe::{GateLine, ProbeOptions, ProbeReport, probe};
use serde_json::{Value as Json, json};

/// Probes one machine of `config`, or all.
pub(super) fn run(global: &Global, config: &GatewayConfig, args: &CheckArgs) -> Exit {
    let wanted = args.probe.clone().flatten();
    let machines: Vec<&MachineSpec> = config
        .machines
        .iter()
        .filter(|machine| wanted.as_ref().is_none_or(|name| machine.name == *name))
        .collect();
    if let (Some(name), []) = (&wanted, machines.as_slice()) {
        let near = nearest(name, config.machines.iter().map(|m| m.name.as_str()));
        let hint = near.map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
        let why = format!("no machine {name:?} in {}{hint}", global.config.display());
        return Failure::Usage(why).report(global.json);
    }
    let (Some(runtime), Ok(clock)) = (super::run::runtime(), Clock::new(false, 0)) else {
        return Exit::NotReachable;
    };
    runtime.block_on(probe_all(global, config, args, &machines, &clock))
}

async fn probe_all(
    global: &Global,
    config: &GatewayConfig,
    args: &CheckArgs,
    machines: &[&MachineSpec],
    clock: &Clock,
) -> Exit {
    let held = held_by_gateway(global, config).await;
    let mut out = Out::stdout(global.json);
    let mut reports = Vec::new();
    let mut exit = Exit::Done;
    for machine in machines {
        if let Some(why) = refused(machine, held.as_deref(), args.beside) {
            tell(&why);
            reports.push(json!({ "machine": machine.name, "result": "not_asked", "reason": why }));
            exit = worse(exit, Exit::Usage);
            continue;
        }
        let options = ProbeOptions {
            trace: args.trace,
            search: args.search,
        };
        if args.search && !matches!(machine.link, LinkSpec::ModbusRtu(_)) {
            tell(&format!(
                "{}: --search tries nothing here: it is for Modbus RTU, whose every frame proves itself; compare the \
                 settings with the device's",
                machine.name
            ));
        }
        let report = probe(machine, clock, options).await;
        exit = worse(exit, exit_of(&report));
        match global.json {
            true => reports.push(serde_json::to_value(&report).unwrap_or(Json::Null)),
            false => show(&report, &mut out),
        }
        out.flush();
    }
    if global.json {
        out.raw(&json!({ "probes": reports }).to_string());
    }
    out.flush();
    exit
}

/// The machines of the gateway that runs on this configuration; `None`: none runs.
async fn held_by_gateway(global: &Global, config: &GatewayConfig) -> Option<Vec<String>> {
    for socket in [&global.socket, &config.api_unix] {
        match Client::new(socket.clone()).get("/v1/machines").await {
            Err(Failure::NotReachable(_)) => {}
            Ok(raw) => {
                let found: Json = raw.parse().unwrap_or(Json::Null);
                let all = found["machines"].as_array().cloned().unwrap_or_default();
                let names = all.iter().filter_map(|m| m["name"].as_str());
                return Some(names.map(str::to_owned).collect());
            }
            // It runs and does not say what it holds: all of them, then.
            Err(_) => return Some(config.machines.iter().map(|m| m.name.clone()).collect()),
        }
    }
    None
}

/// Why a machine is not asked.
fn refused(machine: &MachineSpec, held: Option<&[String]>, beside: bool) -> Option<String> {
    let name = &machine.name;
    if !held?.contains(name) {
        return None;
    }
    let line = matches!(machine.link, LinkSpec::ModbusRtu(_) | LinkSpec::C24(_));
    if beside && !line {
        return None;
    }
    let way = match line {
        true => "a serial line has room for one master: stop the gateway first",
        false => "stop the gateway first, or give --beside if the device has a connection to spare",
    };
    Some(format!(
        "{name}: not asked: the running gateway holds its link; ask it instead (`holdfast machine {name} --trace 5s`, \
         `holdfast read {name}`); to probe it all the same, {way}"
    ))
}

fn exit_of(report: &ProbeReport) -> Exit {
    match report.result {
        "refuses" => Exit::DeviceRefused,
        "silent" => Exit::NotSent,
        _ if !report.is_ours => Exit::NotSent,
        _ => Exit::Done,
    }
}

/// The first that is not well, unless a later one is not even reached.
fn worse(one: Exit, other: Exit) -> Exit {
    match (one, other) {
        (Exit::Done, other) => other,
        (Exit::DeviceRefused, Exit::NotSent) => other,
        (one, _) => one,
    }
}

fn show(report: &ProbeReport, out: &mut Out) {
    let tone = match (report.result, report.is_ours) {
        ("answers" | "unconfirmable", true) => Tone::Good,
        ("refuses", _) => Tone::Warn,
        _ => Tone::Bad,
    };
    let what = match report.result {
        "answers" if !report.is_ours => "another device answers",
        "answers" => "answers",
        "refuses" => "alive, and refuses the read",
        "unconfirmable" => "a broadcast: nothing ever answers",
        _ => "no valid answer",
    };
    out.toned(tone, &format!("{}: {what}", report.machine));
    out.line(&format!(
        "  {} {} {}, {}",
        report.address, report.unit_is, report.unit, report.frame
    ));
    if let Some(model) = &report.model {
        out.line(&format!("  CPU {model}"));
    }
    match (report.connect_ms, report.reply_ms) {
        (Some(connect), Some(reply)) => out.line(&format!(
            "  first request after {connect:.1} ms; {} answered after {reply:.1} ms",
            report.asked
        )),
        (Some(connect), None) => out.line(&format!(
            "  first request after {connect:.1} ms; {} was asked, and no valid reply came",
            report.asked
        )),
        (None, _) => out.line("  no byte of a request was sent"),
    }
    for line in &report.gate {
        show_gate(line, out);
    }
    if let Some(found) = &report.diagnosis {
        out.toned(tone, &format!("  {}: {}", found.code, found.text));
        for step in &found.look_at {
            out.line(&format!("  - {step}"));
        }
    }
    for tried in &report.tried {
        let answer = if tried.answers { "answers" } else { "silent" };
        out.toned(Tone::Faint, &format!("  tried {}: {answer}", tried.setting));
    }
    show_trace(&report.trace, report.left_out, out);
}

fn show_gate(line: &GateLine, out: &mut Out) {
    let found = line.found.as_deref().unwrap_or("not readable");
    let (tone, verdict) = match (&line.expected, line.ok) {
        (Some(_), true) => (Tone::Plain, ", as it must be".to_owned()),
        (Some(expected), false) => (
            Tone::Warn,
            format!(", must be {expected}: no command would go"),
        ),
        (None, true) => (Tone::Plain, String::new()),
        (None, false) => (Tone::Warn, ": no command would go".to_owned()),
    };
    out.toned(tone, &format!("  {} {found}{verdict}", line.name));
}
