//! Owns: which requests of a machine may carry a secret argument, there or back.
//! May call: exchange, plan of this room; core spec, mailbox.
//! Never: take a request for harmless because the value that it carries today is.

use super::exchange::Ask;
use super::plan::Span;
use crate::core::mailbox::COMMAND_WORDS;
use crate::core::spec::{Action, Address, Area, MachineSpec, Scalar};

/// Whether a secret argument is written to `at`, or through it: nobody reads it for its own sake.
#[must_use]
pub fn is_secret(spec: &MachineSpec, at: &Scalar) -> bool {
    Secrets::of(spec).touch(&Ask::Read(Span::of(at)))
}

/// The places to which secret arguments are written.
#[derive(Default)]
pub(super) struct Secrets(Vec<(Area, u32, u32)>);

impl Secrets {
    pub(super) fn of(spec: &MachineSpec) -> Self {
        let secret = spec
            .commands
            .iter()
            .filter(|row| row.args.iter().any(|arg| arg.secret));
        let places = secret.flat_map(|row| match &row.action {
            Action::Write { start, request_id } => {
                let words = row.args.iter().map(|arg| match start.area().is_bits() {
                    true => 1,
                    false => u32::from(arg.data_type.registers()),
                });
                let id = if *request_id { 2 } else { 0 };
                vec![reach(*start, words.sum::<u32>() + id)]
            }
            Action::Scatter { places, .. } => {
                let args = row.args.iter().zip(places).filter(|(arg, _)| arg.secret);
                args.map(|(arg, at)| reach(*at, arg.data_type.registers().into()))
                    .collect()
            }
            Action::Mailbox { .. } => {
                let words = u32::try_from(COMMAND_WORDS).unwrap_or(u32::MAX);
                spec.mailbox
                    .iter()
                    .map(|mailbox| reach(mailbox.command, words))
                    .collect()
            }
            Action::Read { .. } | Action::Remote { .. } => Vec::new(),
        });
        Self(places.collect())
    }

    /// Whether `ask` writes or reads one of them.
    pub(super) fn touch(&self, ask: &Ask) -> bool {
        let (area, from, to) = match ask {
            Ask::Read(span) => (
                span.area,
                span.start,
                span.start.saturating_add(span.count.into()),
            ),
            Ask::Write { start, words } => {
                reach(*start, u32::try_from(words.len()).unwrap_or(u32::MAX))
            }
            Ask::Scattered(read) => {
                return read.spans.iter().any(|span| self.touch(&Ask::Read(*span)));
            }
            Ask::Scatter(parts) => {
                return parts.iter().any(|(start, words)| {
                    let (start, words) = (*start, words.clone());
                    self.touch(&Ask::Write { start, words })
                });
            }
            Ask::Remote(_) | Ask::Model | Ask::Loopback(_) => return false,
        };
        let meets = |place: &(Area, u32, u32)| place.0 == area && from < place.2 && place.1 < to;
        self.0.iter().any(meets)
    }
}

/// Area, first place, the place behind the last.
fn reach(start: Address, count: u32) -> (Area, u32, u32) {
    (
        start.area(),
        start.number(),
        start.number().saturating_add(count),
    )
}
