//! The real binary over real links: one process a gateway, effects counted at the device.

mod field_common;
mod field_frames;
mod harness;
mod smoke;
