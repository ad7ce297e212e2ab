//! Owns: the loopback test after a doubt, where a reply does not say which request it answers (SEND-05).
//! May call: link, exchange of this room; core link types.
//! Never: take a reply with other digits for the end of the doubt; use the same digits twice.

use super::exchange::{Ask, End};
use super::link::{Link, LinkError};
use crate::core::melsec::Frame;
use crate::core::spec::LinkSpec;

/// So many tests in a row that end without their digits, on a link that has never passed one, are taken for a
/// device that knows none.
const UNANSWERED_MAX: u32 = 3;
/// So many refusals in a row are the device's own: one alone may be a late one, to an earlier request.
const REFUSALS_MIN: u32 = 2;

/// What is known of a device's loopback test.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Loopback {
    /// It has given digits back.
    known: bool,
    /// It does not know the test, as was said in the log.
    given_up: bool,
    unanswered: u32,
}

/// Whether replies over `link` say nothing of their request, and its protocol has a test for that.
fn needs_test(link: &LinkSpec) -> bool {
    match link {
        LinkSpec::Mc(link) => link.frame == Frame::E3,
        LinkSpec::C24(_) => true,
        LinkSpec::ModbusTcp(_) | LinkSpec::ModbusRtu(_) => false,
    }
}

impl Link {
    /// After a doubt: has digits given back that no request before carried, so that whatever reply was still to
    /// come has come. `false`: the device has no such test, or none was needed.
    pub(super) async fn prove_line(&mut self) -> Result<bool, LinkError> {
        if !self.doubted || !needs_test(&self.spec) || self.loopback.given_up {
            return Ok(false);
        }
        for _ in 0..REFUSALS_MIN {
            let digits = self.fresh_digits();
            let called = self.call(&Ask::Loopback(digits)).await;
            match &called.end {
                End::Echo => {
                    self.loopback.known = true;
                    self.loopback.unanswered = 0;
                    self.doubted = false;
                    return Ok(true);
                }
                end if end.is_unknown_command() => {}
                // No command of this link, or the line is closed: nothing was asked.
                End::NotSent(_) => return Err(self.error(&called, "a loopback test")),
                _ => {
                    self.unanswered();
                    let error = self.error(&called, "a loopback test");
                    self.disconnect("no loopback");
                    return Err(error);
                }
            }
        }
        self.give_up("refuses it");
        Ok(false)
    }

    /// The clock has never stood here in this boot, nor the count over this link.
    fn fresh_digits(&self) -> Vec<u8> {
        let now = (self.clock)();
        let (wall, count) = (now.wall_us as u64, self.next_ident());
        format!("{:016X}{wall:016X}{count:04X}", now.boottime_ns).into_bytes()
    }

    fn unanswered(&mut self) {
        self.loopback.unanswered = self.loopback.unanswered.saturating_add(1);
        if !self.loopback.known && self.loopback.unanswered >= UNANSWERED_MAX {
            self.give_up("does not answer it");
        }
    }

    fn give_up(&mut self, why: &str) {
        self.loopback.given_up = true;
        log::warn!(
            "{}: after a doubt the line is proven by a read only: the device is asked for a loopback test and {why}",
            self.spec.address()
        );
    }
}
