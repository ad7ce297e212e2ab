//! Owns: what a request of MC protocol does to the device.
//! May call: state, mc, device (what a ledger holds).
//! Never: carry out a part of a request.

use super::device::Cause;
use super::mc::{self, McFrame, McRequest, OPERATING_STATE, Run, SD, Store};
use super::state::State;
use crate::core::spec::ModbusArea;
use std::time::Instant;

/// The low four bits of SD203.
pub(super) const RUN: u16 = 0;
const STOP: u16 = 2;
const PAUSE: u16 = 3;
/// Numbers of a device, and so the places of a table.
const PLACES: u32 = 65_536;

impl State {
    /// Carries out one request, and makes its reply.
    pub(super) fn execute_mc(&mut self, connection: u64, frame: &McFrame, now: Instant) -> Vec<u8> {
        let port = self.spec.mc.as_ref();
        if port.is_some_and(|port| port.unknown_commands.contains(&frame.command)) {
            return frame.error(mc::NOT_POSSIBLE);
        }
        let request = match &frame.request {
            Ok(request) => request.clone(),
            Err(code) => return frame.error(*code),
        };
        match request {
            McRequest::Read { runs, unit } => {
                let too_long = |run: &Run| !run.bits && run.count > self.spec.read_words_max();
                if runs.iter().any(too_long) {
                    return frame.error(mc::TOO_MANY);
                }
                if !runs.iter().all(|run| self.exists(run)) {
                    return frame.error(mc::OUT_OF_RANGE);
                }
                let values: Vec<_> = runs.iter().map(|run| (*run, self.values(run))).collect();
                frame.values(unit, &values)
            }
            McRequest::Write { runs } => {
                if !runs.iter().all(|(run, _)| self.exists(run)) {
                    return frame.error(mc::OUT_OF_RANGE);
                }
                let mut parts: Vec<Cause> = Vec::new();
                for (run, values) in &runs {
                    parts.extend(self.store(connection, run, values.clone()));
                }
                self.note_request_id(now, |at| runs.iter().any(|(run, _)| run.holds(at)));
                // One frame is one effect, however many places it wrote.
                match (parts.len(), parts.pop()) {
                    (1, Some(cause)) => self.effect(connection, cause, now),
                    (_, Some(last)) => {
                        parts.push(last);
                        self.effect(connection, Cause::Scattered { parts }, now);
                    }
                    (_, None) => {}
                }
                self.after_write(now);
                frame.done()
            }
            McRequest::Model => {
                let port = self.spec.mc.clone().unwrap_or_default();
                frame.model(&port.model, port.model_code)
            }
            McRequest::Remote(order) => {
                self.remote(connection, order, now);
                frame.done()
            }
            McRequest::Loopback(sent) => frame.loopback(&sent),
        }
    }

    fn exists(&self, run: &Run) -> bool {
        let inside = run.count > 0 && run.start.saturating_add(run.count) <= PLACES;
        inside
            && match run.store {
                Store::Table(area) => {
                    !self.in_hole(area, run.start as u16, run.count.min(65_535) as u16)
                }
                Store::Extra(_) => true,
            }
    }

    fn values(&self, run: &Run) -> Vec<u16> {
        let places = run.start..run.start + run.count;
        let place = |at: u32| match run.store {
            Store::Table(ModbusArea::Coil) => self.coils[at as usize].into(),
            Store::Table(ModbusArea::Discrete) => self.discretes[at as usize].into(),
            Store::Table(ModbusArea::Input) => self.inputs[at as usize],
            Store::Table(ModbusArea::Holding) => self.holdings[at as usize],
            Store::Extra(SD) if at == OPERATING_STATE => self.operating,
            Store::Extra(code) => self.extra.get(&(code, at)).copied().unwrap_or(0),
        };
        places.map(place).collect()
    }

    fn store(&mut self, connection: u64, run: &Run, values: Vec<u16>) -> Option<Cause> {
        let start = run.start as usize;
        match run.store {
            Store::Table(area) => {
                for (at, value) in values.iter().enumerate() {
                    let at = start + at;
                    match area {
                        ModbusArea::Coil => self.coils[at] = *value != 0,
                        ModbusArea::Discrete => self.discretes[at] = *value != 0,
                        ModbusArea::Input => self.inputs[at] = *value,
                        ModbusArea::Holding => self.holdings[at] = *value,
                    }
                }
                let function = if run.bits { 15 } else { 16 };
                self.landed(connection, function, area, run.start as u16, values)
            }
            Store::Extra(code) => {
                for (at, value) in (run.start..).zip(&values) {
                    self.extra.insert((code, at), *value);
                }
                let (start, words) = (run.start, values);
                Some(Cause::Device { code, start, words })
            }
        }
    }

    /// A real CPU takes RUN while its switch is on STOP, and does not run.
    fn remote(&mut self, connection: u64, order: u16, now: Instant) {
        let switch_stop = self.spec.mc.as_ref().is_some_and(|port| port.switch_stop);
        let wanted = match order {
            0x1001 => RUN,
            0x1002 => STOP,
            _ => PAUSE,
        };
        if !switch_stop || wanted == STOP {
            self.operating = wanted;
            self.effect(connection, Cause::Remote { order }, now);
        }
    }
}
