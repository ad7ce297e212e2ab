//! Owns: what must hold of the checks of configuration, whatever text they are given, for proofs.
//! May call: all of this room.
//! Never: be part of a release; read the file that it names.

use super::machine::Home;
use super::problem::{Doc, PROBLEMS_MAX, Problem};
use super::url::Url;
use super::{board_file, gateway, machine, receiver};
use std::path::Path;

/// Files that a configuration names are looked for here, and are not there.
const NOWHERE: &str = "/nonexistent/holdfast.toml";

/// A gateway file.
pub(crate) fn gateway(bytes: &[u8]) {
    let path = Path::new(NOWHERE);
    let boards = path.with_file_name("boards");
    sound(bytes, |doc| gateway::check(doc, path, &boards).map(drop));
}

/// A machine file.
pub(crate) fn machine(bytes: &[u8]) {
    let home = Home {
        gateway: "gw-line3",
        board: None,
    };
    sound(bytes, |doc| machine::check(doc, &home).map(drop));
}

/// A receiver's file.
pub(crate) fn receiver(bytes: &[u8]) {
    sound(bytes, |doc| receiver::check(doc).map(drop));
}

/// A board profile.
pub(crate) fn board(bytes: &[u8]) {
    sound(bytes, |doc| board_file::check(doc, "board").map(drop));
}

/// A URL: its parts stand in it as they were written.
pub(crate) fn url(text: &str) {
    let Ok(url) = Url::parse(text) else { return };
    for part in [url.scheme, url.host, url.path, url.query] {
        assert!(text.contains(part), "{part:?} does not stand in {text:?}");
    }
}

/// A refusal says what is wrong and where, within bounds.
fn sound(bytes: &[u8], check: impl Fn(&Doc) -> Result<(), Vec<Problem>>) {
    let checked = Doc::decode(Path::new(NOWHERE), bytes).and_then(|doc| check(&doc));
    let Err(problems) = checked else { return };
    assert!(!problems.is_empty(), "refused without a reason");
    // A gateway file's own and those of its board.
    assert!(problems.len() <= 2 * PROBLEMS_MAX);
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
    for problem in &problems {
        let own = problem.file == Path::new(NOWHERE);
        assert!(
            problem.line >= 1 && problem.column >= 1 && (!own || problem.line <= lines),
            "{problem} stands nowhere"
        );
    }
}
