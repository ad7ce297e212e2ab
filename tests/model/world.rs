//! Owns: everything around the gateway: its journal, its clock, the link, frames on their way, and the device.
//! May call: the real gateway, by its public inputs only; the real judgement of the mailbox, and of an order too late.
//! Never: decide what the gateway should; it is the device's ledger that judges, see `judge`.

use crate::plan::{Plan, RARE, Rare, machine, request, settings};
use crate::plc::Plc;
use holdfast::core::contract::*;
use holdfast::core::gateway::{Act, Answer, Effect, Gateway, Input, LinkChange, Restored, Token};
use holdfast::core::ids::{AttemptId, BootId, CommitNo, ConnectionNo, Epoch, OperationId};
use holdfast::core::lifecycle::Actor;
use holdfast::core::mailbox::{self, Verdict};
use holdfast::core::record::{MachineRecord, Operation, Record, Stored};
use holdfast::core::spec::{Quality, WordOrder};
use holdfast::core::time::{Deadline, Now};
use holdfast::service::errand::Errand;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub(crate) const WALL_US: i64 = 1_796_000_000_000_000;
const START_NS: u64 = 100_000_000_000;
/// A reboot takes so long, of which the new boot's clock has seen a part.
const REBOOT_NS: u64 = 1_000_000_000;
const BOOTED_NS: u64 = 400_000_000;
pub(crate) const ORDER: WordOrder = WordOrder::HighFirst;

/// Bytes on their way to the device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Frame {
    Write {
        operation: usize,
        attempt: AttemptId,
        request: Option<u32>,
    },
    Block(Vec<u16>),
    Commit(u16),
}

/// A device's answer to a plain write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Said {
    Done,
    Refused,
    Busy,
}

/// Who a mailbox request is for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum For {
    Operation {
        operation: usize,
        attempt: AttemptId,
        deadline: Option<Deadline>,
    },
    Burn,
}

/// What the link is at; one thing at a time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Flight {
    Plain {
        operation: usize,
        attempt: AttemptId,
    },
    /// The block is written and read back.
    Laid {
        whom: For,
        request: MailboxRequest,
        before: mailbox::Status,
    },
    Committed {
        whom: For,
        request: MailboxRequest,
        before: mailbox::Status,
    },
    /// Something was read, and is on its way to the gateway.
    Read(Box<Input>),
}

#[derive(Clone)]
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) gateway: Gateway,
    pub(crate) now: Now,
    /// Time as it really passes; no clock of the gateway.
    pub(crate) t_ns: u64,
    booted_at_ns: u64,
    pub(crate) disk: BTreeMap<OperationId, Arc<Operation>>,
    pub(crate) machine_disk: Option<MachineRecord>,
    epoch: u64,
    commits: u64,
    /// Decided and durable, and not done yet: lost in a crash.
    pub(crate) todo: VecDeque<Effect>,
    pub(crate) flight: Option<Flight>,
    pub(crate) wire: Vec<Frame>,
    pub(crate) replies: Vec<(usize, AttemptId, Said)>,
    pub(crate) connected: bool,
    /// How many connections there were.
    connections: u64,
    /// The configuration versions that were read over the one that stands, as far as the gateway was told.
    pub(crate) read_over: BTreeSet<u16>,
    pub(crate) plc: Plc,
    pub(crate) left: [u8; RARE],
    pub(crate) submitted: usize,
    /// The true end of each validity.
    pub(crate) ends_ns: [Option<u64>; 3],
    /// Which operation a request id was given out for; a no-op has none.
    pub(crate) given: BTreeMap<u32, Option<usize>>,
    /// The configuration version that the gateway read last.
    pub(crate) version_read: Option<u16>,
    pub(crate) broken: Option<String>,
    pub(crate) marks: Vec<&'static str>,
}

pub(crate) fn id_of(operation: usize) -> OperationId {
    OperationId::parse(&format!("OP{operation}")).expect("a valid id")
}
pub(crate) fn index_of(id: &OperationId) -> usize {
    id.as_str()[2..].parse().expect("an id of id_of")
}
pub(crate) fn person() -> Actor {
    Actor::Uid {
        uid: 1000,
        gids: vec![1000],
    }
}
pub(crate) fn exchange(outcome: Outcome) -> Exchange {
    let bytes_sent = match outcome {
        Outcome::NotSent { .. } => 0,
        Outcome::PartlySent { .. } => 5,
        _ => 12,
    };
    Exchange {
        outcome,
        bytes_sent,
        bytes_total: 12,
        request_ident: String::new(),
        sent_at: None,
        replied_at: None,
        reply: Vec::new(),
    }
}
pub(crate) fn not_sent() -> Exchange {
    exchange(Outcome::NotSent {
        why: "not sent".into(),
    })
}
pub(crate) fn no_reply() -> Exchange {
    exchange(Outcome::SentNoReply {
        why: "timeout".into(),
    })
}

impl World {
    /// A gateway that has started; its machine is connected and its gate was read.
    pub(crate) fn new(plan: &Plan) -> Self {
        let now = Now {
            boot_id: BootId([1; 16]),
            boottime_ns: START_NS,
            wall_us: WALL_US,
            wall_trusted: true,
        };
        let restored = Restored {
            epoch: Epoch(7),
            next_commit: CommitNo(1),
            ..Restored::default()
        };
        let mut left = [0; RARE];
        for (rare, times) in plan.may {
            left[*rare as usize] = *times;
        }
        let mut world = Self {
            plan: *plan,
            gateway: Gateway::new(settings(), vec![Arc::new(machine())], restored, &now, 42),
            now,
            t_ns: START_NS,
            booted_at_ns: 0,
            disk: BTreeMap::new(),
            machine_disk: None,
            epoch: 7,
            commits: 0,
            todo: VecDeque::new(),
            flight: None,
            wire: Vec::new(),
            replies: Vec::new(),
            connected: true,
            connections: 0,
            read_over: BTreeSet::new(),
            plc: Plc::new(),
            left,
            submitted: 0,
            ends_ns: [None; 3],
            given: BTreeMap::new(),
            version_read: None,
            broken: None,
            marks: Vec::new(),
        };
        world.input(Input::Started);
        world.connect();
        world.read_gate();
        world.todo.clear();
        world.flight = None;
        let reading = world.gate_reading();
        world.tell(reading);
        world
    }

    pub(crate) fn promise(&mut self, kept: bool, what: impl FnOnce() -> String) {
        if !kept && self.broken.is_none() {
            self.broken = Some(what());
        }
    }
    pub(crate) fn mark(&mut self, branch: &'static str) {
        self.marks.push(branch);
    }

    /// The one way into the gateway: decide, make durable, and only then let anything come of it.
    pub(crate) fn input(&mut self, input: Input) -> Option<Answer> {
        for id in self.gateway.missing(&input) {
            if let Some(kept) = self.disk.get(&id) {
                self.gateway
                    .recall(Stored::Operation(Box::new(Operation::clone(kept))));
            }
        }
        let output = self.gateway.handle(&self.now, input);
        for block in output.blocks {
            let last = self.commits;
            let next = block.no.0 == last + 1;
            self.promise(next, || format!("commit {} after {last}", block.no.0));
            self.commits = block.no.0;
            for record in block.records {
                match record {
                    Record::Operation(operation) => {
                        self.disk.insert(operation.id.clone(), Arc::new(*operation));
                    }
                    Record::Machine(record) => self.machine_disk = Some(record),
                    _ => {}
                }
            }
        }
        self.gateway.committed();
        let mut answer = None;
        for effect in output.effects {
            match effect {
                Effect::Answer { answer: told, .. } => answer = Some(*told),
                Effect::Acknowledge { .. } | Effect::ReadRing { .. } => {}
                effect => {
                    self.decided(&effect);
                    self.todo.push_back(effect);
                }
            }
        }
        answer
    }

    /// What is decided to be sent has passed the gate, and uses an id of its own.
    fn decided(&mut self, effect: &Effect) {
        match effect {
            Effect::Run { operation, job, .. } => {
                let index = index_of(operation);
                let kept = Arc::clone(&self.disk[operation]);
                let version = kept.intent.expected_config_version.map(|v| v as u16);
                let fits = version == self.version_read || kept.waived.is_some();
                self.promise(fits, || {
                    format!(
                        "{operation} was let through the gate for another configuration version"
                    )
                });
                let request = match job {
                    Job::Mailbox(request) => Some(request.request_id),
                    Job::Read { .. } | Job::Write { .. } | Job::Scatter { .. } | Job::Remote(_) => {
                        kept.request_id
                    }
                };
                if let Some(request) = request {
                    self.give(request, Some(index));
                }
            }
            Effect::Burn { request, .. } => {
                self.mark("an id is given up by a no-op");
                self.give(request.request_id, None);
            }
            _ => {}
        }
    }

    fn give(&mut self, request: u32, to: Option<usize>) {
        let fresh = self.given.insert(request, to).is_none();
        self.promise(fresh, || {
            format!("request id {request} was given out twice")
        });
    }

    pub(crate) fn submit(&mut self, operation: usize) {
        let request = request(self.plan.wishes, operation, WALL_US);
        let answer = self.input(Input::Submit {
            request,
            actor: person(),
            token: Token(1),
        });
        if operation == self.submitted {
            self.submitted += 1;
            self.ends_ns[operation] = Some(self.t_ns + crate::plan::TTL_MS * 1_000_000);
            let kept = matches!(answer, Some(Answer::Recorded(_)));
            self.promise(kept, || format!("OP{operation} was not taken: {answer:?}"));
        } else {
            self.mark("submitted again");
            let same = matches!(answer, Some(Answer::Replayed(_)));
            self.promise(same, || format!("OP{operation} again: {answer:?}"));
        }
    }

    pub(crate) fn act(&mut self, operation: usize, act: Act) -> Option<Answer> {
        self.input(Input::Act {
            id: id_of(operation),
            act,
            actor: person(),
            token: Token(2),
        })
    }

    pub(crate) fn connect(&mut self) {
        self.connections += 1;
        self.link(LinkChange::Up(ConnectionNo(self.connections)));
    }

    /// The task does not do it: it was decided over an earlier connection.
    pub(crate) fn is_barred(&self, effect: &Effect) -> bool {
        let errand = Errand::of(effect.clone());
        let stands = ConnectionNo(self.connections);
        errand.is_some_and(|(_, errand)| errand.barred(stands, Some(true)).is_some())
    }

    pub(crate) fn link(&mut self, change: LinkChange) {
        self.connected = matches!(change, LinkChange::Up(_));
        self.read_over.clear();
        self.input(Input::Link {
            machine: "press".into(),
            change,
        });
    }

    fn gate_reading(&self) -> Input {
        let reading = GateReading {
            at: self.now,
            identity: None,
            config_version: Some(self.plc.version.into()),
            mode: None,
            interlocks: Vec::new(),
            quality: Quality::Good,
            mailbox: Some(self.plc.blocks()),
        };
        Input::Gate {
            machine: "press".into(),
            reading: Ok(reading),
        }
    }
    pub(crate) fn read_gate(&mut self) {
        self.flight = Some(Flight::Read(Box::new(self.gate_reading())));
    }
    /// A reading reaches the gateway.
    pub(crate) fn tell(&mut self, reading: Input) {
        if let Input::Gate {
            reading: Ok(gate), ..
        } = &reading
        {
            self.version_read = gate.config_version.map(|version| version as u16);
            self.read_over.extend(self.version_read);
        }
        self.input(reading);
    }

    pub(crate) fn exchanged(&mut self, operation: usize, attempt: AttemptId, exchange: Exchange) {
        self.input(Input::Exchanged {
            machine: "press".into(),
            operation: id_of(operation),
            attempt,
            exchange,
        });
    }
    /// A mailbox exchange ended.
    pub(crate) fn settled(&mut self, whom: &For, exchange: Exchange) {
        match whom {
            For::Operation {
                operation, attempt, ..
            } => self.exchanged(*operation, *attempt, exchange),
            For::Burn => {
                self.input(Input::Burned {
                    machine: "press".into(),
                    exchange,
                });
            }
        }
    }

    /// No byte of an operation leaves at or after its deadline, by the time that really passed, nor by the word of a
    /// gate that was not read over this very connection.
    pub(crate) fn byte_leaves(&mut self, operation: usize) {
        let in_time = self.ends_ns[operation].is_some_and(|end| self.t_ns < end);
        self.promise(in_time, || {
            format!("a byte of OP{operation} left at or after its deadline")
        });
        let kept = &self.disk[&id_of(operation)];
        let wanted = kept.intent.expected_config_version.map(|v| v as u16);
        let waived = kept.waived.is_some() && !self.read_over.is_empty();
        let passed = waived || wanted.is_some_and(|version| self.read_over.contains(&version));
        self.promise(passed, || {
            format!("a byte of OP{operation} left by the gate of an earlier connection")
        });
    }

    /// The clocks go on by what really passed.
    pub(crate) fn pass_to(&mut self, t_ns: u64) {
        self.t_ns = t_ns.max(self.t_ns);
        self.now.boottime_ns = self.t_ns - self.booted_at_ns;
        self.now.wall_us = WALL_US + ((self.t_ns - START_NS) / 1000) as i64;
    }
    /// When the gateway wants to be woken, in true time.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.gateway
            .next_due_ns()
            .map(|due| due + self.booted_at_ns)
    }
    pub(crate) fn reboot(&mut self, wall_trusted: bool) {
        self.t_ns += REBOOT_NS;
        self.booted_at_ns = self.t_ns - BOOTED_NS;
        self.now.boot_id.0[0] += 1;
        self.now.wall_trusted = wall_trusted;
        self.pass_to(self.t_ns);
        self.crash();
    }
    /// The process is gone; it comes back with what is on disk.
    pub(crate) fn crash(&mut self) {
        self.todo.clear();
        self.flight = None;
        self.replies.clear();
        self.connected = false;
        self.read_over.clear();
        self.version_read = None;
        self.epoch += 1;
        let open = self.disk.values().filter(|kept| !kept.state.is_ended());
        let restored = Restored {
            epoch: Epoch(self.epoch),
            next_commit: CommitNo(self.commits + 1),
            operations: open.map(|kept| Operation::clone(kept)).collect(),
            machines: self.machine_disk.clone().into_iter().collect(),
            highest_wall_us: WALL_US,
            previous_epoch: Epoch(self.epoch - 1),
            ..Restored::default()
        };
        let specs = vec![Arc::new(machine())];
        self.gateway = Gateway::new(settings(), specs, restored, &self.now, 42);
        self.input(Input::Started);
    }

    pub(crate) fn may(&self, rare: Rare) -> bool {
        self.left[rare as usize] > 0
    }
    pub(crate) fn verdict(&self, request: &MailboxRequest, before: &mailbox::Status) -> Verdict {
        mailbox::judge(
            &self.plc.blocks(),
            ORDER,
            request.request_id,
            Some(before.boot_counter),
        )
    }
    /// What really happened on behalf of an operation.
    pub(crate) fn effects_of(&self, operation: usize) -> u32 {
        let by_request = self.plc.by_request.iter();
        let own = by_request.filter(|(id, _)| self.given.get(id) == Some(&Some(operation)));
        self.plc.by_operation[operation] + own.map(|(_, effects)| effects).sum::<u32>()
    }
}
