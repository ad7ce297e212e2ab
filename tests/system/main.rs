//! The real binary over real links: one process a gateway, effects counted at the device.

mod field_bus;
mod field_common;
mod field_config;
mod field_frames;
mod field_keep;
mod field_link;
mod field_time;
mod harness;
mod smoke;
