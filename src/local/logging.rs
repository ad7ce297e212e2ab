//! Owns: the log, on standard error in the form the system's journal reads, or in a file.
//! May call: nothing of ours.
//! Never: write a secret, or block on a reader that is gone.

use log::{Level, LevelFilter, Log, Metadata, Record};
use std::io::Write as _;

/// Longest line, in bytes.
const LINE_BYTES_MAX: usize = 2_000;

struct Logger {
    /// With a service manager behind it each line begins with its priority (sd-daemon(3)).
    priorities: bool,
    /// Instead of standard error.
    file: Option<std::fs::File>,
}

/// Logs at `level`; `HOLDFAST_LOG` (`error`, `warn`, `info`, `debug`, `trace`) overrides it.
pub(super) fn start(level: LevelFilter) {
    let priorities = std::env::var_os("JOURNAL_STREAM").is_some();
    set(level, priorities, None);
}

/// The same, into a file.
pub(super) fn start_to(level: LevelFilter, file: std::fs::File) {
    set(level, false, Some(file));
}

fn set(level: LevelFilter, priorities: bool, file: Option<std::fs::File>) {
    let asked = std::env::var("HOLDFAST_LOG")
        .ok()
        .and_then(|text| text.parse().ok());
    let logger = Logger { priorities, file };
    if log::set_boxed_logger(Box::new(logger)).is_ok() {
        log::set_max_level(asked.unwrap_or(level));
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // The store's own chatter is no news below a warning.
        let ours = metadata.target().starts_with("holdfast");
        metadata.level() <= log::max_level() && (ours || metadata.level() <= Level::Warn)
    }
    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let priority = match record.level() {
            Level::Error => 3,
            Level::Warn => 4,
            Level::Info => 6,
            Level::Debug | Level::Trace => 7,
        };
        let mut text = record.args().to_string().replace(['\n', '\r'], " ");
        if text.len() > LINE_BYTES_MAX {
            let end = (0..=LINE_BYTES_MAX)
                .rev()
                .find(|end| text.is_char_boundary(*end))
                .unwrap_or(0);
            text.truncate(end);
        }
        let line = if self.priorities {
            format!("<{priority}>{text}\n")
        } else {
            format!("{:<5} {text}\n", record.level())
        };
        // A log that cannot be written must not stop what it tells of.
        let _ = match &self.file {
            Some(file) => (&mut &*file).write_all(line.as_bytes()),
            None => std::io::stderr().write_all(line.as_bytes()),
        };
    }
    fn flush(&self) {}
}
