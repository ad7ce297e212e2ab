//! The real binary over real links: one process a gateway, effects counted at the device.

mod acceptance_c;
mod acceptance_c16;
mod acceptance_c_doubt;
mod demo;
mod harness;
mod scene_c;
mod disk_full;
mod harness;
mod kill_rounds;
mod load;
mod peers;
mod smoke;
mod systemd_notify;
