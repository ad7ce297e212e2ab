//! Owns: the commands that do their work in this process: run, check, board, sim, journal, demo, receiver, upstream.
//! May call: everything.
//! Never: hold logic that a room could hold.

pub(crate) mod board;
pub(crate) mod check;
pub(crate) mod demo;
pub(crate) mod journal;
mod logging;
mod probe;
pub(crate) mod receiver;
pub(crate) mod run;
pub(crate) mod upstream;
