//! Owns: what the demo says: a timeline in plain words, and what was expected against what was found.
//! May call: the command line's output.
//! Never: say a thing before it has happened, or count an expectation as met that was not looked at.

use super::stage::Place;
use holdfast::cli::text::{COLUMNS, Out, Tone};
use std::fmt::Display;
use std::time::Instant;

/// Columns before the words of a timeline's line.
const MARGIN_COLUMNS: usize = 10;

/// One thing that was expected.
struct Expectation {
    what: String,
    expected: String,
    found: String,
}

/// Who tells the play.
pub(super) struct Narrator {
    pub(super) out: Out,
    since: Option<Instant>,
    expectations: Vec<Expectation>,
}

impl Narrator {
    pub(super) fn new() -> Self {
        Self {
            out: Out::stdout(false),
            since: None,
            expectations: Vec::new(),
        }
    }
    pub(super) fn flush(&mut self) {
        self.out.flush();
    }
    /// From now on, t counts.
    pub(super) fn begin(&mut self) -> Instant {
        *self.since.insert(Instant::now())
    }
    /// A heading.
    pub(super) fn head(&mut self, text: &str) {
        self.out.line("");
        self.out.toned(Tone::Head, text);
        self.flush();
    }
    /// A line without a time.
    pub(super) fn aside(&mut self, text: &str) {
        self.out.line(text);
        self.flush();
    }
    /// What happens now.
    pub(super) fn say(&mut self, tone: Tone, text: &str) {
        let t = self
            .since
            .map_or(0.0, |since| since.elapsed().as_secs_f64());
        self.say_at(t, tone, text);
    }
    /// What happened at `t`, in seconds.
    pub(super) fn say_at(&mut self, t: f64, tone: Tone, text: &str) {
        let time = format!("t={t:>5.1} s");
        let mut margin = format!("{time:<MARGIN_COLUMNS$}");
        for line in fold(text, COLUMNS - MARGIN_COLUMNS) {
            self.out.toned(tone, &format!("{margin}{line}"));
            margin = " ".repeat(MARGIN_COLUMNS);
        }
        self.flush();
    }
    /// What was found, to be compared at the end with what was expected.
    pub(super) fn expect(&mut self, what: &str, expected: impl Display, found: impl Display) {
        self.expectations.push(Expectation {
            what: what.to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        });
    }
    /// Compares; how many were not met.
    pub(super) fn judge(&mut self) -> usize {
        self.head("SELF-CHECK: expected, against the interface and the PLCs' own ledgers");
        let mut wrong = 0;
        for item in std::mem::take(&mut self.expectations) {
            if item.expected == item.found {
                let line = format!("  ok     {}: {}", item.what, item.found);
                self.out.toned(Tone::Good, &line);
            } else {
                wrong += 1;
                let line = format!(
                    "  WRONG  {}: expected {}, found {}",
                    item.what, item.expected, item.found
                );
                self.out.toned(Tone::Bad, &line);
            }
        }
        let (tone, verdict) = match wrong {
            0 => (Tone::Good, "Everything is as it should be.".to_owned()),
            _ => (Tone::Bad, format!("{wrong} NOT as it should be.")),
        };
        self.out.toned(tone, &verdict);
        self.flush();
        wrong
    }
    /// What can be tried while it stays up.
    pub(super) fn invite(&mut self, place: &Place) {
        let (dir, program) = program();
        self.head("The gateway and the presses stay up until Ctrl-C. In another terminal:");
        if let Some(dir) = dir {
            self.out.command(&format!("PATH={}:$PATH", quoted(&dir)));
        }
        let socket = place.socket().display().to_string();
        self.out
            .command(&format!("export HOLDFAST_SOCKET={}", quoted(&socket)));
        for command in [
            "status",
            "op OP7",
            "op SET-3",
            "cancel SET-3",
            "submit press-2 set_speed speed=70rpm --id MY-1 --expect-version 7 --wait 5s",
            "submit press-1 eject_one --id MY-2 --wait 5s",
            "read press-2",
            "report",
        ] {
            self.out.command(&format!("{program} {command}"));
        }
        if place.is_temporary() {
            self.out
                .line("The directory goes with it; --dir DIR keeps it.");
        }
        self.flush();
    }
}

/// Where this program lies, and its name there.
fn program() -> (Option<String>, String) {
    let path = std::env::current_exe().unwrap_or_default();
    match (path.parent(), path.file_name()) {
        (Some(dir), Some(name)) => (
            Some(dir.display().to_string()),
            quoted(&name.to_string_lossy()),
        ),
        _ => (None, "holdfast".into()),
    }
}

/// As a shell takes it.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+@:".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Lines of at most `columns`, broken between words.
fn fold(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always one");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > columns {
            lines.push(word.to_owned());
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines
}
