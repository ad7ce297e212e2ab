//! Owns: cases of handing a command to a mailbox, against a small PLC program that counts its effects.
//! May call: the scripted server.
//! Never: let an effect happen that the outcome does not allow.

use crate::server::{
    Act, Server, asked, connected, echo, exception, holding, modbus_link, registers, spec,
};
use holdfast::core::contract::{
    Exchange, Job, MailboxEcho, MailboxRequest, Outcome, Probe, ProbeAnswer, Reply,
};
use holdfast::core::mailbox::{COMMAND_WORDS, STATUS_WORDS, Verdict, crc16, judge};
use holdfast::core::spec::{MachineSpec, MailboxSpec, Quality, WordOrder};
use std::sync::{Arc, Mutex};

const COMMAND: u16 = 300;
const STATUS: u16 = 340;
const COMMIT: u16 = COMMAND + 18;
const BOOT: u32 = 5;

/// How the PLC of a test behaves.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Prompt,
    /// Result of the machine's own, after the effect.
    Fails(u16),
    /// Refuses; the ring names the id.
    Refuses(u16),
    /// Refuses; only state and result say so.
    RefusesWithoutRing(u16),
    Slow,
    /// The commit's echo is lost, the effect happens.
    LosesEcho,
    /// Stopped: takes writes, runs no program.
    Stopped,
    /// Starts anew on the commit.
    Restarts,
    /// A second writer changes a parameter after the block was written.
    SecondWriter,
    /// The connection ends before the commit frame.
    ClosesAfterReadBack,
    /// Its block's CRC never holds.
    Corrupt,
    /// A commit is answered with this exception.
    Exception(u8),
}

struct Plc {
    manner: Manner,
    command: [u16; COMMAND_WORDS],
    status: [u16; STATUS_WORDS],
    effects: u32,
}

impl Plc {
    fn new(manner: Manner) -> Self {
        let mut status = [0; STATUS_WORDS];
        status[0] = 1;
        status[2] = BOOT as u16;
        status[15] = 1;
        Self {
            manner,
            command: [0; COMMAND_WORDS],
            status,
            effects: 0,
        }
    }

    fn sealed(&self) -> [u16; STATUS_WORDS] {
        let mut status = self.status;
        status[32] = crc16(&status[..32]);
        if self.manner == Manner::Corrupt {
            status[32] ^= 1;
        }
        status
    }

    fn act_on_commit(&mut self) {
        let id = [self.command[4], self.command[5]];
        assert_eq!(self.command[17], crc16(&self.command[..17]));
        assert_eq!(self.command[18], self.command[5]);
        let (state, result, effect) = match self.manner {
            Manner::Fails(result) => (5, result, true),
            Manner::Refuses(result) | Manner::RefusesWithoutRing(result) => (4, result, false),
            Manner::Slow => (2, 0, false),
            Manner::Stopped | Manner::Exception(_) => return,
            Manner::Restarts => {
                self.status[2] += 1;
                return;
            }
            _ => (3, 0, true),
        };
        self.status[6] = state;
        self.status[7] = result;
        self.effects += u32::from(effect);
        self.status[11] = self.effects as u16;
        if state != 4 {
            self.status[4..6].copy_from_slice(&id);
        }
        if effect {
            self.status[8..10].copy_from_slice(&id);
        }
        if effect || matches!(self.manner, Manner::Refuses(_)) {
            self.status[16..18].copy_from_slice(&id);
            self.status[18] = result;
            self.status[19] = self.effects as u16;
        }
    }

    fn answer(&mut self, request: &[u8]) -> Vec<Act> {
        let (start, count) = asked(request);
        let good = match (request[7], start) {
            (3, STATUS..) => {
                let from = usize::from(start - STATUS);
                registers(request, &self.sealed()[from..from + usize::from(count)])
            }
            (3, COMMAND..) => {
                let from = usize::from(start - COMMAND);
                let words = registers(request, &self.command[from..from + usize::from(count)]);
                if self.manner == Manner::ClosesAfterReadBack {
                    return vec![Act::Bytes(words), Act::Fin];
                }
                words
            }
            (16, COMMAND) => {
                let data = request[13..].chunks_exact(2);
                for (word, pair) in self.command.iter_mut().zip(data) {
                    *word = u16::from_be_bytes([pair[0], pair[1]]);
                }
                if self.manner == Manner::SecondWriter {
                    self.command[7] ^= 0x55;
                }
                echo(request)
            }
            (6, COMMIT) => {
                let changed = self.command[18] != count;
                self.command[18] = count;
                if let Manner::Exception(code) = self.manner {
                    return vec![Act::Bytes(exception(request, code))];
                }
                if changed {
                    self.act_on_commit();
                }
                if self.manner == Manner::LosesEcho {
                    return vec![];
                }
                echo(request)
            }
            _ => exception(request, 2),
        };
        vec![Act::Bytes(good)]
    }
}

fn machine(port: u16) -> MachineSpec {
    MachineSpec {
        mailbox: Some(MailboxSpec {
            command: holding(COMMAND),
            status: holding(STATUS),
            word_order: WordOrder::HighFirst,
        }),
        ..spec(port)
    }
}

fn job(request_id: u32) -> Job {
    Job::Mailbox(MailboxRequest {
        session_epoch: 1,
        opcode: 3,
        request_id,
        parameters: vec![11, 12],
        expected_config_version: 0xFFFF,
        validity_ticks: 0,
    })
}

async fn plc(manner: Manner) -> (Server, Arc<Mutex<Plc>>) {
    let plc = Arc::new(Mutex::new(Plc::new(manner)));
    let shared = Arc::clone(&plc);
    let server = Server::start(move |request| shared.lock().unwrap().answer(request)).await;
    (server, plc)
}

/// The exchange, and how many effects the PLC counted.
async fn handed_over(manner: Manner) -> (Exchange, u32) {
    let (server, plc) = plc(manner).await;
    let mut link = connected(&machine(server.port)).await;
    let exchange = link.run(&job(0x0001_0007)).await;
    let effects = plc.lock().unwrap().effects;
    (exchange, effects)
}

fn record(result: u16, effect_counter: u16) -> Outcome {
    Outcome::DeviceReplied(Reply::Mailbox(MailboxEcho {
        request_id: 0x0001_0007,
        result,
        effect_counter,
    }))
}

// covers: VER-03, SEND-02
#[tokio::test]
async fn the_devices_own_record_is_the_reply() {
    let (exchange, effects) = handed_over(Manner::Prompt).await;
    assert_eq!((exchange.outcome, effects), (record(0, 1), 1));
    // The request is the commit frame.
    assert_eq!((exchange.bytes_sent, exchange.bytes_total), (12, 12));
    let (exchange, effects) = handed_over(Manner::Fails(104)).await;
    assert_eq!((exchange.outcome, effects), (record(104, 1), 1));
}

// covers: VER-03
#[tokio::test]
async fn a_refusal_is_told_by_its_name_and_has_no_effect() {
    for manner in [Manner::Refuses(4), Manner::RefusesWithoutRing(4)] {
        let (exchange, effects) = handed_over(manner).await;
        let Outcome::DeviceRefused(code) = exchange.outcome else {
            panic!("{exchange:?}")
        };
        assert!(code.meaning.contains("interlock"));
        assert_eq!((code.code, effects), (4, 0));
    }
}

// covers: VER-03
#[tokio::test]
async fn an_old_refusal_is_not_taken_for_the_answer_to_a_new_commit() {
    let (server, plc) = plc(Manner::Stopped).await;
    {
        let mut plc = plc.lock().unwrap();
        plc.status[6] = 4;
        plc.status[7] = 4;
    }
    let mut link = connected(&machine(server.port)).await;
    let exchange = link.run(&job(8)).await;
    assert!(
        matches!(exchange.outcome, Outcome::SentNoReply { .. }),
        "{exchange:?}"
    );
}

// covers: SEND-02, SEND-03
#[tokio::test]
async fn after_the_commit_only_the_record_decides() {
    let (exchange, _) = handed_over(Manner::Slow).await;
    assert_eq!(exchange.outcome, Outcome::DeviceAccepted);
    for manner in [Manner::LosesEcho, Manner::Stopped, Manner::Restarts] {
        let (exchange, _) = handed_over(manner).await;
        assert!(
            matches!(exchange.outcome, Outcome::SentNoReply { .. }),
            "{exchange:?}"
        );
        assert_eq!((exchange.bytes_sent, exchange.bytes_total), (12, 12));
    }
    let (exchange, _) = handed_over(Manner::Exception(4)).await;
    assert!(
        matches!(exchange.outcome, Outcome::DeviceUnclear(_)),
        "{exchange:?}"
    );
    let (exchange, _) = handed_over(Manner::Exception(2)).await;
    assert!(
        matches!(exchange.outcome, Outcome::DeviceRefused(_)),
        "{exchange:?}"
    );
}

// covers: SEND-02, SEND-03
#[tokio::test]
async fn before_the_commit_every_failure_is_not_sent() {
    for manner in [
        Manner::SecondWriter,
        Manner::ClosesAfterReadBack,
        Manner::Corrupt,
    ] {
        let (exchange, effects) = handed_over(manner).await;
        assert!(
            matches!(exchange.outcome, Outcome::NotSent { .. }),
            "{exchange:?}"
        );
        assert_eq!((exchange.bytes_sent, effects), (0, 0));
    }
}

// covers: SEND-08
#[tokio::test]
async fn an_id_that_the_device_has_on_record_is_not_committed_again() {
    let (server, plc) = plc(Manner::LosesEcho).await;
    let mut link = connected(&machine(server.port)).await;
    let first = link.run(&job(0x0001_0007)).await;
    assert!(matches!(first.outcome, Outcome::SentNoReply { .. }));
    link.connect().await.unwrap();
    let again = link.run(&job(0x0001_0007)).await;
    assert_eq!(again.outcome, record(0, 1));
    assert_eq!(again.bytes_sent, 0);
    assert_eq!((server.count(6), plc.lock().unwrap().effects), (1, 1));
}

// covers: SEND-07
#[tokio::test]
async fn a_mailbox_that_is_at_another_id_is_left_alone() {
    let (server, plc) = plc(Manner::Slow).await;
    let mut link = connected(&machine(server.port)).await;
    assert_eq!(link.run(&job(8)).await.outcome, Outcome::DeviceAccepted);
    let exchange = link.run(&job(9)).await;
    assert!(matches!(&exchange.outcome, Outcome::NotSent { why } if why.contains("id 8")));
    assert_eq!(plc.lock().unwrap().command[5], 8);
}

// covers: VER-03, VER-04
#[tokio::test]
async fn a_probe_and_the_gate_read_both_blocks_and_write_nothing() {
    let (server, plc) = plc(Manner::LosesEcho).await;
    let mut link = connected(&machine(server.port)).await;
    link.run(&job(0x0001_0007)).await;
    assert_eq!(
        link.probe(&Probe::Mailbox).await,
        ProbeAnswer::Failed("not connected".into())
    );
    link.connect().await.unwrap();
    let writes = server.count(6) + server.count(16);
    let ProbeAnswer::Mailbox(blocks) = link.probe(&Probe::Mailbox).await else {
        panic!("no blocks")
    };
    let verdict = judge(&blocks, WordOrder::HighFirst, 0x0001_0007, Some(BOOT));
    assert!(
        matches!(verdict, Verdict::Done(echo) if echo.result == 0),
        "{verdict:?}"
    );
    let gate = link.read_gate().await.unwrap();
    assert_eq!(
        (gate.quality, gate.mailbox.unwrap()),
        (Quality::Good, blocks)
    );
    plc.lock().unwrap().status[15] = 0;
    assert_eq!(link.read_gate().await.unwrap().quality, Quality::Uncertain);
    assert_eq!(server.count(6) + server.count(16), writes);
}

// covers: VER-03
#[tokio::test]
async fn a_device_that_reads_few_registers_at_a_time_gives_its_blocks_in_parts() {
    let (server, plc) = plc(Manner::Prompt).await;
    let mut spec = machine(server.port);
    let modbus = modbus_link(&mut spec);
    modbus.read_registers_max = 10;
    let mut link = connected(&spec).await;
    assert_eq!(link.run(&job(0x0001_0007)).await.outcome, record(0, 1));
    assert_eq!(plc.lock().unwrap().effects, 1);
    let none = link.run(&job(0)).await;
    assert!(matches!(none.outcome, Outcome::NotSent { .. }));
}
