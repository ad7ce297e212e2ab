//! Owns: reading `[[sink]]`: the kinds, their URLs, and where their secrets stand.
//! May call: reader, point, secret's judgement of a file.
//! Never: read a secret; let one travel in clear unless the file says so in so many words (CFG-04).

use super::machine::unique;
use super::point;
use super::reader::{Node, Table, tables};
use super::url::{Url, is_local};
use super::{SinkKind, SinkSpec};
use crate::secret::{self, SecretError};
use std::path::{Path, PathBuf};

/// Most connections of one `postgres` sink.
pub const LANES_MAX: usize = 16;
const LANES_DEFAULT: usize = 2;
/// Longest MQTT topic, in bytes; the protocol's own limit is 65535.
pub const TOPIC_BYTES_MAX: usize = 512;
/// Longest MQTT client id, in bytes.
pub const CLIENT_ID_BYTES_MAX: usize = 128;
/// Least silence of a receiver after which events are sent again, in milliseconds.
const ACK_MS_MIN: u64 = 100;
/// Longest silence of that kind, in milliseconds.
const ACK_MS_MAX: u64 = 10 * 60 * 1_000;
/// Names a systemd credential where a file is named.
const CREDENTIAL_PREFIX: &str = "credential:";

/// A broker and who we are to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerSpec {
    /// `mqtt://` or `mqtts://`, with the user if there is one, never with a password.
    pub url: String,
    /// The user's.
    pub password_file: Option<PathBuf>,
    /// Authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Instead of one that is made.
    pub client_id: Option<String>,
}

const LATER_SINKS: &[&str] = &["nats", "kafka"];
const KINDS: &[(&str, Kind)] = &[
    ("file", Kind::File),
    ("http", Kind::Http),
    ("postgres", Kind::Postgres),
    ("mqtt", Kind::Mqtt),
];

#[derive(Clone, Copy)]
enum Kind {
    File,
    Http,
    Postgres,
    Mqtt,
}

pub(super) fn sinks(
    root: &Table<'_>,
    state_dir: &Path,
    warnings: &mut Vec<String>,
) -> Vec<SinkSpec> {
    let mut sinks: Vec<SinkSpec> = Vec::new();
    for table in tables(root, "sink") {
        let name_node = table.need("name", "the sink's name");
        let name = name_node.as_ref().and_then(point::plain_name);
        if let (Some(node), Some(name)) = (&name_node, &name) {
            unique(node, name, sinks.iter().map(|sink| sink.name.as_str()));
        }
        let kind = table.need("kind", "\"file\", \"http\", \"postgres\" or \"mqtt\"");
        for (_, value) in table.named() {
            refuse_credentials(&value);
        }
        let Some(kind) = kind.as_ref().and_then(known_kind) else {
            continue;
        };
        let mut notes = Vec::new();
        let kind = match kind {
            Kind::File => file_sink(&table, state_dir),
            Kind::Http => http_sink(&table, &mut notes),
            Kind::Postgres => postgres_sink(&table, &mut notes),
            Kind::Mqtt => mqtt_sink(&table, &mut notes),
        };
        table.finish();
        if let (Some(name), Some(kind)) = (name, kind) {
            warnings.extend(notes.iter().map(|note| format!("sink {name}: {note}")));
            sinks.push(SinkSpec { name, kind });
        }
    }
    refuse_shared_paths(root, &sinks);
    sinks
}

fn known_kind(node: &Node<'_>) -> Option<Kind> {
    if node
        .as_text()
        .is_some_and(|kind| LATER_SINKS.contains(&kind))
    {
        return node.wrong(
            "a sink that this version has: \"file\", \"http\", \"postgres\" or \"mqtt\"",
            Some("let an mqtt or http receiver carry them on".into()),
        );
    }
    node.choice(KINDS)
}

fn file_sink(table: &Table<'_>, state_dir: &Path) -> Option<SinkKind> {
    let path_node = table.need("path", "a directory, such as \"/var/lib/holdfast/events\"");
    let size = table
        .get("rotate_size")
        .and_then(|node| node.size(1 << 20, 4 << 30));
    let files = table
        .get("files_max")
        .and_then(|node| node.integer(2, 100_000));
    let node = path_node?;
    let path = node.path()?;
    if path.starts_with(state_dir.join("journal")) || state_dir.starts_with(&path) {
        return node.wrong("a directory apart from the journal's", None);
    }
    Some(SinkKind::File {
        path,
        rotate_bytes: size.unwrap_or(64 << 20),
        files_max: files.and_then(|n| u32::try_from(n).ok()),
    })
}

fn http_sink(table: &Table<'_>, notes: &mut Vec<String>) -> Option<SinkKind> {
    let node = table.need(
        "url",
        "where the receiver is, such as \"https://mes.plant:8443\"",
    );
    let token_file = secret_file(table, "token_file", notes);
    let ca_file = public_file(table, "ca_file", notes);
    let allowed = plaintext_allowed(table);
    let node = node?;
    let example = "https://host[:port][/path]";
    let url = place(&node, &["http", "https"], example)?;
    if url.user.is_some() {
        return node.wrong(
            format!("{example}, without a user"),
            Some("who this gateway is, the token says: token_file = …".into()),
        );
    }
    if !url.query.is_empty() {
        return node.wrong(format!("{example}, without a query"), None);
    }
    in_clear(&node, &url, url.scheme == "http", allowed, "https://")?;
    Some(SinkKind::Http {
        url: node.text()?.trim_end_matches('/').to_owned(),
        token_file: token_file?,
        ca_file: ca_file?,
    })
}

fn postgres_sink(table: &Table<'_>, notes: &mut Vec<String>) -> Option<SinkKind> {
    let lanes = table
        .get("lanes")
        .map_or(Some(LANES_DEFAULT as i128), |node| {
            node.integer(1, LANES_MAX as i128)
        });
    let database = database(table, notes)?;
    Some(SinkKind::Postgres {
        url: database.url,
        password_file: database.password_file,
        ca_file: database.ca_file,
        lanes: usize::try_from(lanes?).ok()?,
    })
}

/// Where books are, and how they are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseSpec {
    /// `postgres://user@host:port/database`, never with a password.
    pub url: String,
    /// The user's.
    pub password_file: Option<PathBuf>,
    /// Authorities to trust.
    pub ca_file: Option<PathBuf>,
}

pub(super) fn database(table: &Table<'_>, notes: &mut Vec<String>) -> Option<DatabaseSpec> {
    let example = "postgres://user@host[:port]/database";
    let node = table.need("url", &format!("which database: {example}"));
    let password_file = secret_file(table, "password_file", notes);
    let ca_file = public_file(table, "ca_file", notes);
    let allowed = plaintext_allowed(table);
    let node = node?;
    let url = place(&node, &["postgres", "postgresql"], example)?;
    if url.user.is_none() || url.path.trim_matches('/').is_empty() {
        return node.wrong(format!("{example}, with a user and a database"), None);
    }
    let mode = url.query_value("sslmode");
    let plain = match mode {
        None => false,
        Some("disable") => true,
        Some("verify-full") => false,
        Some(_) => {
            return node.wrong(
                "sslmode=verify-full, which another computer is reached with anyway, or sslmode=disable",
                Some("the server is always verified where TLS is used; for an own authority: ca_file = …".into()),
            );
        }
    };
    in_clear(&node, &url, plain, allowed, "sslmode=verify-full")?;
    Some(DatabaseSpec {
        url: node.text()?.to_owned(),
        password_file: password_file?,
        ca_file: ca_file?,
    })
}

fn mqtt_sink(table: &Table<'_>, notes: &mut Vec<String>) -> Option<SinkKind> {
    let topic = table.need(
        "topic",
        "where events are published, such as \"holdfast/{gateway}/events\"",
    );
    let topic = topic.and_then(|node| topic_name(&node, &["gateway", "source", "type"]));
    let ack_topic = optional(table.get("ack_topic"), |node| {
        ack_topic(node, topic.as_deref())
    });
    let ack_ms = optional(table.get("ack_timeout"), |node| {
        node.duration(ACK_MS_MIN, ACK_MS_MAX)
    });
    let broker = broker(table, notes)?;
    if ack_topic == Some(None) {
        notes.push(
            "no ack_topic: events are finished when the broker has them (broker-acked), and are lost if it \
             loses them"
                .into(),
        );
    }
    Some(SinkKind::Mqtt {
        url: broker.url,
        topic: topic?,
        ack_topic: ack_topic?,
        password_file: broker.password_file,
        ca_file: broker.ca_file,
        client_id: broker.client_id,
        ack_ms: ack_ms?,
    })
}

/// Where receivers say what they have committed: one topic a gateway, apart from the events'.
pub(super) fn ack_topic(node: &Node<'_>, events: Option<&str>) -> Option<String> {
    let text = topic_name(node, &["gateway"])?;
    if Some(text.as_str()) == events {
        return node.wrong("a topic apart from the events'", None);
    }
    Some(text)
}

/// A broker and who we are to it.
pub(super) fn broker(table: &Table<'_>, notes: &mut Vec<String>) -> Option<BrokerSpec> {
    let example = "mqtts://[user@]host[:port]";
    let node = table.need("url", &format!("which broker: {example}"));
    let client_id = optional(table.get("client_id"), |node| {
        let text = node.text()?;
        if text.is_empty() || text.len() > CLIENT_ID_BYTES_MAX || text.contains(char::is_control) {
            return node.wrong(format!("1 to {CLIENT_ID_BYTES_MAX} bytes of text"), None);
        }
        Some(text.to_owned())
    });
    let password_file = secret_file(table, "password_file", notes);
    let ca_file = public_file(table, "ca_file", notes);
    let allowed = plaintext_allowed(table);
    let node = node?;
    let url = place(&node, &["mqtt", "mqtts"], example)?;
    if !url.query.is_empty() || !url.path.trim_matches('/').is_empty() {
        return node.wrong(format!("{example} and no more"), None);
    }
    in_clear(&node, &url, url.scheme == "mqtt", allowed, "mqtts://")?;
    Some(BrokerSpec {
        url: node.text()?.to_owned(),
        password_file: password_file?,
        ca_file: ca_file?,
        client_id: client_id?,
    })
}

/// `Some(None)`: absent; `None`: there, and wrong.
pub(super) fn optional<T>(
    node: Option<Node<'_>>,
    read: impl FnOnce(&Node<'_>) -> Option<T>,
) -> Option<Option<T>> {
    match node {
        None => Some(None),
        Some(node) => read(&node).map(Some),
    }
}

/// The URL, if it is one of these schemes with a host.
fn place<'a>(node: &Node<'a>, schemes: &[&str], example: &str) -> Option<Url<'a>> {
    let text = node.text()?;
    if has_password(text) {
        // Said already, without the password.
        return None;
    }
    match Url::parse(text) {
        Ok(url) if schemes.contains(&url.scheme) => Some(url),
        Ok(url) => {
            let near = format!("a URL that begins with {}://", schemes.join(":// or "));
            let mend = (url.scheme == "tcp").then(|| format!("write it as {example}"));
            node.wrong(near, mend)
        }
        Err(why) => node.wrong(format!("{example} ({why})"), None),
    }
}

pub(super) fn plaintext_allowed(table: &Table<'_>) -> bool {
    let node = table.get("allow_plaintext");
    node.and_then(|node| node.boolean()).unwrap_or(false)
}

/// Refuses a connection that everybody on the way can read and change, unless it leaves the computer for
/// nowhere or the file says that it may.
fn in_clear(node: &Node<'_>, url: &Url<'_>, plain: bool, allowed: bool, tls: &str) -> Option<()> {
    if !plain || allowed || is_local(url.host) {
        return Some(());
    }
    node.wrong(
        "TLS to another computer: without it secrets and events can be read and changed on the way",
        Some(format!(
            "write {tls}, or allow_plaintext = true where the network itself is protected"
        )),
    )
}

pub(super) fn topic_name(node: &Node<'_>, placeholders: &[&str]) -> Option<String> {
    let text = node.text()?;
    if text.is_empty() || text.len() > TOPIC_BYTES_MAX {
        return node.wrong(format!("a topic of 1 to {TOPIC_BYTES_MAX} bytes"), None);
    }
    if text.starts_with('$') || text.contains(['+', '#', '\0']) {
        return node.wrong(
            "one topic, without + or #, and not the broker's own $…",
            None,
        );
    }
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let name = rest[at..].strip_prefix('{').and_then(|r| r.split_once('}'));
        match name {
            Some((name, after)) if placeholders.contains(&name) => rest = after,
            _ => {
                let known: Vec<_> = placeholders.iter().map(|p| format!("{{{p}}}")).collect();
                return node.wrong(format!("in braces only {}", known.join(", ")), None);
            }
        }
    }
    Some(text.to_owned())
}

/// A file by its path, or a credential of the service by its name.
fn file_named(node: &Node<'_>) -> Option<PathBuf> {
    let text = node.text()?;
    match text.strip_prefix(CREDENTIAL_PREFIX) {
        None => node.path(),
        Some(name) if name.is_empty() || name.contains('/') || name.starts_with('.') => node.wrong(
            "credential:NAME, as in LoadCredential=NAME:… of the service",
            None,
        ),
        Some(name) => Some(secret::credential(name)),
    }
}

/// One that cannot be looked at now is a warning: the gateway must not be kept from its machines by it.
pub(super) fn secret_file(
    table: &Table<'_>,
    key: &'static str,
    notes: &mut Vec<String>,
) -> Option<Option<PathBuf>> {
    optional(table.get(key), |node| {
        let path = file_named(node)?;
        match secret::judge(&path) {
            Ok(()) => Some(path),
            Err(error @ SecretError::Io { .. }) => {
                notes.push(error.to_string());
                Some(path)
            }
            Err(SecretError::Open { mode, .. }) => {
                node.problem(
                    format!("a secret with mode {mode:04o}, open to every user of this computer"),
                    "a file for owner and group alone, mode 0640 or less",
                    Some(format!(
                        "chmod o= {}, and give out a new secret if others may have read it",
                        path.display()
                    )),
                );
                None
            }
            Err(SecretError::NotAFile(_) | SecretError::Shape { .. }) => {
                node.wrong("a file that holds the secret", None)
            }
        }
    })
}

/// A file that is no secret, such as a certificate.
pub(super) fn public_file(
    table: &Table<'_>,
    key: &'static str,
    notes: &mut Vec<String>,
) -> Option<Option<PathBuf>> {
    optional(table.get(key), |node| {
        let path = file_named(node)?;
        match std::fs::metadata(&path) {
            Ok(found) if !found.is_file() => node.wrong("a file", None),
            Ok(_) => Some(path),
            Err(error) => {
                notes.push(format!("{}: {error}; put the file there", path.display()));
                Some(path)
            }
        }
    })
}

fn has_password(text: &str) -> bool {
    let Some((_, rest)) = text.split_once("://") else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let user_info = authority.rsplit_once('@');
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    user_info.is_some_and(|(user, _)| user.contains(':'))
        || query.split('&').any(|pair| pair.starts_with("password="))
}

/// A URL with a password in it is a secret in clear (CFG-04).
pub(super) fn refuse_credentials(node: &Node<'_>) {
    if node.as_text().is_some_and(has_password) {
        node.problem(
            "a URL with a password in it",
            "no secret in this file",
            Some("put it into a file of its own and name that: password_file = …".into()),
        );
    }
}

fn refuse_shared_paths(root: &Table<'_>, sinks: &[SinkSpec]) {
    for (index, sink) in sinks.iter().enumerate() {
        let SinkKind::File { path, .. } = &sink.kind else {
            continue;
        };
        let shared = sinks[..index].iter().any(
            |other| matches!(&other.kind, SinkKind::File { path: taken, .. } if taken == path),
        );
        let table = tables(root, "sink").into_iter().find(|table| {
            table
                .get("name")
                .is_some_and(|node| node.as_text() == Some(sink.name.as_str()))
        });
        if let Some(node) = table.filter(|_| shared).and_then(|table| table.get("path")) {
            node.wrong::<()>("a directory of its own for every sink", None);
        }
    }
}
