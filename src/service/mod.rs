//! Owns: the running gateway: which tasks there are, their start, reload and stop, signals, the watchdog.
//! May call: every room but cli and simulator.
//! Never: decide about an operation; touch the journal before the configuration is valid.

mod alarm_log;
pub mod backend;
pub mod clock;
pub mod computer;
pub mod engine;
pub mod errand;
pub mod machine_task;
mod place;
pub mod probe;
pub mod progress;
mod sink_errands;
mod sink_state;
pub mod sink_task;
mod start;

pub use start::{RELEASED_US, RunError, run};
