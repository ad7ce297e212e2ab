//! Owns: what may happen next in a world, and what comes of it.
//! May call: the world, the plan.
//! Never: leave out an order of events that the link, the network or the device allows.

use crate::explore::Model;
use crate::judge;
use crate::plan::Rare;
use crate::world::*;
use holdfast::core::contract::*;
use holdfast::core::gateway::{Act, Effect, LinkChange, Verdict as Claim};
use holdfast::core::lifecycle::{HeldReason, State};
use holdfast::core::mailbox::{self, COMMIT_WORD, Verdict};
use holdfast::core::time::Validity;
use std::hash::{DefaultHasher, Hash, Hasher};

/// One thing that happens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Submit(usize),
    SubmitAgain(usize),
    Cancel(usize),
    Approve(usize),
    Verify(usize),
    /// A person who was at the machine says what happened.
    Resolve(usize),
    LinkUp,
    LinkDown,
    /// The link begins its next errand: it reads, or hands over a frame or a block.
    Serve,
    /// It cannot: nothing was handed over, or nothing was read.
    ServeFails,
    /// It stops after some bytes.
    ServePartly,
    /// The block's frame is held up, so it is not read back and no commit follows.
    BlockHeldUp,
    Commit,
    /// What was read reaches the gateway.
    Told,
    /// A frame reaches the device, which does what it is told.
    Arrives(usize),
    ArrivesTwice(usize),
    /// A plain write arrives and is refused, or the device is busy; a commit arrives and takes long.
    Refused(usize),
    Busy(usize),
    Slow(usize),
    /// A reply arrives, in time or not.
    Reply(usize),
    ReplyTwice(usize),
    /// The device's record is looked at after the commit.
    Look,
    Timeout,
    PlcEnds,
    PlcRestarts {
        goes_on: bool,
    },
    /// Without its latched memory; nothing is on its way to it, for nothing could bar that then.
    PlcColdStart,
    NewVersion,
    /// The next timer.
    Tick,
    /// To the last nanosecond of the next deadline, and to the deadline itself; no timer has fired yet.
    Edge,
    Deadline,
    Crash,
    Reboot {
        wall_trusted: bool,
    },
}

impl Action {
    fn rare(&self) -> Option<Rare> {
        Some(match self {
            Self::SubmitAgain(_) => Rare::Again,
            Self::Cancel(_) | Self::Approve(_) | Self::Verify(_) | Self::Resolve(_) => Rare::Person,
            Self::LinkDown => Rare::Link,
            Self::ServeFails | Self::ServePartly | Self::BlockHeldUp | Self::Timeout => {
                Rare::Failed
            }
            Self::Refused(_) | Self::Busy(_) => Rare::Refused,
            Self::Slow(_) => Rare::Slow,
            Self::ArrivesTwice(_) | Self::ReplyTwice(_) => Rare::Doubled,
            Self::NewVersion => Rare::Version,
            Self::Tick | Self::Edge | Self::Deadline => Rare::Time,
            Self::Crash => Rare::Crash,
            Self::Reboot { .. } => Rare::Reboot,
            Self::PlcRestarts { .. } => Rare::PlcRestart,
            Self::PlcColdStart => Rare::PlcCold,
            Self::Submit(_) | Self::LinkUp | Self::Serve | Self::Commit | Self::Told => {
                return None;
            }
            Self::Arrives(_) | Self::Reply(_) | Self::Look | Self::PlcEnds => return None,
        })
    }
}

impl Model for World {
    type Action = Action;

    fn actions(&self) -> Vec<Action> {
        let mut can = Vec::new();
        if self.submitted < self.plan.wishes.len() {
            can.push(Action::Submit(self.submitted));
        }
        (0..self.submitted).for_each(|operation| self.people(operation, &mut can));
        can.push(if self.connected {
            Action::LinkDown
        } else {
            Action::LinkUp
        });
        self.link_can(&mut can);
        self.network_can(&mut can);
        if self.plc.executing.is_some() {
            can.extend([Action::PlcEnds, Action::PlcRestarts { goes_on: true }]);
        }
        can.extend([Action::PlcRestarts { goes_on: false }, Action::NewVersion]);
        if self.wire.is_empty() {
            can.push(Action::PlcColdStart);
        }
        if self.due_ns().is_some() {
            can.push(Action::Tick);
        }
        if let Some(end) = self.next_end_ns() {
            can.extend((self.t_ns < end - 1).then_some(Action::Edge));
            can.push(Action::Deadline);
        }
        can.push(Action::Crash);
        can.extend([true, false].map(|wall_trusted| Action::Reboot { wall_trusted }));
        can.retain(|action| action.rare().is_none_or(|rare| self.may(rare)));
        can
    }

    fn apply(&mut self, action: &Action) -> Result<(), String> {
        self.marks.clear();
        if let Some(rare) = action.rare() {
            self.left[rare as usize] -= 1;
        }
        let before = self.disk.clone();
        self.play(action);
        judge::judge(self, action, &before);
        self.broken.take().map_or(Ok(()), Err)
    }

    fn fingerprint(&self) -> u64 {
        let mut print = DefaultHasher::new();
        let into = &mut print;
        self.gateway.sameness(&self.now, into);
        for kept in self.disk.values() {
            self.gateway.sameness_of(kept, &self.now, into);
        }
        let record = self.machine_disk.as_ref();
        record
            .map(|kept| {
                (
                    kept.last_request_id,
                    kept.session_epoch,
                    kept.burning.is_some(),
                )
            })
            .hash(into);
        self.todo
            .iter()
            .for_each(|effect| (self.is_barred(effect), self.errand(effect)).hash(into));
        self.under_way(into);
        let mut wire: Vec<String> = self
            .wire
            .iter()
            .map(|frame| self.told_apart(frame))
            .collect();
        wire.sort();
        wire.hash(into);
        for (operation, attempt, said) in &self.replies {
            (operation, self.gateway.attempt_age(*attempt), said).hash(into);
        }
        self.plc.sameness(self.t_ns, into);
        (self.connected, self.left, self.submitted, self.version_read).hash(into);
        (&self.given, self.now.wall_trusted, &self.read_over).hash(into);
        self.ends_ns
            .map(|end| end.map(|end| i128::from(end) - i128::from(self.t_ns)))
            .hash(into);
        print.finish()
    }

    fn marks(&self) -> Vec<&'static str> {
        self.marks.clone()
    }
}

impl World {
    fn people(&self, operation: usize, can: &mut Vec<Action>) {
        can.extend([Action::SubmitAgain(operation), Action::Cancel(operation)]);
        match self.disk.get(&id_of(operation)).map(|kept| &kept.state) {
            Some(State::Held(_)) => can.push(Action::Approve(operation)),
            Some(State::Accepted { .. } | State::OutcomeUnknown(_)) => {
                can.push(Action::Verify(operation));
                // Whoever was there saw that nothing more will come.
                if self.wire.is_empty() && self.plc.executing.is_none() && self.flight.is_none() {
                    can.push(Action::Resolve(operation));
                }
            }
            Some(State::Completed(_)) => can.push(Action::Resolve(operation)),
            _ => {}
        }
    }

    fn link_can(&self, can: &mut Vec<Action>) {
        match &self.flight {
            None => match self.todo.front() {
                None => {}
                Some(next) if !self.connected || self.is_barred(next) => can.push(Action::Serve),
                Some(
                    Effect::Run {
                        job: Job::Mailbox(_),
                        ..
                    }
                    | Effect::Burn { .. },
                ) => {
                    can.extend([Action::Serve, Action::ServeFails, Action::BlockHeldUp]);
                }
                Some(Effect::Run { .. }) => {
                    can.extend([Action::Serve, Action::ServeFails, Action::ServePartly]);
                }
                Some(_) => can.extend([Action::Serve, Action::ServeFails]),
            },
            Some(Flight::Laid { .. }) => can.extend([Action::Commit, Action::ServePartly]),
            Some(Flight::Plain { .. }) => can.push(Action::Timeout),
            Some(Flight::Committed {
                request, before, ..
            }) => {
                can.push(Action::Timeout);
                if self.look(request, before).is_some() {
                    can.push(Action::Look);
                }
            }
            Some(Flight::Read(_)) => can.push(Action::Told),
        }
    }

    fn network_can(&self, can: &mut Vec<Action>) {
        for (at, frame) in self.wire.iter().enumerate() {
            if self.wire[..at].contains(frame) {
                continue;
            }
            can.push(Action::Arrives(at));
            match frame {
                Frame::Write { .. } => can.extend([Action::Refused(at), Action::Busy(at)]),
                Frame::Block(_) => can.push(Action::ArrivesTwice(at)),
                Frame::Commit(_) => can.extend([Action::ArrivesTwice(at), Action::Slow(at)]),
            }
        }
        for at in 0..self.replies.len() {
            can.extend([Action::Reply(at), Action::ReplyTwice(at)]);
        }
    }

    /// The next deadline of something that has not ended.
    fn next_end_ns(&self) -> Option<u64> {
        let open = (0..self.submitted).filter(|operation| {
            let state = &self.disk[&id_of(*operation)].state;
            matches!(
                state,
                State::Queued | State::Held(_) | State::Sending { .. }
            )
        });
        let ends = open.filter_map(|operation| self.ends_ns[operation]);
        ends.filter(|end| *end > self.t_ns).min()
    }

    fn play(&mut self, action: &Action) {
        match action.clone() {
            Action::Submit(operation) | Action::SubmitAgain(operation) => self.submit(operation),
            Action::Cancel(operation) => self.cancel(operation),
            Action::Approve(operation) => self.approve(operation),
            Action::Verify(operation) => drop(self.act(operation, Act::Verify)),
            Action::Resolve(operation) => self.resolve(operation),
            Action::LinkUp => self.connect(),
            Action::LinkDown => self.link_down(),
            Action::Serve if self.connected => self.serve(),
            Action::Serve | Action::ServeFails => self.serve_fails(),
            Action::ServePartly => self.partly(),
            Action::BlockHeldUp => self.block_held_up(),
            Action::Commit => self.commit(),
            Action::Told => {
                if let Some(Flight::Read(reading)) = self.flight.take() {
                    self.tell(*reading);
                }
            }
            Action::Arrives(at) => self.arrives(at, Said::Done, false, false),
            Action::ArrivesTwice(at) => self.arrives(at, Said::Done, false, true),
            Action::Refused(at) => self.arrives(at, Said::Refused, false, false),
            Action::Busy(at) => self.arrives(at, Said::Busy, false, false),
            Action::Slow(at) => self.arrives(at, Said::Done, true, false),
            Action::Reply(at) => self.reply(at, false),
            Action::ReplyTwice(at) => self.reply(at, true),
            Action::Look => self.looked(),
            Action::Timeout => self.timeout(),
            Action::PlcEnds => self.plc.ends(self.t_ns),
            Action::PlcRestarts { goes_on } => self.plc.restart(goes_on, self.t_ns),
            Action::PlcColdStart => self.plc.cold_start(),
            Action::NewVersion => self.plc.version = 15 - self.plc.version,
            Action::Tick => {
                let due = self.due_ns().unwrap_or(self.t_ns);
                self.pass_to(due);
                self.input(holdfast::core::gateway::Input::Tick);
            }
            Action::Edge => self.pass_to(self.next_end_ns().map_or(self.t_ns, |end| end - 1)),
            Action::Deadline => self.pass_to(self.next_end_ns().unwrap_or(self.t_ns)),
            Action::Crash => self.crash(),
            Action::Reboot { wall_trusted } => self.reboot(wall_trusted),
        }
    }

    fn cancel(&mut self, operation: usize) {
        use holdfast::core::gateway::Answer;
        match self.act(operation, Act::Cancel) {
            Some(Answer::Cancelled(_)) => self.mark("cancelled in time"),
            Some(Answer::TooLate(_)) => self.mark("cancelled too late"),
            other => self.promise(false, || format!("cancel: {other:?}")),
        }
    }

    fn approve(&mut self, operation: usize) {
        if let State::Held(HeldReason::ValidityUnprovable) = self.disk[&id_of(operation)].state {
            // The person's word begins a validity of its own.
            self.ends_ns[operation] = Some(self.t_ns + crate::plan::TTL_MS * 1_000_000);
            self.mark("approved after a reboot");
        }
        self.act(operation, Act::Approve);
    }

    fn resolve(&mut self, operation: usize) {
        let completed = matches!(self.disk[&id_of(operation)].state, State::Completed(_));
        let verdict = match self.effects_of(operation) {
            _ if completed => Claim::Compensated,
            0 => Claim::NotExecuted,
            _ => Claim::Completed,
        };
        let reason = "seen at the machine".to_owned();
        self.act(
            operation,
            Act::Resolve {
                verdict,
                reason,
                by_operation: None,
            },
        );
    }

    /// An exchange under way ends with the connection, before the gateway hears of it.
    fn link_down(&mut self) {
        match self.flight.take() {
            Some(Flight::Plain { operation, attempt }) => {
                self.exchanged(operation, attempt, no_reply())
            }
            Some(Flight::Laid { whom, .. }) => self.settled(&whom, not_sent()),
            Some(Flight::Committed { whom, .. }) => self.settled(&whom, no_reply()),
            Some(Flight::Read(_)) | None => {}
        }
        self.link(LinkChange::Down {
            reason: "cut".into(),
        });
    }

    fn serve(&mut self) {
        if self.todo.front().is_some_and(|next| self.is_barred(next)) {
            self.mark("decided over an earlier connection");
            return self.serve_fails();
        }
        let Some(effect) = self.todo.pop_front() else {
            return;
        };
        match effect {
            Effect::ReadGate { .. } => self.read_gate(),
            Effect::Probe {
                operation, probe, ..
            } => self.probe(index_of(&operation), &probe),
            Effect::Burn { request, .. } => self.lay(For::Burn, request),
            Effect::Run {
                operation,
                attempt,
                job,
                deadline,
                ..
            } => {
                let operation = index_of(&operation);
                let late = deadline
                    .is_some_and(|end| !matches!(end.at(&self.now), Validity::Remaining(_)));
                match job {
                    _ if late => {
                        self.mark("too late at the link");
                        self.exchanged(operation, attempt, not_sent());
                    }
                    Job::Mailbox(request) => self.lay(
                        For::Operation {
                            operation,
                            attempt,
                            deadline,
                        },
                        request,
                    ),
                    _ => {
                        self.byte_leaves(operation);
                        let request = self.disk[&id_of(operation)].request_id;
                        self.wire.push(Frame::Write {
                            operation,
                            attempt,
                            request,
                        });
                        self.flight = Some(Flight::Plain { operation, attempt });
                    }
                }
            }
            Effect::Answer { .. } | Effect::Acknowledge { .. } | Effect::ReadRing { .. } => {}
        }
    }

    fn probe(&mut self, operation: usize, probe: &Probe) {
        let answer = match probe {
            Probe::Mailbox => ProbeAnswer::Mailbox(self.plc.blocks()),
            Probe::Done(_) => ProbeAnswer::Done {
                id: self.plc.finished,
                result: 0,
            },
            Probe::Readback { points } => {
                let wrote = self.plc.by_operation[operation] > 0;
                let value = holdfast::core::spec::Value::Int(if wrote {
                    100 + operation as i128
                } else {
                    0
                });
                ProbeAnswer::Values(
                    points
                        .iter()
                        .map(|(name, _)| (name.clone(), value.clone()))
                        .collect(),
                )
            }
        };
        self.flight = Some(Flight::Read(Box::new(probed(operation, answer))));
    }

    /// What the adapter does before a commit: a look, then block and read back.
    fn lay(&mut self, whom: For, request: MailboxRequest) {
        let Ok(before) = mailbox::decode_status(&self.plc.blocks().status, ORDER) else {
            return;
        };
        let id = request.request_id;
        if before.state.is_busy() || before.record_of(id).is_some() || before.last_accepted == id {
            self.mark("the device is still at another request");
            return self.settled(&whom, not_sent());
        }
        let words = mailbox::encode_command(&request, ORDER);
        self.plc.block(&words[..COMMIT_WORD], self.t_ns);
        self.flight = Some(Flight::Laid {
            whom,
            request,
            before,
        });
    }

    fn block_held_up(&mut self) {
        let (whom, request) = match self.todo.pop_front() {
            Some(Effect::Burn { request, .. }) => (For::Burn, request),
            Some(Effect::Run {
                operation,
                attempt,
                job: Job::Mailbox(request),
                deadline,
                ..
            }) => {
                let operation = index_of(&operation);
                (
                    For::Operation {
                        operation,
                        attempt,
                        deadline,
                    },
                    request,
                )
            }
            _ => return,
        };
        let words = mailbox::encode_command(&request, ORDER);
        self.wire.push(Frame::Block(words[..COMMIT_WORD].to_vec()));
        self.mark("a block is held up");
        self.settled(&whom, not_sent());
    }

    fn commit(&mut self) {
        let Some(Flight::Laid {
            whom,
            request,
            before,
        }) = self.flight.take()
        else {
            return;
        };
        if let For::Operation {
            operation,
            deadline,
            ..
        } = &whom
        {
            if deadline.is_some_and(|end| !matches!(end.at(&self.now), Validity::Remaining(_))) {
                self.mark("too late at the link");
                return self.settled(&whom, not_sent());
            }
            self.byte_leaves(*operation);
        }
        self.wire.push(Frame::Commit(request.request_id as u16));
        self.flight = Some(Flight::Committed {
            whom,
            request,
            before,
        });
    }

    fn serve_fails(&mut self) {
        let machine = "press".to_owned();
        let why = || "no answer".to_owned();
        match self.todo.pop_front() {
            Some(Effect::ReadGate { .. }) => {
                let reading = Err(why());
                drop(self.input(holdfast::core::gateway::Input::Gate { machine, reading }));
            }
            Some(Effect::Probe { operation, .. }) => {
                self.input(probed(index_of(&operation), ProbeAnswer::Failed(why())));
            }
            Some(Effect::Burn { .. }) => self.settled(&For::Burn, not_sent()),
            Some(Effect::Run {
                operation, attempt, ..
            }) => {
                self.mark("not sent");
                self.exchanged(index_of(&operation), attempt, not_sent());
            }
            _ => {}
        }
    }

    fn partly(&mut self) {
        let partly = exchange(Outcome::PartlySent {
            why: "reset".into(),
        });
        self.mark("partly sent");
        if let Some(Flight::Laid { whom, .. }) = self.flight.take() {
            return self.settled(&whom, partly);
        }
        if let Some(Effect::Run {
            operation, attempt, ..
        }) = self.todo.pop_front()
        {
            self.exchanged(index_of(&operation), attempt, partly);
        }
    }

    fn arrives(&mut self, at: usize, said: Said, slow: bool, twice: bool) {
        let frame = if twice {
            self.wire[at].clone()
        } else {
            self.wire.remove(at)
        };
        match frame {
            Frame::Write {
                operation,
                attempt,
                request,
            } => {
                if self.flight.is_none() {
                    self.mark("a late frame acts");
                }
                if said == Said::Done {
                    self.plc.write(operation, request);
                }
                self.replies.push((operation, attempt, said));
            }
            Frame::Block(words) => self.plc.block(&words, self.t_ns),
            Frame::Commit(word) => {
                if !matches!(&self.flight, Some(Flight::Committed { .. })) {
                    self.mark("a late commit");
                }
                self.late_for(word);
                self.plc.commit(word, slow, self.t_ns);
            }
        }
    }

    /// The copies that the device must not act on.
    fn late_for(&mut self, word: u16) {
        let of = self.given.iter().find(|(id, _)| **id as u16 == word);
        let Some((id, Some(operation))) = of.map(|(id, operation)| (*id, *operation)) else {
            return;
        };
        if matches!(
            self.disk[&id_of(operation)].state,
            State::NotExecuted { .. }
        ) {
            self.mark("a request that was given up arrives");
        }
        if self.plc.by_request.contains_key(&id) {
            self.mark("a copy arrives after the effect");
        }
    }

    fn reply(&mut self, at: usize, twice: bool) {
        let (operation, attempt, said) = if twice {
            self.replies[at]
        } else {
            self.replies.remove(at)
        };
        let code = |code| DeviceCode {
            family: "modbus".into(),
            code,
            meaning: "as the manual says".into(),
        };
        let outcome = match said {
            Said::Done => Outcome::DeviceReplied(Reply::WriteEcho),
            Said::Refused => Outcome::DeviceRefused(code(2)),
            Said::Busy => Outcome::DeviceBusy(code(6)),
        };
        if self.flight == Some(Flight::Plain { operation, attempt }) {
            self.flight = None;
        } else {
            self.mark("a late reply");
        }
        self.exchanged(operation, attempt, exchange(outcome));
    }

    /// The adapter's reading of the device's record after its commit; `None`: look again.
    fn look(&self, request: &MailboxRequest, before: &mailbox::Status) -> Option<Exchange> {
        let blocks = self.plc.blocks();
        match self.verdict(request, before) {
            Verdict::Done(echo) => Some(exchange(match mailbox::refusal(echo.result) {
                Some(code) => Outcome::DeviceRefused(code),
                None => Outcome::DeviceReplied(Reply::Mailbox(echo)),
            })),
            Verdict::CutOff | Verdict::Rebooted | Verdict::Forgotten => Some(no_reply()),
            Verdict::NotTaken => {
                let now = mailbox::decode_status(&blocks.status, ORDER).ok()?;
                let rejected = mailbox::State::Rejected;
                let new = now.state == rejected && before.state != rejected;
                let own = mailbox::is_committed(&blocks.command, ORDER, request.request_id);
                let code = mailbox::refusal(now.result).filter(|_| new && own)?;
                Some(exchange(Outcome::DeviceRefused(code)))
            }
            Verdict::Pending | Verdict::Corrupt(_) => None,
        }
    }

    fn looked(&mut self) {
        if let Some(Flight::Committed {
            whom,
            request,
            before,
        }) = self.flight.take()
            && let Some(exchange) = self.look(&request, &before)
        {
            self.settled(&whom, exchange);
        }
    }

    fn timeout(&mut self) {
        match self.flight.take() {
            Some(Flight::Plain { operation, attempt }) => {
                self.exchanged(operation, attempt, no_reply())
            }
            Some(Flight::Committed {
                whom,
                request,
                before,
            }) => {
                let taken = self.verdict(&request, &before) == Verdict::Pending;
                let accepted = exchange(Outcome::DeviceAccepted);
                self.settled(&whom, if taken { accepted } else { no_reply() });
            }
            _ => {}
        }
        self.mark("reply lost");
    }

    fn errand(&self, effect: &Effect) -> String {
        match effect {
            Effect::Run {
                operation,
                attempt,
                job,
                ..
            } => {
                format!("{operation}{:?}{job:?}", self.gateway.attempt_age(*attempt))
            }
            Effect::Probe {
                operation, probe, ..
            } => format!("{operation}{probe:?}"),
            Effect::Burn { request, .. } => format!("{request:?}"),
            _ => "gate".into(),
        }
    }

    fn told_apart(&self, frame: &Frame) -> String {
        match frame {
            Frame::Write {
                operation,
                attempt,
                request,
            } => {
                format!(
                    "{operation}{:?}{request:?}",
                    self.gateway.attempt_age(*attempt)
                )
            }
            Frame::Block(_) | Frame::Commit(_) => format!("{frame:?}"),
        }
    }

    fn under_way(&self, into: &mut impl Hasher) {
        let whose = |whom: &For| match whom {
            For::Operation {
                operation, attempt, ..
            } => Some((*operation, self.gateway.attempt_age(*attempt))),
            For::Burn => None,
        };
        match &self.flight {
            None => 0.hash(into),
            Some(Flight::Plain { operation, attempt }) => {
                (1, operation, self.gateway.attempt_age(*attempt)).hash(into);
            }
            Some(Flight::Laid {
                whom,
                request,
                before,
            }) => {
                (2, whose(whom), format!("{request:?}{before:?}")).hash(into);
            }
            Some(Flight::Committed {
                whom,
                request,
                before,
            }) => {
                (3, whose(whom), format!("{request:?}{before:?}")).hash(into);
            }
            Some(Flight::Read(reading)) => judge::reading(reading, &self.now, into),
        }
    }
}

fn probed(operation: usize, answer: ProbeAnswer) -> holdfast::core::gateway::Input {
    holdfast::core::gateway::Input::Probed {
        machine: "press".into(),
        operation: id_of(operation),
        answer,
    }
}
