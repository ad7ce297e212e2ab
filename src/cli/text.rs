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
    /// Prints a command to copy, on a line of its own.
    pub fn command(&mut self, command: &str) {
        for line in command_lines(command) {
            self.text.push_str(&line);
            self.text.push('\n');
        }
    }
    /// Prints a step: what to do, then the command that does it.
    pub fn step(&mut self, step: &Step) {
        match &step.command {
            Some(command) => {
                self.line(&format!("  next: {}:", step.what));
                self.command(command);
            }
            None => self.line(&format!("  next: {}", step.what)),
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
}

/// What a person can do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// In plain words.
    pub what: String,
    /// The command that does it, if one does.
    pub command: Option<String>,
}

impl Step {
    /// Something no command does.
    #[must_use]
    pub fn words(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            command: None,
        }
    }
    /// Something a command does.
    #[must_use]
    pub fn run(what: impl Into<String>, command: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            command: Some(command.into()),
        }
    }
}

/// One finding a line on standard error: whole for an editor or a log, wrapped for a person at a terminal.
pub fn tell(text: &str) {
    let all = for_reader(text, std::io::stderr().is_terminal());
    // Nobody is left to tell.
    let _ = std::io::stderr().lock().write_all(all.as_bytes());
}

/// The same on standard output.
pub fn tell_out(text: &str) {
    let all = for_reader(text, std::io::stdout().is_terminal());
    // Whoever read our output has enough of it.
    let _ = std::io::stdout().lock().write_all(all.as_bytes());
}

fn for_reader(text: &str, terminal: bool) -> String {
    let lines = text.lines().map(|line| {
        if terminal {
            wrap(line).join("\n")
        } else {
            visible(line)
        }
    });
    lines.map(|line| line + "\n").collect()
}

/// What a device or a caller sent must not steer the terminal.
fn visible(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// A command as a shell takes it, in lines of at most [`COLUMNS`]: broken before an option, with a backslash.
#[must_use]
pub fn command_lines(command: &str) -> Vec<String> {
    const INDENT: &str = "    ";
    let command = visible(command);
    if INDENT.len() + command.chars().count() <= COLUMNS {
        return vec![format!("{INDENT}{command}")];
    }
    let mut lines: Vec<String> = Vec::new();
    let mut line = INDENT.to_owned();
    for (index, word) in command.split(" --").enumerate() {
        let word = if index == 0 {
            word.to_owned()
        } else {
            format!(" --{word}")
        };
        // Two columns for the backslash.
        if index > 0 && line.chars().count() + word.chars().count() + 2 > COLUMNS {
            lines.push(format!("{line} \\"));
            line = format!("{INDENT}   {word}");
        } else {
            line.push_str(&word);
        }
    }
    lines.push(line);
    lines.iter().flat_map(|line| hard_broken(line)).collect()
}

/// A word that no line holds goes on at the next line's very beginning: to a shell it is one word still.
fn hard_broken(line: &str) -> Vec<String> {
    let mut rest: Vec<char> = line.chars().collect();
    let mut parts = Vec::new();
    while rest.len() > COLUMNS {
        let tail = rest.split_off(COLUMNS - 1);
        parts.push(rest.into_iter().chain(['\\']).collect());
        rest = tail;
    }
    parts.push(rest.into_iter().collect());
    parts
}

/// Words of a text; what stands in backquotes is one, so that a command is not broken.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let (mut start, mut quoted) = (0, false);
    for (at, c) in text.char_indices() {
        match c {
            '`' => quoted = !quoted,
            ' ' if !quoted || !text[at..].contains('`') => {
                words.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    words.push(&text[start..]);
    words
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
    let text = visible(text);
    if text.chars().count() <= COLUMNS {
        return vec![text.trim_end().to_owned()];
    }
    let first = text.chars().take_while(|c| *c == ' ').count();
    let indent = " ".repeat((first + 2).min(COLUMNS / 2));
    let mut lines = Vec::new();
    let mut line = " ".repeat(first.min(COLUMNS / 2));
    let mut empty = true;
    for word in words(text.trim_start()) {
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

/// Whether somebody sits there who can be asked.
#[must_use]
pub fn can_ask() -> bool {
    std::io::stdin().is_terminal()
}

/// Asks before something that cannot be taken back.
///
/// # Errors
/// The person said no, or nobody sits there and `--yes` was not given.
pub fn confirm(what: &str, yes: bool) -> Result<(), super::exit::Failure> {
    if yes {
        return Ok(());
    }
    if !can_ask() {
        let why = format!("{what}\nnot a terminal; add --yes to go on; nothing was done");
        return Err(super::exit::Failure::Usage(why));
    }
    let shown: Vec<String> = what.lines().flat_map(wrap).collect();
    eprint!("{}\nType \"yes\" to go on: ", shown.join("\n"));
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
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

    // covers: IF-02
    #[test]
    fn a_command_is_broken_so_that_a_shell_still_reads_it() {
        let short = "holdfast op OP7";
        assert_eq!(command_lines(short), ["    holdfast op OP7"]);
        let long = format!(
            "holdfast reissue {} --id {} --reason \"…\"",
            "L".repeat(128),
            "N".repeat(50)
        );
        let lines = command_lines(&long);
        assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS));
        let read: String = lines.join("\n").replace("\\\n", "");
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&read), words(&long));
    }

    #[test]
    fn a_command_in_backquotes_is_not_broken() {
        let text = format!("{} `holdfast machine press-1` says up", "x".repeat(60));
        assert!(wrap(&text)[1].contains("`holdfast machine press-1` says up"));
        assert_eq!(words("a `b c` d ` e"), ["a", "`b c`", "d", "`", "e"]);
    }

    // covers: CFG-01
    #[test]
    fn an_editor_reads_a_finding_whole_and_a_person_reads_it_wrapped() {
        let text = format!("a.toml:3:9: {}", "word ".repeat(30));
        assert_eq!(for_reader(&text, false).lines().count(), 1);
        let wrapped = for_reader(&text, true);
        assert!(wrapped.starts_with("a.toml:3:9: "));
        assert!(wrapped.lines().all(|line| line.chars().count() <= COLUMNS));
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
