//! The real binary over real links: one process a gateway, effects counted at the device.

mod acceptance_a;
mod acceptance_a_kill;
mod acceptance_a_limits;
mod harness;
mod smoke;
