//! Owns: `holdfast board`: a profile in plain words, and what of it is so on this computer.
//! May call: board, config, the command line's printer.
//! Never: change the computer, or open a device.

use super::run::BOARDS_DIR;
use holdfast::board::check::{Finding, Fit, Verdict, check, fit};
use holdfast::board::host::Host;
use holdfast::board::{BoardProfile, Fact, Rs485, SerialMode, StorageKind, name_of};
use holdfast::cli::exit::Exit;
use holdfast::cli::text::{Out, Tone, tell};
use holdfast::cli::{BoardArgs, Global};
use holdfast::config::{self, Problem};
use holdfast::service::RELEASED_US;
use serde_json::{Value as Json, json};
use std::path::Path;

/// Shows, and checks against this computer.
pub(crate) fn board(global: &Global, args: &BoardArgs) -> Exit {
    let dir = Path::new(BOARDS_DIR);
    let in_use = config::board_in_use(&global.config);
    if args.list {
        return list(global, dir, in_use.ok().as_deref());
    }
    let name = match (&args.name, in_use) {
        (Some(name), _) => name.clone(),
        (None, Ok(name)) => name,
        (None, Err(problems)) => return refuse(global, &problems),
    };
    let profile = match config::board(&name, dir) {
        Ok(Some(profile)) => profile,
        Ok(None) => return unknown(global, &name, dir),
        Err(problems) => return refuse(global, &problems),
    };
    let host = probe(&profile);
    let findings = check(&profile, &host, RELEASED_US / 1_000_000);
    let likely = match fit(&profile, &host) {
        Fit::Yes => Vec::new(),
        Fit::No | Fit::Unknown => likely(dir),
    };
    let mut out = Out::stdout(global.json);
    if global.json {
        let answer = json!({
            "board": view(&profile),
            "fits": view_fit(fit(&profile, &host)),
            "findings": findings.iter().map(view_finding).collect::<Vec<_>>(),
            "likely": likely,
        });
        out.raw(&answer.to_string());
    } else {
        show(&profile, &mut out);
        out.line("");
        out.toned(Tone::Head, "on this computer");
        for finding in &findings {
            show_finding(finding, &mut out);
        }
        if !likely.is_empty() {
            let names = likely.join(", ");
            out.line(&format!("profiles that this computer answers to: {names}"));
        }
    }
    out.flush();
    exit(&findings)
}

/// A profile that the gateway would rely on wrongly is a configuration error.
fn exit(findings: &[Finding]) -> Exit {
    let wrong = findings.iter().any(|found| found.verdict == Verdict::Wrong);
    if wrong {
        Exit::Configuration
    } else {
        Exit::Done
    }
}

fn probe(profile: &BoardProfile) -> Host {
    let ports = profile.serial.values().map(|port| port.device.as_path());
    let paths: Vec<&Path> = ports.chain(profile.watchdog.as_deref()).collect();
    Host::probe(Path::new("/"), std::env::consts::ARCH, &paths)
}

/// The profiles that this computer answers to by name.
fn likely(dir: &Path) -> Vec<String> {
    let host = Host::probe(Path::new("/"), std::env::consts::ARCH, &[]);
    let names = config::board_names(dir).into_iter();
    let answers = |name: &String| {
        let profile = config::board(name, dir).ok().flatten();
        profile.is_some_and(|profile| fit(&profile, &host) == Fit::Yes)
    };
    names.filter(answers).collect()
}

fn list(global: &Global, dir: &Path, in_use: Option<&str>) -> Exit {
    let host = Host::probe(Path::new("/"), std::env::consts::ARCH, &[]);
    let mut out = Out::stdout(global.json);
    let mut rows = Vec::new();
    for name in config::board_names(dir) {
        let used = in_use == Some(name.as_str());
        match config::board(&name, dir) {
            Ok(Some(profile)) => {
                let fits = fit(&profile, &host);
                show_row(&profile, used, fits, &mut out);
                rows.push(json!({
                    "name": name, "arch": profile.arch, "description": profile.description,
                    "in_use": used, "fits": view_fit(fits),
                }));
            }
            Ok(None) => {}
            Err(problems) => {
                problems
                    .iter()
                    .for_each(|problem| tell(&problem.to_string()));
                rows.push(json!({"name": name, "in_use": used, "problems": problems.len()}));
            }
        }
    }
    if global.json {
        out = Out::stdout(true);
        out.raw(&json!({"boards": rows}).to_string());
    } else {
        out.line(&format!(
            "a profile of your own: {}/NAME.toml",
            dir.display()
        ));
    }
    out.flush();
    Exit::Done
}

fn show_row(profile: &BoardProfile, used: bool, fits: Fit, out: &mut Out) {
    let used = if used { ", in use" } else { "" };
    let fits_text = match fits {
        Fit::Yes => ", this computer answers to it",
        Fit::No | Fit::Unknown => "",
    };
    let tone = if fits == Fit::Yes {
        Tone::Good
    } else {
        Tone::Plain
    };
    out.toned(
        tone,
        &format!("{} ({}){used}{fits_text}", profile.name, profile.arch),
    );
    out.toned(Tone::Faint, &format!("  {}", profile.description));
}

fn show(profile: &BoardProfile, out: &mut Out) {
    let title = format!("board {} ({})", profile.name, profile.arch);
    out.toned(Tone::Head, &title);
    if !profile.description.is_empty() {
        out.line(&format!("  {}", profile.description));
    }
    for (name, port) in &profile.serial {
        let note = port
            .note
            .as_ref()
            .map_or(String::new(), |note| format!(": {note}"));
        out.line(&format!("  {name}: {}{note}", port.device.display()));
    }
    if !profile.storage.is_empty() {
        out.line(&format!("  storage: {}", profile.storage));
    }
    for note in &profile.notes {
        out.line(&format!("  {note}"));
    }
    let unsaid = names(Fact::NAMES, &profile.not_documented);
    if !unsaid.is_empty() {
        out.line(&format!("  not documented: {}", unsaid.join(", ")));
    }
    for source in &profile.sources {
        out.toned(Tone::Faint, &format!("  source: {source}"));
    }
}

fn show_finding(finding: &Finding, out: &mut Out) {
    let tone = match finding.verdict {
        Verdict::Ok => Tone::Good,
        Verdict::Note => Tone::Plain,
        Verdict::Warn => Tone::Warn,
        Verdict::Wrong => Tone::Bad,
    };
    let verdict = finding.verdict.name();
    out.toned(
        tone,
        &format!("  {verdict:<5} {}: {}", finding.about, finding.says),
    );
    if let Some(mend) = &finding.mend {
        out.line(&format!("        next: {mend}"));
    }
}

fn unknown(global: &Global, name: &str, dir: &Path) -> Exit {
    let problem =
        format!("no board profile is called {name:?}; `holdfast board --list` names them all");
    if global.json {
        let mut out = Out::stdout(true);
        let answer =
            json!({"code": "usage", "detail": problem, "boards": config::board_names(dir)});
        out.raw(&answer.to_string());
        out.flush();
    } else {
        tell(&problem);
    }
    Exit::Usage
}

fn refuse(global: &Global, problems: &[Problem]) -> Exit {
    if global.json {
        let mut out = Out::stdout(true);
        out.raw(&super::check::refused(problems).to_string());
        out.flush();
    } else {
        problems
            .iter()
            .for_each(|problem| tell(&problem.to_string()));
    }
    Exit::Configuration
}

fn view_fit(fits: Fit) -> Json {
    match fits {
        Fit::Yes => json!(true),
        Fit::No => json!(false),
        Fit::Unknown => Json::Null,
    }
}

fn view_finding(finding: &Finding) -> Json {
    json!({
        "about": finding.about,
        "verdict": finding.verdict.name(),
        "says": finding.says,
        "do": finding.mend,
    })
}

fn names<T: PartialEq>(known: &[(&'static str, T)], values: &[T]) -> Vec<&'static str> {
    values.iter().map(|value| name_of(known, value)).collect()
}

fn view(profile: &BoardProfile) -> Json {
    let serial = profile.serial.iter().map(|(name, port)| {
        json!({
            "name": name,
            "path": port.device.display().to_string(),
            "modes": names(SerialMode::NAMES, &port.modes),
            "rs485": port.rs485.map(|by| name_of(Rs485::NAMES, &by)),
            "driver": port.driver,
            "note": port.note,
        })
    });
    let nics = profile.nics.iter();
    let nics = nics.map(|nic| json!({"label": nic.label, "name": nic.name, "driver": nic.driver}));
    json!({
        "name": profile.name,
        "arch": profile.arch,
        "description": profile.description,
        "sources": profile.sources,
        "not_documented": names(Fact::NAMES, &profile.not_documented),
        "identity": {"dmi": profile.identity.dmi, "device_tree": profile.identity.device_tree},
        "battery_clock": profile.battery_clock,
        "serial": serial.collect::<Vec<_>>(),
        "watchdog": profile.watchdog.as_ref().map(|path| path.display().to_string()),
        "watchdog_driver": profile.watchdog_driver,
        "storage_kinds": names(StorageKind::NAMES, &profile.storage_kinds),
        "power_loss_protection": profile.power_loss_protection,
        "storage": profile.storage,
        "nics": nics.collect::<Vec<_>>(),
        "notes": profile.notes,
    })
}
