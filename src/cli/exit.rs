//! Owns: exit codes, and what makes which (contract, section 1).
//! May call: nothing.
//! Never: make a doubtful outcome look like success.

use super::text::complain;
use serde_json::{Value as Json, json};
use std::io::Write as _;

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done, or completed.
    Done = 0,
    /// The demo did not go as it must.
    Mismatch = 1,
    /// The request cannot be taken as it is.
    Usage = 2,
    /// Rejected, expired, cancelled, held, superseded.
    NotSent = 3,
    /// The device refused.
    DeviceRefused = 4,
    /// Nobody knows.
    Unknown = 5,
    /// Still open when the wait ended.
    StillOpen = 6,
    /// The id is taken by another intent.
    Conflict = 7,
    /// No gateway answers.
    NotReachable = 8,
    /// Recovery mode, or damage to the journal.
    Recovery = 9,
    /// Not permitted.
    NotPermitted = 77,
    /// The configuration is wrong.
    Configuration = 78,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl Exit {
    /// By the state an operation is in.
    #[must_use]
    pub fn of_state(state: &str) -> Self {
        match state {
            "completed" | "compensated" => Self::Done,
            "failed" => Self::DeviceRefused,
            "outcome_unknown" => Self::Unknown,
            "queued" | "sending" | "accepted" => Self::StillOpen,
            _ => Self::NotSent,
        }
    }

    /// By the code of a problem.
    #[must_use]
    pub fn of_problem(code: &str, status: u16, body: &Json) -> Self {
        match code {
            "idempotency_conflict" => Self::Conflict,
            "forbidden" | "unauthorized" => Self::NotPermitted,
            "recovery_mode" | "foreign_journal" | "store_unavailable" => Self::Recovery,
            "configuration_refused" => Self::Configuration,
            "device_error" => Self::DeviceRefused,
            "stopping" | "busy" | "too_slow" => Self::NotReachable,
            "capacity_full" | "authority_unavailable" | "disconnected" => Self::NotSent,
            "outside_replay_window" => Self::NotSent,
            // In doubt is in doubt; an operation that has ended cannot be cancelled at all.
            "too_late" => match body["state"].as_str().unwrap_or_default() {
                "sending" | "accepted" | "outcome_unknown" => Self::Unknown,
                _ => Self::Usage,
            },
            "not_possible" => Self::Usage,
            // A rejected operation, whatever the reason.
            _ if status == 409 => Self::NotSent,
            _ if status >= 500 => Self::NotReachable,
            _ => Self::Usage,
        }
    }
}

/// Why a command did not do what was asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The gateway said no.
    Problem {
        /// HTTP status.
        status: u16,
        /// The problem document.
        body: Json,
    },
    /// Nobody answers.
    NotReachable(String),
    /// The socket is not ours to use.
    NotPermitted(String),
    /// The command line, or a file it names, is wrong.
    Usage(String),
}

impl Failure {
    /// Says it on standard error, or as a problem document on standard output; the exit code.
    pub fn report(&self, json: bool) -> Exit {
        if json {
            // Whoever read our output has enough of it.
            let _ = writeln!(std::io::stdout().lock(), "{}", self.document());
        } else {
            complain(&self.text());
        }
        self.exit()
    }

    fn exit(&self) -> Exit {
        match self {
            Self::Problem { status, body } => {
                Exit::of_problem(body["code"].as_str().unwrap_or_default(), *status, body)
            }
            Self::NotReachable(_) => Exit::NotReachable,
            Self::NotPermitted(_) => Exit::NotPermitted,
            Self::Usage(_) => Exit::Usage,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Problem { body, .. } => explain(body),
            Self::NotReachable(why) | Self::NotPermitted(why) | Self::Usage(why) => why.clone(),
        }
    }

    /// The gateway's own, or one in its form for what went wrong on the way to it.
    fn document(&self) -> Json {
        let code = match self {
            Self::Problem { body, .. } => return body.clone(),
            Self::NotReachable(_) => "not_reachable",
            Self::NotPermitted(_) => "not_permitted",
            Self::Usage(_) => "usage",
        };
        json!({
            "type": format!("urn:holdfast:problem:{code}"),
            "code": code,
            "detail": self.text(),
        })
    }
}

/// What the person at the terminal can do about it.
fn hint(body: &Json) -> Option<String> {
    let operation = &body["operation"];
    let id = operation["operation_id"].as_str();
    let machine = operation["machine"].as_str().unwrap_or_default();
    match (body["code"].as_str()?, body["field"].as_str()) {
        ("invalid_argument", Some("expected_config_version")) => Some(
            "--expect-version N; `holdfast op ID` of an earlier one shows what was found".into(),
        ),
        ("missing_operation_id", _) => Some("--id ID".into()),
        ("disconnected", _) => Some(match id {
            Some(_) => format!(
                "once `holdfast machine {machine}` says up, submit it under a new id: this one had no effect"
            ),
            None => "`holdfast machine` says why; `read --cached` shows the last values".into(),
        }),
        ("queue_full", _) => Some(format!(
            "`holdfast ops --machine {machine} --state queued` shows it; --replaces ID takes its place, where the policy allows"
        )),
        ("unknown_operation", _) => Some("`holdfast ops` lists those that are".into()),
        ("idempotency_conflict", _) => Some("`holdfast op ID` shows what is recorded".into()),
        _ => None,
    }
}

/// A problem document in plain words.
fn explain(body: &Json) -> String {
    let mut text = body["detail"].as_str().unwrap_or("refused").to_owned();
    if let Some(code) = body["code"].as_str() {
        text.push_str(&format!(" [{code}]"));
    }
    if let Some(hint) = hint(body) {
        text.push_str(&format!("\nnext: {hint}"));
    }
    for side in ["recorded", "received"] {
        if let Some(digest) = body[side]["digest"].as_str() {
            text.push_str(&format!(
                "\n{side}: {digest}, {} bytes, encoding {}",
                body[side]["length"], body[side]["encoding"]
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: IF-02
    #[test]
    fn every_state_has_its_exit_code() {
        for (state, exit) in [
            ("completed", 0),
            ("compensated", 0),
            ("queued", 6),
            ("sending", 6),
            ("accepted", 6),
            ("held", 3),
            ("rejected", 3),
            ("expired", 3),
            ("cancelled", 3),
            ("superseded", 3),
            ("not_executed", 3),
            ("failed", 4),
            ("outcome_unknown", 5),
        ] {
            assert_eq!(Exit::of_state(state) as u8, exit, "{state}");
        }
    }

    // covers: IF-02
    #[test]
    fn every_problem_has_its_exit_code() {
        for (code, status, exit) in [
            ("missing_operation_id", 400, 2),
            ("malformed", 400, 2),
            ("forbidden", 403, 77),
            ("unknown_machine", 404, 2),
            ("idempotency_conflict", 409, 7),
            ("disconnected", 409, 3),
            ("queue_full", 409, 3),
            ("outside_replay_window", 409, 3),
            ("version_conflict", 409, 3),
            ("not_possible", 409, 2),
            ("not_owner", 421, 2),
            ("invalid_argument", 422, 2),
            ("recovery_mode", 503, 9),
            ("store_unavailable", 503, 9),
            ("stopping", 503, 8),
            ("capacity_full", 507, 3),
            ("device_error", 502, 4),
            ("configuration_refused", 409, 78),
        ] {
            assert_eq!(
                Exit::of_problem(code, status, &json!({})) as u8,
                exit,
                "{code}"
            );
        }
        let late = |state| Exit::of_problem("too_late", 409, &json!({"state": state}));
        assert_eq!(late("sending"), Exit::Unknown);
        assert_eq!(late("completed"), Exit::Usage);
    }
}
