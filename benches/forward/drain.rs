//! Owns: a long backlog that drains while a machine is polled: rate, processor, memory, and what the polls feel.
//! May call: the journal, to fill it; the rig; the test servers.
//! Never: compare polls under other conditions than the drain's own run.

use super::copy::event;
use super::gateway::{POLL_MS, Rig};
use super::postgres_server::{Database, PostgresServer};
use super::{ms, quantile};
use holdfast::core::ids::CommitNo;
use holdfast::core::record::{Block, Record};
use holdfast::journal::{Opened, Options, open};
use holdfast::service::clock::Clock;
use holdfast::service::computer;
use holdfast::simulator::Device;
use std::path::Path;
use std::time::{Duration, Instant};

const EVENTS_PER_BLOCK: u64 = 100;
const BLOCKS_PER_COMMIT: u64 = 20;
/// The polls without a drain are watched for so long.
const QUIET: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(500);
const DRAIN_MAX: Duration = Duration::from_secs(1_800);

pub(crate) async fn run(server: &PostgresServer, events: u64) {
    let database = server.database().await;
    let mut rig = Rig::new(&(database.writer_url() + "?sslmode=disable")).await;
    fill(&rig.dir.path().join("state/journal"), events);
    rig.start().await;
    let opening = rig.memory_mib("VmHWM:");
    rig.forget_memory_peak();
    let mut polls = Polls::new(&rig.device);
    let (begun, cpu, before) = (Instant::now(), rig.cpu(), taken(&database).await);
    while taken(&database).await < events {
        assert!(begun.elapsed() < DRAIN_MAX, "it does not drain");
        tokio::time::sleep(LOOK).await;
        polls.look(&rig.device);
    }
    let (took, cpu) = (begun.elapsed(), rig.cpu() - cpu);
    let drained = events - before;
    let peak = rig.memory_mib("VmHWM:");
    // The last events of all wait for their answer.
    tokio::time::sleep(LOOK).await;
    let mut quiet = Polls::new(&rig.device);
    let (begun, idle) = (Instant::now(), rig.cpu());
    while begun.elapsed() < QUIET {
        tokio::time::sleep(LOOK).await;
        quiet.look(&rig.device);
    }
    let idle = (rig.cpu() - idle).as_secs_f64() / begun.elapsed().as_secs_f64();
    let own = cpu.as_secs_f64() - idle * took.as_secs_f64();
    println!(
        "| backlog of {events}: events a second | {:.0} | in {:.0} s | |",
        drained as f64 / took.as_secs_f64(),
        took.as_secs_f64()
    );
    println!(
        "| ... processor of the gateway an event, polls taken off | {:.1} µs | with them {:.1} µs | |",
        own * 1e6 / drained as f64,
        cpu.as_secs_f64() * 1e6 / drained as f64
    );
    println!(
        "| ... peak memory while draining | {peak:.1} MiB | while opening {opening:.1} MiB | |"
    );
    for (name, part) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
        let (busy, alone) = (
            quantile(&mut polls.off, part),
            quantile(&mut quiet.off, part),
        );
        println!(
            "| ... polls off their {POLL_MS} ms, {name} | {:.2} ms | without a drain {:.2} ms | {:.2} |",
            ms(busy),
            ms(alone),
            busy.as_secs_f64() / alone.as_secs_f64()
        );
    }
}

/// A journal as the gateway would have left it after an outage.
fn fill(dir: &Path, events: u64) {
    let now = Clock::new(true, 0).unwrap().now();
    let options = Options {
        dir: dir.to_owned(),
        budget_bytes: 1 << 30,
        gateway: "gw".into(),
        now,
        build_wall_us: 0,
        machine_id: computer::describe(),
        open_timeout: Duration::from_secs(10),
    };
    let Opened::Normal(mut journal, recovered) = open(options).unwrap() else {
        panic!("a new journal is damaged");
    };
    let (epoch, mut no, mut sequence) = (recovered.epoch, recovered.next_commit.0, 1);
    while sequence <= events {
        let blocks: Vec<Block> = (0..BLOCKS_PER_COMMIT)
            .map(|_| {
                let numbers = sequence..(sequence + EVENTS_PER_BLOCK).min(events + 1);
                sequence = numbers.end;
                // A day ago, a millisecond apart.
                let wall = |n: u64| now.wall_us - 86_400_000_000 + n as i64 * 1_000;
                let record = |n| Record::Event(event(epoch, n, wall(n)));
                no += 1;
                Block {
                    no: CommitNo(no - 1),
                    epoch,
                    at: now,
                    records: numbers.map(record).collect(),
                }
            })
            .collect();
        journal.commit(&blocks).unwrap();
    }
    journal.close().unwrap();
}

/// Events of the backlog that are in the books.
async fn taken(database: &Database<'_>) -> u64 {
    let sql = "SELECT coalesce(sum(events), 0) FROM holdfast.total WHERE source = 'press-1'";
    u64::try_from(database.number(sql).await).unwrap()
}

/// When the hundred tags were asked for, seen at the device.
struct Polls {
    last: Duration,
    /// How far each came from where it was due, seen from the one before.
    off: Vec<Duration>,
}

impl Polls {
    fn new(device: &Device) -> Self {
        Self {
            last: device.elapsed(),
            off: Vec::new(),
        }
    }

    fn look(&mut self, device: &Device) {
        // Function 3, from 1000.
        let ours = [3, 3, 232];
        let seen = device.requests();
        let seen = seen.iter().filter(|seen| seen.pdu.starts_with(&ours));
        for seen in seen
            .filter(|seen| seen.at > self.last)
            .map(|s| s.at)
            .collect::<Vec<_>>()
        {
            let apart = seen - self.last;
            self.off
                .push(apart.abs_diff(Duration::from_millis(POLL_MS)));
            self.last = seen;
        }
    }
}
