//! Owns: how long a piece takes from the PLC's register to the row.
//! May call: the rig; the test servers.
//! Never: count the time before the register showed it.

use super::gateway::{POLL_MS, Rig};
use super::postgres_server::PostgresServer;
use super::{ms, quantile};
use std::time::{Duration, Instant};
use tokio_postgres::NoTls;

const PIECES: u16 = 300;
/// The books are asked so often; a figure is no finer than that.
const LOOK: Duration = Duration::from_millis(1);
const WAIT_MAX: Duration = Duration::from_secs(30);

pub(crate) async fn run(server: &PostgresServer) {
    let database = server.database().await;
    let mut rig = Rig::new(&(database.writer_url() + "?sslmode=disable")).await;
    rig.start().await;
    let url = server.url("postgres", &database.name);
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let ask = "SELECT coalesce(sum(qty), 0)::bigint FROM holdfast.total WHERE source = 'up' AND type = $1";
    let ask = client.prepare(ask).await.unwrap();
    let until = async |kind: &str, wanted: i64| {
        let begun = Instant::now();
        while client
            .query_one(&ask, &[&kind])
            .await
            .unwrap()
            .get::<_, i64>(0)
            < wanted
        {
            assert!(begun.elapsed() < WAIT_MAX, "{kind} does not reach {wanted}");
            tokio::time::sleep(LOOK).await;
        }
        begun.elapsed()
    };
    // The counter's baseline is known when the first piece counts.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut took = Vec::new();
    for piece in 1..=PIECES {
        // At every phase of the polls.
        tokio::time::sleep(Duration::from_micros(
            20_000 + u64::from(piece) * 317 % 10_000,
        ))
        .await;
        rig.device.set_holding(600, piece);
        took.push(until("piece.good", i64::from(piece)).await);
    }
    println!(
        "| from the register to the row, polled every {POLL_MS} ms | p50 {:.1} ms | p99 {:.1} ms | |",
        ms(quantile(&mut took, 0.5)),
        ms(quantile(&mut took, 0.99))
    );
}
