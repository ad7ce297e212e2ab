//! Owns: the command line: its names, its help, and which file does what.
//! May call: the interface's client, api types.
//! Never: reach the journal, a device or the gateway but through the interface; `Local` is handed in.

pub mod client;
pub mod exit;
pub mod text;
pub mod trace;

mod act;
mod dead_letters;
mod docs;
mod events;
mod machine;
mod op;
mod ops;
pub mod policy;
mod read;
mod reload;
pub mod report;
mod sinks;
mod status;
mod submit;

use clap::{Args, Parser, Subcommand, ValueEnum};
use client::Client;
use exit::{Exit, Failure};
use std::path::PathBuf;
use text::Out;

/// Configuration file, unless told otherwise.
pub const CONFIG_DEFAULT: &str = "/etc/holdfast/holdfast.toml";
/// Configuration file of `receiver`, unless told otherwise.
pub const RECEIVER_CONFIG_DEFAULT: &str = "/etc/holdfast/receiver.toml";
/// Socket of the gateway, unless told otherwise.
pub const SOCKET_DEFAULT: &str = "/run/holdfast/api.sock";

const EXIT_CODES: &str = "\
Exit codes:
   0  done, or completed; `submit` without --wait: recorded, no more
   1  demo only: something was not as it must be
   2  usage: the request cannot be taken as it is
   3  not sent: rejected, expired, cancelled, held, superseded; no effect
   4  the device refused; no effect
   5  outcome unknown: it may have had its effect, or not
   6  still open when the wait ended
   7  idempotency conflict: this id means something else
   8  gateway not reachable
   9  recovery mode, or damage to the journal
  77  not permitted
  78  configuration error";

/// Holdfast: an edge gateway between upper systems and PLCs that never says what it does not know.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, after_help = EXIT_CODES, max_term_width = 80)]
pub struct Cli {
    /// What holds for every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// A default is no argument: clap would print one from the environment as if it had been given.
fn from_env(name: &str, default: &str) -> PathBuf {
    let given = std::env::var_os(name).filter(|value| !value.is_empty());
    given.map_or_else(|| default.into(), PathBuf::from)
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Configuration file [env: HOLDFAST_CONFIG] [default: /etc/holdfast/holdfast.toml]
    #[arg(long, global = true, default_value_os_t = from_env("HOLDFAST_CONFIG", CONFIG_DEFAULT), hide_default_value = true, value_name = "FILE")]
    pub config: PathBuf,
    /// Socket of the gateway [env: HOLDFAST_SOCKET] [default: /run/holdfast/api.sock]
    #[arg(long, global = true, default_value_os_t = from_env("HOLDFAST_SOCKET", SOCKET_DEFAULT), hide_default_value = true, value_name = "PATH")]
    pub socket: PathBuf,
    /// Print the interface's JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// Every command.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)] // The help texts are the documentation of the fields.
pub enum Command {
    /// Run the gateway
    Run,
    /// Validate all configuration offline, and print the policy that results; or ask the machines themselves
    Check(CheckArgs),
    /// Show the board profile in use, and hold it against this computer
    Board(BoardArgs),
    /// See it work: simulated PLC, gateway and file sink in one directory
    Demo(DemoArgs),
    /// Run a simulated PLC from a TOML file
    Sim {
        /// Registers, mailbox program, faults
        file: PathBuf,
    },
    /// What a technician asks first, on one screen
    Status,
    /// Submit a command to a machine
    Submit(submit::SubmitArgs),
    /// List operations
    Ops(ops::OpsArgs),
    /// One operation: its timeline, why it stands there, and what to do next
    Op(op::OpArgs),
    /// Withdraw an operation, if no byte of it has left
    Cancel(act::IdArgs),
    /// Look into an unknown outcome now; only reads the device
    Verify(act::IdArgs),
    /// Let a held operation go on
    Approve(act::SureArgs),
    /// Say what happened, where the gateway cannot know
    Resolve(act::ResolveArgs),
    /// Do an operation again under a new id
    Reissue(act::ReissueArgs),
    /// Read tags from a machine now
    Read {
        /// Which machine
        machine: String,
        /// Which tags, or places such as holding:100, D100, holding:100/u32; all tags if none is named
        tags: Vec<String>,
        /// Show the last polled values instead of reading the device
        #[arg(long)]
        cached: bool,
    },
    /// One machine, or all
    Machine {
        /// Which one
        machine: Option<String>,
        /// Print the bytes that go over its link from now on, for so long
        #[arg(long, value_name = "TIME", requires = "machine")]
        trace: Option<String>,
    },
    /// The command policy table as the running gateway has it
    Policy {
        /// Of which machine
        machine: Option<String>,
    },
    /// Events, in the order of the log
    Events(events::EventsArgs),
    /// Where events go to, and how far they are; try one again, or send again what it had taken
    Sinks(sinks::SinksArgs),
    /// Events that a sink will never take as they are
    DeadLetters(dead_letters::DeadLettersArgs),
    /// The acceptance report: every operation once
    Report {
        /// Since when: RFC 3339, or how long ago, such as 24h
        #[arg(long, value_name = "T")]
        since: Option<String>,
    },
    /// Check, export, salvage or adopt a stopped gateway's journal
    #[command(subcommand)]
    Journal(JournalCommand),
    /// Receive events of gateways over HTTP into the books
    ///
    /// Its configuration file is /etc/holdfast/receiver.toml, unless --config names another.
    Receiver {
        /// Validate its configuration file instead, offline
        #[arg(long)]
        check: bool,
    },
    /// The books in PostgreSQL: their schema, and whether a sink can use them
    #[command(subcommand)]
    Upstream(UpstreamCommand),
    /// Read the configuration again: all or nothing
    Reload,
    /// Completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Manual page, as roff
    Man,
    /// Version
    Version {
        /// Print the bill of materials instead (CycloneDX JSON)
        #[arg(long)]
        sbom: bool,
    },
}

/// Arguments of `demo`.
#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    /// Work here instead of in a temporary directory
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Exit after the report instead of staying up
    #[arg(long)]
    pub once: bool,
}

/// Arguments of `check`.
#[derive(Clone, Debug, Default, Args)]
pub struct CheckArgs {
    /// Open the link of one machine, or of all, without a gateway: who answers, how fast, and if nobody does, why. Only reads
    #[arg(long, value_name = "MACHINE", num_args = 0..=1)]
    pub probe: Option<Option<String>>,
    /// Print the bytes that went either way
    #[arg(long, requires = "probe")]
    pub trace: bool,
    /// Try other baud rates, parities and units on a serial line; only reads, but it goes on among others' frames
    #[arg(long, requires = "probe")]
    pub search: bool,
    /// Ask beside a running gateway: the device has a network connection to spare
    #[arg(long, requires = "probe")]
    pub beside: bool,
}

/// Arguments of `board`.
#[derive(Clone, Debug, Args)]
pub struct BoardArgs {
    /// Another profile than the one in use
    pub name: Option<String>,
    /// List all profiles instead, and which of them this computer answers to
    #[arg(long, conflicts_with = "name")]
    pub list: bool,
}

/// What can be done with a journal offline.
#[derive(Clone, Debug, Subcommand)]
pub enum JournalCommand {
    /// Verify every record; changes nothing
    Check {
        /// The journal's directory
        dir: PathBuf,
    },
    /// Print every readable record as JSON, one a line; changes nothing
    Export {
        /// The journal's directory
        dir: PathBuf,
    },
    /// Say what can be saved; with --write, begin a new journal from it
    Salvage {
        /// The journal's directory
        dir: PathBuf,
        /// Write the new journal; without it nothing is changed
        #[arg(long, requires = "reason")]
        write: bool,
        /// Why, for those who read the new journal later
        #[arg(long)]
        reason: Option<String>,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Say that this computer takes the place of the one that wrote the journal
    Adopt {
        /// The journal's directory
        dir: PathBuf,
        /// Why, for those who read the journal later
        #[arg(long)]
        reason: String,
    },
}

/// What can be done with the books.
#[derive(Clone, Debug, Subcommand)]
pub enum UpstreamCommand {
    /// Create or update the schema and the roles; what is there already stays
    Init(UpstreamInitArgs),
    /// Connect as the sink would, and say what stands in its way; changes nothing
    Check(UpstreamArgs),
}

/// Which database.
#[derive(Clone, Debug, Args)]
pub struct UpstreamArgs {
    /// postgres://user@host:port/database [default: the postgres sink's]
    #[arg(long, value_name = "URL", conflicts_with = "sink")]
    pub url: Option<String>,
    /// Holds the user's password
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Certificates of the CAs to trust for this, as PEM
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Take the database of this sink of the configuration
    #[arg(long, value_name = "NAME")]
    pub sink: Option<String>,
}

/// Arguments of `upstream init`.
#[derive(Clone, Debug, Args)]
pub struct UpstreamInitArgs {
    /// Which database.
    #[command(flatten)]
    pub target: UpstreamArgs,
    /// Role that may enter events, and nothing else
    #[arg(long, value_name = "ROLE", default_value = "holdfast_writer")]
    pub writer: String,
    /// Give the writer the password in this file
    #[arg(long, value_name = "FILE")]
    pub writer_password_file: Option<PathBuf>,
    /// Role that may read everything
    #[arg(long, value_name = "ROLE")]
    pub reader: Option<String>,
    /// Role that owns the schema [default: holdfast_owner if a superuser asks, else who asks]
    #[arg(long, value_name = "ROLE")]
    pub owner: Option<String>,
    /// Say what would be done; nothing is changed
    #[arg(long)]
    pub dry_run: bool,
    /// Print the SQL for an empty database, without connecting
    #[arg(long, conflicts_with = "dry_run")]
    pub print_sql: bool,
}

/// The commands that do not talk to a running gateway; the program hands them in.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// `run`
    pub run: fn(&Global) -> Exit,
    /// `check`
    pub check: fn(&Global, &CheckArgs) -> Exit,
    /// `board`
    pub board: fn(&Global, &BoardArgs) -> Exit,
    /// `demo`
    pub demo: fn(&Global, &DemoArgs) -> Exit,
    /// `sim`
    pub sim: fn(&Global, &std::path::Path) -> Exit,
    /// `journal`
    pub journal: fn(&Global, &JournalCommand) -> Exit,
    /// `receiver`; whether to check its file only
    pub receiver: fn(&Global, bool) -> Exit,
    /// `upstream`
    pub upstream: fn(&Global, &UpstreamCommand) -> Exit,
}

/// What to do with dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Settle {
    /// Print them with both contents
    Show,
    /// Send it once more, as it is
    Resend,
    /// Say what it should have been, with a reason: a correction under a key of its own
    Mend,
    /// Give it up, with a reason
    Drop,
}

/// Does what the command line asks.
#[must_use]
pub fn dispatch(cli: Cli, local: Local) -> Exit {
    let Cli { global, command } = cli;
    match command {
        Command::Run => (local.run)(&global),
        Command::Check(args) => (local.check)(&global, &args),
        Command::Board(args) => (local.board)(&global, &args),
        Command::Demo(args) => (local.demo)(&global, &args),
        Command::Sim { file } => (local.sim)(&global, &file),
        Command::Journal(what) => (local.journal)(&global, &what),
        Command::Receiver { check } => (local.receiver)(&global, check),
        Command::Upstream(what) => (local.upstream)(&global, &what),
        Command::Completions { shell } => docs::completions(shell),
        Command::Man => docs::man(),
        Command::Version { sbom } => docs::version(global.json, sbom),
        remote => remotely(&global, remote),
    }
}

fn remotely(global: &Global, command: Command) -> Exit {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            text::complain(&format!("the system gives no event loop: {error}"));
            return Exit::NotReachable;
        }
    };
    let client = Client::new(global.socket.clone());
    let mut out = Out::stdout(global.json);
    let done = runtime.block_on(remote(&client, &mut out, &global.config, command));
    // Whoever read our output may have enough of it: what was done stays done.
    out.flush();
    done.unwrap_or_else(|failure| failure.report(global.json))
}

async fn remote(
    client: &Client,
    out: &mut Out,
    config: &std::path::Path,
    command: Command,
) -> Result<Exit, Failure> {
    match command {
        Command::Status => status::run(client, out, config).await,
        Command::Submit(args) => submit::run(client, out, args).await,
        Command::Ops(args) => ops::run(client, out, args).await,
        Command::Op(args) => op::run(client, out, args).await,
        Command::Cancel(args) => act::cancel(client, out, args).await,
        Command::Verify(args) => act::verify(client, out, args).await,
        Command::Approve(args) => act::approve(client, out, args).await,
        Command::Resolve(args) => act::resolve(client, out, args).await,
        Command::Reissue(args) => act::reissue(client, out, args).await,
        Command::Read {
            machine,
            tags,
            cached,
        } => read::run(client, out, &machine, &tags, cached).await,
        Command::Machine {
            machine: Some(machine),
            trace: Some(time),
        } => trace::run(client, out, &machine, &time).await,
        Command::Machine { machine, .. } => machine::run(client, out, machine.as_deref()).await,
        Command::Policy { machine } => policy::run(client, out, machine.as_deref()).await,
        Command::Events(args) => events::run(client, out, args).await,
        Command::Sinks(args) => sinks::run(client, out, args).await,
        Command::DeadLetters(args) => dead_letters::run(client, out, args).await,
        Command::Report { since } => report::run(client, out, since.as_deref()).await,
        Command::Reload => reload::run(client, out).await,
        // Done by `dispatch`.
        Command::Run
        | Command::Check(_)
        | Command::Board(_)
        | Command::Demo(_)
        | Command::Sim { .. }
        | Command::Journal(_)
        | Command::Receiver { .. }
        | Command::Upstream(_)
        | Command::Completions { .. }
        | Command::Man
        | Command::Version { .. } => Ok(Exit::Done),
    }
}
