//! Owns: batches into the books beside COPY of the same rows, in turns on one server.
//! May call: the `postgres` sink; the test servers.
//! Never: give COPY anything to do in the measured time but what COPY does: its text is made before.

use super::postgres_server::PostgresServer;
use super::quantile;
use futures_util::SinkExt as _;
use holdfast::core::event::digest;
use holdfast::core::ids::{CommitNo, Epoch, EventKey, Sequence};
use holdfast::core::outbox::Verdict;
use holdfast::core::record::{EventRecord, Position};
use holdfast::core::spec::{EventClass, Quality};
use holdfast::sink::postgres::{PostgresSinkConfig, sink};
use rustix::time::{ClockId, clock_gettime};
use std::fmt::Write as _;
use std::io::Cursor;
use std::time::{Duration, Instant};
use tokio_postgres::{Client, NoTls, Statement};

/// Events in a batch, and how many batches.
const SIZES: [(u64, u64); 3] = [(1, 400), (100, 300), (1_000, 100)];
/// Not measured: caches and plans are made in them.
const WARM_UP: u64 = 8;
const COLUMNS: &str = "source, epoch, sequence, type, schema, time_us, quality, qty, body, clock, digest, gateway, batch_ord";
/// What the books keep of an event, once with their key and once without.
const TABLES: &str = "CREATE SCHEMA beside;
    CREATE TABLE beside.bare (source text COLLATE \"C\" NOT NULL, epoch bigint NOT NULL, sequence bigint NOT NULL,
      type text COLLATE \"C\" NOT NULL, schema int NOT NULL, time_us bigint NOT NULL, quality text NOT NULL, qty bigint NOT NULL,
      body text, clock text, digest bytea NOT NULL, gateway text NOT NULL, batch_ord int NOT NULL,
      accepted_at timestamptz NOT NULL DEFAULT clock_timestamp(), archived_at timestamptz);
    CREATE TABLE beside.keyed (LIKE beside.bare INCLUDING ALL, PRIMARY KEY (source, epoch, sequence));";

type Batch = Vec<(Position, EventRecord)>;

/// Times of one kind of call, and the processor time of this process in it.
#[derive(Default)]
struct Times {
    took: Vec<Duration>,
    cpu: Duration,
}

impl Times {
    async fn take<T>(&mut self, call: impl Future<Output = T>) -> T {
        let (cpu, begun) = (cpu_time(), Instant::now());
        let found = call.await;
        self.took.push(begun.elapsed());
        self.cpu += cpu_time() - cpu;
        found
    }
    /// Events a second, by the median batch.
    fn rate(&mut self, size: u64) -> f64 {
        size as f64 / quantile(&mut self.took, 0.5).as_secs_f64()
    }
    fn cpu_us(&self, size: u64) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / (self.took.len() as u64 * size) as f64
    }
}

/// Of this process, all threads; the server is another one.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub(crate) async fn run(server: &PostgresServer, percent: u64) {
    let database = server.database().await;
    database.query(TABLES).await;
    let url = server.url("postgres", &database.name);
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let copy = async |table: &str| {
        let sql = format!("COPY beside.{table} ({COLUMNS}) FROM STDIN");
        client.prepare(&sql).await.unwrap()
    };
    let (keyed, bare) = (copy("keyed").await, copy("bare").await);
    let mut lane = sink(PostgresSinkConfig {
        gateway: "bench".into(),
        url: database.writer_url() + "?sslmode=disable",
        password_file: None,
        ca_file: None,
        lanes: 1,
    })
    .lanes
    .remove(0);
    let mut next = 1;
    for (size, rounds) in SIZES {
        let mut times: [Times; 4] = Default::default();
        for round in 0..WARM_UP + (rounds * percent / 100).max(10) {
            let batch = batch(&mut next, size);
            let text = copy_text(&batch);
            if round == WARM_UP {
                times = Default::default();
            }
            // Each of them goes first as often as the others.
            for step in 0..3 {
                match (round + step) % 3 {
                    0 => {
                        let first = times[0].take(lane.deliver(&batch)).await;
                        assert!(first.iter().all(|v| *v == Verdict::Accepted), "{first:?}");
                        let again = times[1].take(lane.deliver(&batch)).await;
                        assert!(again.iter().all(|v| *v == Verdict::Duplicate), "{again:?}");
                    }
                    1 => times[2].take(send(&client, &keyed, text.clone())).await,
                    _ => times[3].take(send(&client, &bare, text.clone())).await,
                }
            }
        }
        report(size, times);
    }
    let rows = database.rows().await;
    for table in ["keyed", "bare"] {
        let sql = format!("SELECT count(*) FROM beside.{table}");
        assert_eq!(database.number(&sql).await, rows, "{table}");
    }
}

fn report(size: u64, [mut first, mut again, mut keyed, mut bare]: [Times; 4]) {
    let ours = first.rate(size);
    for (what, beside) in [("keyed", keyed.rate(size)), ("bare", bare.rate(size))] {
        println!(
            "| batches of {size}, events a second | {ours:.0} | COPY into a {what} table {beside:.0} | {:.2} |",
            ours / beside
        );
    }
    let resend = again.rate(size);
    println!(
        "| batches of {size}, all duplicates, events a second | {resend:.0} | first delivery {ours:.0} | {:.2} |",
        resend / ours
    );
    println!(
        "| batches of {size}, processor of the lane an event | {:.1} µs | COPY's client {:.1} µs | |",
        first.cpu_us(size),
        keyed.cpu_us(size)
    );
}

fn batch(next: &mut u64, size: u64) -> Batch {
    let from = *next;
    *next += size;
    (from..*next)
        .map(|n| {
            let position = Position {
                no: CommitNo(n),
                index: 0,
            };
            (
                position,
                event(Epoch(1), n, 1_790_000_000_000_000 + n as i64),
            )
        })
        .collect()
}

/// A piece, as the gateway records it.
pub(crate) fn event(epoch: Epoch, n: u64, wall_us: i64) -> EventRecord {
    EventRecord {
        key: EventKey {
            source: "press-1".into(),
            epoch,
            sequence: Sequence(n),
        },
        event_type: "piece.good".into(),
        schema: 1,
        wall_us,
        boottime_ns: n,
        quality: Quality::Good,
        class: EventClass::Business,
        qty: 1,
        body: format!(
            "{{\"from\":{n},\"over\":\"poll\",\"since\":\"2026-09-21T13:20:00.000000Z\",\"to\":{},\"unit\":\"pieces\",\"wrapped\":false}}",
            n + 1
        ),
        unsynchronised: None,
    }
}

/// The same rows in COPY's own text.
fn copy_text(batch: &Batch) -> Vec<u8> {
    let mut text = String::new();
    for ((_, event), ord) in batch.iter().zip(1..) {
        let key = &event.key;
        let _ = write!(
            text,
            "{}\t{}\t{}\t{}\t{}\t{}\tgood\t{}\t{}\t\\N\t\\\\x",
            key.source,
            key.epoch.0,
            key.sequence.0,
            event.event_type,
            event.schema,
            event.wall_us,
            event.qty,
            event.body
        );
        for byte in digest(event) {
            let _ = write!(text, "{byte:02x}");
        }
        let _ = writeln!(text, "\tbench\t{ord}");
    }
    text.into_bytes()
}

/// One COPY, one transaction.
async fn send(client: &Client, copy: &Statement, text: Vec<u8>) {
    let sink = client.copy_in::<_, Cursor<Vec<u8>>>(copy).await.unwrap();
    let mut sink = std::pin::pin!(sink);
    sink.send(Cursor::new(text)).await.unwrap();
    sink.as_mut().finish().await.unwrap();
}
