//! Owns: what is explored: the machine, the operations, and how often each misfortune may happen.
//! May call: the machine's specification.
//! Never: decide anything.

use holdfast::core::gateway::Settings;
use holdfast::core::intent::{RawArg, RawValue, Request};
use holdfast::core::roles::Roles;
use holdfast::core::spec::*;
use std::collections::BTreeMap;

/// What somebody wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// A set value, which may wait.
    Set,
    /// One that takes the place of the operation before it.
    SetInstead,
    /// A relative action by a plain write; the device says what it finished last.
    Kick,
    /// A relative action through the mailbox.
    Eject,
}

/// What may happen only so often on one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rare {
    Again,
    Person,
    Link,
    Failed,
    Refused,
    Slow,
    Doubled,
    Version,
    Time,
    Crash,
    Reboot,
    PlcRestart,
    PlcCold,
}
pub(crate) const RARE: usize = 13;

/// One search.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) wishes: &'static [Wish],
    /// How often each [`Rare`] thing may happen.
    pub(crate) may: &'static [(Rare, u8)],
    /// The same in the long run.
    pub(crate) long: &'static [(Rare, u8)],
}

/// How long an operation is valid, in milliseconds.
pub(crate) const TTL_MS: u64 = 10_000;

fn holding(offset: u16, data_type: DataType) -> Scalar {
    let area = ModbusArea::Holding;
    Scalar {
        address: Address::Modbus { area, offset },
        data_type,
        word_order: WordOrder::HighFirst,
    }
}

fn row(name: &str, class: Class, action: Action) -> Row {
    Row {
        name: name.into(),
        class,
        queueable: false,
        ttl_ms: TTL_MS,
        max_queued: 3,
        stop: false,
        replace: ReplaceRule::Never,
        precondition: false,
        on_restart: OnRestart::Hold,
        completion: Completion::Reply,
        completion_timeout_ms: 5_000,
        verify: Verify::Manual,
        interlocks: Vec::new(),
        args: Vec::new(),
        action,
        device_contract_mailbox: false,
        merge_latest: false,
        i_accept: None,
        origins: BTreeMap::new(),
    }
}

fn commands() -> Vec<Row> {
    let write = |offset, request_id| Action::Write {
        start: holding(offset, DataType::U16).address,
        request_id,
    };
    let mut set = row("set", Class::AbsoluteSet, write(100, false));
    (set.queueable, set.replace) = (true, ReplaceRule::SameOperator);
    (set.precondition, set.verify) = (true, Verify::Readback);
    set.args = vec![ArgSpec {
        name: "speed".into(),
        data_type: DataType::U16,
        word_order: WordOrder::HighFirst,
        unit: None,
        min: None,
        max: None,
        default: None,
        secret: false,
    }];
    let mut kick = row("kick", Class::RelativeAction, write(200, true));
    kick.completion = Completion::Query(DoneSpec {
        id: holding(210, DataType::U32),
        result: None,
    });
    kick.verify = Verify::ResultQuery;
    let mut eject = row(
        "eject",
        Class::RelativeAction,
        Action::Mailbox { opcode: 3 },
    );
    (eject.completion, eject.verify) = (Completion::Mailbox, Verify::Mailbox);
    (eject.queueable, eject.on_restart) = (true, OnRestart::Hold);
    vec![set, kick, eject]
}

/// The one machine.
pub(crate) fn machine() -> MachineSpec {
    MachineSpec {
        name: "press".into(),
        owner: "gw".into(),
        read_only: false,
        link: LinkSpec::ModbusTcp(ModbusTcp {
            host: "127.0.0.1".into(),
            port: 502,
            unit: 1,
            answering_unit: None,
            timeout_ms: 500,
            read_registers_max: 125,
            reconnect_ms_min: 100,
            reconnect_ms_max: 1000,
            heartbeat_ms: 1000,
        }),
        gate: GateSpec {
            identity: None,
            config_version: Some(holding(120, DataType::U16)),
            mode: None,
            interlocks: Vec::new(),
            age_ms_max: 2_000,
        },
        tags: Vec::new(),
        groups: Vec::new(),
        events: Vec::new(),
        commands: commands(),
        mailbox: Some(MailboxSpec {
            command: holding(300, DataType::U16).address,
            status: holding(340, DataType::U16).address,
            word_order: WordOrder::HighFirst,
        }),
    }
}

/// No limit of rate: what waits is sent at once, so that no chance is in it.
pub(crate) fn settings() -> Settings {
    Settings {
        gateway: "gw".into(),
        replay_window_ms: 24 * 3600 * 1000,
        drain_per_machine_milli: u64::MAX,
        drain_total_milli: u64::MAX,
        roles: Roles {
            rules: Vec::new(),
            own_uid: 1000,
        },
    }
}

/// What is asked for as operation `at`.
pub(crate) fn request(wishes: &[Wish], at: usize, issued_at_us: i64) -> Request {
    let wish = wishes[at];
    let mut request = Request {
        operation_id: Some(format!("OP{at}")),
        machine: "press".into(),
        issued_at_us: Some(issued_at_us),
        expected_config_version: Some(7),
        ..Request::default()
    };
    request.command = match wish {
        Wish::Set | Wish::SetInstead => "set",
        Wish::Kick => "kick",
        Wish::Eject => "eject",
    }
    .into();
    if matches!(wish, Wish::Set | Wish::SetInstead) {
        let value = RawValue::Number(format!("{}", 100 + at));
        request
            .args
            .insert("speed".into(), RawArg { value, unit: None });
    }
    if wish == Wish::SetInstead {
        request.replaces = Some(format!("OP{}", at - 1));
    }
    request
}
