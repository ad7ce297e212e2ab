//! The outbox against a receiver that does as a test tells it: outages, refusals, lost rows, kills. Rows and
//! batches are counted at the receiver.

use super::harness::Rig;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// What the receiver does with a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    /// Takes it.
    Up,
    /// Answers this to the whole.
    Status(u16),
    /// Takes it, but never a count.
    Picky,
    /// Takes it once there is a permit.
    Metered,
}

/// A receiver with books of its own.
#[derive(Debug)]
struct Books {
    mood: Mood,
    /// Rows by key, in the order in which they came.
    rows: BTreeMap<String, Json>,
    /// Keys of each batch that was taken.
    batches: Vec<Vec<String>>,
    asked: usize,
    permits: Arc<tokio::sync::Semaphore>,
}

type Receiver = Arc<Mutex<Books>>;

fn key_of(event: &Json) -> String {
    let part = |name: &str| event[name].as_str().unwrap().to_owned();
    format!("{}/{}/{}", part("source"), part("epoch"), part("sequence"))
}

async fn take(State(books): State<Receiver>, body: String) -> Response {
    let metered = {
        let mut books = books.lock().unwrap();
        books.asked += 1;
        (books.mood == Mood::Metered).then(|| Arc::clone(&books.permits))
    };
    if let Some(permits) = metered {
        permits.acquire().await.unwrap().forget();
    }
    let mut books = books.lock().unwrap();
    if let Mood::Status(status) = books.mood {
        return (
            StatusCode::from_u16(status).unwrap(),
            [(header::RETRY_AFTER, "1")],
            "not now",
        )
            .into_response();
    }
    let batch: Json = serde_json::from_str(&body).unwrap();
    let events = batch["events"].as_array().unwrap();
    books.batches.push(events.iter().map(key_of).collect());
    let mut results = Vec::new();
    for (index, event) in events.iter().enumerate() {
        let key = key_of(event);
        let refused = books.mood == Mood::Picky && event["type"] == "piece.count";
        let status = match books.rows.get(&key) {
            _ if refused => "malformed",
            Some(row) if row["digest"] == event["digest"] => "duplicate",
            Some(_) => "conflict",
            None => {
                books.rows.insert(key.clone(), event.clone());
                "accepted"
            }
        };
        let reason = refused.then_some("counts are not taken here");
        results.push(json!({"index": index, "key": key, "status": status, "reason": reason}));
    }
    let answer = json!({"batch_id": batch["batch_id"], "results": results, "counts": {}});
    axum::Json(answer).into_response()
}

/// A receiver, and a gateway that sends to it as `mes`, beside its file.
async fn rig_with_receiver() -> (Rig, Receiver) {
    let books = Arc::new(Mutex::new(Books {
        mood: Mood::Up,
        rows: BTreeMap::new(),
        batches: Vec::new(),
        asked: 0,
        permits: Arc::new(tokio::sync::Semaphore::new(0)),
    }));
    let router = axum::Router::new()
        .route("/v1/events:batch", axum::routing::post(take))
        .with_state(Arc::clone(&books));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let mut rig = Rig::new().await;
    rig.gateway_toml +=
        &format!("[[sink]]\nname = \"mes\"\nkind = \"http\"\nurl = \"http://{address}\"\n");
    (rig, books)
}

fn set(books: &Receiver, mood: Mood) {
    books.lock().unwrap().mood = mood;
}

async fn sink(rig: &Rig, name: &str) -> Json {
    let (_, all) = rig.get("/v1/sinks").await;
    let mut rows = all["sinks"].as_array().unwrap().iter();
    rows.find(|row| row["name"] == name).unwrap().clone()
}

fn number(value: &Json) -> u64 {
    value.as_str().unwrap().parse().unwrap()
}

async fn until_drained(rig: &mut Rig) {
    rig.until("the backlog is drained", async |rig| {
        let mes = sink(rig, "mes").await;
        mes["backlog"]["events"] == "0" && mes["circuit"] == "ok"
    })
    .await;
}

async fn commands(rig: &Rig, prefix: &str, count: u32) {
    for n in 0..count {
        let request = rig.set_speed(&format!("{prefix}{n}"), n % 100);
        let (status, operation) = rig.submit_wait(&request).await;
        assert_eq!(status, 201, "{operation}");
    }
}

/// Produced = finished, dead letters among it, and pending; and nothing is counted twice.
async fn assert_adds_up(rig: &Rig) {
    // The gateway's own events come when they come: all is looked at between two of them.
    let (produced, mes) = loop {
        let before = rig.events().await.len() as u64;
        let mes = sink(rig, "mes").await;
        if rig.events().await.len() as u64 == before {
            break (before, mes);
        }
    };
    let count = |name: &str| number(&mes["counters"][name]);
    let answers = ["accepted", "duplicates", "conflicts", "malformed"].map(count);
    let finished = answers.iter().sum::<u64>() - count("resent") - count("rewound");
    let pending = number(&mes["backlog"]["events"]);
    assert_eq!(finished + pending, produced, "{mes}");
    assert_eq!(
        answers.iter().sum::<u64>() + count("retries"),
        count("attempts")
    );
}

// covers: FWD-01, FWD-05, F099, F111
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_behind_an_answer_it_sends_the_same_keys_again_and_counts_right() {
    let (mut rig, books) = rig_with_receiver().await;
    for point in [
        "sink.after-deliver:2",
        "sink.before-deliver:2",
        "sink.after-deliver",
    ] {
        rig.env("HOLDFAST_KILL_AT", point);
        rig.spawn();
        rig.until_dead().await;
    }
    rig.start_up().await;
    commands(&rig, "K", 3).await;
    until_drained(&mut rig).await;
    let events = rig.events().await;
    rig.until("every event is a row, once", async |_| {
        books.lock().unwrap().rows.len() >= events.len()
    })
    .await;
    for event in &events {
        let row = books.lock().unwrap().rows[&key_of(event)].clone();
        assert_eq!(row["digest"], event["digest"]);
    }
    until_drained(&mut rig).await;
    assert_adds_up(&rig).await;
    assert!(rig.stop().await.success());
    let before = books.lock().unwrap().batches.len();
    let keys: Vec<String> = books.lock().unwrap().rows.keys().cloned().collect();
    rig.start().await;
    until_drained(&mut rig).await;
    // After a clean stop what was sent is not sent again: only keys of the new epoch come.
    let again = books.lock().unwrap().batches[before..].concat();
    let twice: Vec<_> = again.iter().filter(|key| keys.contains(key)).collect();
    assert!(twice.is_empty(), "{twice:?}");
    assert_adds_up(&rig).await;
}

// covers: FWD-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_needs_a_person_is_an_alarm_until_it_is_mended_and_resumed() {
    let (mut rig, books) = rig_with_receiver().await;
    set(&books, Mood::Status(403));
    rig.start_up().await;
    rig.until("the alarm stands", async |rig| {
        let (_, status) = rig.get("/v1/status").await;
        let alarms = status["alarms"].as_array().unwrap();
        alarms.iter().any(|alarm| {
            alarm["code"] == "sink_stopped"
                && alarm["severity"] == "critical"
                && alarm["text"].as_str().unwrap().contains("mes")
                && alarm["do"].as_str().unwrap().contains("resume")
        })
    })
    .await;
    let asked = books.lock().unwrap().asked;
    // Other sinks go on meanwhile, and this one is left alone.
    commands(&rig, "S", 3).await;
    rig.until("the file has the alarm's event", async |rig| {
        rig.sink_lines()
            .iter()
            .any(|event| event["type"] == "alarm.raised" && event["body"]["code"] == "sink_stopped")
    })
    .await;
    assert_eq!(books.lock().unwrap().asked, asked);
    assert_eq!(sink(&rig, "mes").await["circuit"], "stopped");
    set(&books, Mood::Up);
    let done = rig.command(&["sinks", "mes", "resume"]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    until_drained(&mut rig).await;
    rig.until("the alarm is gone", async |rig| {
        let (_, status) = rig.get("/v1/status").await;
        !status["alarms"].to_string().contains("sink_stopped")
    })
    .await;
    until_drained(&mut rig).await;
    assert_adds_up(&rig).await;
}

// covers: FWD-02, FWD-06, F111
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_event_is_shown_mended_by_a_correction_or_dropped_with_a_reason() {
    let (mut rig, books) = rig_with_receiver().await;
    set(&books, Mood::Picky);
    rig.start_up().await;
    for count in 1..=3 {
        rig.device.set_holding(200, count);
        rig.until("it is a dead letter", async |rig| {
            sink(rig, "mes").await["dead_letters"].as_u64().unwrap() >= u64::from(count)
        })
        .await;
    }
    let (_, letters) = rig.get("/v1/sinks/mes/dead-letters").await;
    let letters = letters["dead_letters"].as_array().unwrap().clone();
    let keys: Vec<&str> = letters.iter().map(|l| l["key"].as_str().unwrap()).collect();
    assert_eq!(letters[0]["reason"], "counts are not taken here");
    // Sent again as it is: refused again, and it stays.
    let path = format!("/v1/sinks/mes/dead-letters/{}/resend", keys[0]);
    let (status, again) = rig.post(&path, json!({})).await;
    assert_eq!(status, 422, "{again}");
    let mend = json!({"body": {"value": 7}, "reason": "the count was misread"});
    let path = format!("/v1/sinks/mes/dead-letters/{}/mend", keys[0]);
    // Two people mend it at once: one correction comes of it.
    let (one, other) = tokio::join!(rig.post(&path, mend.clone()), rig.post(&path, mend));
    let (mended, refused) = match one.0 {
        200 => (one, other),
        _ => (other, one),
    };
    assert_eq!((mended.0, refused.0), (200, 422), "{mended:?} {refused:?}");
    let mended = mended.1;
    let correction = mended["correction"].as_str().unwrap().to_owned();
    assert_ne!(correction, keys[0]);
    rig.until("the correction is in the books", async |_| {
        books.lock().unwrap().rows.contains_key(&correction)
    })
    .await;
    let row = books.lock().unwrap().rows[&correction].clone();
    assert_eq!(
        (
            &row["type"],
            &row["body"]["corrects"],
            &row["body"]["body"]["value"]
        ),
        (&json!("correction"), &json!(keys[0]), &json!(7))
    );
    assert_eq!(row["time"], letters[0]["event"]["time"]);
    // Sent again it would count beside its correction.
    let back = json!({"to": keys[0], "reason": "all of it again"});
    let (status, refused) = rig.post("/v1/sinks/mes/rewind", back).await;
    assert_eq!(status, 422, "{refused}");
    assert!(refused.to_string().contains(&correction), "{refused}");
    // The event itself is what it was.
    let events = rig.events().await;
    let kept = events
        .iter()
        .find(|event| key_of(event) == keys[0])
        .unwrap();
    assert_eq!(kept["digest"], letters[0]["event"]["digest"]);
    // The receiver has learnt; the others are taken as they are.
    set(&books, Mood::Up);
    let cli = ["dead-letters", "mes", "resend", keys[1]];
    assert!(rig.command(&cli).output().unwrap().status.success());
    let cli = [
        "dead-letters",
        "mes",
        "drop",
        "--all",
        "--reason",
        "a test",
        "--yes",
    ];
    assert!(rig.command(&cli).output().unwrap().status.success());
    let (_, rest) = rig.get("/v1/sinks/mes/dead-letters").await;
    assert_eq!(rest["dead_letters"], json!([]));
    assert!(books.lock().unwrap().rows.contains_key(keys[1]));
    assert!(!books.lock().unwrap().rows.contains_key(keys[2]));
    until_drained(&mut rig).await;
    assert_adds_up(&rig).await;
    assert_eq!(sink(&rig, "mes").await["counters"]["resent"], "2");
}

// covers: FWD-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_a_rewind_delivers_stands_no_more() {
    let (mut rig, books) = rig_with_receiver().await;
    set(&books, Mood::Picky);
    rig.start_up().await;
    rig.device.set_holding(200, 1);
    rig.until("it is a dead letter", async |rig| {
        sink(rig, "mes").await["dead_letters"] == 1
    })
    .await;
    let (_, letters) = rig.get("/v1/sinks/mes/dead-letters").await;
    let key = letters["dead_letters"][0]["key"].as_str().unwrap();
    set(&books, Mood::Up);
    until_drained(&mut rig).await;
    let back = json!({"to": key, "reason": "the receiver has learnt"});
    let (status, went) = rig.post("/v1/sinks/mes/rewind", back).await;
    assert_eq!(status, 200, "{went}");
    rig.until("the letter is settled", async |rig| {
        sink(rig, "mes").await["dead_letters"] == 0
    })
    .await;
    assert!(books.lock().unwrap().rows.contains_key(key));
    let late = json!({"body": 2, "reason": "too late"});
    let path = format!("/v1/sinks/mes/dead-letters/{key}/mend");
    assert_eq!(rig.post(&path, late).await.0, 422);
}

// covers: REC-03, FWD-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_recovery_nothing_is_said_to_be_settled_and_nothing_is_sent_again() {
    let (mut rig, books) = rig_with_receiver().await;
    set(&books, Mood::Picky);
    rig.start_up().await;
    rig.device.set_holding(200, 1);
    rig.until("it is a dead letter", async |rig| {
        sink(rig, "mes").await["dead_letters"] == 1
    })
    .await;
    let damaged = rig.set_speed("DAMAGED-OPERATION", 50);
    assert_eq!(rig.submit_wait(&damaged).await.1["state"], "completed");
    until_drained(&mut rig).await;
    assert!(rig.stop().await.success());
    super::acceptance_a_limits::damage(&rig, "DAMAGED-OPERATION");

    rig.start().await;
    assert_eq!(rig.get("/v1/status").await.1["mode"], "recovery");
    let (_, letters) = rig.get("/v1/sinks/mes/dead-letters").await;
    let key = letters["dead_letters"][0]["key"].as_str().unwrap();
    until_drained(&mut rig).await;
    let sent = || {
        let books = books.lock().unwrap();
        let keys = books.batches.iter().flatten();
        keys.filter(|sent| *sent == key).count()
    };
    let before = sent();
    let letter = format!("/v1/sinks/mes/dead-letters/{key}");
    for (path, body) in [
        (format!("{letter}/drop"), json!({"reason": "a test"})),
        (format!("{letter}/resend"), json!({})),
        (
            format!("{letter}/mend"),
            json!({"body": {"value": 7}, "reason": "a test"}),
        ),
        (
            "/v1/sinks/mes/rewind".to_owned(),
            json!({"to": key, "reason": "a test"}),
        ),
        (
            "/v1/sinks/mes/resume".to_owned(),
            json!({"reason": "a test"}),
        ),
    ] {
        let (status, answer) = rig.post(&path, body).await;
        assert_eq!(
            (status, &answer["code"]),
            (503, &json!("recovery_mode")),
            "{path}: {answer}"
        );
    }
    let cli = [
        "dead-letters",
        "mes",
        "drop",
        key,
        "--reason",
        "a test",
        "--yes",
    ];
    assert_eq!(rig.command(&cli).output().unwrap().status.code(), Some(9));
    assert_eq!(sent(), before);
    assert_eq!(rig.get("/v1/sinks/mes/dead-letters").await.1, letters);
}

// covers: FWD-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_is_taken_after_who_asked_went_away_is_settled_all_the_same() {
    let (mut rig, books) = rig_with_receiver().await;
    set(&books, Mood::Picky);
    rig.start_up().await;
    rig.device.set_holding(200, 1);
    rig.until("it is a dead letter", async |rig| {
        sink(rig, "mes").await["dead_letters"] == 1
    })
    .await;
    until_drained(&mut rig).await;
    let (_, letters) = rig.get("/v1/sinks/mes/dead-letters").await;
    let key = letters["dead_letters"][0]["key"].as_str().unwrap();
    set(&books, Mood::Metered);
    let asked = books.lock().unwrap().asked;
    let path = format!("/v1/sinks/mes/dead-letters/{key}/resend");
    let under_way = async {
        while books.lock().unwrap().asked == asked {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        answer = rig.post(&path, json!({})) => panic!("answered before the receiver: {answer:?}"),
        () = under_way => {}
    }
    books.lock().unwrap().permits.add_permits(100);
    rig.until("the letter is settled", async |rig| {
        sink(rig, "mes").await["dead_letters"] == 0
    })
    .await;
    assert!(books.lock().unwrap().rows.contains_key(key));
}

// covers: FWD-01, F099
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_a_failover_lost_are_sent_again_under_the_same_keys() {
    let (mut rig, books) = rig_with_receiver().await;
    rig.start_up().await;
    commands(&rig, "F", 5).await;
    until_drained(&mut rig).await;
    let whole = books.lock().unwrap().rows.clone();
    let lost: Vec<String> = rig.events().await.iter().skip(4).map(key_of).collect();
    books
        .lock()
        .unwrap()
        .rows
        .retain(|key, _| !lost.contains(key));
    let cli = [
        "sinks", "mes", "rewind", "--to", &lost[0], "--reason", "failover", "--yes",
    ];
    let done = rig.command(&cli).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    rig.until("they are back", async |_| {
        let rows = books.lock().unwrap().rows.clone();
        whole.iter().all(|(key, row)| rows.get(key) == Some(row))
    })
    .await;
    until_drained(&mut rig).await;
    assert_adds_up(&rig).await;
    assert_eq!(
        number(&sink(&rig, "mes").await["counters"]["rewound"]),
        lost.len() as u64
    );
    // What the sink has not finished cannot be rewound to.
    let (status, problem) = rig
        .post(
            "/v1/sinks/mes/rewind",
            json!({"to": "press-1/1/1", "reason": "r"}),
        )
        .await;
    assert_eq!((status, &problem["field"]), (422, &json!("to")));
}

// covers: FWD-01, F119
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_outage_what_is_new_does_not_wait_behind_the_backlog() {
    let (mut rig, books) = rig_with_receiver().await;
    rig.start_up().await;
    until_drained(&mut rig).await;
    set(&books, Mood::Status(503));
    commands(&rig, "O", 130).await;
    rig.until("the outage is seen", async |rig| {
        sink(rig, "mes").await["circuit"] == "retrying"
    })
    .await;
    let backlog = rig.events().await.len();
    assert!(backlog > 350, "{backlog}");
    let first = books.lock().unwrap().batches.len();
    let permits = Arc::clone(&books.lock().unwrap().permits);
    set(&books, Mood::Metered);
    // Every wait is over, and what waits is old.
    rig.clock.pass(120_000);
    permits.add_permits(1);
    rig.until(
        "the probe is through, and the next one is under way",
        async |rig| {
            books.lock().unwrap().batches.len() == first + 1
                && sink(rig, "mes").await["in_flight"] == 1
        },
    )
    .await;
    rig.until("new events overtake", async |rig| {
        sink(rig, "mes").await["overtaking"] == true
    })
    .await;
    rig.until_link("up").await;
    let (_, fresh) = rig.submit_wait(&rig.set_speed("NEW", 1)).await;
    assert_eq!(fresh["state"], "completed", "{fresh}");
    let of_new: Vec<String> = rig
        .events()
        .await
        .iter()
        .filter(|event| event["body"]["operation_id"] == "NEW")
        .map(key_of)
        .collect();
    assert!(of_new.len() >= 2);
    // One batch was under way already; the ones behind it bring what is new.
    let mut given = 1;
    let is_there = || {
        let books = books.lock().unwrap();
        of_new.iter().all(|key| books.rows.contains_key(key))
    };
    while !is_there() && given < 4 {
        permits.add_permits(1);
        given += 1;
        rig.until("the batch is taken", async |_| {
            books.lock().unwrap().batches.len() >= first + given
        })
        .await;
    }
    let rows = books.lock().unwrap().rows.len();
    assert!(is_there(), "{rows} rows are there, {of_new:?} are not");
    let pending = number(&sink(&rig, "mes").await["backlog"]["events"]);
    assert!(pending > 100, "the backlog was not in the way: {pending}");
    // Killed amid two tracks, nothing is lost or counted twice.
    rig.kill();
    set(&books, Mood::Up);
    permits.add_permits(1_000);
    rig.start().await;
    until_drained(&mut rig).await;
    let events = rig.events().await;
    assert_eq!(books.lock().unwrap().rows.len(), events.len());
    assert_eq!(sink(&rig, "mes").await["overtaking"], false);
    assert_adds_up(&rig).await;
}
