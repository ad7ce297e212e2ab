//! Gateways over HTTP into real books: part B of the acceptance table at `holdfast receiver`, and a gateway whose
//! receiver and database are killed. Rows, totals, answers and what is pending are counted in the database.

use crate::books::{assert_adds_up, piece};
use crate::harness::{HOLDFAST, PATIENCE, Rig, until};
use crate::http_client::{Answer, Caller};
use crate::postgres_server::{Database, PostgresServer, VERSIONS, Version};
use holdfast::core::event::to_json;
use holdfast::core::record::EventRecord;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TOKEN: &str = "token-of-the-gateway-0123456789";
const MEDIA: &str = "application/json";

/// A receiver's process.
struct Post {
    dir: TempDir,
    address: SocketAddr,
    process: Option<Child>,
}

impl Drop for Post {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Post {
    /// Not started yet. Its one gateway is `gw-test`.
    fn new(database_url: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, TOKEN).unwrap();
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
        let text = format!(
            "schema = 1\nlisten = \"{address}\"\n[database]\nurl = \"{database_url}\"\n\
             [[gateway]]\nname = \"gw-test\"\ntoken_file = {token:?}\n"
        );
        std::fs::write(dir.path().join("receiver.toml"), text).unwrap();
        Self {
            dir,
            address,
            process: None,
        }
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(HOLDFAST);
        command
            .arg("--config")
            .arg(self.dir.path().join("receiver.toml"))
            .arg("receiver")
            .args(more)
            .stdin(Stdio::null());
        command
    }

    /// Starts it, to be killed at a point, and waits until it finds its books.
    async fn start_with(&mut self, kill_at: Option<&str>) {
        assert!(self.process.is_none(), "it runs already");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))
            .unwrap();
        let mut command = self.command(&[]);
        command.stdout(Stdio::null()).stderr(log);
        if let Some(point) = kill_at {
            command.env("HOLDFAST_KILL_AT", point);
        }
        self.process = Some(command.spawn().unwrap());
        let deadline = Instant::now() + PATIENCE;
        while !self.is_ready().await {
            assert!(Instant::now() < deadline, "it is not ready\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn start(&mut self) {
        self.start_with(None).await;
    }

    async fn is_ready(&self) -> bool {
        let Ok(stream) = tokio::net::TcpStream::connect(self.address).await else {
            return false;
        };
        let mut caller = Caller(stream);
        caller.send("GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n").await;
        caller
            .answer()
            .await
            .is_some_and(|answer| answer.status == 200)
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.process.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn signal(&self, signal: Signal) {
        let id = self.process.as_ref().unwrap().id();
        kill_process(Pid::from_raw(i32::try_from(id).unwrap()).unwrap(), signal).unwrap();
    }

    async fn until_dead(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.as_mut().unwrap().try_wait().unwrap() {
                self.process = None;
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    async fn caller(&self) -> Caller {
        Caller::connect(self.address).await
    }

    async fn post(&self, events: &[EventRecord]) -> Answer {
        self.caller().await.post(TOKEN, MEDIA, &body(events)).await
    }

    /// The statuses in one letter each.
    async fn letters(&self, events: &[EventRecord]) -> String {
        letters(&self.post(events).await)
    }
}

fn letters(answer: &Answer) -> String {
    let statuses = answer.statuses();
    statuses.iter().map(|status| &status[..1]).collect()
}

fn body(events: &[EventRecord]) -> String {
    let events: Vec<String> = events.iter().map(to_json).collect();
    raw_body(&events)
}

fn raw_body(events: &[String]) -> String {
    format!(
        "{{\"gateway\":\"gw-test\",\"batch_id\":\"b-1\",\"events\":[{}]}}",
        events.join(",")
    )
}

async fn books(version: Version) -> (Database<'static>, Post) {
    let database = PostgresServer::shared(version).await.database().await;
    let mut post = Post::new(&database.writer_url());
    post.start().await;
    (database, post)
}

async fn stand(database: &Database<'_>) -> (i64, i64, i64) {
    (
        database.rows().await,
        database.total().await,
        database.pending().await,
    )
}

// covers: B1, B2, B6, B7, B8, B10, B12, B14, B16, ING-05, ING-06
#[tokio::test(flavor = "multi_thread")]
async fn the_exercise_of_the_article_over_http() {
    for version in VERSIONS {
        let (database, post) = books(version).await;
        // B1: the first reply is lost: nobody reads it.
        let one = [piece("A", 7, 42, 1)];
        let mut gone = post.caller().await;
        gone.ask(TOKEN, MEDIA, &body(&one)).await;
        until("the first delivery is in the books", async || {
            database.rows().await == 1
        })
        .await;
        drop(gone);
        for _ in 0..2 {
            assert_eq!(post.letters(&one).await, "d");
        }
        assert_eq!(stand(&database).await, (1, 1, 0));
        // B14, B10: the next piece, and one after the device began to count anew.
        assert_eq!(
            post.letters(&[piece("A", 7, 43, 1), piece("A", 8, 42, 1)])
                .await,
            "aa"
        );
        assert_eq!(stand(&database).await, (3, 3, 0));
        // B2: another quantity under a key that is taken: said with both, and kept.
        let answer = post.post(&[piece("A", 7, 42, 5)]).await;
        assert_eq!(letters(&answer), "c");
        assert!(
            answer.json()["results"][0]["kept"]
                .as_str()
                .unwrap()
                .contains("\"qty\":1")
        );
        assert_eq!(stand(&database).await, (3, 3, 1));
        // B6: twelve deliveries, ten keys, one of them three times; twice in the same batch.
        let mut twelve: Vec<EventRecord> = (1..=10).map(|n| piece("B", 1, n, 1)).collect();
        twelve.insert(4, piece("B", 1, 3, 1));
        assert_eq!(post.letters(&twelve).await, "aaaadaaaaaa");
        assert_eq!(post.letters(&twelve[2..3]).await, "d");
        assert_eq!(stand(&database).await, (13, 13, 1));
        // B7: an existing key with another value.
        assert_eq!(post.letters(&[piece("B", 1, 10, 2)]).await, "c");
        assert_eq!(stand(&database).await, (13, 13, 2));
        // B8: one of ten was changed on the way.
        let mut ten: Vec<String> = (1..=10).map(|n| to_json(&piece("C", 1, n, 1))).collect();
        ten[6] = ten[6].replace("\"qty\":1", "\"qty\":9");
        let answer = post
            .caller()
            .await
            .post(TOKEN, MEDIA, &raw_body(&ten))
            .await;
        assert_eq!(letters(&answer), "aaaaaamaaa");
        let line = &answer.json()["results"][6];
        assert_eq!(
            (&line["key"], &line["code"]),
            (&"C/1/7".into(), &"digest_mismatch".into())
        );
        assert_eq!(stand(&database).await, (22, 22, 3));
        let item = database
            .value("SELECT convert_from(item, 'UTF8') FROM holdfast.dead_letter")
            .await;
        assert_eq!(item, ten[6], "as it came");
        // B12: key parts that are missing, empty, or beyond what a key can be.
        let good = to_json(&piece("D", 1, 1, 1));
        let bad = [
            good.replace("\"source\":\"D\"", "\"source\":null"),
            good.replace("\"source\":\"D\"", "\"source\":\"\""),
            good.replace("\"epoch\":\"1\"", "\"epoch\":null"),
            good.replace("\"sequence\":\"1\",", ""),
            good.replace("\"sequence\":\"1\"", "\"sequence\":\"-1\""),
            good.replace("\"sequence\":\"1\"", "\"sequence\":\"9223372036854775808\""),
        ];
        let answer = post
            .caller()
            .await
            .post(TOKEN, MEDIA, &raw_body(&bad))
            .await;
        assert_eq!(letters(&answer), "mmmmmm");
        assert_eq!(stand(&database).await, (22, 22, 9));
        // B16
        assert_eq!(database.counters().await, [35, 22, 4, 2, 7, 0]);
        assert_adds_up(&database).await;
    }
}

// covers: B3, ING-02, ING-05
#[tokio::test(flavor = "multi_thread")]
async fn two_senders_of_the_same_thousand_keys_at_once_are_accepted_once() {
    for version in VERSIONS {
        let (database, post) = books(version).await;
        let worker = async || {
            let mut caller = post.caller().await;
            let mut all = String::new();
            for part in 0..20 {
                let events: Vec<EventRecord> =
                    (1..=50).map(|n| piece("A", 7, part * 50 + n, 1)).collect();
                all += &letters(&caller.post(TOKEN, MEDIA, &body(&events)).await);
            }
            all
        };
        let (one, other) = tokio::join!(worker(), worker());
        assert_eq!((one.len(), other.len()), (1000, 1000));
        for (n, pair) in one.chars().zip(other.chars()).enumerate() {
            assert!(matches!(pair, ('a', 'd') | ('d', 'a')), "{n}: {pair:?}");
        }
        assert_eq!(stand(&database).await, (1000, 1000, 0));
        assert_adds_up(&database).await;
    }
}

// covers: B4, B5, ING-03, ING-05
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_killed_before_and_after_the_commit_leaves_all_or_nothing() {
    for version in VERSIONS {
        let database = PostgresServer::shared(version).await.database().await;
        let mut post = Post::new(&database.writer_url());
        let points = [
            // Before the commit: nothing is there, and the resend is the first.
            ("receiver.before-books", 0, 'a'),
            // After it, before the reply: all of it is there, and the resend is a duplicate.
            ("receiver.before-reply", 3, 'd'),
        ];
        for (index, (point, rows, again)) in points.into_iter().enumerate() {
            let source = format!("A{index}");
            let events: Vec<EventRecord> = (1..=3).map(|n| piece(&source, 7, n, 1)).collect();
            post.start_with(Some(point)).await;
            let before = database.rows().await;
            let mut caller = post.caller().await;
            caller.ask(TOKEN, MEDIA, &body(&events)).await;
            assert!(caller.answer().await.is_none(), "{point}: no reply");
            post.until_dead().await;
            assert_eq!(database.rows().await - before, rows, "{point}");
            assert_eq!(database.total().await, database.rows().await, "{point}");
            post.start().await;
            assert_eq!(
                post.letters(&events).await,
                again.to_string().repeat(3),
                "{point}"
            );
            assert_eq!(database.rows().await - before, 3, "{point}");
            post.kill();
        }
        assert_adds_up(&database).await;
    }
}

// covers: B9, FWD-03
#[tokio::test(flavor = "multi_thread")]
async fn calls_whose_connection_to_the_books_is_ended_are_resolved_by_sending_again() {
    for version in VERSIONS {
        let (database, post) = books(version).await;
        let mut ended = 0;
        let mut accepted = 0;
        let mut duplicates = 0;
        let deadline = Instant::now() + PATIENCE;
        for part in 0..40_u64 {
            let events: Vec<EventRecord> =
                (1..=10).map(|n| piece("A", 7, part * 10 + n, 1)).collect();
            loop {
                let (answer, terminated) =
                    tokio::join!(post.post(&events), database.terminate_all());
                ended += terminated;
                if answer.status == 200 {
                    let found = letters(&answer);
                    accepted += found.matches('a').count();
                    duplicates += found.matches('d').count();
                    assert_eq!(found.matches(['a', 'd']).count(), 10, "{found}");
                    break;
                }
                answer.refused(503, "store_unavailable");
                assert!(Instant::now() < deadline, "{}", post.log());
            }
        }
        assert!(ended > 10, "{ended}");
        assert_eq!(accepted + duplicates, 400);
        assert_eq!(stand(&database).await, (400, 400, 0));
        assert_adds_up(&database).await;
    }
}

/// Keys of all lines of the gateway's own file sink.
fn written(rig: &Rig) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    for entry in std::fs::read_dir(rig.path().join("events"))
        .into_iter()
        .flatten()
        .flatten()
    {
        for line in std::fs::read_to_string(entry.path()).unwrap().lines() {
            let event: Json = serde_json::from_str(line).unwrap();
            let part = |name: &str| event[name].as_str().unwrap();
            keys.insert(format!(
                "{}/{}/{}",
                part("source"),
                part("epoch"),
                part("sequence")
            ));
        }
    }
    keys
}

async fn in_books(database: &Database<'_>) -> BTreeSet<String> {
    let rows = database
        .query("SELECT source || '/' || epoch || '/' || sequence FROM holdfast.event")
        .await;
    rows.into_iter()
        .map(|mut row| row.remove(0).unwrap())
        .collect()
}

async fn sink(rig: &Rig) -> Json {
    let (_, sinks) = rig.get("/v1/sinks").await;
    let all = sinks["sinks"].as_array().unwrap();
    all.iter()
        .find(|sink| sink["name"] == "mes")
        .unwrap()
        .clone()
}

async fn gateway_to(post: &Post) -> Rig {
    let mut rig = Rig::new().await;
    let token = post.dir.path().join("token");
    rig.gateway_toml += &format!(
        "[[sink]]\nname = \"mes\"\nkind = \"http\"\nurl = \"http://{}\"\ntoken_file = {token:?}\n",
        post.address
    );
    rig
}

/// Changes the watched register until `count` more events of it are written.
async fn work(rig: &mut Rig, value: &mut u16, count: u16) {
    for _ in 0..count {
        let before = written(rig).len();
        *value += 1;
        rig.device.set_holding(200, *value);
        rig.until("the change is an event", async |rig| {
            written(rig).len() > before
        })
        .await;
    }
}

// covers: ING-05, FWD-01, FWD-03, FWD-07
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_receiver_and_database_are_killed_has_every_event_in_the_books_once() {
    let server = PostgresServer::start(Version::V18).await;
    let database = server.database().await;
    let mut post = Post::new(&database.writer_url());
    post.start_with(Some("receiver.before-reply:2")).await;
    let mut rig = gateway_to(&post).await;
    rig.start_up().await;
    let mut value = 0;
    work(&mut rig, &mut value, 3).await;
    // The receiver died after a commit, without a reply.
    post.until_dead().await;
    work(&mut rig, &mut value, 2).await;
    post.start().await;
    // The database goes away, and the gateway with it.
    server.kill();
    work(&mut rig, &mut value, 2).await;
    rig.kill();
    rig.start_up().await;
    work(&mut rig, &mut value, 2).await;
    server.start_again().await;
    rig.until("everything is in the books", async |rig| {
        // Waits that grew meanwhile are over at once.
        rig.clock.pass(60_000);
        let written = written(rig);
        !written.is_empty() && in_books(&database).await.is_superset(&written)
    })
    .await;
    rig.stop().await;
    assert_eq!(in_books(&database).await, written(&rig));
    assert_adds_up(&database).await;
    assert_eq!(database.pending().await, 0);
    assert!(
        database.counters().await[2] > 0,
        "what was committed without a reply came again"
    );
}

// covers: FWD-02
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_the_receiver_does_not_know_stops_and_says_what_to_mend() {
    let (database, post) = books(Version::V15).await;
    let mut rig = gateway_to(&post).await;
    let token = rig.path().join("wrong");
    std::fs::write(&token, "not-the-token-0123456789").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let named = post.dir.path().join("token");
    rig.gateway_toml = rig
        .gateway_toml
        .replace(named.to_str().unwrap(), token.to_str().unwrap());
    rig.start_up().await;
    let mut value = 0;
    work(&mut rig, &mut value, 1).await;
    rig.until("the sink has stopped", async |rig| {
        let state = sink(rig).await["state"].to_string();
        state.contains("stopped") && state.contains("token_file")
    })
    .await;
    assert_eq!(database.rows().await, 0);
    rig.stop().await;
    std::fs::write(&token, TOKEN).unwrap();
    rig.start_up().await;
    rig.until("what was kept is delivered", async |rig| {
        let written = written(rig);
        !written.is_empty() && in_books(&database).await.is_superset(&written)
    })
    .await;
    let shown = sink(&rig).await;
    assert_eq!(
        (&shown["kind"], &shown["ack_level"]),
        (&"http".into(), &"committed".into())
    );
    rig.stop().await;
}

// covers: OPS-01
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_receiver_ends_well_and_a_changed_file_is_taken_up() {
    let (database, mut post) = books(Version::V15).await;
    let new = "a-new-token-0123456789-abcdef";
    std::fs::write(post.dir.path().join("token"), new).unwrap();
    post.signal(Signal::HUP);
    let one = body(&[piece("A", 1, 1, 1)]);
    until("the new token is taken", async || {
        post.caller().await.post(new, MEDIA, &one).await.status == 200
    })
    .await;
    post.caller()
        .await
        .post(TOKEN, MEDIA, &one)
        .await
        .refused(401, "unauthorized");
    post.signal(Signal::TERM);
    assert!(post.until_dead().await.success());
    assert_eq!(database.rows().await, 1);
    assert!(post.log().contains("stopping"), "{}", post.log());
}

// covers: CFG-02
#[test]
fn a_receivers_file_is_checked_offline() {
    let post = Post::new("postgres://w@127.0.0.1/books");
    let good = post.command(&["--check"]).output().unwrap();
    assert!(good.status.success(), "{good:?}");
    assert!(
        String::from_utf8_lossy(&good.stdout).contains("no TLS, 1 gateway(s)"),
        "{good:?}"
    );
    let path = post.dir.path().join("receiver.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(
        &path,
        text.replace("listen = \"127.0.0.1", "listen = \"0.0.0.0"),
    )
    .unwrap();
    for arguments in [&["--check"][..], &[]] {
        let bad = post.command(arguments).output().unwrap();
        assert_eq!(bad.status.code(), Some(78), "{bad:?}");
        let says = String::from_utf8_lossy(&bad.stderr).into_owned();
        assert!(says.contains("receiver.toml:2:10: listen: "), "{says}");
        assert!(says.contains("allow_plaintext = true"), "{says}");
    }
}
