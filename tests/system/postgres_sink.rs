//! A gateway with a `postgres` sink: from the simulated machine to the row, on PostgreSQL 15 and 18.

use crate::harness::Rig;
use crate::postgres_server::{Database, PostgresServer, VERSIONS};
use crate::upstream_cli::secret_file;

async fn rig(database: &Database<'_>) -> Rig {
    let mut rig = Rig::new().await;
    rig.gateway_toml += &format!(
        "[[sink]]\nname = \"books\"\nkind = \"postgres\"\nurl = \"{}\"\nlanes = 2\npassword_file = \"{}\"\n",
        // Sent in clear to this computer alone, and not asked for by the server.
        database.writer_url() + "?sslmode=disable",
        secret_file(rig.path(), "password", "unused").display()
    );
    rig
}

/// The machine counts on, and the gateway sees each piece.
async fn count_to(rig: &mut Rig, from: u16, to: u16) {
    for n in from..=to {
        let before = pieces(rig).await;
        rig.device.set_holding(200, n);
        rig.until("the piece is an event", async |rig| {
            pieces(rig).await > before
        })
        .await;
    }
}

async fn pieces(rig: &Rig) -> usize {
    let events = rig.events().await;
    events
        .iter()
        .filter(|event| event["type"] == "piece.count")
        .count()
}

/// Every event of the gateway is in the books, each once, and nothing else is.
pub(crate) async fn all_in_the_books(rig: &mut Rig, database: &Database<'_>) {
    let keys =
        "SELECT source || '/' || epoch || '/' || sequence || ' ' || digest FROM holdfast.events";
    rig.until("the books hold what the gateway told", async |rig| {
        let mut ours: Vec<String> = rig.events().await.iter().map(key_and_digest).collect();
        let there = database.query(keys).await.into_iter().flatten().flatten();
        let mut there: Vec<String> = there.collect();
        ours.sort();
        there.sort();
        there == ours
    })
    .await;
    crate::books::assert_adds_up(database).await;
}

fn key_and_digest(event: &serde_json::Value) -> String {
    let text = |key: &str| event[key].as_str().unwrap();
    let (source, epoch, sequence) = (text("source"), text("epoch"), text("sequence"));
    format!("{source}/{epoch}/{sequence} {}", text("digest"))
}

// covers: B5, A14, FWD-01
#[tokio::test]
async fn killed_after_the_commit_the_gateway_sends_again_and_each_event_counts_once() {
    for version in VERSIONS {
        let server = PostgresServer::shared(version).await;
        let database = server.database().await;
        let mut rig = rig(&database).await;
        for point in ["upstream.before-call", "upstream.after-commit"] {
            rig.env("HOLDFAST_KILL_AT", point);
            rig.spawn();
            rig.until_dead().await;
        }
        assert!(
            database.rows().await > 0,
            "nothing was committed before the kill"
        );
        rig.start_up().await;
        count_to(&mut rig, 1, 3).await;
        all_in_the_books(&mut rig, &database).await;
        let [_, _, duplicate, conflict, malformed, _] = database.counters().await;
        assert!(duplicate > 0 && conflict == 0 && malformed == 0);
        assert_eq!(database.pending().await, 0);
    }
}

// covers: B15, FWD-01
#[tokio::test]
async fn while_the_database_is_down_events_wait_and_then_they_drain() {
    for version in VERSIONS {
        let server = PostgresServer::start(version).await;
        let database = server.database().await;
        let mut rig = rig(&database).await;
        rig.start_up().await;
        count_to(&mut rig, 1, 2).await;
        all_in_the_books(&mut rig, &database).await;
        server.kill();
        count_to(&mut rig, 3, 5).await;
        rig.until("the sink says so", async |rig| {
            let (_, sinks) = rig.get("/v1/sinks").await;
            sinks.to_string().contains("retrying")
        })
        .await;
        // Ten minutes; the wait before the next try is over too.
        rig.clock.pass(600_000);
        server.start_again().await;
        all_in_the_books(&mut rig, &database).await;
        assert_eq!(database.pending().await, 0);
    }
}
