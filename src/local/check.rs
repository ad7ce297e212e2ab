//! Owns: `holdfast check`.
//! May call: config, board, the interface's policy table and the command line's printer of it.
//! Never: touch the journal; reach a device but by the probe that was asked for.

use super::run::BOARDS_DIR;
use holdfast::api::policy::view_policy;
use holdfast::board::check::{Fit, fit};
use holdfast::board::host::Host;
use holdfast::cli::exit::Exit;
use holdfast::cli::policy::show_policy;
use holdfast::cli::text::{Out, tell};
use holdfast::cli::{CheckArgs, Global};
use holdfast::config::{self, GatewayConfig, Problem};
use serde_json::{Value as Json, json};
use std::path::Path;

/// Validates everything, and prints the policy that results (CFG-02).
pub(crate) fn check(global: &Global, args: &CheckArgs) -> Exit {
    let loaded = config::load(&global.config, Path::new(BOARDS_DIR));
    if let (Some(_), Ok(config)) = (&args.probe, &loaded) {
        return super::probe::run(global, config, args);
    }
    let exit = match loaded {
        Ok(_) => Exit::Done,
        Err(_) => Exit::Configuration,
    };
    let mut out = Out::stdout(global.json);
    match (loaded, global.json) {
        (Ok(config), true) => out.raw(&accepted(global, &config).to_string()),
        (Ok(config), false) => show(global, &config, &mut out),
        (Err(problems), true) => out.raw(&refused(&problems).to_string()),
        (Err(problems), false) => {
            for problem in &problems {
                tell(&problem.to_string());
            }
            tell(&format!("{} problem(s)", problems.len()));
        }
    }
    // Whoever reads has enough of it, if this fails.
    out.flush();
    exit
}

fn show(global: &Global, config: &GatewayConfig, out: &mut Out) {
    for warning in warnings(config) {
        tell(&format!("warning: {warning}"));
    }
    out.line(&format!(
        "{}: good; {} machine(s), board {}",
        global.config.display(),
        config.machines.len(),
        config.board.name
    ));
    out.line("");
    show_policy(&view_policy(&config.machines), out);
}

/// The configuration's own, and that of a board that is plainly another.
fn warnings(config: &GatewayConfig) -> Vec<String> {
    let mut all = config.warnings.clone();
    let host = Host::probe(Path::new("/"), std::env::consts::ARCH, &[]);
    // Another processor is among the configuration's own.
    if config.board.arch == host.arch && fit(&config.board, &host) == Fit::No {
        let name = &config.board.name;
        all.push(format!(
            "board {name:?} is for another computer than this one (`holdfast board` says why)"
        ));
    }
    all
}

fn accepted(global: &Global, config: &GatewayConfig) -> Json {
    let mut answer = json!({
        "ok": true,
        "file": global.config.display().to_string(),
        "gateway": config.gateway,
        "board": config.board.name,
        "warnings": warnings(config),
    });
    answer["machines"] = view_policy(&config.machines)["machines"].take();
    answer
}

pub(super) fn refused(problems: &[Problem]) -> Json {
    let problems: Vec<Json> = problems.iter().map(view_problem).collect();
    json!({"ok": false, "problems": problems})
}

fn view_problem(problem: &Problem) -> Json {
    json!({
        "file": problem.file.display().to_string(),
        "line": problem.line,
        "column": problem.column,
        "key": problem.key,
        "found": problem.found,
        "expected": problem.expected,
        "mend": problem.mend,
    })
}
