//! Owns: arguments, logging, runtime, exit code.
//! May call: everything, once.
//! Never: decide anything.

use clap::Parser as _;
use holdfast::cli::exit::Exit;
use holdfast::cli::{Cli, Local, dispatch};
use std::process::ExitCode;

fn absent(name: &str) -> Exit {
    eprintln!("holdfast: {name}: not built in this branch");
    Exit::Usage
}

fn main() -> ExitCode {
    let local = Local {
        run: |_| absent("run"),
        check: |_| absent("check"),
        demo: |_, _| absent("demo"),
        sim: |_, _| absent("sim"),
        journal: |_, _| absent("journal"),
    };
    dispatch(Cli::parse(), local).into()
}
