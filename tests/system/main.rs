//! The real binary over real links: one process a gateway, effects counted at the device.

mod acceptance_a;
mod acceptance_a_kill;
mod acceptance_a_limits;
mod acceptance_c;
mod acceptance_c16;
mod acceptance_c_doubt;
mod books;
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
mod harness;
#[path = "../receiver/client.rs"]
mod http_client;
mod identity;
mod kill_rounds;
mod load;
mod mosquitto_server;
mod mqtt_sink;
mod outside;
mod peers;
mod postgres_server;
mod receiver;
mod scene_c;
mod smoke;
mod sources;
mod systemd_notify;
