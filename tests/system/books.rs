//! Part B of the acceptance table at the books themselves, on PostgreSQL 15 and 18: rows, totals, answers and what
//! is pending are counted in the database.

use crate::postgres_server::{Database, PostgresServer, VERSIONS};
use holdfast::core::ids::{Epoch, EventKey, Sequence};
use holdfast::core::outbox::Verdict;
use holdfast::core::record::EventRecord;
use holdfast::core::spec::{EventClass, Quality};
use holdfast::upstream::{Books, Row};

/// One good piece, or several.
pub(crate) fn piece(source: &str, epoch: u64, sequence: u64, qty: i64) -> EventRecord {
    EventRecord {
        key: EventKey {
            source: source.into(),
            epoch: Epoch(epoch),
            sequence: Sequence(sequence),
        },
        event_type: "piece.good".into(),
        schema: 1,
        wall_us: 1_796_025_600_123_456,
        boottime_ns: 5,
        quality: Quality::Good,
        class: EventClass::Business,
        qty,
        body: format!("{{\"pieces\":  {qty}}}"),
        unsynchronised: None,
    }
}

pub(crate) fn row(source: &str, epoch: u64, sequence: u64, qty: i64) -> Row {
    Row::from_event(&piece(source, epoch, sequence, qty))
}

/// The verdicts in one letter each.
pub(crate) fn letters(verdicts: &[Verdict]) -> String {
    let letter = |verdict: &Verdict| match verdict {
        Verdict::Accepted => 'a',
        Verdict::Duplicate => 'd',
        Verdict::Conflict { .. } => 'c',
        Verdict::Malformed { .. } => 'm',
        Verdict::Retry { .. } => 'r',
        Verdict::Stop { .. } => 'S',
    };
    verdicts.iter().map(letter).collect()
}

async fn enter(books: &mut Books, rows: &[Row]) -> String {
    letters(&books.ingest("gw-1", "batch", rows).await)
}

/// The counters add up, and agree with what stands there (B16).
pub(crate) async fn assert_adds_up(database: &Database<'_>) {
    let [received, accepted, duplicate, conflict, malformed, failed] = database.counters().await;
    assert_eq!(
        received,
        accepted + duplicate + conflict + malformed + failed
    );
    assert_eq!(accepted, database.rows().await);
    let sum = "SELECT coalesce(sum(qty), 0) FROM holdfast.event";
    assert_eq!(database.total().await, database.number(sum).await);
}

// covers: B1, B2, B6, B7, B14, ING-02, ING-03
#[tokio::test]
async fn the_exercise_of_the_article() {
    for version in VERSIONS {
        let database = PostgresServer::shared(version).await.database().await;
        let mut books = Books::connect(&database.writer()).await.unwrap();
        // B1: delivered three times.
        let one = [row("A", 7, 42, 1)];
        for expected in ["a", "d", "d"] {
            assert_eq!(enter(&mut books, &one).await, expected);
            assert_eq!((database.rows().await, database.total().await), (1, 1));
        }
        assert_eq!(database.pending().await, 0);
        // B14: the next normal piece.
        assert_eq!(enter(&mut books, &[row("A", 7, 43, 1)]).await, "a");
        assert_eq!((database.rows().await, database.total().await), (2, 2));
        // B2: the same key, another quantity: both contents are kept, the original stands.
        let verdicts = books.ingest("gw-1", "b2", &[row("A", 7, 42, 2)]).await;
        let [
            Verdict::Conflict {
                kept: Some(kept), ..
            },
        ] = verdicts.as_slice()
        else {
            panic!("{verdicts:?}");
        };
        assert!(kept.contains("{\"pieces\":  1}"), "{kept}");
        assert_eq!(
            (
                database.rows().await,
                database.total().await,
                database.pending().await
            ),
            (2, 2, 1)
        );
        let both = database
            .query("SELECT came, kept FROM holdfast.conflict")
            .await
            .remove(0);
        assert!(
            both[0].as_ref().unwrap().contains("{\"pieces\":  2}"),
            "{both:?}"
        );
        assert_eq!(both[1].as_deref(), Some(kept.as_str()));
        let body = "SELECT body FROM holdfast.events WHERE source = 'A' AND sequence = 42";
        assert_eq!(database.value(body).await, "{\"pieces\":  1}");
        assert_eq!(database.counters().await, [5, 2, 2, 1, 0, 0]);
        assert_adds_up(&database).await;
    }
}
