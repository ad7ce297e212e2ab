//! Owns: the commands that do their work in this process: run, check, sim, journal, demo, upstream.
//! May call: everything.
//! Never: hold logic that a room could hold.

pub(crate) mod check;
pub(crate) mod demo;
pub(crate) mod journal;
mod logging;
pub(crate) mod run;
pub(crate) mod upstream;
