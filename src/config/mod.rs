//! Owns: the configuration as files: gateway, machines, board; everything that is wrong with it, in one pass.
//! May call: board, core types, the judgement of secret files.
//! Never: open a device, the journal or a socket; hand out a configuration with a known problem.

mod action;
mod board_file;
mod check;
mod command;
mod event;
#[cfg(feature = "test-hooks")]
pub(crate) mod fuzz;
mod gateway;
mod link;
mod machine;
mod point;
mod problem;
mod reader;
mod receiver;
mod scatter;
mod sink;
mod url;

pub use check::MANUAL_RETRY_MS;
pub use command::MAX_QUEUED_MAX;
pub use event::{DATA_POINTS_MAX, RING_ENTRIES_MAX};
pub use gateway::{JOURNAL_BYTES_MAX, JOURNAL_BYTES_MIN, MACHINES_MAX};
pub use link::{LINK_MS_MAX, MC_WORDS_MAX, READ_REGISTERS_MAX, RECONNECT_MS_MAX_DEFAULT};
pub use machine::{ENTRIES_MAX, POLL_MS_MIN};
pub use point::NAME_CHARS_MAX;
pub use problem::{FILE_BYTES_MAX, PROBLEMS_MAX, Problem};
pub use reader::show_duration;
pub use receiver::{
    BOOKS_MAX, GATEWAYS_MAX, GatewayRule, MqttSpec, ReceiverConfig, ReceiverLimits,
};
pub use sink::{BrokerSpec, CLIENT_ID_BYTES_MAX, DatabaseSpec, LANES_MAX, TOPIC_BYTES_MAX};

use crate::board::BoardProfile;
use crate::core::spec::MachineSpec;
use problem::Doc;
use reader::Table;
use std::path::{Path, PathBuf};
use toml::de::DeTable;

pub use crate::core::roles::Role;

/// Version of the configuration's shape.
pub const SCHEMA: i128 = 1;

/// Everything that the files say, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayConfig {
    /// The gateway's name.
    pub gateway: String,
    /// The computer it runs on.
    pub board: BoardProfile,
    /// Where all durable state lives.
    pub state_dir: PathBuf,
    /// In the order of the gateway file.
    pub machines: Vec<MachineSpec>,
    /// Most bytes of the journal.
    pub journal_budget_bytes: u64,
    /// How long events that every sink has taken are kept, in milliseconds.
    pub keep_events_ms: u64,
    /// How long a finished operation answers to its id, in milliseconds (CAP-03).
    pub replay_window_ms: u64,
    /// How long it can be read after that, in milliseconds.
    pub replay_retention_ms: u64,
    /// Commands to one machine after a reconnection, in thousandths per second (POL-08).
    pub recovery_machine_milli_per_s: u64,
    /// Commands to all machines after a reconnection, in thousandths per second.
    pub recovery_total_milli_per_s: u64,
    /// The interface's Unix socket.
    pub api_unix: PathBuf,
    /// Who may do what; without any, root and the gateway's own user are admin.
    pub roles: Vec<RoleRule>,
    /// Where events go.
    pub sinks: Vec<SinkSpec>,
    /// What is odd without being wrong.
    pub warnings: Vec<String>,
}

/// One `[[api.role]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleRule {
    /// Whom it is about.
    pub who: Who,
    /// What they may do.
    pub role: Role,
}

/// How a caller is known on the Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// By user id.
    Uid(u32),
    /// By the name of a group of the system.
    Group(String),
}

/// One `[[sink]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkSpec {
    /// Its name.
    pub name: String,
    /// Where to.
    pub kind: SinkKind,
}

/// The kinds of sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkKind {
    /// JSON lines in a directory.
    File {
        /// The directory.
        path: PathBuf,
        /// A file of this size is closed and the next one begun, in bytes.
        rotate_bytes: u64,
        /// Most files kept; the oldest are removed. `None`: nothing is ever removed.
        files_max: Option<u32>,
    },
    /// `holdfast receiver`, or what speaks its contract.
    Http {
        /// `http://` or `https://`, without a slash at its end; `/v1/events:batch` follows it.
        url: String,
        /// Says who this gateway is.
        token_file: Option<PathBuf>,
        /// Authorities to trust instead of the system's.
        ca_file: Option<PathBuf>,
    },
    /// The books in PostgreSQL.
    Postgres {
        /// `postgres://user@host:port/database`, never with a password.
        url: String,
        /// The user's.
        password_file: Option<PathBuf>,
        /// Authorities to trust instead of the system's.
        ca_file: Option<PathBuf>,
        /// Connections, each for the events of its own sources; 1 to [`LANES_MAX`].
        lanes: usize,
    },
    /// A broker that speaks MQTT 5.
    Mqtt {
        /// `mqtt://` or `mqtts://`, with the user if there is one, never with a password.
        url: String,
        /// May hold `{gateway}`, `{source}` and `{type}`.
        topic: String,
        /// Where receivers say what they have committed; may hold `{gateway}`. Without it, an event is
        /// finished when the broker has it.
        ack_topic: Option<String>,
        /// The user's.
        password_file: Option<PathBuf>,
        /// Authorities to trust instead of the system's.
        ca_file: Option<PathBuf>,
        /// Instead of one made of the gateway's and the sink's name.
        client_id: Option<String>,
        /// Silence of the receiver after which events are sent again, in milliseconds.
        ack_ms: Option<u64>,
    },
}

/// Reads and checks the gateway file, its machine files and its board profile.
///
/// # Errors
/// Everything that was found wrong, file by file, in the order of each file.
pub fn load(path: &Path, boards_dir: &Path) -> Result<GatewayConfig, Vec<Problem>> {
    gateway::load(path, boards_dir)
}

/// Reads and checks a receiver's file.
///
/// # Errors
/// Everything that was found wrong, in the order of the file.
pub fn load_receiver(path: &Path) -> Result<ReceiverConfig, Vec<Problem>> {
    receiver::load(path)
}

/// One board profile, from `boards_dir` or compiled in; `None` if nobody knows the name.
///
/// # Errors
/// Everything that was found wrong in its file.
pub fn board(name: &str, boards_dir: &Path) -> Result<Option<BoardProfile>, Vec<Problem>> {
    board_file::load(name, None, boards_dir)
}

/// The names of all board profiles, in order.
#[must_use]
pub fn board_names(boards_dir: &Path) -> Vec<String> {
    board_file::names(boards_dir)
}

/// The name of the board profile that a gateway file is for, whatever else is wrong with it.
///
/// # Errors
/// It cannot be read, or its `board` is no name.
pub fn board_in_use(path: &Path) -> Result<String, Vec<Problem>> {
    gateway::board_in_use(path)
}

/// Parses a file; its syntax errors, duplicate keys among them, if it has any.
fn parse(doc: &Doc) -> Result<DeTable<'_>, Vec<Problem>> {
    let (table, errors) = DeTable::parse_recoverable(&doc.text);
    for error in errors {
        let message = error.message().trim().replace('\n', "; ");
        let mend = message
            .contains("duplicate key")
            .then(|| "remove one of the two".to_owned());
        let span = error.span().unwrap_or(0..0);
        let found = format!("a syntax error ({message})");
        doc.report(span, "", found, "valid TOML".into(), mend);
    }
    let problems = doc.take();
    if problems.is_empty() {
        Ok(table.into_inner())
    } else {
        Err(problems)
    }
}

/// Checks `schema = 1`.
fn schema(root: &Table<'_>) {
    if let Some(node) = root.need("schema", "the version of the configuration's shape, 1")
        && node.as_integer() != Some(SCHEMA)
    {
        node.wrong::<()>(
            "schema = 1, the one this version reads",
            Some("write schema = 1".into()),
        );
    }
}
