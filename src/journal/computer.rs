//! Owns: whether a journal runs on the computer that it was written on.
//! May call: nothing.
//! Never: decide by what a disk image carries along when there is something that it does not.
//!
//! A computer is described by one line: its machine id, then `mac=…` and `serial=…`, each with values
//! between commas, as far as they are known. An image that is copied to a second computer has the same
//! machine id there; the addresses burnt into network cards, and serial numbers, stay behind.

use std::collections::BTreeSet;

/// The parts that a disk image does not carry along, the strongest first.
const HARDWARE: [&str; 2] = ["mac", "serial"];

/// What [`compare`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Computer {
    /// The same.
    Same,
    /// The same, or nobody can tell; the operating system is another.
    Reinstalled,
    /// Another one: the disk was moved, or copied and the other one runs too.
    Another,
}

struct Line<'a> {
    id: &'a str,
    parts: Vec<(&'a str, &'a str)>,
}

impl<'a> Line<'a> {
    fn parse(text: &'a str) -> Self {
        let words = || text.split_whitespace();
        Self {
            id: words().find(|word| !word.contains('=')).unwrap_or(""),
            parts: words().filter_map(|word| word.split_once('=')).collect(),
        }
    }
    fn values(&self, kind: &str) -> BTreeSet<&'a str> {
        let part = self.parts.iter().find(|(name, _)| *name == kind);
        let values = part.map_or("", |(_, values)| values).split(',');
        values.filter(|value| !value.is_empty()).collect()
    }
}

/// Compares what is on record with what is there.
pub(super) fn compare(stored: &str, found: &str) -> Computer {
    let (stored, found) = (Line::parse(stored), Line::parse(found));
    let same_id = stored.id == found.id;
    for kind in HARDWARE {
        let (before, now) = (stored.values(kind), found.values(kind));
        if before.is_empty() || now.is_empty() {
            continue;
        }
        // One card of several may be exchanged; one that stayed is proof.
        return match (before.is_disjoint(&now), same_id) {
            (true, _) => Computer::Another,
            (false, true) => Computer::Same,
            (false, false) => Computer::Reinstalled,
        };
    }
    if same_id {
        Computer::Same
    } else if stored.id.is_empty() || found.id.is_empty() {
        Computer::Reinstalled
    } else {
        Computer::Another
    }
}

/// What is to be on record from now on: a part that could not be read this time stays known.
pub(super) fn merged(stored: &str, found: &str) -> String {
    let (stored, found) = (Line::parse(stored), Line::parse(found));
    let mut line = if found.id.is_empty() {
        stored.id
    } else {
        found.id
    }
    .to_owned();
    for kind in HARDWARE {
        let now = found.values(kind);
        let known = if now.is_empty() {
            stored.values(kind)
        } else {
            now
        };
        if !known.is_empty() {
            let values: Vec<&str> = known.into_iter().collect();
            line += &format!(" {kind}={}", values.join(","));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: EVT-02, AGT-01
    #[test]
    fn an_image_on_a_second_computer_is_told_from_a_changed_one() {
        let stored = "m1 mac=aa,bb serial=77";
        for (found, expected) in [
            (stored, Computer::Same),
            ("m1 mac=bb,cc serial=77", Computer::Same),
            ("m1 mac=bb", Computer::Same),
            ("m1 serial=77", Computer::Same),
            ("m1", Computer::Same),
            ("m2 mac=aa,bb serial=77", Computer::Reinstalled),
            ("mac=aa", Computer::Reinstalled),
            ("", Computer::Reinstalled),
            // The image brought its machine id along.
            ("m1 mac=cc,dd serial=88", Computer::Another),
            // Boards that all carry the same serial number do not hide it.
            ("m1 mac=cc serial=77", Computer::Another),
            ("m1 serial=88", Computer::Another),
            ("m2", Computer::Another),
        ] {
            assert_eq!(compare(stored, found), expected, "{found}");
        }
        assert_eq!(compare("m1", "m1 mac=aa"), Computer::Same, "an old record");
    }

    #[test]
    fn what_could_not_be_read_this_time_stays_known() {
        assert_eq!(
            merged("m1 mac=aa serial=7", "m1 mac=bb"),
            "m1 mac=bb serial=7"
        );
        assert_eq!(merged("m1 mac=aa", "m1"), "m1 mac=aa");
        assert_eq!(merged("m1", "m2 serial=9"), "m2 serial=9");
    }
}
