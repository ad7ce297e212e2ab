//! Owns: what a gateway is when its journal was set back, copied to a second computer, or lost.
//! May call: the harness and its common questions.
//! Never: let two gateways pass for one.

use super::field_common::key;
use super::harness::Rig;
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use std::path::Path;

pub(crate) const COMPUTER: &str = "HOLDFAST_TEST_COMPUTER";
/// An image carries its machine id along, and leaves the cards behind.
pub(crate) const FIRST: &str = "id1 mac=02:00:00:00:00:01";
pub(crate) const SECOND: &str = "id1 mac=02:00:00:00:00:02";

pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Puts what `from` holds into the files of `to`, which stay the files they are: as a disk that was set back.
pub(crate) fn set_back(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(to).unwrap().flatten() {
        let source = from.join(entry.file_name());
        match (entry.file_type().unwrap().is_dir(), source.exists()) {
            (true, true) => set_back(&source, &entry.path()),
            (true, false) => std::fs::remove_dir_all(entry.path()).unwrap(),
            (false, true) => std::fs::write(entry.path(), std::fs::read(source).unwrap()).unwrap(),
            (false, false) => std::fs::remove_file(entry.path()).unwrap(),
        }
    }
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if !target.exists() && entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn keys(events: &[Json]) -> BTreeSet<(String, u64, u64)> {
    events.iter().map(key).collect()
}

async fn starts(rig: &Rig) -> Vec<Json> {
    rig.events_of("gateway.started").await
}

// covers: EVT-02, F131, F133
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_was_set_back_gives_out_no_key_twice_and_the_starts_tell() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    rig.make_events(3).await;
    let first = starts(&rig).await;
    assert_eq!(first.len(), 1);
    assert!(first[0]["body"]["previous_epoch"].is_null(), "{first:?}");
    assert!(rig.stop().await.success());
    let image = rig.path().join("image");
    copy(&rig.path().join("state"), &image);
    let mut given: Vec<(String, u64, u64)> = Vec::new();
    let mut named = Vec::new();
    let restored = {
        rig.start_up().await;
        let all = rig.events().await;
        rig.kill();
        let before = &first[0]["epoch"];
        keys(
            &all.into_iter()
                .filter(|event| event["epoch"] == *before)
                .collect::<Vec<_>>(),
        )
    };
    for _ in 0..2 {
        set_back(&image, &rig.path().join("state"));
        rig.start_up().await;
        rig.make_events(3).await;
        let new: Vec<_> = keys(&rig.events().await)
            .difference(&restored)
            .cloned()
            .collect();
        assert!(new.len() > 3);
        given.extend(new);
        named.push(starts(&rig).await.last().unwrap()["body"]["previous_epoch"].clone());
        rig.kill();
    }
    let different: BTreeSet<_> = given.iter().collect();
    assert_eq!(different.len(), given.len(), "given out twice: {given:?}");
    // Two starts that name the same one before them: whoever has the events of both knows.
    assert_eq!(
        named,
        [first[0]["epoch"].clone(), first[0]["epoch"].clone()]
    );
}

// covers: EVT-02, AGT-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clone_says_so_takes_keys_of_its_own_and_touches_no_machine_until_it_is_adopted() {
    let mut rig = Rig::new().await;
    rig.env(COMPUTER, FIRST);
    rig.start_up().await;
    rig.make_events(2).await;
    rig.cut().await;
    let (_, waits) = rig.submit(&rig.set_speed("WAITS", 50)).await;
    assert_eq!(waits["state"], "queued", "{waits}");
    rig.kill();
    let image = rig.path().join("image");
    copy(&rig.path().join("state"), &image);
    // The first one goes on.
    rig.env(COMPUTER, FIRST);
    rig.device.restore();
    rig.start_up().await;
    rig.until_state("WAITS", "completed").await;
    rig.make_events(2).await;
    assert!(rig.alarms().await.is_empty(), "{:?}", rig.alarms().await);
    let first = keys(&rig.events().await);
    rig.kill();
    let connections = rig.device.connections();
    // The image runs on a second computer, inodes, times and machine id and all.
    set_back(&image, &rig.path().join("state"));
    rig.env(COMPUTER, SECOND);
    rig.start().await;
    assert_eq!(rig.alarms().await, ["foreign_journal"]);
    let (_, status) = rig.get("/v1/status").await;
    let text = status["alarms"][0]["text"].as_str().unwrap();
    assert!(text.contains("02:00:00:00:00:01"), "{text}");
    let (code, refused) = rig.submit(&rig.set_speed("NEW", 60)).await;
    assert_eq!(
        (code, &refused["code"]),
        (503, &json!("foreign_journal")),
        "{refused}"
    );
    // Neither a command that waits in the copy, nor a count.
    rig.device.set_holding(200, 99);
    rig.kill();
    // A start that is repeated settles nothing.
    rig.env(COMPUTER, SECOND);
    rig.start().await;
    assert_eq!(rig.alarms().await, ["foreign_journal"]);
    assert_eq!(rig.state("WAITS").await, "queued");
    assert_eq!(
        rig.device.connections(),
        connections,
        "it went to the machine"
    );
    assert_eq!((rig.speed_writes(), rig.device.holding(100)), (1, 50));
    let journal = rig.journal_dir();
    let dir = journal.to_str().unwrap();
    let args = [
        "journal",
        "adopt",
        dir,
        "--reason",
        "the first computer is scrap",
    ];
    let refused = rig.command(&args).output().unwrap();
    assert!(!refused.status.success(), "while it runs");
    assert!(rig.stop().await.success());
    let adopted = rig.command(&args).output().unwrap();
    assert!(adopted.status.success(), "{adopted:?}");
    rig.env(COMPUTER, SECOND);
    rig.start_up().await;
    rig.make_events(1).await;
    let start = starts(&rig).await.pop().unwrap();
    let note = start["body"]["note"].as_str().unwrap();
    assert!(note.contains("the first computer is scrap"), "{start}");
    let after = rig.events().await;
    let shared: Vec<_> = keys(&after).intersection(&first).cloned().collect();
    let of_the_image = first.iter().map(|key| key.1).min().unwrap();
    assert!(
        shared.iter().all(|key| key.1 == of_the_image),
        "a key of both: {shared:?}"
    );
    rig.kill();
    // Settled for good.
    rig.env(COMPUTER, SECOND);
    rig.start_up().await;
    assert!(rig.alarms().await.is_empty());
    assert!(!rig.command(&args).output().unwrap().status.success());
}

// covers: TIME-06, F131
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_that_begins_anew_takes_no_request_from_before() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    let request = rig.set_speed("ONCE", 50);
    assert_eq!(rig.submit_wait(&request).await.1["state"], "completed");
    rig.kill();
    // The partition is not mounted this time.
    std::fs::rename(rig.path().join("state"), rig.path().join("unmounted")).unwrap();
    std::fs::create_dir(rig.path().join("state")).unwrap();
    rig.start_up().await;
    let (status, answer) = rig.submit(&request).await;
    assert_eq!(
        (status, &answer["code"]),
        (409, &json!("outside_replay_window")),
        "{answer}"
    );
    let (_, fresh) = rig.submit_wait(&rig.set_speed("NEXT", 51)).await;
    assert_eq!(fresh["state"], "completed", "{fresh}");
    assert_eq!((rig.speed_writes(), rig.device.holding(100)), (2, 51));
}
