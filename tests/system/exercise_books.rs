//! Owns: docs/exercise-books.md, command by command, with its own configuration, on PostgreSQL 15 and 18.
//! May call: a shell, psql, the harness, the PostgreSQL servers.
//! Never: compare with anything but what the page says.

use crate::harness::Rig;
use crate::postgres_server::{PostgresServer, Version};
use crate::upstream_cli::secret_file;
use std::path::PathBuf;
use std::process::Command;

/// A command, and what it says.
struct Step {
    command: String,
    says: String,
}

fn file(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What stands in the page's `console` blocks: `$ ` begins a command, `> ` goes on with it.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_console = false;
    for line in page.lines() {
        if line.starts_with("```") {
            is_console = line == "```console";
        } else if !is_console {
        } else if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step {
                command: command.to_owned(),
                says: String::new(),
            });
        } else if let Some(more) = line.strip_prefix("> ") {
            let step = steps.last_mut().unwrap();
            step.command = format!("{}\n{more}", step.command);
        } else {
            steps.last_mut().unwrap().says += &format!("{line}\n");
        }
    }
    steps
}

fn trimmed(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_end().to_owned()
}

/// Has one shell do it all; what each command said.
fn play(steps: &[Step], rig: &Rig, server: &PostgresServer, database: &str) -> Vec<String> {
    const MARK: &str = "@@ next";
    let commands = steps
        .iter()
        .map(|step| format!("{}\necho '{MARK}'\n", step.command));
    let script: String = commands.collect();
    let program = PathBuf::from(crate::harness::HOLDFAST);
    let psql = Version::V15.bin();
    let path = format!(
        "{}:{}:{}",
        program.parent().unwrap().display(),
        psql.display(),
        std::env::var("PATH").unwrap()
    );
    let output = Command::new("timeout")
        .args(["60", "bash", "-c", &format!("exec 2>&1\n{script}")])
        .env("PATH", path)
        .env("PGHOST", "127.0.0.1")
        .env("PGPORT", server.port.to_string())
        .env("PGUSER", "postgres")
        .env("PGDATABASE", database)
        .env("HOLDFAST_SOCKET", rig.path().join("api.sock"))
        .output()
        .unwrap();
    let all = String::from_utf8(output.stdout).unwrap();
    let said: Vec<_> = all
        .split(MARK)
        .map(|part| trimmed(part.trim_start_matches('\n')))
        .collect();
    assert_eq!(
        said.len(),
        steps.len() + 1,
        "it broke off:\n{all}\n{}",
        rig.log()
    );
    said[..steps.len()].to_vec()
}

async fn exercise(version: Version) {
    let server = PostgresServer::shared(version).await;
    let database = server.database().await;
    let simulator = file("config/books/sim.toml").replace("127.0.0.1:1502", "127.0.0.1:0");
    let machine = file("config/books/press-1.toml").replace("127.0.0.1:1502", "ADDRESS");
    let mut rig = Rig::over_as_is(&machine, &simulator).await;
    secret_file(rig.path(), "writer.pw", "any password");
    rig.gateway_toml = file("config/books/holdfast.toml")
        .replace("/tmp/holdfast-books", &rig.path().display().to_string())
        .replace(
            "127.0.0.1:5432/books",
            &format!("127.0.0.1:{}/{}", server.port, database.name),
        );
    rig.start_up().await;
    rig.until("the counter has its baseline", async |rig| {
        !rig.events_of("source.baseline").await.is_empty()
    })
    .await;
    let steps = steps(&file("docs/exercise-books.md"));
    assert!(steps.len() > 10, "the page has no commands any more");
    let said = play(&steps, &rig, server, &database.name);
    for (step, said) in steps.iter().zip(&said) {
        assert_eq!(said, &trimmed(&step.says), "$ {}", step.command);
    }
    // What the page says in words, counted apart from it.
    let pieces = "SELECT count(*) || ' ' || sum(qty) FROM holdfast.event WHERE type = 'piece.good'";
    assert_eq!(database.value(pieces).await, "10 10");
    let [received, accepted, duplicate, conflict, malformed, failed] = database.counters().await;
    assert_eq!((duplicate, conflict, malformed, failed), (2, 1, 0, 0));
    assert_eq!(received, accepted + 3);
    assert_eq!(database.pending().await, 0);
    assert_eq!(rig.device.holding_u32(230), 10);
    crate::books::assert_adds_up(&database).await;
}

// covers: B6, B7, B16, FWD-02, ING-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_exercise_goes_as_the_page_says_on_15() {
    exercise(Version::V15).await;
}

// covers: B6, B7, B16, FWD-02, ING-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_exercise_goes_as_the_page_says_on_18() {
    exercise(Version::V18).await;
}
