//! Owns: proof that the mailbox's program keeps every rule of the PLC's side, over the wire.
//! May call: the simulator's public side, its CRC, and a plain socket.
//! Never: use the gateway's client.

use super::mailbox::crc;
use super::tests::{LIMIT, SILENCE, ask, hex, receive, start};
use super::*;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const DONE: u16 = 3;
const REJECTED: u16 = 4;
const FAILED: u16 = 5;

/// A press with version 7 in holding 120, an interlock on coil 3, and these opcodes:
/// 3 ejects at once, 4 sets the speed, 5 takes 250 ms, 6 fails with 117.
fn press(scan: &str) -> SimulatorSpec {
    let text = r#"
        [registers.holding]
        120 = 7
        [registers.coil]
        3 = true
        [points]
        config_version = "holding:120"
        mode = "holding:121"
        interlocks = ["coil:3"]
        [mailbox]
        command = "holding:300"
        status = "holding:340"
        scan = "SCAN"
        [[mailbox.opcode]]
        opcode = 3
        add = [{ at = "holding:200" }]
        [[mailbox.opcode]]
        opcode = 4
        set = [{ at = "holding:100", parameter = 0 }, { at = "holding:101", parameter = 1 }]
        [[mailbox.opcode]]
        opcode = 5
        duration = "250ms"
        add = [{ at = "holding:200" }]
        [[mailbox.opcode]]
        opcode = 6
        result = 117
        add = [{ at = "holding:200" }]
    "#;
    SimulatorSpec::from_toml(&text.replace("SCAN", scan)).unwrap()
}

/// The gateway's block, commit left out.
#[derive(Clone, Copy)]
struct Command {
    epoch: u32,
    opcode: u16,
    id: u32,
    version: u16,
    ticks: u16,
}

impl Command {
    fn new(id: u32, opcode: u16) -> Self {
        Self {
            epoch: 1,
            opcode,
            id,
            version: 0xFFFF,
            ticks: 0,
        }
    }
    fn words(self) -> Vec<u16> {
        let mut words = vec![0; 17];
        words[0] = 1;
        (words[1], words[2]) = (high(self.epoch), low(self.epoch));
        words[3] = self.opcode;
        (words[4], words[5]) = (high(self.id), low(self.id));
        (words[15], words[16]) = (self.version, self.ticks);
        words.push(crc(&words));
        words
    }
}

fn high(value: u32) -> u16 {
    u16::try_from(value >> 16).unwrap()
}
fn low(value: u32) -> u16 {
    u16::try_from(value & 0xFFFF).unwrap()
}

async fn write(client: &mut TcpStream, start: u16, words: &[u16]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let count = u8::try_from(words.len()).unwrap();
    let [a, b] = start.to_be_bytes();
    let mut frame = vec![
        0,
        1,
        0,
        0,
        0,
        7 + count * 2,
        1,
        16,
        a,
        b,
        0,
        count,
        count * 2,
    ];
    frame.extend(bytes);
    client.write_all(&frame).await.unwrap();
    assert_eq!(
        receive(client).await,
        [0, 1, 0, 0, 0, 6, 1, 16, a, b, 0, count]
    );
}

/// Writes the block, then the commit alone.
async fn hand_over(client: &mut TcpStream, command: Command) -> Status {
    write(client, 300, &command.words()).await;
    write(client, 318, &[low(command.id)]).await;
    status(client).await
}

/// The PLC's block as it was read, CRC checked.
struct Status(Vec<u16>);

async fn status(client: &mut TcpStream) -> Status {
    let reply = ask(client, "00 02 00 00 00 06 01 03 01 54 00 21").await;
    let words: Vec<u16> = reply[9..]
        .chunks(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
        .collect();
    assert_eq!((words.len(), words[0]), (33, 1));
    assert_eq!(crc(&words[..32]), words[32]);
    Status(words)
}

impl Status {
    fn pair(&self, at: usize) -> u32 {
        u32::from(self.0[at]) << 16 | u32::from(self.0[at + 1])
    }
    /// State and result.
    fn outcome(&self) -> (u16, u16) {
        (self.0[6], self.0[7])
    }
    /// Last accepted, last done, effect counter.
    fn counts(&self) -> (u32, u32, u32) {
        (self.pair(4), self.pair(8), self.pair(10))
    }
    /// Id, result, counter of each entry, the newest first.
    fn ring(&self) -> Vec<(u32, u16, u16)> {
        (0..4)
            .map(|n| 16 + n * 4)
            .map(|at| (self.pair(at), self.0[at + 2], self.0[at + 3]))
            .collect()
    }
}

#[test]
fn the_crc_is_crc_16_modbus() {
    assert_eq!(crc(&[0x0103, 0x0000, 0x000A]), 0xCDC5);
}

#[tokio::test]
async fn a_command_in_bytes_is_carried_out_once_and_reported() {
    let (_simulator, device, mut client) = start(press("0ms")).await;
    device.set_mode(1);
    let block = "00 01 00 00 00 2B 01 10 01 2C 00 12 24 \
        00 01 00 00 00 07 00 04 00 01 00 02 00 02 00 32 00 64 00 00 00 00 00 00 00 00 00 00 00 00 00 07 00 00";
    let words = [1, 0, 7, 4, 1, 2, 2, 0x32, 0x64, 0, 0, 0, 0, 0, 0, 7, 0];
    let block = format!(
        "{block} {:02X} {:02X}",
        crc(&words) >> 8,
        crc(&words) & 0xFF
    );
    ask(&mut client, &block).await;
    assert_eq!(device.effects(), 0, "nothing is done before the commit");
    ask(&mut client, "00 02 00 00 00 06 01 06 01 3E 00 02").await;
    let status = status(&mut client).await;
    assert_eq!(status.outcome(), (DONE, 0));
    assert_eq!(status.counts(), (0x0001_0002, 0x0001_0002, 1));
    assert_eq!(status.ring()[..2], [(0x0001_0002, 0, 1), (0, 0, 0)]);
    assert_eq!((status.pair(1), &status.0[12..16]), (1, &[7, 1, 1, 1][..]));
    assert_eq!((device.holding(100), device.holding(101)), (50, 100));
    let cause = Cause::Mailbox {
        request_id: 0x0001_0002,
        opcode: 4,
        parameters: vec![50, 100],
    };
    let ledger = device.ledger();
    assert_eq!((ledger.len(), &ledger[0].cause), (1, &cause));
}

// The CRC of this block was computed by another program.
#[tokio::test]
async fn a_block_with_a_foreign_crc_is_taken() {
    let (_simulator, device, mut client) = start(press("0ms")).await;
    ask(
        &mut client,
        "00 01 00 00 00 2B 01 10 01 2C 00 12 24 00 01 00 00 00 07 00 03 00 01 00 02 00 02 00 32 00 64 \
         00 00 00 00 00 00 00 00 00 00 00 00 00 07 00 00 FD 2F",
    )
    .await;
    ask(&mut client, "00 02 00 00 00 06 01 06 01 3E 00 02").await;
    assert_eq!(
        (device.effects_of_request(0x0001_0002), device.holding(200)),
        (1, 1)
    );
}

#[tokio::test]
async fn only_a_change_of_commit_to_the_low_word_of_the_id_is_acted_on() {
    let (_simulator, device, mut client) = start(press("0ms")).await;
    let command = Command::new(5, 3);
    hand_over(&mut client, command).await;
    for _ in 0..3 {
        hand_over(&mut client, command).await;
    }
    assert_eq!(device.effects(), 1, "a second arrival is no change");
    let next = Command::new(6, 3);
    write(&mut client, 300, &next.words()).await;
    write(&mut client, 318, &[9]).await;
    assert_eq!(status(&mut client).await.counts(), (5, 5, 1));
    write(&mut client, 318, &[6]).await;
    assert_eq!(status(&mut client).await.counts(), (6, 6, 2));
    // The block again, and its commit after another value: a change, but the ring knows the id.
    write(&mut client, 318, &[0]).await;
    write(&mut client, 318, &[6]).await;
    let status = status(&mut client).await;
    assert_eq!((status.outcome(), status.counts()), ((DONE, 0), (6, 6, 2)));
    assert_eq!(device.effects(), 2);
}

#[tokio::test]
async fn ids_go_up_by_serial_arithmetic_and_the_ring_answers_four() {
    let (_simulator, device, mut client) = start(press("0ms")).await;
    for id in [0x7FFF_FFF0, 0xF000_0000, 0xFFFF_FFFF, 0x10, 0x12, 0x20] {
        assert_eq!(
            hand_over(&mut client, Command::new(id, 3)).await.outcome(),
            (DONE, 0),
            "{id:X}"
        );
    }
    let status = hand_over(&mut client, Command::new(0x12, 3)).await;
    assert_eq!(status.outcome(), (DONE, 0), "in the ring: answered again");
    let ring = [
        (0x20, 0, 6),
        (0x12, 0, 5),
        (0x10, 0, 4),
        (0xFFFF_FFFF, 0, 3),
    ];
    assert_eq!(status.ring(), ring);
    for old in [0x11, 0xF000_0000, 0x1F] {
        let status = hand_over(&mut client, Command::new(old, 3)).await;
        assert_eq!(status.outcome(), (REJECTED, 1), "{old:X}");
        assert_eq!(
            (status.counts(), status.ring()),
            ((0x20, 0x20, 6), ring.to_vec())
        );
    }
    assert_eq!(device.effects(), 6);
}

#[tokio::test]
async fn a_block_that_cannot_be_trusted_uses_up_no_id() {
    let (_simulator, device, mut client) = start(press("0ms")).await;
    let mut first = Command::new(1, 3);
    first.epoch = 0xFFFF_FFFF;
    hand_over(&mut client, first).await;
    let mut flipped = Command::new(2, 3).words();
    flipped[7] ^= 1;
    let mut layout = Command::new(3, 3).words();
    layout[0] = 2;
    layout[17] = crc(&layout[..17]);
    let mut old = Command::new(4, 3);
    old.epoch = 0xFFFF_FFFE;
    let mut parameters = Command::new(5, 3).words();
    parameters[6] = 9;
    parameters[17] = crc(&parameters[..17]);
    for (words, result) in [(flipped, 2), (layout, 6), (old.words(), 7), (parameters, 6)] {
        write(&mut client, 300, &words).await;
        write(&mut client, 318, &[words[5]]).await;
        let status = status(&mut client).await;
        assert_eq!(
            (status.outcome(), status.counts()),
            ((REJECTED, result), (1, 1, 1))
        );
        assert_eq!(status.ring()[1], (0, 0, 0));
    }
    // Epoch 1 is above FFFFFFFF by serial arithmetic.
    assert_eq!(
        hand_over(&mut client, Command::new(6, 3)).await.outcome(),
        (DONE, 0)
    );
    assert_eq!(device.effects(), 2);
}

#[tokio::test]
async fn a_refused_command_uses_up_its_id_and_a_copy_is_refused_again() {
    let (_simulator, device, mut client) = start(press("0ms")).await;
    let mut version = Command::new(1, 3);
    version.version = 8;
    let refused = hand_over(&mut client, version).await;
    assert_eq!(
        (refused.outcome(), refused.counts()),
        ((REJECTED, 3), (1, 0, 0))
    );
    assert_eq!(refused.ring()[0], (1, 3, 0));
    device.set_version(8);
    write(&mut client, 318, &[0]).await;
    write(&mut client, 318, &[1]).await;
    assert_eq!(
        status(&mut client).await.outcome(),
        (REJECTED, 3),
        "answered from the ring"
    );
    version.id = 2;
    assert_eq!(hand_over(&mut client, version).await.outcome(), (DONE, 0));

    device.set_interlock(0, false);
    let open = hand_over(&mut client, Command::new(3, 3)).await;
    assert_eq!((open.outcome(), open.0[14]), ((REJECTED, 4), 0));
    device.set_interlock(0, true);
    assert_eq!(
        hand_over(&mut client, Command::new(4, 99)).await.outcome(),
        (REJECTED, 5)
    );
    let failed = hand_over(&mut client, Command::new(5, 6)).await;
    assert_eq!(
        (failed.outcome(), failed.counts()),
        ((FAILED, 117), (5, 2, 1))
    );
    assert_eq!((device.effects(), device.holding(200)), (1, 1));
}

#[tokio::test]
async fn a_commit_after_its_validity_is_late() {
    let (_simulator, device, mut client) = start(press("0ms")).await;
    let mut command = Command::new(1, 3);
    command.ticks = 600;
    assert_eq!(hand_over(&mut client, command).await.outcome(), (DONE, 0));
    (command.id, command.ticks) = (2, 1);
    write(&mut client, 300, &command.words()).await;
    let written = Instant::now();
    let past = |_: &Device| written.elapsed() > Duration::from_millis(120);
    assert!(device.wait_for(LIMIT, past).await);
    write(&mut client, 318, &[2]).await;
    assert_eq!(status(&mut client).await.outcome(), (REJECTED, 8));
    // Written before a power loss: its age is unknown, so it cannot be in time.
    (command.id, command.ticks) = (3, 600);
    write(&mut client, 300, &command.words()).await;
    device.reboot();
    device.set_holding(318, 3);
    assert!(
        device
            .wait_for(LIMIT, |device| device.holding(347) == 8
                && device.holding_u32(344) == 3)
            .await
    );
    assert_eq!(device.effects(), 1);
}

#[tokio::test]
async fn a_no_op_is_done_without_effect_even_with_open_interlocks() {
    let (_simulator, device, mut client) = start(press("0ms")).await;
    device.set_interlock(0, false);
    let mut burn = Command::new(8, 0);
    burn.version = 99;
    let status = hand_over(&mut client, burn).await;
    assert_eq!((status.outcome(), status.counts()), ((DONE, 0), (8, 8, 0)));
    device.set_interlock(0, true);
    let copy = hand_over(&mut client, Command::new(7, 3)).await;
    assert_eq!(
        copy.outcome(),
        (REJECTED, 1),
        "a copy that was held up is refused"
    );
    assert_eq!(device.effects(), 0);
}

#[tokio::test]
async fn a_command_that_takes_time_shows_it_and_a_power_loss_forgets_it() {
    let (simulator, device, mut client) = start(press("10ms")).await;
    write(&mut client, 300, &Command::new(1, 5).words()).await;
    write(&mut client, 318, &[1]).await;
    assert!(
        device
            .wait_for(LIMIT, |device| device.holding(346) == 2)
            .await,
        "executing"
    );
    assert_eq!(
        (
            device.holding_u32(344),
            device.holding_u32(348),
            device.effects()
        ),
        (1, 0, 0)
    );
    assert!(
        device
            .wait_for(LIMIT, |device| device.holding(346) == DONE)
            .await
    );
    assert_eq!(
        (
            device.holding_u32(348),
            device.holding_u32(350),
            device.effects()
        ),
        (1, 1, 1)
    );

    write(&mut client, 300, &Command::new(2, 5).words()).await;
    write(&mut client, 318, &[2]).await;
    assert!(
        device
            .wait_for(LIMIT, |device| device.holding(346) == 2)
            .await
    );
    device.reboot();
    assert!(
        !device
            .wait_for(SILENCE * 3, |device| device.effects() > 1)
            .await
    );
    let mut client = super::tests::connect(&simulator).await;
    let after = status(&mut client).await;
    assert_eq!(
        (after.pair(1), after.0[6], after.counts()),
        (2, 0, (2, 1, 1))
    );
    assert_eq!(after.ring()[..2], [(1, 0, 1), (0, 0, 0)], "2 is in no ring");
    assert_eq!(device.holding(318), 2, "the gateway's block is kept");
}

#[tokio::test]
async fn low_word_first_and_a_status_block_of_input_registers() {
    let mut spec = press("0ms");
    let program = spec.mailbox.as_mut().unwrap();
    program.word_order = Order::LowFirst;
    program.status = Place {
        area: crate::core::spec::ModbusArea::Input,
        offset: 340,
    };
    let (_simulator, device, mut client) = start(spec).await;
    let mut command = Command::new(0x0009_0000, 3);
    command.epoch = 0x0001_0000;
    write(&mut client, 300, &command.words()).await;
    write(&mut client, 318, &[9]).await;
    assert_eq!(
        (
            device.input(344),
            device.input(345),
            device.effects_of_request(9)
        ),
        (9, 0, 1)
    );
}

#[tokio::test]
async fn commit_faults_strike_the_commit_alone() {
    let (_simulator, device, mut client) = start(press("0ms")).await;
    device.set_fault(Fault::next(Matching::Commit, Act::DropReply));
    write(&mut client, 300, &Command::new(1, 3).words()).await;
    client
        .write_all(&hex("00 09 00 00 00 06 01 06 01 3E 00 01"))
        .await
        .unwrap();
    assert_eq!(
        status(&mut client).await.counts(),
        (1, 1, 1),
        "done, and nobody was told"
    );
    device.set_fault(Fault::next(Matching::Reads, Act::Corrupt));
    let torn = ask(&mut client, "00 02 00 00 00 06 01 03 01 54 00 21").await;
    let words: Vec<u16> = torn[9..]
        .chunks(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
        .collect();
    assert_ne!(crc(&words[..32]), words[32]);
    assert_eq!(status(&mut client).await.counts(), (1, 1, 1));
}
