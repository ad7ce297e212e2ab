//! Power is lost at any moment of what the real binary does to its disk; what comes back is all that was told, or a
//! gateway that says what is missing.

mod disk;
mod faults;
#[path = "../system/harness.rs"]
mod harness;
mod judge;
#[path = "../system/link_kind.rs"]
mod link_kind;
#[path = "../system/load.rs"]
#[allow(dead_code, reason = "another suite uses the rest")]
mod load;
mod loss;
mod pages;
mod recording;
mod sink_alone;
mod tape;
