//! Holdfast: an edge gateway between upper systems and PLCs that never says what it does not know.

pub mod api;
pub mod cli;
pub mod core;
