//! Part B of the acceptance table at the books themselves, on PostgreSQL 15 and 18: rows, totals, answers and what
//! is pending are counted in the database.

use crate::cut_proxy::CutProxy;
use crate::harness::until;
use crate::postgres_server::{Database, PostgresServer, VERSIONS};
use holdfast::core::ids::{BootId, Epoch, EventKey, Sequence};
use holdfast::core::outbox::Verdict;
use holdfast::core::record::EventRecord;
use holdfast::core::spec::{EventClass, Quality};
use holdfast::upstream::{Books, Roles, Row, Target, UpstreamError, init};
use tokio_postgres::NoTls;

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

// covers: B1, B2, B14, ING-02, ING-03
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

// covers: B6, B7, B16, ING-02, ING-03, ING-06
#[tokio::test]
async fn twelve_deliveries_of_ten_keys_and_then_another_value() {
    for version in VERSIONS {
        let database = PostgresServer::shared(version).await.database().await;
        let mut books = Books::connect(&database.writer()).await.unwrap();
        let mut said = String::new();
        for sequence in (1..=10).chain([4, 4]) {
            said += &enter(&mut books, &[row("A", 7, sequence, 1)]).await;
        }
        assert_eq!(said, "aaaaaaaaaadd");
        assert_eq!(
            (
                database.rows().await,
                database.total().await,
                database.pending().await
            ),
            (10, 10, 0)
        );
        assert_eq!(enter(&mut books, &[row("A", 7, 4, 9)]).await, "c");
        assert_eq!(
            (
                database.rows().await,
                database.total().await,
                database.pending().await
            ),
            (10, 10, 1)
        );
        let original = "SELECT qty FROM holdfast.event WHERE sequence = 4";
        assert_eq!(database.number(original).await, 1);
        assert_eq!(database.counters().await, [13, 10, 2, 1, 0, 0]);
        assert_adds_up(&database).await;
    }
}

/// A rival that has entered `row` and has not committed: whoever enters the same key waits for it.
pub(crate) async fn rival(database: &Database<'_>, row: &Row) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&database.admin().url, NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client.batch_execute("BEGIN").await.unwrap();
    client
        .execute(
            "INSERT INTO holdfast.event (source, epoch, sequence, type, schema, time_us, quality, qty, body, digest, gateway, batch_ord)
             VALUES ($1, $2, $3, 'piece.good', 1, 0, 'good', 1, '{}', $4, 'rival', 1)",
            &[&row.source, &row.epoch, &row.sequence, &row.digest.as_slice()],
        )
        .await
        .unwrap();
    client
}

/// Waits until a call of ingest waits for a lock.
pub(crate) async fn until_waiting(database: &Database<'_>) {
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND wait_event_type = 'Lock'",
        database.name
    );
    until("a call waits", async || database.number(&sql).await > 0).await;
}

// covers: ING-02
#[tokio::test]
async fn an_answer_repeats_only_so_much_of_what_is_kept_and_the_evidence_is_whole() {
    for version in VERSIONS {
        let database = PostgresServer::shared(version).await.database().await;
        let mut books = Books::connect(&database.writer()).await.unwrap();
        let of = |body: &dyn Fn(u64) -> String| -> Vec<Row> {
            let piece = |n| EventRecord {
                body: body(n),
                ..piece("A", 7, n, 1)
            };
            (1..=100).map(|n| Row::from_event(&piece(n))).collect()
        };
        let large = of(&|n| format!("\"{}\"", "x".repeat(if n <= 50 { 60_000 } else { 70_000 })));
        assert_eq!(
            letters(&books.ingest("gw", "b1", &large).await),
            "a".repeat(100)
        );
        let verdicts = books.ingest("gw", "b2", &of(&|_| "1".into())).await;
        assert_eq!(letters(&verdicts), "c".repeat(100));
        let kept = |verdict: &Verdict| match verdict {
            Verdict::Conflict { kept, .. } => kept.as_ref().map_or(0, String::len),
            _ => 0,
        };
        let told: Vec<usize> = verdicts.iter().map(kept).collect();
        assert!(told[0] > 60_000 && told[50..].iter().all(|bytes| *bytes == 0));
        assert!(told.iter().sum::<usize>() <= 2 << 20);
        let whole = "SELECT count(*) FROM holdfast.conflict WHERE length(kept) > 60000";
        assert_eq!(database.number(whole).await, 100);
    }
}

// covers: ING-02
#[tokio::test]
async fn one_odd_body_does_not_fail_a_query_over_all() {
    for version in VERSIONS {
        let database = PostgresServer::shared(version).await.database().await;
        let bodies = [
            r#"{"entry":"\u0000"}"#,
            r#"{"entry":"\ud800"}"#,
            "[1]",
            "null",
            r#"{"entry":7}"#,
        ];
        let rows: Vec<Row> = bodies
            .iter()
            .zip(1..)
            .map(|(body, n)| {
                Row::from_event(&EventRecord {
                    body: (*body).into(),
                    ..piece("A", 7, n, 1)
                })
            })
            .collect();
        let mut books = Books::connect(&database.writer()).await.unwrap();
        let verdicts = books.ingest("gw", "b", &rows).await;
        assert_eq!(letters(&verdicts), "aaaaa");
        let sum = "SELECT sum(holdfast.member(body, 'entry')::bigint)::bigint FROM holdfast.events";
        assert_eq!(database.number(sum).await, 7);
    }
}

// covers: B4, ING-06
#[tokio::test]
async fn killed_before_the_commit_leaves_nothing_and_is_sent_again() {
    for version in VERSIONS {
        let database = PostgresServer::shared(version).await.database().await;
        let one = row("A", 7, 42, 1);
        let rival = rival(&database, &one).await;
        let mut books = Books::connect(&database.writer()).await.unwrap();
        let rows = [row("A", 7, 41, 1), one];
        let (said, ()) = tokio::join!(enter(&mut books, &rows), async {
            until_waiting(&database).await;
            let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'holdfast_writer' AND datname = current_database()";
            database.query(kill).await;
        });
        assert_eq!(said, "rr");
        assert!(books.broken());
        rival.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!((database.rows().await, database.total().await), (0, 0));
        // Two deliveries were rolled back: the next connection has them counted.
        let uncounted = books.uncounted();
        let mut books = Books::connect(&database.writer()).await.unwrap();
        books.count_too(uncounted);
        assert_eq!(enter(&mut books, &rows).await, "aa");
        assert_eq!(database.counters().await, [4, 2, 0, 0, 0, 2]);
        assert_eq!(
            (
                database.rows().await,
                database.total().await,
                database.pending().await
            ),
            (2, 2, 0)
        );
        assert_adds_up(&database).await;
    }
}

// covers: B5, B9
#[tokio::test]
async fn a_reply_that_is_lost_after_the_commit_is_settled_by_sending_again() {
    for version in VERSIONS {
        let server = PostgresServer::shared(version).await;
        let database = server.database().await;
        let proxy = CutProxy::to(server.port).await;
        let through = Target {
            url: format!(
                "postgres://holdfast_writer@127.0.0.1:{}/{}",
                proxy.port, database.name
            ),
            ..database.writer()
        };
        let rows: Vec<Row> = (1..=10).map(|n| row("A", 7, n, 1)).collect();
        let mut books = Books::connect(&through).await.unwrap();
        // Four of them stand there already.
        assert_eq!(enter(&mut books, &rows[..4]).await, "aaaa");
        proxy.lose_next_reply();
        assert_eq!(enter(&mut books, &rows).await, "rrrrrrrrrr");
        assert!(books.broken());
        until("the commit", async || database.rows().await == 10).await;
        assert_eq!(database.total().await, 10);
        let mut books = Books::connect(&through).await.unwrap();
        assert_eq!(enter(&mut books, &rows).await, "dddddddddd");
        assert_eq!(
            (
                database.rows().await,
                database.total().await,
                database.pending().await
            ),
            (10, 10, 0)
        );
        assert_adds_up(&database).await;
    }
}

// covers: B3
#[tokio::test]
async fn two_workers_with_the_same_key_at_once_a_thousand_times() {
    const PAIRS: u64 = 8;
    const ROUNDS: u64 = 125;
    for version in VERSIONS {
        let server = PostgresServer::shared(version).await;
        let database = server.database().await;
        let mut pairs = tokio::task::JoinSet::new();
        for pair in 0..PAIRS {
            let target = database.writer();
            pairs.spawn(async move {
                let mut left = Books::connect(&target).await.unwrap();
                let mut right = Books::connect(&target).await.unwrap();
                for n in 0..ROUNDS {
                    let one = [row(&format!("press-{pair}"), 7, n, 1)];
                    let (a, b) = tokio::join!(enter(&mut left, &one), enter(&mut right, &one));
                    let mut both = [a, b];
                    both.sort();
                    assert_eq!(both, ["a", "d"], "press-{pair}/7/{n}");
                }
            });
        }
        while let Some(done) = pairs.join_next().await {
            done.unwrap();
        }
        assert_eq!(
            (database.rows().await, database.total().await),
            (1000, 1000)
        );
        assert_eq!(database.counters().await, [2000, 1000, 1000, 0, 0, 0]);
        assert_eq!(database.pending().await, 0);
        assert_adds_up(&database).await;
    }
}

// covers: B8, B12, ING-06
#[tokio::test]
async fn what_cannot_be_an_event_is_named_and_the_others_are_taken() {
    for version in VERSIONS {
        let database = PostgresServer::shared(version).await.database().await;
        let mut books = Books::connect(&database.writer()).await.unwrap();
        // B8: one of ten.
        let mut rows: Vec<Row> = (1..=10).map(|n| row("A", 7, n, 1)).collect();
        rows[6] = Row::malformed("bad_json", "expected an object, found a list", *b"[\0]");
        let verdicts = books.ingest("gw-1", "b8", &rows).await;
        assert_eq!(letters(&verdicts), "aaaaaamaaa");
        assert_eq!(
            verdicts[6],
            Verdict::Malformed {
                reason: "bad_json: expected an object, found a list".into()
            }
        );
        assert_eq!(
            (
                database.rows().await,
                database.total().await,
                database.pending().await
            ),
            (9, 9, 1)
        );
        let item = "SELECT encode(item, 'hex') FROM holdfast.dead_letter";
        assert_eq!(database.value(item).await, "5b005d");
        // B12, through the function itself: keys that are NULL, empty, negative, too large, too long.
        let edit = |change: fn(&mut Row)| {
            let mut row = row("B", 7, 1, 1);
            change(&mut row);
            row
        };
        let mut huge = piece("B", u64::MAX, 1, 1);
        let huge_epoch = Row::from_event(&huge);
        huge.key.epoch = Epoch(7);
        huge.key.sequence = Sequence(1 << 63);
        let rows = [
            edit(|row| row.source = String::new()),
            edit(|row| row.source = "x".repeat(129)),
            edit(|row| row.epoch = None),
            edit(|row| row.epoch = Some(-1)),
            edit(|row| row.sequence = None),
            edit(|row| row.sequence = Some(i64::MIN)),
            huge_epoch,
            Row::from_event(&huge),
            edit(|row| row.event_type = String::new()),
            edit(|row| row.quality = "fine".into()),
            edit(|row| row.time_us = i64::MAX),
            row("B", i64::MAX as u64, i64::MAX as u64, 1),
            row("B", 0, 0, 1),
        ];
        let verdicts = books.ingest("gw-1", "b12", &rows).await;
        assert_eq!(letters(&verdicts), "mmmmmmmmmmmaa");
        for (verdict, word) in verdicts.iter().zip([
            "missing_source",
            "long_source",
            "missing_epoch",
            "negative_epoch",
            "missing_sequence",
            "negative_sequence",
            "large_epoch",
            "large_sequence",
            "missing_type",
            "bad_quality",
            "bad_time",
        ]) {
            let Verdict::Malformed { reason } = verdict else {
                panic!("{verdict:?}")
            };
            assert!(reason.starts_with(word), "{word}: {reason}");
        }
        assert_eq!(
            (
                database.rows().await,
                database.total().await,
                database.pending().await
            ),
            (11, 11, 12)
        );
        // Sent again, they are counted again, and wait for a person once.
        assert_eq!(enter(&mut books, &rows).await, "mmmmmmmmmmmdd");
        assert_eq!((database.rows().await, database.pending().await), (11, 12));
        assert_eq!(database.counters().await, [36, 11, 2, 0, 23, 0]);
        assert_adds_up(&database).await;
    }
}

// covers: B8
#[tokio::test]
async fn what_the_database_refuses_is_found_by_halving() {
    for version in VERSIONS {
        let database = PostgresServer::shared(version).await.database().await;
        // A rule of the plant that this program knows nothing of.
        database
            .query("ALTER TABLE holdfast.event ADD CONSTRAINT plant CHECK (qty < 100)")
            .await;
        let mut books = Books::connect(&database.writer()).await.unwrap();
        let mut rows: Vec<Row> = (1..=1000).map(|n| row("A", 7, n, 1)).collect();
        for n in [3, 500, 999] {
            rows[n] = row("A", 7, n as u64 + 1, 100);
        }
        let verdicts = books.ingest("gw-1", "batch", &rows).await;
        let refused: Vec<usize> = (0..1000)
            .filter(|n| verdicts[*n] != Verdict::Accepted)
            .collect();
        assert_eq!(refused, [3, 500, 999]);
        let Verdict::Malformed { reason } = &verdicts[3] else {
            panic!("{:?}", verdicts[3])
        };
        assert!(
            reason.contains("refused_value") && reason.contains("plant"),
            "{reason}"
        );
        assert_eq!(
            (
                database.rows().await,
                database.total().await,
                database.pending().await
            ),
            (997, 997, 3)
        );
        let item =
            "SELECT convert_from(item, 'UTF8') FROM holdfast.dead_letter ORDER BY id LIMIT 1";
        assert!(
            database
                .value(item)
                .await
                .contains("\"sequence\":\"4\",\"type\":\"piece.good\"")
        );
        assert_eq!(database.counters().await, [1000, 997, 0, 0, 3, 0]);
        assert_adds_up(&database).await;
        // A rule that refuses everything is no matter of single events.
        database.query("ALTER TABLE holdfast.event DROP CONSTRAINT plant, ADD CONSTRAINT plant CHECK (qty < 1) NOT VALID").await;
        let rows: Vec<Row> = (2001..=2200).map(|n| row("A", 7, n, 1)).collect();
        let said = enter(&mut books, &rows).await;
        assert_eq!(said, format!("{}{}", "m".repeat(50), "S".repeat(150)));
    }
}

// covers: ING-01
#[tokio::test]
async fn a_missing_schema_or_right_stops_and_a_full_or_ending_server_does_not() {
    for version in VERSIONS {
        let server = PostgresServer::shared(version).await;
        let database = server.empty_database().await;
        let one = [row("A", 7, 42, 1)];
        // The role exists in this cluster once any database was made ready; the schema does not.
        server.database().await;
        let mut books = Books::connect(&database.writer()).await.unwrap();
        let verdicts = books.ingest("gw-1", "b", &one).await;
        let [Verdict::Stop { reason }] = verdicts.as_slice() else {
            panic!("{verdicts:?}")
        };
        assert!(reason.contains("holdfast upstream init"), "{reason}");
        assert!(!books.broken());
        // Mended, the same connection goes on.
        init(&database.admin(), &Roles::default(), false)
            .await
            .unwrap();
        assert_eq!(enter(&mut books, &one).await, "a");
        assert_eq!(database.counters().await, [2, 1, 0, 0, 0, 1]);
        database
            .query("REVOKE EXECUTE ON FUNCTION holdfast.ingest FROM holdfast_writer")
            .await;
        let verdicts = books.ingest("gw-1", "b", &one).await;
        let [Verdict::Stop { reason }] = verdicts.as_slice() else {
            panic!("{verdicts:?}")
        };
        assert!(
            reason.contains("42501") && reason.contains("--writer"),
            "{reason}"
        );
        for (url, word) in [
            (server.url("holdfast_writer", "no_such_database"), "3D000"),
            (server.url("no_such_role", &database.name), "28000"),
        ] {
            let error = Books::connect(&Target {
                url,
                ..database.writer()
            })
            .await
            .unwrap_err();
            assert!(
                matches!(&error, UpstreamError::Mend(text) if text.contains(word)),
                "{error:?}"
            );
        }
        let nobody = Target {
            url: "postgres://w@127.0.0.1:1/books".into(),
            ..database.writer()
        };
        let error = Books::connect(&nobody).await.unwrap_err();
        assert!(matches!(&error, UpstreamError::Passing(_)), "{error:?}");
        database
            .query(&format!(
                "ALTER DATABASE {} CONNECTION LIMIT 0",
                database.name
            ))
            .await;
        let error = Books::connect(&database.writer()).await.unwrap_err();
        assert!(
            matches!(&error, UpstreamError::Passing(text) if text.contains("53300")),
            "{error:?}"
        );
        assert_adds_up(&database).await;
    }
}

// covers: B13, ING-07
#[tokio::test]
async fn an_archived_event_is_still_a_duplicate_and_a_conflict() {
    for version in VERSIONS {
        let database = PostgresServer::shared(version).await.database().await;
        let mut books = Books::connect(&database.writer()).await.unwrap();
        let rows: Vec<Row> = (1..=3).map(|n| row("A", 7, n, 1)).collect();
        assert_eq!(enter(&mut books, &rows).await, "aaa");
        database
            .query("CALL holdfast.archive_before(clock_timestamp())")
            .await;
        let gone =
            "SELECT count(*) FROM holdfast.event WHERE body IS NULL AND archived_at IS NOT NULL";
        assert_eq!(database.number(gone).await, 3);
        let read = "SELECT string_agg(body, '' ORDER BY sequence) FROM holdfast.events";
        assert_eq!(database.value(read).await, "{\"pieces\":  1}".repeat(3));
        assert_eq!(enter(&mut books, &rows).await, "ddd");
        assert_eq!(
            (
                database.rows().await,
                database.total().await,
                database.pending().await
            ),
            (3, 3, 0)
        );
        // The archive was carried away: other content is still told apart.
        database.query("TRUNCATE holdfast.event_archive").await;
        let verdicts = books
            .ingest("gw-1", "b", &[row("A", 7, 1, 5), row("A", 7, 2, 1)])
            .await;
        let [
            Verdict::Conflict {
                kept: Some(kept), ..
            },
            Verdict::Duplicate,
        ] = verdicts.as_slice()
        else {
            panic!("{verdicts:?}");
        };
        assert!(kept.contains("archived elsewhere"), "{kept}");
        assert_eq!(
            (
                database.rows().await,
                database.total().await,
                database.pending().await
            ),
            (3, 3, 1)
        );
        assert_adds_up(&database).await;
    }
}

// covers: ING-02, ING-04, B10
#[tokio::test]
async fn a_key_twice_in_one_batch_and_what_belongs_to_the_way_only() {
    for version in VERSIONS {
        let database = PostgresServer::shared(version).await.database().await;
        let mut books = Books::connect(&database.writer()).await.unwrap();
        let rows = [
            row("A", 7, 1, 1),
            row("A", 7, 1, 1),
            row("A", 7, 1, 2),
            row("B", 7, 1, 1),
        ];
        assert_eq!(enter(&mut books, &rows).await, "adca");
        // Another gateway, another batch, another clock of the way: the same event.
        let mut again = piece("A", 7, 1, 1);
        again.boottime_ns = 99;
        again.unsynchronised = Some(BootId([7; 16]));
        let verdicts = books
            .ingest("gw-2", "other", &[Row::from_event(&again)])
            .await;
        assert_eq!(letters(&verdicts), "d");
        // B10: the machine's own numbers begin at 1 again, in a new epoch.
        assert_eq!(enter(&mut books, &[row("A", 8, 1, 1)]).await, "a");
        assert_eq!(
            (
                database.rows().await,
                database.total().await,
                database.pending().await
            ),
            (3, 3, 1)
        );
        // Whatever role and database say, what is answered is on the disk, and in the right isolation.
        let setting = format!(
            "ALTER ROLE holdfast_writer IN DATABASE {} SET",
            database.name
        );
        database
            .query(&format!("{setting} synchronous_commit = off"))
            .await;
        database
            .query(&format!(
                "{setting} default_transaction_isolation = 'serializable'"
            ))
            .await;
        let mut books = Books::connect(&database.writer()).await.unwrap();
        assert_eq!(enter(&mut books, &[row("A", 8, 2, 1)]).await, "a");
        let call = "SELECT status FROM holdfast.ingest('gw-2', 'b', 0, '{C}', '{1}', '{1}', '{t}', '{1}', '{0}', '{good}', '{1}', '{x}', '{NULL}', ARRAY[sha256('')])";
        let at_commit = format!(
            "BEGIN; SET LOCAL synchronous_commit = off; {call}; SHOW synchronous_commit; COMMIT"
        );
        let said: Vec<_> = database
            .query(&at_commit)
            .await
            .into_iter()
            .flatten()
            .flatten()
            .collect();
        assert_eq!(said, ["accepted", "on"]);
        let wrong = database
            .try_query(&format!("BEGIN ISOLATION LEVEL SERIALIZABLE; {call}"))
            .await;
        assert_eq!(wrong.unwrap_err().code().unwrap().code(), "42804");
        assert_adds_up(&database).await;
    }
}
