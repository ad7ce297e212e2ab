//! Holdfast: an edge gateway between upper systems and PLCs that never says what it does not know.

pub mod api;
pub mod board;
pub mod cli;
pub mod config;
pub mod core;
pub mod journal;
pub mod plc;
pub mod service;
pub mod simulator;
pub mod sink;
pub mod sys;
