//! Owns: every input that fuzzing has kept, run as a plain test, and a few thousand alterations of them.
//! May call: holdfast::fuzzing.
//! Never: pass over a target whose inputs are missing.
#![cfg(feature = "test-hooks")]

use holdfast::fuzzing::{TARGETS, not_understood};
use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// Alterations of a target's inputs in one run.
const ALTERED_COUNT: u64 = 3_000;
/// What a target keeps, so that a checkout stays small.
const CORPUS_FILES_MAX: usize = 200;
const INPUT_BYTES_MAX: usize = 4_096;
/// Of all targets together.
const CORPORA_BYTES_MAX: usize = 600 * 1024;
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz")
}

/// The inputs in one folder, by their names.
fn inputs(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: PathBuf| (path.clone(), fs::read(path).unwrap());
    paths.into_iter().map(read).collect()
}

/// Whether the input breaks nothing; the panic's own words go to the standard error.
fn holds(target: fn(&[u8]), input: &[u8]) -> bool {
    catch_unwind(|| target(input)).is_ok()
}

#[test]
fn every_target_has_inputs_and_the_corpora_stay_small() {
    let mut total = 0;
    for (name, _) in TARGETS {
        let kept = inputs(&home().join("corpus").join(name));
        assert!(
            !kept.is_empty() && kept.len() <= CORPUS_FILES_MAX,
            "{name}: {} inputs, expected 1 to {CORPUS_FILES_MAX}",
            kept.len()
        );
        for (path, input) in &kept {
            let length = input.len();
            assert!(length <= INPUT_BYTES_MAX, "{path:?}: {length} bytes");
            total += length;
        }
    }
    assert!(total <= CORPORA_BYTES_MAX, "{total} bytes in all");
}

#[test]
fn every_target_is_one_of_the_fuzzing_package() {
    let manifest = fs::read_to_string(home().join("Cargo.toml")).unwrap();
    let built: BTreeSet<&str> = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("path = \"fuzz_targets/"))
        .filter_map(|line| line.strip_suffix(".rs\""))
        .collect();
    let known: BTreeSet<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(built, known);
}

#[test]
fn over_every_link_a_write_and_its_reading_come_through() {
    assert_eq!(not_understood(), Vec::<String>::new());
}

#[test]
fn what_fuzzing_has_kept_breaks_nothing() {
    let mut broken = Vec::new();
    for (name, target) in TARGETS {
        for folder in ["corpus", "regressions"] {
            for (path, input) in inputs(&home().join(folder).join(name)) {
                if !holds(target, &input) {
                    broken.push(path);
                }
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// xorshift64*: the same run every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        usize::try_from(drawn).unwrap() % most.max(1)
    }

    /// A few bytes set, flipped, put in, left out; or the end of another input.
    fn alter(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
        let mut out = input.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(out.len());
            match (self.below(6), out.get_mut(at)) {
                (0, Some(byte)) => *byte = self.below(256) as u8,
                (1, Some(byte)) => *byte ^= 1 << self.below(8),
                (2, Some(_)) => drop(out.remove(at)),
                (3, _) => out.insert(at, self.below(256) as u8),
                (4, _) => out.truncate(at.max(1)),
                _ => out.extend_from_slice(&other[self.below(other.len())..]),
            }
        }
        out.truncate(INPUT_BYTES_MAX);
        out
    }
}

#[test]
fn alterations_of_what_fuzzing_has_kept_break_nothing() {
    for (name, target) in TARGETS {
        let kept = inputs(&home().join("corpus").join(name));
        assert!(!kept.is_empty(), "{name}: no inputs");
        let mut dice = Dice(SEED);
        for round in 0..ALTERED_COUNT {
            let one = dice.below(kept.len());
            let other = dice.below(kept.len());
            let input = dice.alter(&kept[one].1, &kept[other].1);
            assert!(
                holds(target, &input),
                "{name}, round {round}: {}",
                input.escape_ascii()
            );
        }
    }
}
