//! Owns: which connection's gate each order was decided by, as the world counts connections.
//! May call: the core's inputs and effects.
//! Never: look at the number that the core put on an order.

use holdfast::core::gateway::{Effect, Input};
use holdfast::core::ids::AttemptId;
use std::collections::HashMap;

/// What writes at a machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Order {
    Command(String, AttemptId),
    NoOp(String, u32),
}

impl Order {
    pub(crate) fn of(effect: &Effect) -> Option<Self> {
        match effect {
            Effect::Run {
                machine, attempt, ..
            } => Some(Self::Command(machine.clone(), *attempt)),
            Effect::Burn {
                machine, request, ..
            } => Some(Self::NoOp(machine.clone(), request.request_id)),
            _ => None,
        }
    }

    pub(crate) fn machine(&self) -> &str {
        match self {
            Self::Command(machine, _) | Self::NoOp(machine, _) => machine,
        }
    }
}

/// What one process of the gateway decided by which gate.
#[derive(Default)]
pub(crate) struct Orders {
    /// By machine, over which connection the gate was read that the gateway was last told of.
    gate_of: HashMap<String, u64>,
    decided_by: HashMap<Order, u64>,
}

impl Orders {
    /// `stands`: which connection of a machine the input came over. What is lost is told, and decided upon, before
    /// there is another.
    pub(crate) fn told(&mut self, input: &Input, stands: impl FnOnce(&str) -> u64) {
        if let Input::Gate {
            machine,
            reading: Ok(_),
        } = input
        {
            self.gate_of.insert(machine.clone(), stands(machine));
        }
    }

    pub(crate) fn decided(&mut self, effects: &[Effect]) {
        for order in effects.iter().filter_map(Order::of) {
            let over = self.gate_of.get(order.machine()).copied();
            let over = over.unwrap_or_else(|| panic!("decided by no gate: {order:?}"));
            self.decided_by.insert(order, over);
        }
    }

    /// Its bytes leave over the connection `stands`. Whether it is an order.
    pub(crate) fn leaves(&self, effect: &Effect, stands: u64) -> bool {
        let Some(order) = Order::of(effect) else {
            return false;
        };
        assert_eq!(
            self.decided_by[&order], stands,
            "bytes left by the gate of an earlier connection: {order:?}"
        );
        true
    }
}
