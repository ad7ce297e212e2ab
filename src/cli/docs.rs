//! Owns: `completions`, `man`, `version`: made from the parser, so that they cannot differ from it.
//! May call: clap.
//! Never: describe what the parser does not take.

use super::Cli;
use super::exit::Exit;
use clap::CommandFactory as _;
use std::io::{self, Write as _};

fn print(text: &[u8]) -> Exit {
    // Whoever read our output has enough of it.
    let _ = io::stdout().lock().write_all(text);
    Exit::Done
}

pub(super) fn completions(shell: clap_complete::Shell) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "holdfast", &mut script);
    print(&script)
}

/// The program's page, then one section a command.
pub(super) fn man() -> Exit {
    let mut page = Vec::new();
    let mut command = Cli::command();
    command.build();
    // Writing to memory does not fail.
    let _ = clap_mangen::Man::new(command.clone()).render(&mut page);
    for sub in command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help")
    {
        let man = clap_mangen::Man::new(sub.clone());
        let _ = writeln!(page, ".SH \"holdfast {}\"", sub.get_name().to_uppercase());
        let _ = man.render_description_section(&mut page);
        let _ = man.render_options_section(&mut page);
    }
    print(&page)
}

pub(super) fn version(json: bool) -> Exit {
    let version = env!("CARGO_PKG_VERSION");
    if json {
        print(format!("{{\"name\":\"holdfast\",\"version\":\"{version}\"}}\n").as_bytes())
    } else {
        print(format!("holdfast {version}\n").as_bytes())
    }
}
