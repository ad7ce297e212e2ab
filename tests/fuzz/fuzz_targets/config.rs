//! Owns: nothing; hands bytes on.
//! May call: holdfast::fuzzing.
//! Never: know what the bytes mean.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| holdfast::fuzzing::config(data));
