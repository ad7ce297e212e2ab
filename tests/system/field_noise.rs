//! Owns: bytes that no device was asked for, on a line of their own, beside a line of another port.
//! May call: the harness, serial, socat (a pseudo-terminal whose far end is a socket of this test).
//! Never: share code with the gateway's side.

use super::harness::{Rig, until};
use super::serial::{QUICK, counters, link_of, rig};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A pseudo-terminal; what is written to it comes to `Line::start`'s server, and the other way round.
struct Line {
    socat: Child,
    answered: Arc<AtomicU64>,
}

/// What stands before and behind the n-th reply.
type Dress = fn(u64) -> (Vec<u8>, Vec<u8>);

impl Line {
    /// Unit 1 answers every read of one register with 7, dressed.
    async fn start(dir: &Path, dress: Dress) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answered = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&answered);
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            serve(stream, &counted, dress).await;
        });
        let name = dir.join("noisy");
        let socat = Command::new("socat")
            .arg(format!("pty,raw,echo=0,link={}", name.display()))
            .arg(format!("tcp:127.0.0.1:{port},nodelay"))
            .spawn()
            .expect("socat is there: tests/run installs it (apt-get install socat)");
        until("the line is there", async || name.exists()).await;
        Self { socat, answered }
    }

    fn answered(&self) -> u64 {
        self.answered.load(SeqCst)
    }

    /// Waits for so many more replies, each part of them within the patience of the suite.
    async fn replies(&self, count: u64) {
        let from = self.answered();
        for most in (0..=count).step_by(20) {
            until("the noisy line is polled", async || {
                self.answered() >= from + most
            })
            .await;
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let _ = self.socat.kill();
        let _ = self.socat.wait();
    }
}

async fn serve(mut stream: TcpStream, answered: &AtomicU64, dress: Dress) {
    let mut request = [0; 8];
    while stream.read_exact(&mut request).await.is_ok() {
        let (before, behind) = dress(answered.load(SeqCst));
        // Unit 1 says 7.
        let reply = [0x01, 0x03, 0x02, 0x00, 0x07, 0xF9, 0x86];
        let all = [&before[..], &reply, &behind].concat();
        if stream.write_all(&all).await.is_err() {
            return;
        }
        answered.fetch_add(1, SeqCst);
    }
}

/// A second machine, on the noisy line.
fn add_noisy(rig: &mut Rig) {
    let text = format!(
        "schema = 1\nname = \"noisy\"\n[link]\nprotocol = \"modbus-rtu\"\nserial = \"{}/noisy\"\n{QUICK}\n\
         parity = \"none\"\nunit = 1\ntimeout = \"5s\"\n[[tag]]\nname = \"value\"\nread = \"holding:0\"\n\
         type = \"u16\"\npoll = \"20ms\"\n",
        rig.path().display()
    );
    std::fs::write(rig.path().join("noisy.toml"), text).unwrap();
    rig.gateway_toml = rig
        .gateway_toml
        .replace("[\"press-1.toml\"]", "[\"press-1.toml\", \"noisy.toml\"]");
}

async fn until_noisy_up(rig: &mut Rig) {
    rig.until("the noisy line is up", async |rig| {
        link_of(rig, "noisy").await == "up"
    })
    .await;
}

/// The value was read, and nothing was ever waited for in vain.
async fn assert_good(rig: &Rig) {
    let (_, answer) = rig.get("/v1/machines/noisy/tags?read=value").await;
    let tag = &answer["tags"][0];
    assert_eq!(
        (&tag["value"], &tag["quality"]),
        (&7.into(), &"good".into())
    );
    let counters = counters(rig, "noisy").await;
    for name in ["timeouts", "misfits", "connect_failures"] {
        assert_eq!(counters[name], 0, "{name}: {counters:?}");
    }
}

/// Lines about the noise, however often it came.
fn noise_lines(rig: &Rig) -> usize {
    let log = rig.log();
    log.lines().filter(|line| line.contains("/noisy")).count()
}

// covers: F013
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_byte_behind_each_of_two_hundred_replies_is_counted_and_fills_no_log() {
    let mut rig = rig(QUICK, "").await;
    let line = Line::start(rig.path(), |_| (Vec::new(), vec![0])).await;
    add_noisy(&mut rig);
    rig.start_up().await;
    until_noisy_up(&mut rig).await;
    line.replies(200).await;
    let answered = line.answered();
    rig.until("each was counted", async |rig| {
        counters(rig, "noisy").await["noise_bytes"] >= answered
    })
    .await;
    let counted = counters(&rig, "noisy").await["noise_bytes"];
    assert!(counted <= line.answered(), "{counted}");
    assert_good(&rig).await;
    assert!(noise_lines(&rig) <= 1, "{}", rig.log());
}

/// Bytes of one burst: heads of replies that never end.
const BURST_BYTES: usize = 64 * 1024;
/// Every so many replies stand behind a burst; halfway between two, a burst comes when nothing is asked.
const BURST_EVERY: u64 = 10;

fn burst() -> Vec<u8> {
    [1, 3].repeat(BURST_BYTES / 2)
}

fn bursts(n: u64) -> (Vec<u8>, Vec<u8>) {
    match n % BURST_EVERY {
        1 => (burst(), Vec::new()),
        6 => (Vec::new(), burst()),
        _ => (Vec::new(), Vec::new()),
    }
}

// covers: F015
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bursts_of_garbage_on_one_port_cost_another_port_no_cycle() {
    let mut rig = rig(QUICK, "").await;
    let line = Line::start(rig.path(), bursts).await;
    add_noisy(&mut rig);
    rig.start_up().await;
    until_noisy_up(&mut rig).await;
    line.replies(20).await;
    let from = rig.device.requests().len();
    let noise = counters(&rig, "noisy").await["noise_bytes"];
    line.replies(100).await;
    let noise = counters(&rig, "noisy").await["noise_bytes"] - noise;
    assert!(noise >= 15 * BURST_BYTES as u64, "{noise} bytes");
    let seen = rig.device.requests();
    assert!(seen.len() > from + 10, "{} polls", seen.len() - from);
    let gaps = seen[from..].windows(2).map(|two| two[1].at - two[0].at);
    let longest = gaps.max().unwrap();
    // Its cycle is 100 ms; a computer under load is late, a loop that stands still is much later.
    assert!(longest < Duration::from_millis(300), "{longest:?}");
    assert_good(&rig).await;
    assert_eq!(rig.counter("timeouts").await, 0);
    assert!(noise_lines(&rig) <= 1, "{}", rig.log());
}
