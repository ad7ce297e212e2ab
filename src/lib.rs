//! Holdfast: an edge gateway between upper systems and PLCs that never says what it does not know.

pub mod api;
pub mod core;
pub mod simulator;
pub mod sink;
