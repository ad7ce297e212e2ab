//! Owns: `holdfast run` and `holdfast sim`.
//! May call: service, simulator, config.
//! Never: hide why it ended.

use super::logging;
use holdfast::cli::Global;
use holdfast::cli::exit::Exit;
use holdfast::cli::text::tell;
use holdfast::service::{self, RunError};
use log::LevelFilter;
use std::path::Path;

/// Board profiles that override the compiled-in ones.
pub(super) const BOARDS_DIR: &str = "/etc/holdfast/boards";
/// Threads that serve links, sinks and the interface.
const WORKERS: usize = 2;

/// The gateway.
pub(crate) fn run(global: &Global) -> Exit {
    logging::start(LevelFilter::Info);
    let Some(runtime) = runtime() else {
        return Exit::NotReachable;
    };
    let ended = runtime.block_on(service::run(&global.config, Path::new(BOARDS_DIR), None));
    match ended {
        Ok(()) => Exit::Done,
        Err(error) => {
            report(&error);
            match error {
                RunError::Configuration(_) => Exit::Configuration,
                RunError::Open(_) | RunError::Engine(_) => Exit::Recovery,
                RunError::System(_) | RunError::Bind(_) => Exit::NotReachable,
            }
        }
    }
}

fn report(error: &RunError) {
    if let RunError::Configuration(problems) = error {
        for problem in problems {
            log::error!("{problem}");
        }
    }
    log::error!("{error}");
}

/// The simulated PLC.
pub(crate) fn sim(_global: &Global, file: &Path) -> Exit {
    logging::start(LevelFilter::Info);
    let Some(runtime) = runtime() else {
        return Exit::NotReachable;
    };
    match runtime.block_on(holdfast::simulator::run_file(file)) {
        Ok(()) => Exit::Done,
        Err(error) => {
            tell(&error.to_string());
            Exit::Configuration
        }
    }
}

/// The one runtime of a long-running command.
pub(super) fn runtime() -> Option<tokio::runtime::Runtime> {
    let built = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build();
    built
        .map_err(|error| eprintln!("holdfast: the system gives no event loop: {error}"))
        .ok()
}
