//! Owns: what a process finds of what an earlier one wrote and could not sync.
//! May call: disk, tape.
//! Never: run while a process that is watched does.

use super::disk::{Disk, History, Image};
use super::tape::{Record, Tape};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// What the kernel does with what it could not write: it calls it clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// It shows pages until it is told to forget them, and names for ever.
    Kept,
    /// It needed the memory, and the next process sees what the disk holds.
    Forgotten,
}

/// What differs on the disk is seen from now on, or laid in `held` where the preloaded library finds it when pages are to
/// be forgotten. Whether anything differs. `there`: see [`History::of`].
pub(crate) fn lose(pages: Pages, log: &Path, root: &Path, there: &[&str], held: &Path) -> bool {
    for entry in fs::read_dir(held).unwrap() {
        // What was laid before, of files that may have been written since.
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let tape = Tape::read(log);
    let history = History::of(&tape, root, there);
    let mut disk = Disk::new(&history);
    disk.advance(usize::MAX);
    let mut differs = false;
    for (path, bytes) in disk.whole().files {
        let shown = root.join(path);
        if fs::read(&shown).is_ok_and(|now| now != bytes) {
            differs = true;
            let to = match pages {
                Pages::Forgotten => shown,
                Pages::Kept => held.join(shown.metadata().unwrap().ino().to_string()),
            };
            fs::write(&to, bytes).unwrap();
        }
    }
    differs |= pages == Pages::Forgotten && forget_names(&tape, root, &disk.whole());
    differs
}

/// What was made and is not on the disk is not seen any more: the file system was mounted anew.
fn forget_names(tape: &Tape, root: &Path, image: &Image) -> bool {
    let root = root.canonicalize().unwrap();
    let made = tape.records.iter().filter_map(|record| match record {
        Record::Create { path, .. } | Record::MakeDir { path, .. } => Some(path),
        _ => None,
    });
    // What is in a directory comes before it.
    let made: BTreeSet<Reverse<&PathBuf>> = made.map(Reverse).collect();
    let mut differs = false;
    for Reverse(path) in made {
        let below = path.strip_prefix(&root).unwrap();
        let kept = image.files.contains_key(below) || image.dirs.iter().any(|dir| dir == below);
        if !kept && path.exists() {
            differs = true;
            let removed = if path.is_dir() {
                fs::remove_dir(path)
            } else {
                fs::remove_file(path)
            };
            removed.unwrap();
        }
    }
    differs
}
