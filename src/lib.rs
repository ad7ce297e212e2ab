//! Holdfast: an edge gateway between upper systems and PLCs that never says what it does not know.
//!
//! # The map
//! A pure core decides; a shell obeys. The core takes `(now, input)` and returns blocks of records and effects;
//! the shell makes the blocks durable and only then performs the effects. "Write it down before you act" is the
//! only way through the code.
//!
//! | room | owns |
//! | --- | --- |
//! | [`core`] | every decision, as pure functions and plain data: no clock, I/O, async, randomness, logging |
//! | [`journal`] | the durable log over sled, verified at every open; recovery mode; check, export, salvage |
//! | [`plc`] | the link to a device: metered transport, matching, outcomes of exchanges, poll plan |
//! | [`sink`] | places upstream that events go to |
//! | [`upstream`] | the books in PostgreSQL: schema, the call that enters events, the connection |
//! | [`api`] | the local HTTP/JSON interface, behind one trait |
//! | [`cli`] | the command line, which talks to the interface only |
//! | [`config`], [`board`] | files, checked with positions; computers |
//! | [`simulator`] | a simulated PLC with faults and a ledger of effects; shares no code with [`plc`] |
//! | [`receiver`] | events of many gateways, over HTTP into the books |
//! | [`patience`] | a stream that gives up on who does not read |
//! | [`durable`] | directories whose names stay |
//! | [`secret`] | passwords and tokens as files |
//! | [`seeded`] | deliberate faults that the proofs must catch; none in a release |
//! | `fuzzing` | what must hold of every decoder, whatever bytes come; none in a release |
//! | [`service`] | tasks, clocks, signals: the only room that sees all others |
//! | [`sys`] | all `unsafe` code |
//!
//! # Invariants
//! - One thread, the engine, owns core and journal ([`service::engine`]). What waits is one round: decided,
//!   committed with one flush, then acted upon. A failed commit ends the process.
//! - No byte of a command leaves before its `Sending` is durable, and none at or after its deadline.
//! - An operation changes state only by [`core::lifecycle::next`]; `Completed` is built only from
//!   [`core::lifecycle::Evidence`]; doubt ends only by evidence.
//! - A device is written to by one task, one request at a time; after any doubt the connection is dropped with a
//!   reset before the next request.
//! - An event has its key and is durable before a sink sees it; a cursor moves only after the sink has answered.
//! - Dependencies between rooms point one way; `tests/architecture.rs` checks it.

pub mod api;
pub mod board;
pub mod cli;
pub mod config;
pub mod core;
pub mod durable;
#[cfg(feature = "test-hooks")]
pub mod fuzzing;
pub mod journal;
pub mod patience;
pub mod plc;
pub mod receiver;
pub mod secret;
pub mod seeded;
pub mod service;
pub mod simulator;
pub mod sink;
pub mod sys;
pub mod upstream;
