//! Owns: reading `receiver.toml`: where the receiver listens, who may send, and which books it writes.
//! May call: reader, sink's reading of URLs and secret files, point.
//! Never: read a secret; listen in clear for other computers unless the file says so in so many words.

use super::problem::{Doc, Problem};
use super::reader::{Node, Table, tables};
use super::sink::{self, BrokerSpec, DatabaseSpec};
use super::{machine, point};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Most gateways of one receiver.
pub const GATEWAYS_MAX: usize = 1_000;
/// Most connections of a receiver to its books.
pub const BOOKS_MAX: usize = 64;
/// Most sources that a gateway may be held to.
const SOURCES_MAX: usize = 1_000;
/// Longest name of a source in the list, in characters.
const SOURCE_CHARS_MAX: usize = 128;
/// Longest time for which a broker is asked to keep messages, in milliseconds.
const SESSION_MS_MAX: u64 = 30 * 86_400_000;
/// Least body that a receiver must take, in bytes: one event of ordinary size.
const BODY_BYTES_MIN: u64 = 64 << 10;
const BODY_BYTES_MAX: u64 = 64 << 20;
/// Most events of one request: what one call to the books takes.
const EVENTS_MAX: i128 = 5_000;

/// What a receiver's file says, checked. A limit that it does not give is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceiverConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Certificate chain and key; `None`: without TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The books.
    pub database: DatabaseSpec,
    /// Connections to them.
    pub connections: usize,
    /// Who may send.
    pub gateways: Vec<GatewayRule>,
    /// `[mqtt]`: events come from a broker too.
    pub mqtt: Option<MqttSpec>,
    /// Whoever has this token may read `/metrics`.
    pub metrics_token_file: Option<PathBuf>,
    /// `[limits]`.
    pub limits: ReceiverLimits,
    /// What is odd without being wrong.
    pub warnings: Vec<String>,
}

/// One `[[gateway]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayRule {
    /// Its name.
    pub name: String,
    /// Holds its token.
    pub token_file: PathBuf,
    /// Events of these sources alone; `None`: of all.
    pub sources: Option<BTreeSet<String>>,
}

/// What `[mqtt]` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MqttSpec {
    /// Where, and as whom.
    pub broker: BrokerSpec,
    /// Where events come; `{gateway}` is one of its levels.
    pub topic: String,
    /// Where a gateway is answered.
    pub ack_topic: String,
    /// Receivers of one group share the events.
    pub group: Option<String>,
    /// The broker keeps messages for so long while this receiver is away; 0: not at all.
    pub session_s: u32,
}

/// What `[limits]` gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverLimits {
    /// `connections`
    pub connections: Option<usize>,
    /// `body`, in bytes
    pub body_bytes: Option<usize>,
    /// `events`
    pub events: Option<usize>,
    /// `in_flight`
    pub in_flight: Option<usize>,
    /// `in_flight_per_gateway`
    pub in_flight_per_gateway: Option<usize>,
    /// `header_timeout`, in milliseconds
    pub header_ms: Option<u64>,
    /// `body_timeout`, in milliseconds
    pub body_ms: Option<u64>,
}

pub(super) fn load(path: &Path) -> Result<ReceiverConfig, Vec<Problem>> {
    check(&Doc::read(path)?)
}

/// The same of what is read already.
pub(super) fn check(doc: &Doc) -> Result<ReceiverConfig, Vec<Problem>> {
    let entries = super::parse(doc)?;
    let root = Table::root(doc, &entries);
    let mut warnings = Vec::new();
    super::schema(&root);
    let tls = tls(&root, &mut warnings);
    let listen = listen(&root, tls == Some(None));
    let database = database(&root, &mut warnings);
    let mqtt = root.get("mqtt").map(|node| mqtt(&node, &mut warnings));
    let gateways = gateways(&root, mqtt.is_some(), &mut warnings);
    let metrics = sink::secret_file(&root, "metrics_token_file", &mut warnings);
    let limits = limits(&root);
    root.finish();
    let problems = doc.take();
    match (listen, tls, database, metrics) {
        (Some(listen), Some(tls), Some((database, connections)), Some(metrics_token_file))
            if problems.is_empty() && mqtt != Some(None) =>
        {
            Ok(ReceiverConfig {
                listen,
                tls,
                database,
                connections,
                gateways,
                mqtt: mqtt.flatten(),
                metrics_token_file,
                limits,
                warnings,
            })
        }
        _ => Err(problems),
    }
}

fn listen(root: &Table<'_>, plain: bool) -> Option<SocketAddr> {
    let allowed = sink::plaintext_allowed(root);
    let node = root.need("listen", "address and port, such as \"0.0.0.0:8443\"")?;
    let Ok(listen) = node.text()?.parse::<SocketAddr>() else {
        return node.wrong(
            "address and port, such as \"0.0.0.0:8443\" or \"[::]:8443\"",
            None,
        );
    };
    if plain && !allowed && !listen.ip().is_loopback() {
        return node.wrong(
            "[tls] with a certificate: without it tokens and events can be read and changed on the way",
            Some(
                "add [tls], or listen on 127.0.0.1, or write allow_plaintext = true where the network itself is \
                 protected"
                    .into(),
            ),
        );
    }
    Some(listen)
}

/// `Some(None)`: absent; `None`: there, and wrong.
fn tls(root: &Table<'_>, notes: &mut Vec<String>) -> Option<Option<(PathBuf, PathBuf)>> {
    let Some(node) = root.get("tls") else {
        return Some(None);
    };
    let table = node.table()?;
    table.need(
        "certificate_file",
        "the certificate and those above it, as PEM",
    );
    table.need("key_file", "its private key, as PEM");
    let certificate = sink::public_file(&table, "certificate_file", notes);
    let key = sink::secret_file(&table, "key_file", notes);
    table.finish();
    Some(Some((certificate??, key??)))
}

fn database(root: &Table<'_>, notes: &mut Vec<String>) -> Option<(DatabaseSpec, usize)> {
    let table = root
        .need("database", "a table [database] with url = …")?
        .table()?;
    for (_, value) in table.named() {
        sink::refuse_credentials(&value);
    }
    let connections = table.get("connections").map_or(Some(4), |node| {
        let number = node.integer(1, BOOKS_MAX as i128)?;
        usize::try_from(number).ok()
    });
    let database = sink::database(&table, notes);
    table.finish();
    Some((database?, connections?))
}

fn mqtt(node: &Node<'_>, notes: &mut Vec<String>) -> Option<MqttSpec> {
    let table = node.table()?;
    for (_, value) in table.named() {
        sink::refuse_credentials(&value);
    }
    let topic = table.need(
        "topic",
        "where events come, as in the gateways' files, such as \"holdfast/{gateway}/events\"",
    );
    let topic = topic.and_then(|node| {
        let text = sink::topic_name(&node, &["gateway", "source", "type"])?;
        if text.split('/').all(|level| level != "{gateway}") {
            return node.wrong(
                "{gateway} as one of its levels: the topic says whose events they are",
                None,
            );
        }
        Some(text)
    });
    let ack_topic = table.need(
        "ack_topic",
        "where gateways are answered, as in their files, such as \"holdfast/{gateway}/acks\"",
    );
    let ack_topic = ack_topic.and_then(|node| sink::ack_topic(&node, topic.as_deref()));
    let group = sink::optional(table.get("group"), point::plain_name);
    let session = table
        .get("session")
        .map_or(Some(0), |node| node.duration(0, SESSION_MS_MAX));
    let broker = sink::broker(&table, notes);
    table.finish();
    Some(MqttSpec {
        broker: broker?,
        topic: topic?,
        ack_topic: ack_topic?,
        group: group?,
        session_s: u32::try_from(session?.div_ceil(1_000)).ok()?,
    })
}

fn gateways(root: &Table<'_>, has_others: bool, notes: &mut Vec<String>) -> Vec<GatewayRule> {
    let mut rules: Vec<GatewayRule> = Vec::new();
    let all = tables(root, "gateway");
    if !root.has("gateway") && !has_others {
        let mend = Some("add [[gateway]] with name and token_file".to_owned());
        root.report(
            "gateway",
            "nobody who may send",
            "at least one [[gateway]], or [mqtt]",
            mend,
        );
    }
    if let Some(table) = all.get(GATEWAYS_MAX) {
        let found = format!("{} gateways", all.len());
        table.report(
            &table.path,
            &found,
            &format!("at most {GATEWAYS_MAX}"),
            None,
        );
    }
    for table in all.iter().take(GATEWAYS_MAX) {
        let name_node = table.need("name", "the gateway's name, as in its holdfast.toml");
        let name = name_node.as_ref().and_then(point::plain_name);
        if let (Some(node), Some(name)) = (&name_node, &name) {
            machine::unique(node, name, rules.iter().map(|rule| rule.name.as_str()));
        }
        table.need("token_file", "a file that holds the gateway's token");
        let token_file = sink::secret_file(table, "token_file", notes);
        let sources = table.get("sources").map(|node| sources(&node));
        table.finish();
        if let (Some(name), Some(Some(token_file))) = (name, token_file) {
            rules.push(GatewayRule {
                name,
                token_file,
                sources,
            });
        }
    }
    rules
}

fn sources(node: &Node<'_>) -> BTreeSet<String> {
    let list = node.list().unwrap_or_default();
    if list.is_empty() || list.len() > SOURCES_MAX {
        node.problem(
            format!("{} sources", list.len()),
            format!("1 to {SOURCES_MAX}; without the key, all sources"),
            None,
        );
    }
    let named = list.iter().take(SOURCES_MAX).filter_map(|item| {
        let text = item.text()?;
        if text.is_empty() || text.chars().count() > SOURCE_CHARS_MAX {
            return item.wrong(
                format!("a name of 1 to {SOURCE_CHARS_MAX} characters"),
                None,
            );
        }
        Some(text.to_owned())
    });
    named.collect()
}

fn limits(root: &Table<'_>) -> ReceiverLimits {
    let Some(table) = root.get("limits").and_then(|node| node.table()) else {
        return ReceiverLimits::default();
    };
    let count = |key: &'static str, max: i128| {
        let number = table.get(key)?.integer(1, max)?;
        usize::try_from(number).ok()
    };
    let duration = |key: &'static str| table.get(key)?.duration(100, 600_000);
    let body = table
        .get("body")
        .and_then(|node| node.size(BODY_BYTES_MIN, BODY_BYTES_MAX));
    let limits = ReceiverLimits {
        connections: count("connections", 10_000),
        body_bytes: body.and_then(|bytes| usize::try_from(bytes).ok()),
        events: count("events", EVENTS_MAX),
        in_flight: count("in_flight", 1_000),
        in_flight_per_gateway: count("in_flight_per_gateway", 1_000),
        header_ms: duration("header_timeout"),
        body_ms: duration("body_timeout"),
    };
    table.finish();
    limits
}
