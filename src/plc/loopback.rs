//! Owns: the loopback test after a doubt, where a reply does not say which request it answers (SEND-05).
//! May call: link, exchange of this room; core link types.
//! Never: take a reply with other digits for the end of the doubt; use the same digits twice.

use super::exchange::{Ask, Called, End};
use super::link::{Link, LinkError};
use crate::core::c24::C24Frame;
use crate::core::melsec::Frame;
use crate::core::spec::LinkSpec;

/// So many old replies in a row in place of the digits, from a device that has never given any back, are its own
/// way to answer the test.
const OLD_REPLIES_MAX: u32 = 3;
/// So many refusals in a row are the device's own: one alone may be a late one, to an earlier request.
const REFUSALS_MIN: u32 = 2;
/// So often in a row a device must be silent to the test that answered a read just before.
const DEAF_MIN: u32 = 2;
/// After so many tests in a row without an answer another device may be there than the one that knew the test.
const KNOWN_SILENT_MAX: u32 = 10;

/// What is known of a device's loopback test.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Loopback {
    /// It has given digits back.
    known: bool,
    /// It does not know the test, as was said in the log.
    given_up: bool,
    /// Tests in a row that nobody answered.
    silent: u32,
    /// Tests in a row that an old reply ended.
    old: u32,
    /// Only a read shows whether the device is silent to the test or to everything.
    look: bool,
    /// It answered a read, and nothing was asked since.
    alive: bool,
    /// How often in a row it was silent to the test while it was alive.
    deaf: u32,
    /// The last try to connect ended at a test.
    at_test: bool,
}

/// Whether replies over `link` say which request they answer.
pub(super) fn has_identity(link: &LinkSpec) -> bool {
    match link {
        LinkSpec::ModbusTcp(_) => true,
        LinkSpec::Mc(link) => link.frame == Frame::E4,
        LinkSpec::ModbusRtu(_) | LinkSpec::C24(_) => false,
    }
}

/// Whether they do not, and the protocol has a test for that.
fn needs_test(link: &LinkSpec) -> bool {
    !has_identity(link) && !matches!(link, LinkSpec::ModbusRtu(_))
}

/// Whether `end` says that the device does not know the test: in 1C any refusal may.
fn is_unknown(link: &LinkSpec, end: &End) -> bool {
    let one_c = matches!(link, LinkSpec::C24(link) if link.frame == C24Frame::C1);
    end.is_unknown_command() || (one_c && matches!(end, End::Code(_)))
}

impl Link {
    /// After a doubt: has digits given back that no request before carried, so that whatever reply was still to
    /// come has come. `false`: the device has no such test, or none was needed, or it is not its turn.
    pub(super) async fn prove_line(&mut self) -> Result<bool, LinkError> {
        let off = !self.doubted || !needs_test(&self.spec) || self.loopback.given_up;
        if off || (self.loopback.look && !self.loopback.alive) {
            return Ok(false);
        }
        let mut unknown = 0;
        for _ in 0..REFUSALS_MIN {
            let digits = self.fresh_digits();
            let called = self.call(&Ask::Loopback(digits)).await;
            match &called.end {
                End::Echo => {
                    self.loopback = Loopback {
                        known: true,
                        ..Loopback::default()
                    };
                    self.doubted = false;
                    return Ok(true);
                }
                end if is_unknown(&self.spec, end) => unknown += 1,
                // Of another refusal the read says more.
                end if end.is_judged() => {}
                // No command of this link, or the line is closed: nothing was asked.
                End::NotSent(_) => return Err(self.error(&called, "a loopback test")),
                _ => return Err(self.failed(&called)),
            }
        }
        if unknown == REFUSALS_MIN {
            self.give_up("refuses it");
        }
        Ok(false)
    }

    /// After the read that proves a connection was answered, or was not: with a test, if that read was only to
    /// show that somebody is there.
    pub(super) async fn prove_after_read(&mut self, answered: bool) -> Result<bool, LinkError> {
        let looked = std::mem::take(&mut self.loopback.look);
        self.loopback.at_test = false;
        self.loopback.alive = answered;
        if !answered {
            self.loopback.deaf = 0;
        }
        match looked && answered {
            true => self.prove_line().await,
            false => Ok(false),
        }
    }

    /// Whether the last try to connect ended with a loopback test, so that the next one may yet show that the
    /// device answers other requests.
    #[must_use]
    pub fn may_yet_answer(&self) -> bool {
        self.loopback.at_test
    }

    /// The clock has never stood here in this boot, nor the count over this link.
    fn fresh_digits(&self) -> Vec<u8> {
        let now = (self.clock)();
        let (wall, count) = (now.wall_us as u64, self.next_ident());
        format!("{:016X}{wall:016X}{count:04X}", now.boottime_ns).into_bytes()
    }

    /// A test that ended the connection.
    fn failed(&mut self, called: &Called) -> LinkError {
        let error = self.error(called, "a loopback test");
        self.disconnect("no loopback");
        let state = &mut self.loopback;
        state.at_test = true;
        let alive = std::mem::take(&mut state.alive);
        if called.other {
            state.old = state.old.saturating_add(1);
            if !state.known && state.old >= OLD_REPLIES_MAX {
                self.give_up("answers it with something else");
            }
            return LinkError::NoReply(format!(
                "an old reply came in place of the loopback test's: {error}"
            ));
        }
        state.silent = state.silent.saturating_add(1);
        state.known &= state.silent < KNOWN_SILENT_MAX;
        state.look = !state.known;
        if alive {
            state.deaf = state.deaf.saturating_add(1);
            if state.deaf >= DEAF_MIN {
                self.give_up("answers reads and not this");
            }
        }
        error
    }

    fn give_up(&mut self, why: &str) {
        self.loopback.given_up = true;
        self.loopback.look = false;
        log::warn!(
            "{}: after a doubt the line is proven by a read only: the device is asked for a loopback test and {why}",
            self.spec.address()
        );
    }
}
