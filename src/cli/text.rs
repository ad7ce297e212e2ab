//! Owns: what output looks like: 80 columns, colours only on a terminal, times for people.
//! May call: api types (for times).
//! Never: cut an id, a key or a reason short: what does not fit goes on the next line.

use crate::api::types::parse_time;
use crate::core::event::rfc3339;
use std::io::{IsTerminal as _, Write as _};

/// Width of an SSH terminal nobody has resized (IF-02).
pub const COLUMNS: usize = 80;

/// How a line is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// As any other.
    Plain,
    /// A heading.
    Head,
    /// All is well.
    Good,
    /// Somebody should look.
    Warn,
    /// Somebody must act.
    Bad,
    /// Of less weight.
    Faint,
}

impl Tone {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Head => "\x1b[1m",
            Self::Good => "\x1b[32m",
            Self::Warn => "\x1b[33m",
            Self::Bad => "\x1b[31;1m",
            Self::Faint => "\x1b[2m",
        }
    }
    /// By the state an operation is in.
    #[must_use]
    pub fn of_state(state: &str) -> Self {
        match state {
            "completed" | "compensated" => Self::Good,
            "held" | "sending" | "accepted" => Self::Warn,
            "outcome_unknown" | "failed" => Self::Bad,
            _ => Self::Plain,
        }
    }
}

/// Output of one command.
#[derive(Debug)]
pub struct Out {
    json: bool,
    colour: bool,
    text: String,
    broken: bool,
}

impl Out {
    /// To standard output; in colour on a terminal, unless `NO_COLOR` is set.
    #[must_use]
    pub fn stdout(json: bool) -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            json,
            colour: !refused && std::io::stdout().is_terminal(),
            text: String::new(),
            broken: false,
        }
    }
    /// Whether the interface's JSON is wanted.
    #[must_use]
    pub fn json(&self) -> bool {
        self.json
    }
    /// Prints text as it is, for JSON.
    pub fn raw(&mut self, text: &str) {
        self.text.push_str(text.trim_end());
        self.text.push('\n');
    }
    /// Prints a line, wrapped.
    pub fn line(&mut self, text: &str) {
        self.toned(Tone::Plain, text);
    }
    /// Prints a line in a tone, wrapped.
    pub fn toned(&mut self, tone: Tone, text: &str) {
        for line in wrap(text) {
            if self.colour && tone != Tone::Plain {
                self.text.push_str(tone.code());
                self.text.push_str(&line);
                self.text.push_str("\x1b[0m");
            } else {
                self.text.push_str(&line);
            }
            self.text.push('\n');
        }
    }
    /// Writes out what has gathered, for output that goes on. False once nobody reads it.
    pub fn flush(&mut self) -> bool {
        let text = std::mem::take(&mut self.text);
        let mut stdout = std::io::stdout().lock();
        let done = stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush());
        self.broken |= done.is_err();
        !self.broken
    }
    /// Writes out the rest.
    ///
    /// # Errors
    /// Nobody reads it any more.
    pub fn finish(mut self) -> Result<(), ()> {
        if self.flush() { Ok(()) } else { Err(()) }
    }
}

/// Says on standard error what is wrong.
pub fn complain(text: &str) {
    let mut all = String::new();
    for (index, line) in text.lines().enumerate() {
        let line = if index == 0 {
            format!("holdfast: {line}")
        } else {
            format!("  {line}")
        };
        all.push_str(&wrap(&line).join("\n"));
        all.push('\n');
    }
    // Nobody is left to tell.
    let _ = std::io::stderr().lock().write_all(all.as_bytes());
}

/// Breaks a text into lines of at most [`COLUMNS`]; what follows is indented two more than the first.
#[must_use]
pub fn wrap(text: &str) -> Vec<String> {
    let text: String = text
        .chars()
        // What a device or a caller sent must not steer the terminal.
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    if text.chars().count() <= COLUMNS {
        return vec![text.trim_end().to_owned()];
    }
    let first = text.chars().take_while(|c| *c == ' ').count();
    let indent = " ".repeat((first + 2).min(COLUMNS / 2));
    let mut lines = Vec::new();
    let mut line = " ".repeat(first.min(COLUMNS / 2));
    let mut empty = true;
    for word in text.trim_start().split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        let room = |line: &str, empty: bool| {
            COLUMNS.saturating_sub(line.chars().count() + usize::from(!empty))
        };
        if word.len() > room(&line, empty) && !empty {
            lines.push(line.trim_end().to_owned());
            line.clone_from(&indent);
            empty = true;
        }
        while word.len() > room(&line, empty) {
            let rest = word.split_off(room(&line, empty));
            line.extend(word);
            lines.push(line);
            line = indent.clone();
            word = rest;
        }
        if !empty {
            line.push(' ');
        }
        line.extend(word);
        empty = false;
    }
    lines.push(line.trim_end().to_owned());
    lines
}

/// Fills up to `width` columns; what is longer stays whole.
#[must_use]
pub fn pad(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().count());
    format!("{text}{}", " ".repeat(missing))
}

/// A time for people: without its microseconds' last three digits.
#[must_use]
pub fn short_time(time: &str) -> String {
    let Some((whole, parts)) = time.split_once('.') else {
        return time.to_owned();
    };
    let millis: String = parts.chars().take(3).collect();
    format!("{}.{millis}Z", whole.replace('T', " "))
}

/// How long before `now` a time was, in its two largest units.
#[must_use]
pub fn ago(time: &str, now: &str) -> String {
    let (Ok(then), Ok(now)) = (parse_time(time), parse_time(now)) else {
        return "?".into();
    };
    let seconds = now.saturating_sub(then).max(0) / 1_000_000;
    let (d, h, m, s) = (
        seconds / 86_400,
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60,
    );
    match (d, h, m) {
        (0, 0, 0) => format!("{s} s"),
        (0, 0, _) => format!("{m} min {s} s"),
        (0, _, _) => format!("{h} h {m} min"),
        _ => format!("{d} d {h} h"),
    }
}

/// Bytes for people.
#[must_use]
pub fn bytes(text: &str) -> String {
    let Ok(count) = text.parse::<u64>() else {
        return text.to_owned();
    };
    for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if count >= unit {
            let tenths = u128::from(count) * 10 / u128::from(unit);
            return format!("{}.{} {name}", tenths / 10, tenths % 10);
        }
    }
    format!("{count} B")
}

/// Now, as the interface writes it.
#[must_use]
pub fn now() -> String {
    rfc3339(jiff::Timestamp::now().as_microsecond())
}

/// Reads "since when": RFC 3339, or how long ago, such as `24h`.
///
/// # Errors
/// What was expected.
pub fn since(text: &str) -> Result<String, super::exit::Failure> {
    if let Ok(us) = parse_time(text) {
        return Ok(rfc3339(us));
    }
    let ago_us = crate::api::types::parse_duration_ms(text)
        .and_then(|ms| i64::try_from(ms.checked_mul(1000)?).ok())
        .ok_or_else(|| {
            super::exit::Failure::Usage(format!(
                "--since {text:?}: expected a time such as 2026-11-30T08:00:00Z, or how long ago, such as 24h"
            ))
        })?;
    let us = jiff::Timestamp::now()
        .as_microsecond()
        .saturating_sub(ago_us);
    Ok(rfc3339(us))
}

/// Asks before something that cannot be taken back. Nobody is asked where nobody sits: a script has
/// written the reason down, which is what asking is for.
///
/// # Errors
/// The person said no.
pub fn confirm(what: &str, yes: bool) -> Result<(), super::exit::Failure> {
    let stdin = std::io::stdin();
    if yes || !stdin.is_terminal() {
        return Ok(());
    }
    eprint!("{}\nType \"yes\" to go on: ", wrap(what).join("\n"));
    let mut answer = String::new();
    let read = stdin.read_line(&mut answer);
    if read.is_ok() && answer.trim() == "yes" {
        return Ok(());
    }
    Err(super::exit::Failure::Usage("nothing was done".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        // covers: IF-02
        #[test]
        fn no_line_is_wider_than_the_terminal_and_nothing_is_lost(text in "[ -~]{0,400}") {
            let lines = wrap(&text);
            for line in &lines {
                prop_assert!(line.chars().count() <= COLUMNS, "{line}");
            }
            let kept: String = lines.concat().chars().filter(|c| *c != ' ').collect();
            let given: String = text.chars().filter(|c| *c != ' ').collect();
            prop_assert_eq!(kept, given);
        }
    }

    #[test]
    fn what_a_device_sends_does_not_steer_the_terminal() {
        assert_eq!(wrap("a\x1b[2Jb"), ["a\u{fffd}[2Jb"]);
    }

    #[test]
    fn times_and_sizes_are_for_people() {
        assert_eq!(
            short_time("2026-11-30T08:00:00.123456Z"),
            "2026-11-30 08:00:00.123Z"
        );
        let at = |time: &str| format!("2026-11-30T{time}Z");
        assert_eq!(ago(&at("08:00:00"), &at("08:00:09")), "9 s");
        assert_eq!(ago(&at("08:00:00"), &at("08:02:09")), "2 min 9 s");
        assert_eq!(ago(&at("08:00:00"), &at("10:02:09")), "2 h 2 min");
        assert_eq!(bytes("1536"), "1.5 KiB");
        assert_eq!(bytes("12"), "12 B");
    }
}
