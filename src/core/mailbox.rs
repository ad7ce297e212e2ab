//! Owns: the mailbox's two blocks as words, and what they prove about one request id.
//! May call: contract, spec.
//! Never: conclude more than the device's record says.

/// Words of the gateway's block.
pub const COMMAND_WORDS: usize = 19;
/// Words of the PLC's block.
pub const STATUS_WORDS: usize = 33;
/// Most parameter words of one command.
pub const PARAMETER_WORDS_MAX: usize = 8;
