//! Owns: a simulated PLC without a socket, for proofs: bytes of requests in, bytes of replies out.
//! May call: incoming, state, spec of this room.
//! Never: be part of a release.

use super::incoming::{self, Incoming};
use super::spec::SimulatorSpec;
use super::state::State;
use std::time::Instant;

/// Longest reply of any protocol here, doubled bytes included.
const REPLY_BYTES_MAX: usize = 16 * 1024;

/// The device and what has come to it.
pub(crate) struct Served {
    spec: SimulatorSpec,
    state: State,
    buffer: Vec<u8>,
}

impl Served {
    pub(crate) fn new(spec: SimulatorSpec) -> Self {
        Self {
            state: State::new(spec.clone()),
            spec,
            buffer: Vec::new(),
        }
    }

    /// Takes bytes, and carries out every request that is whole: the replies, one after another.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.buffer.extend_from_slice(bytes);
        let mut replies = Vec::new();
        loop {
            let before = self.buffer.len();
            match incoming::take(&mut self.buffer, &self.spec) {
                Ok(Some(request)) => {
                    assert!(self.buffer.len() < before, "a request out of nothing");
                    replies.extend(self.carry_out(&request));
                }
                Ok(None) => return replies,
                Err(_) => {
                    self.buffer.clear();
                    return replies;
                }
            }
        }
    }

    fn carry_out(&mut self, request: &Incoming) -> Vec<u8> {
        let (_, station) = request.ident();
        assert!(!request.pdu().is_empty(), "a request of nothing");
        assert!(request.on_line().is_none_or(|unit| unit == station));
        if let Some(written) = request.writes() {
            assert!(written.len() <= 16 * 1024, "{written:?} written at once");
        }
        for refusal in [request.exception(2), request.end_code(0xC050)] {
            assert!(!refusal.is_empty(), "a refusal of nothing");
        }
        let reply = request.execute(&mut self.state, 1, Instant::now());
        assert!(reply.len() <= REPLY_BYTES_MAX, "{} bytes", reply.len());
        match request.is_for_all() {
            true => Vec::new(),
            false => reply,
        }
    }

    /// Whether nothing half stands in what has come.
    pub(crate) fn is_done(&self) -> bool {
        self.buffer.is_empty()
    }
}
