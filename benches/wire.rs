//! Polls over the real wire, beside bare clients that nobody of this project wrote: `cargo bench --bench wire`.
//!
//! Owns: rates of polls over Modbus RTU and MC protocol 3E, and those of tokio-modbus and plc-comm-slmp in turns with
//! them, on the same pseudo-terminal and the same port.
//! May call: the simulator, plc (for the poll loop), the other clients.
//! Never: decide whether a figure is good enough; it prints ratios, people judge.
//!
//! Words behind `--` choose: `rtu`, `mc` (else both), `rounds=10` (else 20).
//!
//! A pseudo-terminal has no bit rate, and a bare client keeps no silence between frames, which a line has to have
//! (MODBUS over Serial Line V1.02, 2.5.1.1). So there are four figures a rate: the line without its bit rate and the line
//! with it, each beside a bare client and beside one that keeps that silence.

use holdfast::core::melsec::{Code, Device, Family, Frame, Kind, McLink, Route, Transport};
use holdfast::core::serial::{ModbusRtu, Parity, SerialLine, Way};
use holdfast::core::spec::{
    Address, DataType, GateSpec, LinkSpec, MachineSpec, ModbusArea, Scalar, Tag, WordOrder,
};
use holdfast::plc::link::Link;
use holdfast::plc::plan::PollPlan;
use holdfast::service::clock::Clock;
use holdfast::simulator::{McFrameKind, McProgram, RtuProgram, Simulator, SimulatorSpec};
use plc_comm_slmp::{
    SlmpAddress, SlmpClient, SlmpConnectionOptions, SlmpPlcProfile, SlmpTargetAddress,
    SlmpTransportMode,
};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, ioctl_tiocnxcl, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio_modbus::client::rtu::attach_slave;
use tokio_modbus::prelude::{Reader as _, Slave};
use tokio_serial::SerialStream;

const TIMEOUT_MS: u64 = 2_000;
/// Requests of a round, for either side; the first round is not counted.
const PER_ROUND: u32 = 200;
/// The same on a line with its bit rate.
const PER_PACED_ROUND: u32 = 10;
/// Read at once by the bench's line.
const CHUNK_BYTES: usize = 512;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|found| found == word);
    let rounds = words.iter().find_map(|word| word.strip_prefix("rounds="));
    let rounds = rounds.map_or(20, |rounds| rounds.parse().unwrap());
    let all = !has("rtu") && !has("mc");
    println!("| polls a second | ours | beside it | median ratio | worst round |");
    println!("| --- | --- | --- | --- | --- |");
    if all || has("rtu") {
        for (baud, parity) in [(9_600, Parity::Even), (115_200, Parity::None)] {
            for registers in [10, 100] {
                rtu(baud, parity, registers, rounds).await;
            }
        }
    }
    if all || has("mc") {
        for words in [10, 100, 960] {
            mc(words, rounds).await;
        }
    }
}

/// Rates of two sides, taken in turns.
#[derive(Default)]
struct Sides {
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

impl Sides {
    /// The first round warms both up.
    fn report(&self, what: &str, beside: &str) {
        let ratios = self.ours.iter().zip(&self.theirs).map(|(a, b)| a / b);
        let mut ratios: Vec<f64> = ratios.skip(1).collect();
        ratios.sort_by(f64::total_cmp);
        println!(
            "| {what} | {:.0} | {beside} {:.0} | {:.2} | {:.2} |",
            median(&self.ours[1..]),
            median(&self.theirs[1..]),
            median(&ratios),
            ratios[0]
        );
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A machine of which `count` words are polled in one request.
struct Ours {
    link: Link,
    plan: PollPlan,
    count: usize,
}

impl Ours {
    fn new(link: LinkSpec, count: u16, at: impl Fn(u16) -> Address) -> Self {
        let tags = (0..count).map(|n| Tag {
            name: format!("t{n}"),
            at: Scalar {
                address: at(n),
                data_type: DataType::U16,
                word_order: WordOrder::HighFirst,
            },
            unit: None,
            poll_ms: 1,
            no_value: Vec::new(),
            group: None,
        });
        let spec = MachineSpec {
            name: "up".into(),
            owner: "gw".into(),
            read_only: true,
            link,
            gate: GateSpec::default(),
            tags: tags.collect(),
            groups: Vec::new(),
            events: Vec::new(),
            commands: Vec::new(),
            mailbox: None,
        };
        let plan = PollPlan::new(&spec);
        assert_eq!(plan.due(u64::MAX).len(), 1, "one request reads them all");
        Self {
            link: Link::new(&spec, Clock::new(true, 0).unwrap().reader()),
            plan,
            count: usize::from(count),
        }
    }

    /// The rate of `requests` polls on a connection that is there.
    async fn rate(&mut self, requests: u32) -> f64 {
        let begun = Instant::now();
        for _ in 0..requests {
            let step = self.plan.due(u64::MAX).remove(0);
            let read = self.link.poll(&mut self.plan, &step).await;
            assert_eq!(read.len(), self.count);
            assert!(read.iter().all(|reading| reading.value.is_some()));
        }
        f64::from(requests) / begun.elapsed().as_secs_f64()
    }
}

/// A bare client's loop on a serial port.
async fn bare_rtu(line: &SerialLine, registers: u16, requests: u32, silence: Duration) -> f64 {
    let port = SerialStream::open(&tokio_serial::new(&line.path, line.baud)).unwrap();
    let mut bare = attach_slave(port, Slave(1));
    let begun = Instant::now();
    for _ in 0..requests {
        if !silence.is_zero() {
            std::thread::sleep(silence);
        }
        let read = bare.read_holding_registers(0, registers).await;
        assert_eq!(read.unwrap().unwrap().len(), usize::from(registers));
    }
    f64::from(requests) / begun.elapsed().as_secs_f64()
}

async fn rtu(baud: u32, parity: Parity, registers: u16, rounds: usize) {
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("device");
    let _simulator = Simulator::start(SimulatorSpec {
        unit: 1,
        rtu: Some(RtuProgram {
            pty: Some(device.clone()),
            ..RtuProgram::default()
        }),
        ..SimulatorSpec::default()
    })
    .await
    .unwrap();
    let direct = SerialLine {
        path: device.display().to_string(),
        baud,
        data_bits: 8,
        parity,
        stop_bits: 1,
        rs485: false,
    };
    let what = format!("RTU, {registers} registers a request, {baud} baud");
    let gap = Duration::from_micros(direct.gap_us());
    let (mut bare, mut silent) = (Sides::default(), Sides::default());
    for _ in 0..=rounds {
        let rate = our_round(&direct, registers, PER_ROUND).await;
        for (sides, silence) in [(&mut bare, Duration::ZERO), (&mut silent, gap)] {
            let theirs = bare_rtu(&direct, registers, PER_ROUND, silence).await;
            sides.ours.push(rate);
            sides.theirs.push(theirs);
        }
    }
    let no_rate = format!("{what}, no bit rate");
    bare.report(&no_rate, "tokio-modbus, no silence between frames");
    silent.report(&no_rate, "tokio-modbus, 3.5 characters of silence");
    let paced = PacedLine::between(&device, &direct);
    let line = SerialLine {
        path: paced.path.clone(),
        ..direct
    };
    let (mut bare, mut silent) = (Sides::default(), Sides::default());
    for _ in 0..=rounds {
        let rate = our_round(&line, registers, PER_PACED_ROUND).await;
        paced.give_back();
        for (sides, silence) in [(&mut bare, Duration::ZERO), (&mut silent, gap)] {
            let theirs = bare_rtu(&line, registers, PER_PACED_ROUND, silence).await;
            paced.give_back();
            sides.ours.push(rate);
            sides.theirs.push(theirs);
        }
    }
    bare.report(&what, "tokio-modbus, no silence between frames");
    silent.report(&what, "tokio-modbus, 3.5 characters of silence");
}

fn rtu_machine(line: SerialLine, registers: u16) -> Ours {
    let link = LinkSpec::ModbusRtu(ModbusRtu {
        way: Way::Serial(line),
        unit: 1,
        timeout_ms: TIMEOUT_MS,
        settle_ms: 5,
        turnaround_ms: 0,
        echo: false,
        read_registers_max: 125,
        reconnect_ms_min: 100,
        reconnect_ms_max: 1_000,
        heartbeat_ms: 1_000,
    });
    Ours::new(link, registers, |offset| Address::Modbus {
        area: ModbusArea::Holding,
        offset,
    })
}

/// A port is one client's at a time: it is opened before the round, and closed after it.
async fn our_round(line: &SerialLine, registers: u16, requests: u32) -> f64 {
    let mut ours = rtu_machine(line.clone(), registers);
    ours.link.connect().await.unwrap();
    ours.rate(requests).await
}

/// A line whose bytes take as long as they do at its bit rate.
struct PacedLine {
    path: String,
    /// Kept open, so that the line outlives each client.
    held: File,
}

impl PacedLine {
    fn between(device: &Path, line: &SerialLine) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let held = File::from(raw(path.as_ref()));
        let (near, far) = (File::from(master), File::from(raw(device)));
        carry(near.try_clone().unwrap(), far.try_clone().unwrap(), line);
        carry(far, near, line);
        Self { path, held }
    }

    /// A client that locked the port may have left the lock behind.
    fn give_back(&self) {
        ioctl_tiocnxcl(&self.held).unwrap();
    }
}

fn raw(path: &Path) -> OwnedFd {
    let terminal = open(path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    let mut settings = tcgetattr(&terminal).unwrap();
    settings.make_raw();
    tcsetattr(&terminal, OptionalActions::Now, &settings).unwrap();
    terminal
}

/// Carries bytes one way, until an end is gone: each piece arrives when its last bit would have.
fn carry(mut from: File, mut to: File, line: &SerialLine) {
    let line = line.clone();
    std::thread::spawn(move || {
        let mut bytes = [0; CHUNK_BYTES];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            std::thread::sleep(Duration::from_micros(line.time_us(count)));
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
    });
}

async fn mc(words: u16, rounds: usize) {
    let simulator = Simulator::start(SimulatorSpec {
        mc: Some(McProgram {
            frame: McFrameKind::E3,
            ..McProgram::default()
        }),
        ..SimulatorSpec::default()
    })
    .await
    .unwrap();
    let at = simulator.address();
    let mut ours = mc_machine(at.ip().to_string(), at.port(), words);
    ours.link.connect().await.unwrap();
    let profile = SlmpPlcProfile::QnUDV;
    let options = SlmpConnectionOptions::new(
        at.ip().to_string(),
        at.port(),
        SlmpTransportMode::Tcp,
        SlmpTargetAddress::default(),
        profile,
    );
    let theirs = SlmpClient::connect(options.unwrap()).await.unwrap();
    let place = SlmpAddress::parse("D0", profile).unwrap();
    let mut sides = Sides::default();
    for _ in 0..=rounds {
        sides.ours.push(ours.rate(PER_ROUND).await);
        let begun = Instant::now();
        for _ in 0..PER_ROUND {
            let read = theirs.read_words(place, words).await.unwrap();
            assert_eq!(read.len(), usize::from(words));
        }
        let rate = f64::from(PER_ROUND) / begun.elapsed().as_secs_f64();
        sides.theirs.push(rate);
    }
    sides.report(
        &format!("MC 3E binary, {words} words a request"),
        "plc-comm-slmp",
    );
}

fn mc_machine(host: String, port: u16, words: u16) -> Ours {
    let link = LinkSpec::Mc(McLink {
        host,
        port,
        transport: Transport::Tcp,
        frame: Frame::E3,
        code: Code::Binary,
        family: Family::Q,
        route: Route::default(),
        timeout_ms: TIMEOUT_MS,
        read_words_max: 960,
        reconnect_ms_min: 100,
        reconnect_ms_max: 1_000,
        heartbeat_ms: 1_000,
    });
    Ours::new(link, words, |n| Address::Melsec {
        device: Device::of(Kind::D, Family::Q),
        number: u32::from(n),
    })
}
