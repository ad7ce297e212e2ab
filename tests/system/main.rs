//! The real binary over real links: one process a gateway, effects counted at the device.

mod acceptance_a;
mod acceptance_a_kill;
mod acceptance_a_limits;
mod acceptance_c;
mod acceptance_c16;
mod acceptance_c_doubt;
mod breaker_clock;
mod demo;
mod disk_full;
mod field_bus;
mod field_common;
mod field_config;
mod field_frames;
mod field_keep;
mod field_link;
mod field_time;
mod full_journal;
mod harness;
mod identity;
mod kill_rounds;
mod load;
mod outside;
mod peers;
mod scene_c;
mod smoke;
mod systemd_notify;
