//! Owns: what a command class means: its defaults, and how far a row may go beyond them (POL-01).
//! May call: spec, time.
//! Never: know one machine.

use super::spec::{Action, Class, Completion, OnRestart, ReplaceRule, Verify};
use super::time::TTL_MS_MAX;

/// Whether commands of a class may wait while the link is down (POL-02).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// By default, as one: the newest asked.
    AsNewest,
    /// If the row says so, with a precondition and its own validity.
    IfStated,
    /// If the row says so, with those and a device contract that justifies it.
    IfJustified,
    /// Never, whatever a row says.
    Never,
}

/// One row of the table of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassDefaults {
    /// See [`Waiting`].
    pub waiting: Waiting,
    /// Validity, in milliseconds.
    pub ttl_ms: u64,
    /// Longest validity a row may state, in milliseconds.
    pub ttl_ms_max: u64,
    /// Most that may wait.
    pub max_queued: u32,
    /// Whether a row may allow more than [`ClassDefaults::max_queued`].
    pub more_queued: bool,
    /// See [`ReplaceRule`].
    pub replace: ReplaceRule,
    /// Whether a waiting one may give way to another: by replacement or by merging.
    pub replaceable: bool,
    /// Callers must state the configuration version they expect.
    pub precondition: bool,
    /// See [`OnRestart`].
    pub on_restart: OnRestart,
    /// How long an accepted one may take, in milliseconds.
    pub completion_timeout_ms: u64,
    /// Whether a matched write reply completes it (POL-10).
    pub reply_completes: bool,
}

impl ClassDefaults {
    /// Whether commands wait unless the row says otherwise.
    #[must_use]
    pub fn queueable(&self) -> bool {
        self.waiting == Waiting::AsNewest
    }
}

/// Longest validity of what acts relative to a state nobody can vouch for later, in milliseconds.
pub const RELATIVE_TTL_MS_MAX: u64 = 5 * 60 * 1000;

/// The table of classes (POL-01, POL-02, POL-10).
#[must_use]
pub fn class_defaults(class: Class) -> ClassDefaults {
    let strictest = ClassDefaults {
        waiting: Waiting::Never,
        ttl_ms: 10_000,
        ttl_ms_max: RELATIVE_TTL_MS_MAX,
        max_queued: 1,
        more_queued: true,
        replace: ReplaceRule::Never,
        replaceable: false,
        precondition: false,
        on_restart: OnRestart::Expire,
        completion_timeout_ms: 30_000,
        reply_completes: false,
    };
    match class {
        Class::Query => ClassDefaults {
            waiting: Waiting::AsNewest,
            ttl_ms: 60_000,
            ttl_ms_max: TTL_MS_MAX,
            more_queued: false,
            reply_completes: true,
            ..strictest
        },
        Class::AbsoluteSet => ClassDefaults {
            waiting: Waiting::IfStated,
            ttl_ms_max: TTL_MS_MAX,
            replaceable: true,
            on_restart: OnRestart::Hold,
            reply_completes: true,
            ..strictest
        },
        Class::RelativeAction | Class::ModeChange => strictest,
        Class::RecipeWrite => ClassDefaults {
            waiting: Waiting::IfJustified,
            ttl_ms: 30_000,
            ttl_ms_max: TTL_MS_MAX,
            replaceable: true,
            precondition: true,
            on_restart: OnRestart::Hold,
            completion_timeout_ms: 120_000,
            ..strictest
        },
    }
}

/// What proves a command done, where the row does not say.
#[must_use]
pub fn default_completion(class: Class, action: &Action) -> Completion {
    match action {
        Action::Mailbox { .. } => Completion::Mailbox,
        // A remote operation ends only when the CPU's own state was seen to have changed.
        Action::Read { .. } | Action::Remote { .. } => Completion::Reply,
        Action::Write { .. } | Action::Scatter { .. } if class_defaults(class).reply_completes => {
            Completion::Reply
        }
        Action::Write { .. } | Action::Scatter { .. } => Completion::None,
    }
}

/// How an unknown outcome is looked into, where the row does not say.
#[must_use]
pub fn default_verify(class: Class, action: &Action, completion: &Completion) -> Verify {
    match (action, completion) {
        (Action::Mailbox { .. }, _) => Verify::Mailbox,
        (_, Completion::Event(_)) => Verify::Event,
        (_, Completion::Query(_)) => Verify::ResultQuery,
        _ if action.is_write() && class == Class::AbsoluteSet => Verify::Readback,
        _ => Verify::Manual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: POL-01, POL-02, POL-10
    #[test]
    fn only_queries_wait_by_default_and_only_sets_complete_by_reply() {
        let all = [
            Class::Query,
            Class::AbsoluteSet,
            Class::RelativeAction,
            Class::ModeChange,
            Class::RecipeWrite,
        ];
        for class in all {
            let defaults = class_defaults(class);
            assert_eq!(defaults.queueable(), class == Class::Query);
            assert!(defaults.ttl_ms > 0 && defaults.ttl_ms <= defaults.ttl_ms_max);
            assert!(defaults.ttl_ms_max <= TTL_MS_MAX);
            let write = Action::Write {
                start: crate::core::spec::Address::Modbus {
                    area: crate::core::spec::ModbusArea::Holding,
                    offset: 0,
                },
                request_id: false,
            };
            let by_reply = default_completion(class, &write) == Completion::Reply;
            assert_eq!(by_reply, matches!(class, Class::Query | Class::AbsoluteSet));
        }
        for class in [Class::RelativeAction, Class::ModeChange] {
            assert_eq!(class_defaults(class).waiting, Waiting::Never);
        }
    }

    // covers: POL-01, POL-02, POL-04, POL-05, POL-10, TIME-04
    #[test]
    fn the_table_of_classes_is_the_one_that_is_written_down() {
        const DAY_MS: u64 = 86_400_000;
        let strictest = ClassDefaults {
            waiting: Waiting::Never,
            ttl_ms: 10_000,
            ttl_ms_max: 300_000,
            max_queued: 1,
            more_queued: true,
            replace: ReplaceRule::Never,
            replaceable: false,
            precondition: false,
            on_restart: OnRestart::Expire,
            completion_timeout_ms: 30_000,
            reply_completes: false,
        };
        let query = ClassDefaults {
            waiting: Waiting::AsNewest,
            ttl_ms: 60_000,
            ttl_ms_max: DAY_MS,
            more_queued: false,
            reply_completes: true,
            ..strictest
        };
        let set = ClassDefaults {
            waiting: Waiting::IfStated,
            ttl_ms_max: DAY_MS,
            replaceable: true,
            on_restart: OnRestart::Hold,
            reply_completes: true,
            ..strictest
        };
        let recipe = ClassDefaults {
            waiting: Waiting::IfJustified,
            ttl_ms: 30_000,
            precondition: true,
            completion_timeout_ms: 120_000,
            reply_completes: false,
            ..set
        };
        for (class, expected) in [
            (Class::Query, query),
            (Class::AbsoluteSet, set),
            (Class::RelativeAction, strictest),
            (Class::ModeChange, strictest),
            (Class::RecipeWrite, recipe),
        ] {
            assert_eq!(class_defaults(class), expected, "{class:?}");
        }
    }

    // covers: VER-01
    #[test]
    fn an_unknown_outcome_is_looked_into_by_the_strongest_proof_there_is() {
        use crate::core::spec::{Address, DataType, DoneSpec, ModbusArea, Scalar, WordOrder};
        let start = Address::Modbus {
            area: ModbusArea::Holding,
            offset: 0,
        };
        let write = Action::Write {
            start,
            request_id: true,
        };
        let read = Action::Read { points: Vec::new() };
        let done = DoneSpec {
            id: Scalar {
                address: start,
                data_type: DataType::U32,
                word_order: WordOrder::HighFirst,
            },
            result: None,
        };
        let (event, query) = (Completion::Event(done.clone()), Completion::Query(done));
        let (set, relative) = (Class::AbsoluteSet, Class::RelativeAction);
        let mailbox = Action::Mailbox { opcode: 3 };
        for (class, action, completion, expected) in [
            (set, &mailbox, &Completion::Mailbox, Verify::Mailbox),
            (set, &write, &event, Verify::Event),
            (set, &write, &query, Verify::ResultQuery),
            (set, &write, &Completion::Reply, Verify::Readback),
            (relative, &write, &Completion::None, Verify::Manual),
            (set, &read, &Completion::Reply, Verify::Manual),
        ] {
            assert_eq!(default_verify(class, action, completion), expected);
        }
        assert_eq!(default_completion(set, &mailbox), Completion::Mailbox);
        assert_eq!(default_completion(relative, &read), Completion::Reply);
    }
}
