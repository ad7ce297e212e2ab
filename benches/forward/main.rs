//! Forwarding, beside what the same server does at best in the same run: `cargo bench --bench forward`.
//!
//! Owns: which figures are taken, and on which server.
//! May call: its parts; the test servers.
//! Never: decide whether a figure is good enough; it prints ratios, people judge.
//!
//! Words behind `--` choose: `copy`, `drain`, `row` (else all of them), `15` (else PostgreSQL 18),
//! `events=100000` (else a backlog of 1,000,000), `rounds=10` (percent of the rounds).

mod copy;
mod drain;
mod gateway;
mod row;

#[path = "../../tests/system/postgres_server.rs"]
mod postgres_server;

use postgres_server::{PostgresServer, Version};
use std::time::Duration;

const BACKLOG_EVENTS: u64 = 1_000_000;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|found| found == word);
    let number = |name: &str| {
        let value = words.iter().find_map(|word| word.strip_prefix(name));
        value.and_then(|value| value.parse::<u64>().ok())
    };
    let all = !["copy", "drain", "row"].iter().any(|part| has(part));
    let server = PostgresServer::start(if has("15") {
        Version::V15
    } else {
        Version::V18
    })
    .await;
    as_shipped(&server).await;
    println!("{}", version(&server).await);
    println!("| figure | value | beside it | ratio |\n| --- | --- | --- | --- |");
    if all || has("copy") {
        copy::run(&server, number("rounds=").unwrap_or(100)).await;
    }
    if all || has("row") {
        row::run(&server).await;
    }
    if all || has("drain") {
        drain::run(&server, number("events=").unwrap_or(BACKLOG_EVENTS)).await;
    }
}

/// The tests' servers are small; a benchmark's has the defaults of PostgreSQL.
async fn as_shipped(server: &PostgresServer) {
    for name in ["shared_buffers", "max_wal_size", "autovacuum_naptime"] {
        let set = format!(
            "ALTER SYSTEM SET {name} = '{}'",
            boot_value(server, name).await
        );
        server.try_query("postgres", &set).await.unwrap();
    }
    server.stop();
    server.start_again().await;
}

async fn boot_value(server: &PostgresServer, name: &str) -> String {
    let sql = match name {
        // The default that initdb writes; the one compiled in is less.
        "shared_buffers" => "SELECT '128MB'".to_owned(),
        _ => {
            format!("SELECT boot_val || coalesce(unit, '') FROM pg_settings WHERE name = '{name}'")
        }
    };
    let mut rows = server.try_query("postgres", &sql).await.unwrap();
    rows.remove(0).remove(0).unwrap()
}

async fn version(server: &PostgresServer) -> String {
    let sql = "SELECT split_part(version(), ' on ', 1) || ', synchronous_commit ' || current_setting('synchronous_commit') \
        || ', fsync ' || current_setting('fsync') || ', shared_buffers ' || current_setting('shared_buffers')";
    let mut rows = server.try_query("postgres", sql).await.unwrap();
    rows.remove(0).remove(0).unwrap()
}

/// The share of `times` that lies below `part` of them.
pub(crate) fn quantile(times: &mut [Duration], part: f64) -> Duration {
    times.sort();
    let last = times.len().saturating_sub(1);
    times
        .get((last as f64 * part).round() as usize)
        .copied()
        .unwrap_or_default()
}

pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
