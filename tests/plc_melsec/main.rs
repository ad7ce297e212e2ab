//! Owns: MC protocol links as tests see them: one link, one simulated CPU or one that others wrote.
//! May call: plc, core types, the simulator.
//! Never: use a device that nobody started here.

mod exchange;
mod late;
mod loopback;
mod peer_scatter;
mod peers;
mod rig;
mod rs485;
mod scatter;
mod scatter_write;
mod serial;
mod slmp;
