//! The real binary over real links: one process a gateway, effects counted at the device.

mod disk_full;
mod harness;
mod kill_rounds;
mod load;
mod peers;
mod smoke;
mod systemd_notify;
