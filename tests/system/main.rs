//! The real binary over real links: one process a gateway, effects counted at the device.

mod demo;
mod harness;
mod smoke;
