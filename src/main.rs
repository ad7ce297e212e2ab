//! Owns: arguments, logging, runtime, exit code.
//! May call: everything, once.
//! Never: decide anything.

mod local;

use clap::Parser as _;
use holdfast::cli::{Cli, Local, dispatch};
use std::process::ExitCode;

fn main() -> ExitCode {
    let local = Local {
        run: local::run::run,
        check: local::check::check,
        board: local::board::board,
        demo: local::demo::demo,
        sim: local::run::sim,
        journal: local::journal::journal,
        receiver: local::receiver::receiver,
        upstream: local::upstream::upstream,
    };
    dispatch(Cli::parse(), local).into()
}
