//! Owns: what the books see of a gateway whose journal was set back, restored from a copy, or runs twice.
//! May call: the harness, the servers, the line of `kill_events`, the copies of `identity`.
//! Never: ask a gateway which keys it gave out twice.

use super::field_common::key;
use super::identity::{COMPUTER, FIRST, SECOND, copy, set_back};
use super::kill_events::{Line, keys_are_whole};
use super::postgres_server::{Database, PostgresServer, VERSIONS};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Every key that any of them showed, with the content that it showed.
type Given = BTreeMap<(String, u64, u64), String>;

fn remember(given: &mut Given, events: &[Json]) {
    for event in events {
        let digest = event["digest"].as_str().unwrap().to_owned();
        let before = given.insert(key(event), digest.clone());
        assert!(
            before.is_none_or(|before| before == digest),
            "other content: {event}"
        );
    }
}

/// Makes some of each, waits until the books have all of this gateway's events, and notes them.
async fn work(line: &mut Line, database: &Database<'_>, given: &mut Given) {
    let before = line.rig.device.items(0).len();
    line.make();
    let device = line.rig.device.clone();
    line.rig
        .until("what was made is acknowledged", async |_| {
            let items = device.items(0);
            items.len() == before + 2
                && items.iter().all(|item| item.acknowledged)
                && !device.coil(21)
        })
        .await;
    drained(line, database, given).await;
}

async fn drained(line: &mut Line, database: &Database<'_>, given: &mut Given) {
    line.rig
        .until("the books have every event of it", async |rig| {
            let mine = rig.events().await;
            let keys = keys_in(database).await;
            mine.iter().all(|event| keys.contains_key(&key(event)))
        })
        .await;
    remember(given, &line.rig.events().await);
}

async fn keys_in(database: &Database<'_>) -> Given {
    let sql = "SELECT source, epoch, sequence, digest FROM holdfast.events";
    let rows = database.query(sql).await.into_iter();
    let row = |row: Vec<Option<String>>| {
        let [source, epoch, sequence, digest] = row.try_into().unwrap();
        let number = |text: Option<String>| text.unwrap().parse().unwrap();
        (
            (source.unwrap(), number(epoch), number(sequence)),
            digest.unwrap(),
        )
    };
    rows.map(row).collect()
}

/// Rows are the distinct keys that were given out, each with the one content that it ever had.
async fn no_key_meant_two_things(database: &Database<'_>, given: &Given) {
    assert_eq!(&keys_in(database).await, given);
    let [_, _, _, conflict, malformed, _] = database.counters().await;
    assert_eq!((conflict, malformed), (0, 0));
    assert_eq!(database.pending().await, 0);
    keys_are_whole(database).await;
    super::books::assert_adds_up(database).await;
}

/// Starts in the books that name the same start before them.
async fn twins(database: &Database<'_>) -> i64 {
    let sql = "SELECT count(*) FROM (SELECT body::jsonb ->> 'previous_epoch' FROM holdfast.events \
        WHERE type = 'gateway.started' GROUP BY 1 HAVING count(*) > 1) t";
    database.number(sql).await
}

/// Entries that the books have more than once, as docs/sources.md finds them.
async fn told_again(database: &Database<'_>) -> Vec<i64> {
    let sql = "SELECT (body::jsonb ->> 'entry')::bigint AS entry, count(*) AS times FROM holdfast.events \
        WHERE source = 'press-1' AND type = 'log.entry' GROUP BY 1 HAVING count(*) > 1 ORDER BY 1";
    let rows = database.query(sql).await.into_iter();
    rows.map(|row| row[0].as_ref().unwrap().parse().unwrap())
        .collect()
}

// covers: B11, EVT-02, F131
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_restored_from_an_old_copy_gives_the_books_no_key_twice() {
    for version in VERSIONS {
        let database = PostgresServer::shared(version).await.database().await;
        let mut line = Line::new(&database).await;
        let mut given = Given::new();
        line.begin().await;
        work(&mut line, &database, &mut given).await;
        assert!(line.rig.stop().await.success());
        let (state, image) = (line.rig.path().join("state"), line.rig.path().join("image"));
        copy(&state, &image);
        line.rig.start_up().await;
        work(&mut line, &database, &mut given).await;
        work(&mut line, &database, &mut given).await;
        line.rig.kill();
        assert_eq!(twins(&database).await, 0);
        // A disk that was set back below the files; then files that were restored.
        set_back(&image, &state);
        line.rig.start_up().await;
        work(&mut line, &database, &mut given).await;
        line.rig.kill();
        std::fs::remove_dir_all(&state).unwrap();
        copy(&image, &state);
        line.rig.start_up().await;
        work(&mut line, &database, &mut given).await;
        let started = line.rig.events_of("gateway.started").await;
        let note = &started.last().unwrap()["body"]["note"];
        assert!(note.as_str().unwrap().contains("copy of another"), "{note}");
        assert!(line.rig.stop().await.success());
        no_key_meant_two_things(&database, &given).await;
        // Three starts came from one state, and the books show it.
        assert_eq!(twins(&database).await, 1);
        // An item that was acknowledged does not come again. Of a ring's entries those come again that the copy did
        // not know, and their own numbers tell.
        let items = line.rig.device.items(0).len() as i64;
        let total = "SELECT qty FROM holdfast.total WHERE type = 'unit.done'";
        assert_eq!(database.number(total).await, items);
        assert_eq!(told_again(&database).await, (4..=12).collect::<Vec<_>>());
    }
}

// covers: B11, EVT-02, AGT-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_from_one_image_share_no_key_in_the_books_and_the_clone_says_what_it_is() {
    for version in VERSIONS {
        let database = PostgresServer::shared(version).await.database().await;
        let mut first = Line::new(&database).await;
        let mut given = Given::new();
        first.rig.env(COMPUTER, FIRST);
        first.begin().await;
        work(&mut first, &database, &mut given).await;
        first.rig.kill();
        // Its image starts on another computer, and both run.
        let mut clone = Line::new(&database).await;
        copy(
            &first.rig.path().join("state"),
            &clone.rig.path().join("state"),
        );
        first.rig.env(COMPUTER, FIRST);
        first.rig.start_up().await;
        clone.rig.env(COMPUTER, SECOND);
        clone.rig.start().await;
        clone.make();
        for _ in 0..2 {
            work(&mut first, &database, &mut given).await;
            drained(&mut clone, &database, &mut given).await;
        }
        assert!(first.rig.alarms().await.is_empty());
        assert_eq!(clone.rig.alarms().await, ["foreign_journal"]);
        assert!(first.rig.stop().await.success());
        // It went to no machine, and took nothing.
        assert_eq!(clone.rig.device.connections(), 0);
        assert!(
            clone
                .rig
                .device
                .items(0)
                .iter()
                .all(|item| !item.acknowledged)
        );
        drained(&mut clone, &database, &mut given).await;
        assert!(clone.rig.stop().await.success());
        no_key_meant_two_things(&database, &given).await;
        assert_eq!(twins(&database).await, 1);
        let alarms = "SELECT count(*) FROM holdfast.events WHERE body LIKE '%foreign_journal%'";
        assert!(database.number(alarms).await > 0, "the books do not know");
        let items = first.rig.device.items(0).len() as i64;
        let total = "SELECT qty FROM holdfast.total WHERE type = 'unit.done'";
        assert_eq!(database.number(total).await, items);
    }
}
