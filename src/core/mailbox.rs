//! Owns: the mailbox's two blocks as words, and what they prove about one request id.
//! May call: contract, spec.
//! Never: conclude more than the device's record says.
//!
//! 32-bit values take two words, in the configured order. Both CRCs are CRC-16/MODBUS over the words
//! before them, each word high byte first.

use super::contract::{DeviceCode, MailboxBlocks, MailboxEcho, MailboxRequest};
use super::spec::WordOrder;

/// Words of the gateway's block.
pub const COMMAND_WORDS: usize = 19;
/// Words of the PLC's block.
pub const STATUS_WORDS: usize = 33;
/// Most parameter words of one command.
pub const PARAMETER_WORDS_MAX: usize = 8;
/// Entries in the PLC's ring.
pub const RING_ENTRIES: usize = 4;
/// The only layout there is.
pub const LAYOUT_VERSION: u16 = 1;
/// Place of the CRC in the gateway's block; the words before it are covered.
pub const COMMAND_CRC_WORD: usize = 17;
/// Place of the commit word in the gateway's block. It is written alone, last.
pub const COMMIT_WORD: usize = 18;
/// Largest result by which the PLC refuses before any effect; above are the machine's own.
pub const REFUSAL_RESULT_MAX: u16 = 99;

const STATUS_CRC_WORD: usize = 32;
const RING_WORD: usize = 16;
const RING_ENTRY_WORDS: usize = 4;

/// What the PLC is doing with the last id it looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing yet.
    Idle,
    /// Taken, not begun.
    Accepted,
    /// Under way.
    Executing,
    /// Ended well.
    Done,
    /// Refused before any effect.
    Rejected,
    /// Ended with the machine's own failure.
    Failed,
}

impl State {
    fn from_word(word: u16) -> Option<Self> {
        Some(match word {
            0 => Self::Idle,
            1 => Self::Accepted,
            2 => Self::Executing,
            3 => Self::Done,
            4 => Self::Rejected,
            5 => Self::Failed,
            _ => return None,
        })
    }
    /// Whether an accepted command has not ended.
    #[must_use]
    pub fn is_busy(self) -> bool {
        matches!(self, Self::Accepted | Self::Executing)
    }
}

/// The PLC's block, its CRC and layout checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// +1 at every start of the PLC.
    pub boot_counter: u32,
    /// Changes while the PLC runs.
    pub heartbeat: u16,
    /// The last id that was taken.
    pub last_accepted: u32,
    /// See [`State`].
    pub state: State,
    /// 0 ok, 1 to 99 refused, 100 and up the machine's own.
    pub result: u16,
    /// The last id that ended.
    pub last_done: u32,
    /// Count of effects.
    pub effect_counter: u32,
    /// The device's configuration version.
    pub config_version: u16,
    /// The PLC's mode.
    pub mode: u16,
    /// Bit 0: all closed.
    pub interlocks: u16,
    /// 1: good.
    pub quality: u16,
    /// The entries that hold an id, in their places' order.
    pub ring: Vec<MailboxEcho>,
}

/// Why a block's words cannot be believed; they are read again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("mailbox block: {0}")]
pub struct Corrupt(pub String);

/// What both blocks prove about one request id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The record is final, with its result (a refusal among them, see [`refusal`]).
    Done(MailboxEcho),
    /// Taken, no final record: look again.
    Pending,
    /// Taken, no final record, and the boot is another: a restart ends what was under way, and nobody will report
    /// it. Whether it had its effect is not known.
    CutOff,
    /// No trace of the id, in the same boot: not taken *so far*. The commit may still be under way.
    NotTaken,
    /// No trace of the id, and the boot is another, or it is not known in which one it was sent.
    Rebooted,
    /// Later ids have pushed out whatever the ring may have held of this one: nothing is proven.
    Forgotten,
    /// Read again.
    Corrupt(String),
}

/// CRC-16/MODBUS over `words`, each high byte first.
#[must_use]
pub fn crc16(words: &[u16]) -> u16 {
    words
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .fold(0xFFFF, |crc, byte| {
            (0..8).fold(crc ^ u16::from(byte), |crc, _| {
                if crc & 1 == 1 {
                    (crc >> 1) ^ 0xA001
                } else {
                    crc >> 1
                }
            })
        })
}

/// Two words of a 32-bit value, in the order of their registers.
#[must_use]
pub fn split_u32(value: u32, order: WordOrder) -> [u16; 2] {
    let (high, low) = ((value >> 16) as u16, value as u16);
    match order {
        WordOrder::HighFirst => [high, low],
        WordOrder::LowFirst => [low, high],
    }
}

fn join_u32(first: u16, second: u16, order: WordOrder) -> u32 {
    let (high, low) = match order {
        WordOrder::HighFirst => (first, second),
        WordOrder::LowFirst => (second, first),
    };
    u32::from(high) << 16 | u32::from(low)
}

/// The gateway's block for `request`. Words 0 to 17 are written and read back first; then
/// [`COMMIT_WORD`] alone.
///
/// A request of more than [`PARAMETER_WORDS_MAX`] parameters does not fit: its count is stated as it is
/// and the PLC refuses it by layout. Configuration and adapter let none come so far.
#[must_use]
pub fn encode_command(request: &MailboxRequest, order: WordOrder) -> [u16; COMMAND_WORDS] {
    let mut words = [0; COMMAND_WORDS];
    words[0] = LAYOUT_VERSION;
    words[1..3].copy_from_slice(&split_u32(request.session_epoch, order));
    words[3] = request.opcode;
    words[4..6].copy_from_slice(&split_u32(request.request_id, order));
    words[6] = u16::try_from(request.parameters.len()).unwrap_or(u16::MAX);
    for (word, parameter) in words[7..15].iter_mut().zip(&request.parameters) {
        *word = *parameter;
    }
    words[15] = request.expected_config_version;
    words[16] = request.validity_ticks;
    words[COMMAND_CRC_WORD] = crc16(&words[..COMMAND_CRC_WORD]);
    words[COMMIT_WORD] = request.request_id as u16;
    words
}

/// Reads the PLC's block.
///
/// # Errors
/// [`Corrupt`]: length, layout, CRC or state are not as the layout says.
pub fn decode_status(words: &[u16], order: WordOrder) -> Result<Status, Corrupt> {
    let words: &[u16; STATUS_WORDS] = words
        .try_into()
        .map_err(|_| Corrupt(format!("{} words, expected {STATUS_WORDS}", words.len())))?;
    let computed = crc16(&words[..STATUS_CRC_WORD]);
    if computed != words[STATUS_CRC_WORD] {
        return Err(Corrupt(format!(
            "CRC {:#06x}, computed {computed:#06x}",
            words[STATUS_CRC_WORD]
        )));
    }
    if words[0] != LAYOUT_VERSION {
        return Err(Corrupt(format!(
            "layout version {}, expected {LAYOUT_VERSION}",
            words[0]
        )));
    }
    let state = State::from_word(words[6])
        .ok_or_else(|| Corrupt(format!("state {}, expected 0 to 5", words[6])))?;
    let long = |at: usize| join_u32(words[at], words[at + 1], order);
    let entry = |at: usize| MailboxEcho {
        request_id: long(at),
        result: words[at + 2],
        effect_counter: words[at + 3],
    };
    Ok(Status {
        boot_counter: long(1),
        heartbeat: words[3],
        last_accepted: long(4),
        state,
        result: words[7],
        last_done: long(8),
        effect_counter: long(10),
        config_version: words[12],
        mode: words[13],
        interlocks: words[14],
        quality: words[15],
        ring: (0..RING_ENTRIES)
            .map(|n| entry(RING_WORD + n * RING_ENTRY_WORDS))
            .filter(|echo| echo.request_id != 0)
            .collect(),
    })
}

impl Status {
    /// The final record of `id`, if this block holds one.
    #[must_use]
    pub fn record_of(&self, id: u32) -> Option<MailboxEcho> {
        let by_fields = (self.last_accepted == id
            && self.last_done == id
            && matches!(self.state, State::Done | State::Failed))
        .then_some(MailboxEcho {
            request_id: id,
            result: self.result,
            effect_counter: self.effect_counter as u16,
        });
        self.ring
            .iter()
            .find(|echo| echo.request_id == id)
            .copied()
            .or(by_fields)
    }

    fn may_have_forgotten(&self, id: u32) -> bool {
        let pushed_out = self.ring.len() == RING_ENTRIES
            && self.ring.iter().all(|echo| id_after(echo.request_id, id));
        pushed_out || self.last_done == id
    }
}

/// Whether the word at [`COMMIT_WORD`] and the block before it are those of `id`.
#[must_use]
pub fn is_committed(command: &[u16], order: WordOrder, id: u32) -> bool {
    command.len() == COMMAND_WORDS
        && command[COMMAND_CRC_WORD] == crc16(&command[..COMMAND_CRC_WORD])
        && join_u32(command[4], command[5], order) == id
        && command[COMMIT_WORD] == id as u16
}

/// What `blocks` prove about `request_id`, which was committed when the boot counter was
/// `boot_at_send`.
///
/// State 4 (rejected) carries no id: it may be the answer to an earlier commit while this one has not
/// been looked at, so a refusal is believed only from the ring.
#[must_use]
pub fn judge(
    blocks: &MailboxBlocks,
    order: WordOrder,
    request_id: u32,
    boot_at_send: Option<u32>,
) -> Verdict {
    let status = match decode_status(&blocks.status, order) {
        Ok(status) => status,
        Err(corrupt) => return Verdict::Corrupt(corrupt.to_string()),
    };
    if let Some(echo) = status.record_of(request_id) {
        Verdict::Done(echo)
    } else if status.last_accepted == request_id {
        if status.state.is_busy() || boot_at_send == Some(status.boot_counter) {
            Verdict::Pending
        } else {
            Verdict::CutOff
        }
    } else if boot_at_send != Some(status.boot_counter) {
        Verdict::Rebooted
    } else if status.may_have_forgotten(request_id) {
        Verdict::Forgotten
    } else {
        Verdict::NotTaken
    }
}

/// The refusal that `result` stands for: 1 to 99, before any effect. `None`: 0 (ok) or the machine's own.
#[must_use]
pub fn refusal(result: u16) -> Option<DeviceCode> {
    let meaning = match result {
        1 => "sequence: the id is not above the last accepted one",
        2 => "CRC of the command block",
        3 => "configuration version is not the expected one",
        4 => "interlock open",
        5 => "unknown opcode",
        6 => "layout of the command block",
        7 => "session epoch",
        8 => "late: validity over",
        9..=REFUSAL_RESULT_MAX => "refused before any effect",
        _ => return None,
    };
    Some(DeviceCode {
        family: "mailbox".into(),
        code: result.into(),
        meaning: meaning.into(),
    })
}

/// What a result other than 0 says: a refusal before any effect, or the machine's own failure.
#[must_use]
pub fn code(result: u16) -> DeviceCode {
    refusal(result).unwrap_or_else(|| DeviceCode {
        family: "mailbox".into(),
        code: result.into(),
        meaning: "the machine's own failure code".into(),
    })
}

/// The request id and the session epoch that stand in the gateway's block; 0 where it is too short.
#[must_use]
pub fn command_ids(command: &[u16], order: WordOrder) -> (u32, u32) {
    let pair = |at: usize| match command.get(at..at + 2) {
        Some(words) => join_u32(words[0], words[1], order),
        None => 0,
    };
    (pair(4), pair(1))
}

/// Serial number arithmetic (RFC 1982): whether `a` comes after `b`.
#[must_use]
pub fn id_after(a: u32, b: u32) -> bool {
    let distance = a.wrapping_sub(b);
    distance != 0 && distance < 1 << 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HIGH: WordOrder = WordOrder::HighFirst;

    fn request(id: u32) -> MailboxRequest {
        MailboxRequest {
            session_epoch: 0x0001_0002,
            opcode: 3,
            request_id: id,
            parameters: vec![7, 8],
            expected_config_version: 0xFFFF,
            validity_ticks: 50,
        }
    }

    struct Plc {
        boot: u32,
        accepted: u32,
        state: u16,
        result: u16,
        done: u32,
        ring: Vec<(u32, u16, u16)>,
    }

    const QUIET: Plc = Plc {
        boot: 9,
        accepted: 41,
        state: 3,
        result: 0,
        done: 41,
        ring: Vec::new(),
    };

    fn status(plc: &Plc, order: WordOrder) -> Vec<u16> {
        let mut words = vec![0; STATUS_WORDS];
        words[0] = 1;
        words[1..3].copy_from_slice(&split_u32(plc.boot, order));
        words[4..6].copy_from_slice(&split_u32(plc.accepted, order));
        words[6] = plc.state;
        words[7] = plc.result;
        words[8..10].copy_from_slice(&split_u32(plc.done, order));
        words[10..12].copy_from_slice(&split_u32(0x0001_0011, order));
        words[15] = 1;
        for (n, (id, result, counter)) in plc.ring.iter().enumerate() {
            let at = RING_WORD + n * RING_ENTRY_WORDS;
            words[at..at + 2].copy_from_slice(&split_u32(*id, order));
            words[at + 2] = *result;
            words[at + 3] = *counter;
        }
        words[STATUS_CRC_WORD] = crc16(&words[..STATUS_CRC_WORD]);
        words
    }

    fn verdict(plc: &Plc, id: u32, boot: Option<u32>) -> Verdict {
        let blocks = MailboxBlocks {
            command: encode_command(&request(id), HIGH).to_vec(),
            status: status(plc, HIGH),
        };
        judge(&blocks, HIGH, id, boot)
    }

    fn echo(request_id: u32, result: u16, effect_counter: u16) -> MailboxEcho {
        MailboxEcho {
            request_id,
            result,
            effect_counter,
        }
    }

    #[test]
    fn the_crc_is_that_of_a_known_frame() {
        // On a serial line: 01 03 00 00 00 0A, then C5 CD, low byte first.
        assert_eq!(crc16(&[0x0103, 0x0000, 0x000A]), 0xCDC5);
    }

    #[test]
    fn the_command_block_stands_as_laid_out() {
        let words = encode_command(&request(0x0005_0006), HIGH);
        assert_eq!(words[..9], [1, 1, 2, 3, 5, 6, 2, 7, 8]);
        assert_eq!(words[9..17], [0, 0, 0, 0, 0, 0, 0xFFFF, 50]);
        assert_eq!(words[17], crc16(&words[..17]));
        assert_eq!(words[18], 6);
        let turned = encode_command(&request(0x0005_0006), WordOrder::LowFirst);
        assert_eq!(turned[1..6], [2, 1, 3, 6, 5]);
        assert!(is_committed(&words, HIGH, 0x0005_0006));
        assert!(!is_committed(&words, HIGH, 0x0004_0006));
    }

    // covers: VER-03
    #[test]
    fn only_a_record_that_names_the_id_is_final() {
        let ring = vec![(40, 0, 16), (42, 0, 17), (43, 104, 17), (44, 4, 17)];
        let plc = Plc { ring, ..QUIET };
        assert_eq!(verdict(&plc, 42, Some(9)), Verdict::Done(echo(42, 0, 17)));
        assert_eq!(verdict(&plc, 43, None), Verdict::Done(echo(43, 104, 17)));
        assert_eq!(verdict(&plc, 44, Some(9)), Verdict::Done(echo(44, 4, 17)));
        let by_fields = Plc {
            accepted: 42,
            done: 42,
            state: 5,
            result: 101,
            ..QUIET
        };
        assert_eq!(
            verdict(&by_fields, 42, Some(9)),
            Verdict::Done(echo(42, 101, 0x11))
        );
    }

    // covers: VER-03
    #[test]
    fn a_taken_id_without_a_final_record_is_pending() {
        for state in [0, 1, 2, 4] {
            let plc = Plc {
                accepted: 42,
                state,
                ..QUIET
            };
            assert_eq!(
                verdict(&plc, 42, Some(9)),
                Verdict::Pending,
                "state {state}"
            );
        }
    }

    // covers: VER-03
    #[test]
    fn what_was_taken_before_a_restart_is_pending_only_while_the_plc_says_that_it_is_busy() {
        for (state, expected) in [
            (0, Verdict::CutOff),
            (1, Verdict::Pending),
            (2, Verdict::Pending),
            (3, Verdict::CutOff),
            (4, Verdict::CutOff),
        ] {
            let plc = Plc {
                accepted: 42,
                state,
                ..QUIET
            };
            for boot in [Some(8), None] {
                assert_eq!(verdict(&plc, 42, boot), expected, "state {state}");
            }
        }
    }

    // covers: VER-03
    #[test]
    fn an_absent_id_is_not_taken_only_within_the_boot_it_was_sent_in() {
        assert_eq!(verdict(&QUIET, 42, Some(9)), Verdict::NotTaken);
        assert_eq!(verdict(&QUIET, 42, Some(8)), Verdict::Rebooted);
        assert_eq!(verdict(&QUIET, 42, None), Verdict::Rebooted);
    }

    // covers: VER-03
    #[test]
    fn a_rejection_without_an_id_is_not_taken_for_ours() {
        let plc = Plc {
            state: 4,
            result: 4,
            ..QUIET
        };
        assert_eq!(verdict(&plc, 42, Some(9)), Verdict::NotTaken);
    }

    // covers: VER-03
    #[test]
    fn an_id_that_may_have_left_the_ring_proves_nothing() {
        let ring = vec![(43, 0, 1), (44, 0, 2), (45, 0, 3), (46, 0, 4)];
        let plc = Plc {
            accepted: 46,
            done: 46,
            ring,
            ..QUIET
        };
        assert_eq!(verdict(&plc, 42, Some(9)), Verdict::Forgotten);
        let burnt = Plc {
            ring: vec![(40, 0, 1), (41, 0, 2), (43, 0, 3)],
            accepted: 43,
            done: 43,
            ..QUIET
        };
        assert_eq!(verdict(&burnt, 42, Some(9)), Verdict::NotTaken);
    }

    #[test]
    fn results_are_refusals_from_1_to_99_only() {
        assert_eq!(refusal(0), None);
        assert_eq!(refusal(100), None);
        for result in 1..=99 {
            assert_eq!(refusal(result).unwrap().code, u32::from(result));
        }
        assert!(refusal(4).unwrap().meaning.contains("interlock"));
    }

    #[test]
    fn ids_are_compared_over_the_wrap() {
        assert!(id_after(1, 0) && !id_after(0, 1) && !id_after(5, 5));
        assert!(id_after(2, u32::MAX) && !id_after(u32::MAX, 2));
    }

    proptest! {
        // covers: VER-03
        #[test]
        fn any_single_changed_word_is_seen(
            boot: u32, accepted: u32, done: u32, state in 0u16..6, low_first: bool,
            place in 0usize..STATUS_WORDS, flip in 1u16..,
        ) {
            let order = if low_first { WordOrder::LowFirst } else { HIGH };
            let plc = Plc { boot, accepted, state, done, ring: vec![(7, 8, 9)], ..QUIET };
            let mut words = status(&plc, order);
            let read = decode_status(&words, order).unwrap();
            prop_assert_eq!((read.boot_counter, read.last_accepted, read.last_done), (boot, accepted, done));
            prop_assert_eq!(read.ring, vec![echo(7, 8, 9)]);
            prop_assert_eq!(read.effect_counter, 0x0001_0011);
            words[place] ^= flip;
            prop_assert!(decode_status(&words, order).is_err());
        }

        #[test]
        fn any_words_are_judged_without_a_panic(command: Vec<u16>, status: Vec<u16>, id: u32) {
            let blocks = MailboxBlocks { command, status };
            let _ = judge(&blocks, HIGH, id, None);
            let _ = is_committed(&blocks.command, HIGH, id);
        }
    }
}
