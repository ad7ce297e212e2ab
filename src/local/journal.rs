//! Owns: `holdfast journal check|export|salvage|adopt`, on a stopped gateway.
//! May call: journal, config, service clock.
//! Never: change anything without `--write` and a reason (REC-04).

use super::run::BOARDS_DIR;
use holdfast::cli::exit::Exit;
use holdfast::cli::text::{command_lines, tell, tell_out};
use holdfast::cli::{Global, JournalCommand};
use holdfast::config;
use holdfast::journal::{self, Options, Report, SalvageReport, ToolError};
use holdfast::service::RELEASED_US;
use holdfast::service::clock::Clock;
use holdfast::service::computer;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

/// Budget of a salvaged journal where no configuration can be read, in bytes.
const BUDGET_BYTES_DEFAULT: u64 = 512 << 20;
/// Longest time for the store to open, in milliseconds.
const OPEN_MS_MAX: u64 = 60_000;

/// Does what was asked.
pub(crate) fn journal(global: &Global, command: &JournalCommand) -> Exit {
    let done = match command {
        JournalCommand::Check { dir } => check(global, dir),
        JournalCommand::Export { dir } => export(dir),
        JournalCommand::Salvage {
            dir,
            write,
            reason,
            yes,
        } => salvage(
            global,
            dir,
            *write,
            reason.as_deref().unwrap_or_default(),
            *yes,
        ),
        JournalCommand::Adopt { dir, reason } => adopt(dir, reason),
    };
    done.unwrap_or_else(|error| {
        tell(&format!("holdfast journal: {error}"));
        match error {
            ToolError::None(_)
            | ToolError::NotDamaged
            | ToolError::NotForeign
            | ToolError::Running(_) => Exit::Usage,
            _ => Exit::Recovery,
        }
    })
}

fn check(global: &Global, dir: &Path) -> Result<Exit, ToolError> {
    let report = journal::check(dir)?;
    show(global, &report);
    Ok(if report.ok {
        Exit::Done
    } else {
        Exit::Recovery
    })
}

fn show(global: &Global, report: &Report) {
    if global.json {
        println!("{}", serde_json::json!(report));
        return;
    }
    let or_none =
        |number: Option<u64>| number.map_or_else(|| "none".to_owned(), |number| number.to_string());
    println!(
        "{}",
        if report.ok {
            "The journal is whole."
        } else {
            "The journal is damaged."
        }
    );
    match report.proven {
        Some((first, last)) => println!("  proven commits    {first} to {last}"),
        None => println!("  proven commits    none"),
    }
    println!("  acknowledged up to {}", or_none(report.high_water));
    println!("  trimmed up to     {}", report.trimmed_through);
    println!("  operations        {}", report.operations);
    println!("  epoch             {}", report.epoch);
    for (first, last) in &report.lost {
        println!("  LOST              commits {first} to {last}");
    }
    for finding in &report.findings {
        tell_out(&format!("  {}: {}", finding.code, finding.text));
    }
    if let Some(why) = &report.not_tried {
        tell_out(&format!("  not tried: opening a copy of the store: {why}"));
    }
}

fn export(dir: &Path) -> Result<Exit, ToolError> {
    let stdout = std::io::stdout();
    let mut out = std::io::BufWriter::new(stdout.lock());
    let report = journal::export(dir, &mut out)?;
    // Whoever reads has enough of it, if this fails.
    let _ = out.flush();
    Ok(if report.ok {
        Exit::Done
    } else {
        Exit::Recovery
    })
}

fn adopt(dir: &Path, reason: &str) -> Result<Exit, ToolError> {
    if reason.trim().is_empty() {
        tell(
            "holdfast journal: --reason is empty; say how you know that the other computer is off",
        );
        return Ok(Exit::Usage);
    }
    journal::adopt(dir, reason.trim())?;
    println!("Adopted: start the gateway, and it goes on with its machines.");
    Ok(Exit::Done)
}

fn salvage(
    global: &Global,
    dir: &Path,
    write: bool,
    reason: &str,
    yes: bool,
) -> Result<Exit, ToolError> {
    let loaded = config::load(&global.config, Path::new(BOARDS_DIR)).ok();
    let battery_clock = loaded
        .as_ref()
        .is_some_and(|config| config.board.battery_clock);
    let clock = match Clock::new(battery_clock, RELEASED_US) {
        Ok(clock) => clock,
        Err(error) => {
            tell(&format!(
                "holdfast journal: the kernel's clocks cannot be read: {error}"
            ));
            return Ok(Exit::NotReachable);
        }
    };
    let options = Options {
        dir: dir.to_owned(),
        budget_bytes: loaded
            .as_ref()
            .map_or(BUDGET_BYTES_DEFAULT, |config| config.journal_budget_bytes),
        gateway: loaded.map(|config| config.gateway).unwrap_or_default(),
        now: clock.now(),
        build_wall_us: RELEASED_US,
        machine_id: computer::describe(),
        open_timeout: Duration::from_millis(OPEN_MS_MAX),
    };
    if write && !yes {
        show_salvage(
            global,
            dir,
            true,
            &journal::salvage(&options, reason, false)?,
        );
        if !confirmed() {
            println!("Nothing was changed.");
            return Ok(Exit::Usage);
        }
    }
    show_salvage(
        global,
        dir,
        write,
        &journal::salvage(&options, reason, write)?,
    );
    Ok(Exit::Done)
}

fn confirmed() -> bool {
    if !std::io::stdin().is_terminal() {
        tell("holdfast journal: not a terminal; add --yes to go on");
        return false;
    }
    print!("Begin a new journal from this? What is lost stays lost. [y/N] ");
    let _ = std::io::stdout().flush();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

fn show_salvage(global: &Global, dir: &Path, asked: bool, report: &SalvageReport) {
    if global.json {
        println!("{}", serde_json::json!(report));
        return;
    }
    show(global, &report.report);
    tell_out(&format!(
        "{} {} commit(s) and {} operation(s); {} commit(s) are lost.",
        if report.written {
            "Carried over:"
        } else {
            "Could be carried over:"
        },
        report.commits_kept,
        report.operations_kept,
        report.commits_lost
    ));
    if report.written {
        for path in &report.kept_aside {
            tell_out(&format!("The damaged files are kept in {path}."));
        }
        println!("Start the gateway: it begins a new epoch.");
    } else if report.report.ok {
        println!("Nothing is damaged: there is nothing to salvage.");
    } else if !asked {
        println!("Nothing was changed. To go on:");
        let command = format!(
            "holdfast journal salvage {} --write --reason \"…\"",
            dir.display()
        );
        println!("{}", command_lines(&command).join("\n"));
    }
}
