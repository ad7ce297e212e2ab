//! Owns: the exhaustive search of the real core around one machine, and the proof that the search can fail.
//! May call: the core and the deliberate faults.
//! Never: copy a decision of the core.
#![cfg(feature = "test-hooks")]

mod explore;
mod judge;
mod plan;
mod plc;
mod searches;
mod step;
mod world;
