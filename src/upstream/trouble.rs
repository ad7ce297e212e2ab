//! Owns: what an error of PostgreSQL means, and who must act.
//! May call: nothing.
//! Never: let an error that will not pass by itself be tried for ever; give up an event for an error that is
//! not its own.
//!
//! | SQLSTATE | means | then |
//! | --- | --- | --- |
//! | 21, 22, 23, 44, 54, P0 | a row breaks a rule | halve until it is alone; a dead letter |
//! | 42, 28, 3D, 3F, 0A, 0L, 0P | wrong schema, rights, password, database | stop, a person must mend it |
//! | all others: 08, 25, 40, 53, 55, 57, 58, XX | passes | retry |

use crate::core::outbox::Verdict;
use tokio_postgres::Error;
use tokio_postgres::error::DbError;

/// Most characters of a message of the server, and of its detail: a text on record is bounded, and what to do
/// about it stands behind them.
const SAID_CHARS_MAX: usize = 80;

/// Why there is no connection to the books.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// Passes by itself: network, a server that starts or is full.
    #[error("{0}")]
    Passing(String),
    /// A person must mend it: the configuration, a password, rights, the schema.
    #[error("{0}")]
    Mend(String),
}

impl UpstreamError {
    /// The verdict on every event that was to be sent.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Passing(reason) => Verdict::retry(reason.clone()),
            Self::Mend(reason) => Verdict::Stop {
                reason: reason.clone(),
            },
        }
    }

    /// What `error` means while connecting to `place`.
    pub(super) fn connecting(place: &str, error: &Error) -> Self {
        let says = says(error);
        match error.as_db_error() {
            Some(server) => match Class::of(server) {
                Class::Person => Self::Mend(format!("{place}: {says}; {}", mend(server))),
                Class::Row | Class::Passes => Self::Passing(format!("{place}: {says}")),
            },
            None if is_certificate(error) => Self::Mend(format!(
                "{place}: TLS: {says}; expected a certificate for this host name, signed by a CA in ca_file"
            )),
            None if is_refused_tls(error) => Self::Mend(format!(
                "{place}: the server does not speak TLS; turn ssl on there, or write sslmode=disable in url"
            )),
            None if is_configuration(error) => Self::Mend(format!(
                "{place}: {says}; a password is read from password_file"
            )),
            None => Self::Passing(format!("{place}: {says}")),
        }
    }
}

/// Who must act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// A row is at fault.
    Row,
    /// A person must mend it.
    Person,
    /// It passes.
    Passes,
}

impl Class {
    pub(super) fn of(error: &DbError) -> Self {
        Self::of_code(error.code().code())
    }

    fn of_code(code: &str) -> Self {
        match code.get(..2).unwrap_or_default() {
            "21" | "22" | "23" | "44" | "54" | "P0" => Self::Row,
            "42" | "28" | "3D" | "3F" | "0A" | "0L" | "0P" => Self::Person,
            _ => Self::Passes,
        }
    }
}

/// What to do about an error that a person must mend.
pub(super) fn mend(error: &DbError) -> &'static str {
    match error.code().code() {
        "42501" => "give the role its rights: holdfast upstream init --writer ROLE",
        code if code.starts_with("42") || code.starts_with("3F") => {
            "apply the schema of this version: holdfast upstream init"
        }
        "28000" => "let this role and address in: pg_hba.conf, and ALTER ROLE … LOGIN",
        code if code.starts_with("28") => "check the user in url, and password_file",
        code if code.starts_with("3D") => "create the database, or mend url",
        _ => "ask the database's administrator",
    }
}

/// The beginning of what the server said.
fn short(text: &str) -> String {
    match text.char_indices().nth(SAID_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The error in one line: what the server said with its SQLSTATE, or what the connection met.
pub(super) fn says(error: &Error) -> String {
    if let Some(server) = error.as_db_error() {
        let detail = server.detail().map(|d| format!(" ({})", short(d)));
        let says = format!("{}{}", short(server.message()), detail.unwrap_or_default());
        return format!("SQLSTATE {}: {says}", server.code().code());
    }
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    text
}

/// A certificate that is not yet, or no longer, valid may be a matter of this computer's clock, and passes.
fn is_certificate(error: &Error) -> bool {
    let text = says(error);
    let is_of_time =
        text.contains("Expired") || text.contains("NotValidYet") || text.contains("expired");
    text.contains("invalid peer certificate") && !is_of_time
}

fn is_refused_tls(error: &Error) -> bool {
    says(error).contains("server does not support TLS")
}

fn is_configuration(error: &Error) -> bool {
    let text = says(error);
    text.contains("password missing") || text.contains("invalid configuration")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_of_error_names_who_must_act() {
        for (code, class) in [
            ("40001", Class::Passes),
            ("40P01", Class::Passes),
            ("08006", Class::Passes),
            ("53300", Class::Passes),
            ("57P01", Class::Passes),
            ("57014", Class::Passes),
            ("25006", Class::Passes),
            ("XX000", Class::Passes),
            ("22021", Class::Row),
            ("23514", Class::Row),
            ("54000", Class::Row),
            ("42883", Class::Person),
            ("42501", Class::Person),
            ("28P01", Class::Person),
            ("3D000", Class::Person),
            ("", Class::Passes),
        ] {
            assert_eq!(Class::of_code(code), class, "{code}");
        }
    }
}
