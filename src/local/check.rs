//! Owns: `holdfast check`.
//! May call: config.
//! Never: touch the journal, or a device.

use super::run::BOARDS_DIR;
use holdfast::cli::Global;
use holdfast::cli::exit::Exit;
use holdfast::config;
use std::path::Path;

/// Validates everything, and prints the policy that results (CFG-02).
pub(crate) fn check(global: &Global) -> Exit {
    match config::load(&global.config, Path::new(BOARDS_DIR)) {
        Ok(config) => {
            for warning in &config.warnings {
                eprintln!("warning: {warning}");
            }
            let machines = config.machines.len();
            println!(
                "{}: good; {machines} machine(s), board {}\n",
                global.config.display(),
                config.board.name
            );
            print!("{}", config::render_policy(&config.machines));
            Exit::Done
        }
        Err(problems) => {
            for problem in &problems {
                eprintln!("{problem}");
            }
            eprintln!("{} problem(s); nothing was changed", problems.len());
            Exit::Configuration
        }
    }
}
