//! Owns: one machine's task as the shell runs it: link, errands, polls, and what the network does to frames.
//! May call: the device, core's contract, the real refusal of an order that comes too late.
//! Never: send at or after a deadline; look into the device's ledgers.

use super::chance::{Chance, Kind};
use super::device::{Device, Frame, RING_SLOTS};
use super::plant::IDENTITY;
use holdfast::core::contract::{
    DeviceCode, Exchange, GateReading, Job, MailboxEcho, MailboxRequest, Outcome, Probe,
    ProbeAnswer, Reply, RingReading,
};
use holdfast::core::gateway::{Effect, Input, LinkChange};
use holdfast::core::ids::ConnectionNo;
use holdfast::core::mailbox;
use holdfast::core::spec::{Quality, Value};
use holdfast::core::time::{Now, Stamp, Validity};
use holdfast::service::errand::Errand;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Bytes of every request here.
const REQUEST_BYTES: u32 = 12;

/// The link to one machine, and the machine.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) device: Device,
    pub(crate) mailbox: bool,
    pub(crate) connected: bool,
    /// How many connections there were; the last one's number.
    pub(crate) connections: u64,
    /// Whether the configured device answers; not known before the gate was read.
    identified: bool,
    pub(crate) errands: VecDeque<Effect>,
    /// Frames that were handed over and are still on their way; a crash does not call them back.
    pub(crate) held_up: Vec<Frame>,
    observed: HashMap<&'static str, i128>,
    counted_at: Option<Stamp>,
    /// Exchanges whose answer comes after it was given up.
    late: Vec<Input>,
    pub(crate) reached: BTreeMap<&'static str, u64>,
}

/// What serving one errand came to.
#[derive(Default)]
pub(crate) struct Served {
    pub(crate) input: Option<Input>,
    /// After doubt the connection is dropped before anything else is sent.
    pub(crate) doubt: bool,
    /// Its first bytes left now.
    pub(crate) sent: bool,
}

impl Line {
    pub(crate) fn new(name: &'static str, mailbox: bool) -> Self {
        Self {
            name,
            device: Device::new(),
            mailbox,
            connected: false,
            connections: 0,
            identified: false,
            errands: VecDeque::new(),
            held_up: Vec::new(),
            observed: HashMap::new(),
            counted_at: None,
            late: Vec::new(),
            reached: BTreeMap::new(),
        }
    }

    fn reach(&mut self, branch: &'static str) {
        *self.reached.entry(branch).or_default() += 1;
    }

    pub(crate) fn connect(&mut self) -> Vec<Input> {
        self.connected = true;
        self.connections += 1;
        let up = LinkChange::Up(ConnectionNo(self.connections));
        let change = |change| Input::Link {
            machine: self.name.into(),
            change,
        };
        vec![change(LinkChange::Connecting), change(up)]
    }

    pub(crate) fn disconnect(&mut self) -> Vec<Input> {
        self.forget();
        let machine = self.name.to_owned();
        let reason = "lost".to_owned();
        let mut inputs = vec![Input::Link {
            machine,
            change: LinkChange::Down { reason },
        }];
        while let Some(effect) = self.errands.pop_front() {
            inputs.extend(self.refuse(effect));
        }
        inputs
    }

    /// The gateway's side of it is gone.
    pub(crate) fn forget(&mut self) {
        self.connected = false;
        self.identified = false;
        self.observed.clear();
        self.counted_at = None;
    }

    /// It was not done, and no byte was sent for it.
    fn refuse(&self, effect: Effect) -> Option<Input> {
        let machine = self.name.to_owned();
        let why = "not connected".to_owned();
        let not_sent = || {
            exchange(
                Outcome::NotSent {
                    why: "not connected".into(),
                },
                0,
            )
        };
        Some(match effect {
            Effect::Run {
                operation, attempt, ..
            } => Input::Exchanged {
                machine,
                operation,
                attempt,
                exchange: not_sent(),
            },
            Effect::ReadGate { .. } => Input::Gate {
                machine,
                reading: Err(why),
            },
            Effect::Probe { operation, .. } => Input::Probed {
                machine,
                operation,
                answer: ProbeAnswer::Failed(why),
            },
            Effect::Burn { .. } => Input::Burned {
                machine,
                exchange: not_sent(),
            },
            Effect::ReadRing { event_type, .. } => Input::RingRead {
                machine,
                event_type,
                reading: Err(why),
            },
            Effect::Answer { .. } | Effect::Acknowledge { .. } => return None,
        })
    }

    /// As the machine's task says.
    fn is_barred(&self, effect: &Effect) -> bool {
        let errand = Errand::of(effect.clone());
        let stands = ConnectionNo(self.connections);
        let identified = Some(self.identified);
        errand.is_some_and(|(_, errand)| errand.barred(stands, identified).is_some())
    }

    /// Does one errand.
    pub(crate) fn serve(&mut self, chance: &mut Chance, now: &Now) -> Served {
        let Some(effect) = self.errands.pop_front() else {
            return Served::default();
        };
        let passes = !self.is_barred(&effect);
        if self.connected && !passes {
            self.reach(match self.identified {
                true => "decided for an earlier connection, and this one's gate was read",
                false => "decided for an earlier connection",
            });
        }
        if !self.connected || !passes {
            let input = self.refuse(effect);
            return Served {
                input,
                ..Served::default()
            };
        }
        let machine = self.name.to_owned();
        let input = match &effect {
            Effect::ReadGate { .. } => self.read_gate(chance, now),
            Effect::Probe {
                operation, probe, ..
            } => {
                let answer = self.probe(probe, chance);
                Input::Probed {
                    machine,
                    operation: operation.clone(),
                    answer,
                }
            }
            Effect::ReadRing {
                event_type,
                first,
                count,
                ..
            } => {
                let reading = self.read_ring(*first, *count, chance, now);
                Input::RingRead {
                    machine,
                    event_type: event_type.clone(),
                    reading,
                }
            }
            Effect::Acknowledge { item, .. } => {
                if self.identified && !self.device.other && !chance.strikes(Kind::AckLost) {
                    self.device.acknowledge(*item);
                }
                return Served::default();
            }
            Effect::Run {
                operation, attempt, ..
            } => {
                let exchange = self.exchange(&effect, chance, now);
                let (sent, doubt) = (exchange.bytes_sent > 0, is_doubt(&exchange));
                if doubt && matches!(exchange.outcome, Outcome::SentNoReply { .. }) {
                    self.answer_late(&effect, chance);
                }
                let (operation, attempt) = (operation.clone(), *attempt);
                let input = Some(Input::Exchanged {
                    machine,
                    operation,
                    attempt,
                    exchange,
                });
                return Served { input, doubt, sent };
            }
            Effect::Burn { .. } => {
                let exchange = self.exchange(&effect, chance, now);
                let (sent, doubt) = (exchange.bytes_sent > 0, is_doubt(&exchange));
                let input = Some(Input::Burned { machine, exchange });
                return Served { input, doubt, sent };
            }
            Effect::Answer { .. } => return Served::default(),
        };
        Served {
            input: Some(input),
            ..Served::default()
        }
    }

    /// A matching reply that came when the outcome was called unknown already.
    pub(crate) fn late_answer(&mut self) -> Option<Input> {
        let late = self.late.pop();
        if late.is_some() {
            self.reach("late reply heard");
        }
        late
    }

    fn answer_late(&mut self, effect: &Effect, chance: &mut Chance) {
        let Effect::Run {
            operation, attempt, ..
        } = effect
        else {
            return;
        };
        // Only what the device took is answered.
        let taken = match self.frame(effect) {
            Some(Frame::Set { .. }) => self.device.by_operation.contains_key(operation),
            _ => false,
        };
        if taken && chance.strikes(Kind::LateReply) {
            self.late.push(Input::Exchanged {
                machine: self.name.into(),
                operation: operation.clone(),
                attempt: *attempt,
                exchange: exchange(Outcome::DeviceReplied(Reply::WriteEcho), REQUEST_BYTES),
            });
        }
    }

    pub(crate) fn read_gate(&mut self, chance: &mut Chance, now: &Now) -> Input {
        let machine = self.name.to_owned();
        if !self.connected || chance.strikes(Kind::GateFails) {
            return Input::Gate {
                machine,
                reading: Err("timeout".into()),
            };
        }
        let device = &self.device;
        let reading = GateReading {
            at: *now,
            identity: Some(Value::Int(if device.other { 1 } else { IDENTITY })),
            config_version: Some(i64::from(device.version)),
            mode: None,
            interlocks: vec![("door closed".into(), Value::Bool(device.door))],
            quality: Quality::Good,
            mailbox: self.mailbox.then(|| device.blocks()),
        };
        self.identified = !device.other;
        if device.other {
            self.reach("another device at the gate");
        }
        Input::Gate {
            machine,
            reading: Ok(reading),
        }
    }

    fn probe(&mut self, probe: &Probe, chance: &mut Chance) -> ProbeAnswer {
        if chance.strikes(Kind::ProbeFails) || self.device.other {
            return ProbeAnswer::Failed("timeout".into());
        }
        match probe {
            Probe::Mailbox => {
                let mut blocks = self.device.blocks();
                if chance.strikes(Kind::BlockCorrupt) {
                    let word = chance.below("net", blocks.status.len() as u64) as usize;
                    blocks.status[word] ^= 1 << chance.below("net", 16);
                }
                ProbeAnswer::Mailbox(blocks)
            }
            Probe::Readback { points } => {
                let value = Value::Int(i128::from(self.device.speed));
                ProbeAnswer::Values(
                    points
                        .iter()
                        .map(|(name, _)| (name.clone(), value.clone()))
                        .collect(),
                )
            }
            Probe::Done(_) => ProbeAnswer::Failed("no such register".into()),
        }
    }

    fn read_ring(
        &mut self,
        first: u32,
        count: u16,
        chance: &mut Chance,
        now: &Now,
    ) -> Result<RingReading, String> {
        if chance.strikes(Kind::RingFails) || self.device.other {
            return Err("timeout".into());
        }
        let entries = (0..u32::from(count))
            .map(|n| self.device.entry(first + n))
            .collect();
        if chance.strikes(Kind::RingMoves) {
            let more = 1 + chance.below("device", u64::from(RING_SLOTS) + 4);
            self.device.work(0, more, false);
        }
        Ok(RingReading {
            at: *now,
            first,
            entries,
            head: self.device.head,
        })
    }

    /// Looks at every source.
    pub(crate) fn poll(&mut self, chance: &mut Chance, now: &Now) -> Vec<Input> {
        let mut inputs = Vec::new();
        if !self.connected || !self.identified || self.device.other {
            return inputs;
        }
        let machine = || self.name.to_owned();
        for (event_type, value) in [
            ("speed.changed", i128::from(self.device.speed)),
            ("piece.good", i128::from(self.device.count())),
        ] {
            if chance.strikes(Kind::ReadFails) {
                continue;
            }
            let counter = event_type == "piece.good";
            let since = if counter {
                self.counted_at.replace(*now)
            } else {
                None
            };
            if self.observed.insert(event_type, value) == Some(value) {
                continue;
            }
            inputs.push(Input::Observed {
                machine: machine(),
                event_type: event_type.into(),
                value: Some(Value::Int(value)),
                quality: Quality::Good,
                reason: None,
                at: *now,
                since,
            });
        }
        let seen = self.device.presented();
        if (seen.ready || seen.ack) && !chance.strikes(Kind::ReadFails) {
            inputs.push(Input::Presented {
                machine: machine(),
                event_type: "unit.done".into(),
                seen,
                at: *now,
            });
        }
        if !chance.strikes(Kind::ReadFails) {
            let head = self.device.head;
            inputs.push(Input::RingHead {
                machine: machine(),
                event_type: "log.entry".into(),
                head,
                at: *now,
            });
        }
        inputs
    }

    fn frame(&self, effect: &Effect) -> Option<Frame> {
        match effect {
            Effect::Run {
                job: Job::Mailbox(request),
                ..
            }
            | Effect::Burn { request, .. } => Some(Frame::Commit {
                request: request.clone(),
            }),
            Effect::Run {
                operation,
                job: Job::Write { words, .. },
                ..
            } => Some(Frame::Set {
                operation: operation.clone(),
                words: words.clone(),
            }),
            _ => None,
        }
    }

    fn lay(&mut self, frame: &Frame) {
        if let Frame::Commit { request } = frame {
            self.device.lay(request);
        }
    }

    fn exchange(&mut self, effect: &Effect, chance: &mut Chance, now: &Now) -> Exchange {
        let not_sent = |why: &str| exchange(Outcome::NotSent { why: why.into() }, 0);
        if let Effect::Run {
            deadline: Some(deadline),
            ..
        } = effect
            && !matches!(deadline.at(now), Validity::Remaining(_))
        {
            self.reach("too late at the link");
            return not_sent("too late");
        }
        let Some(frame) = self.frame(effect) else {
            return exchange(
                Outcome::DeviceReplied(Reply::Values(Vec::new())),
                REQUEST_BYTES,
            );
        };
        if let Frame::Commit { request } = &frame
            && self.mailbox
            && self.device.is_busy()
            && self.device.record_of(request.request_id).is_none()
        {
            return not_sent("the device is still at another id");
        }
        assert!(
            !self.device.other,
            "a command was sent to another device: {effect:?}"
        );
        let lost = || {
            exchange(
                Outcome::SentNoReply {
                    why: "timeout".into(),
                },
                REQUEST_BYTES,
            )
        };
        if chance.strikes(Kind::NotSent) {
            not_sent("reset")
        } else if chance.strikes(Kind::PartlySent) {
            self.lay(&frame);
            exchange(
                Outcome::PartlySent {
                    why: "reset".into(),
                },
                5,
            )
        } else if chance.strikes(Kind::HeldUp) {
            self.lay(&frame);
            self.held_up.push(frame);
            lost()
        } else if chance.strikes(Kind::ReplyLost) {
            self.lay(&frame);
            self.device.take(&frame);
            lost()
        } else if matches!(frame, Frame::Set { .. }) && chance.strikes(Kind::Busy) {
            let code = DeviceCode {
                family: "modbus".into(),
                code: 6,
                meaning: "busy".into(),
            };
            exchange(Outcome::DeviceBusy(code), REQUEST_BYTES)
        } else {
            self.device.slow = chance.strikes(Kind::SlowDevice);
            self.lay(&frame);
            self.device.take(&frame);
            self.reply(&frame)
        }
    }

    fn reply(&mut self, frame: &Frame) -> Exchange {
        let Frame::Commit { request } = frame else {
            return exchange(Outcome::DeviceReplied(Reply::WriteEcho), REQUEST_BYTES);
        };
        let id = request.request_id;
        match self.device.record_of(id) {
            Some((0, effect_counter)) => {
                let echo = MailboxEcho {
                    request_id: id,
                    result: 0,
                    effect_counter,
                };
                exchange(Outcome::DeviceReplied(Reply::Mailbox(echo)), REQUEST_BYTES)
            }
            Some((result, _)) => {
                exchange(Outcome::DeviceRefused(mailbox::code(result)), REQUEST_BYTES)
            }
            None if self.device.is_busy() => {
                self.reach("accepted and not done");
                exchange(Outcome::DeviceAccepted, REQUEST_BYTES)
            }
            None => exchange(
                Outcome::SentNoReply {
                    why: "no record".into(),
                },
                REQUEST_BYTES,
            ),
        }
    }

    /// A frame that was held up arrives, once or twice.
    pub(crate) fn arrive(&mut self, at: usize, chance: &mut Chance) {
        let frame = self.held_up.remove(at);
        self.device.take(&frame);
        self.reach("held-up frame arrived");
        if chance.strikes(Kind::Doubled) && matches!(frame, Frame::Commit { .. }) {
            self.held_up.push(frame);
        }
    }

    /// The gateway dies: of what it was about to send, some had left. Which operations that were.
    pub(crate) fn abandon(&mut self, chance: &mut Chance, now: &Now) -> Vec<Effect> {
        let mut left = Vec::new();
        for effect in std::mem::take(&mut self.errands) {
            let valid = match &effect {
                Effect::Run {
                    deadline: Some(deadline),
                    ..
                } => matches!(deadline.at(now), Validity::Remaining(_)),
                _ => true,
            };
            // One request at a time: no more than the first can have left.
            if let Some(frame) = self.frame(&effect)
                && valid
                && self.connected
                && !self.is_barred(&effect)
                && !self.device.other
                && left.is_empty()
                && chance.one_in("net", 2)
            {
                self.lay(&frame);
                self.held_up.push(frame);
                self.reach("crashed after the bytes");
                left.push(effect);
            }
        }
        self.forget();
        self.late.clear();
        left
    }
}

fn is_doubt(exchange: &Exchange) -> bool {
    matches!(
        exchange.outcome,
        Outcome::PartlySent { .. } | Outcome::SentNoReply { .. }
    )
}

fn exchange(outcome: Outcome, sent: u32) -> Exchange {
    Exchange {
        outcome,
        bytes_sent: sent,
        bytes_total: REQUEST_BYTES,
        request_ident: String::new(),
        sent_at: None,
        replied_at: None,
        reply: Vec::new(),
    }
}

/// What a mailbox request of an operation is known by.
pub(crate) fn request_of(effect: &Effect) -> Option<&MailboxRequest> {
    match effect {
        Effect::Run {
            job: Job::Mailbox(request),
            ..
        } => Some(request),
        _ => None,
    }
}
