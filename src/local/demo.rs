//! Owns: `holdfast demo`: where it works, the gateway beside the play, what stays afterwards.
//! May call: service, simulator, the interface's client.
//! Never: show anything that did not happen.

mod narrator;
mod play;
mod stage;

use super::logging;
use super::run::{BOARDS_DIR, runtime};
use holdfast::cli::exit::{Exit, Failure};
use holdfast::cli::{DemoArgs, Global};
use holdfast::service::{self, RunError};
use log::LevelFilter;
use narrator::Narrator;
use stage::{Place, Stage};
use std::time::Duration;
use tokio::sync::watch;

/// How long the gateway may take to stop, in milliseconds.
const STOP_MS_MAX: u64 = 10_000;

/// Why the play broke off.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The directory, or a port.
    #[error("{0}")]
    Place(String),
    /// The interface.
    #[error("the gateway did not answer as it should: {}", told(.0))]
    Interface(Failure),
    /// Something waited for did not come.
    #[error("waited {0} s in vain: {1}")]
    InVain(u64, String),
    /// The gateway ended.
    #[error("the gateway ended: {0}")]
    Ended(String),
    /// Somebody interrupted it.
    #[error("interrupted; nothing was judged")]
    Interrupted,
}

fn told(failure: &Failure) -> String {
    match failure {
        Failure::Problem { status, body } => format!("{status} {body}"),
        Failure::NotReachable(why) | Failure::NotPermitted(why) | Failure::Usage(why) => {
            why.clone()
        }
    }
}

impl From<RunError> for Broken {
    fn from(error: RunError) -> Self {
        Self::Ended(error.to_string())
    }
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Self::Interface(failure)
    }
}

/// Plays it.
pub(crate) fn demo(_global: &Global, args: &DemoArgs) -> Exit {
    let mut place = match Place::new(args.dir.as_deref()) {
        Ok(place) => place,
        Err(error) => {
            eprintln!("holdfast demo: {error}");
            return Exit::Usage;
        }
    };
    let Some(runtime) = runtime() else {
        return Exit::NotReachable;
    };
    match runtime.block_on(perform(&place, args.once)) {
        Ok(0) => Exit::Done,
        Ok(wrong) => {
            eprintln!("holdfast demo: {wrong} expectation(s) were not met");
            place.keep();
            Exit::Mismatch
        }
        Err(error) => {
            eprintln!("holdfast demo: {error}");
            if !matches!(error, Broken::Interrupted) {
                place.keep();
            }
            Exit::Mismatch
        }
    }
}

/// The gateway and the play, side by side. How many expectations were not met.
async fn perform(place: &Place, once: bool) -> Result<usize, Broken> {
    let log = std::fs::File::create(place.log());
    let log = log.map_err(|error| Broken::Place(format!("{}: {error}", place.log().display())))?;
    logging::start_to(LevelFilter::Info, log);
    let stage = Stage::set(place).await?;
    let mut narrator = Narrator::new();
    let (stop, stopped) = watch::channel(false);
    let config = place.config();
    let boards = std::path::Path::new(BOARDS_DIR);
    let mut gateway = std::pin::pin!(service::run(&config, boards, Some(stopped)));
    let played = tokio::select! {
        ended = &mut gateway => {
            return Err(ended.map_or_else(Broken::from, |()| Broken::Interrupted));
        }
        played = play::play(place, &stage, &mut narrator) => played,
    };
    let wrong = match played {
        Ok(()) => narrator.judge(),
        Err(error) => {
            narrator.flush();
            stop.send_replace(true);
            let _ = tokio::time::timeout(Duration::from_millis(STOP_MS_MAX), gateway).await;
            return Err(error);
        }
    };
    if once {
        stop.send_replace(true);
    } else {
        narrator.invite(place);
    }
    // Until interrupted, unless it was told to stop.
    gateway.await?;
    Ok(wrong)
}
