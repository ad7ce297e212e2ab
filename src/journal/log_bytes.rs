//! Owns: a log as plain bytes, for proofs: blocks in the frames that the store keeps, one after another.
//! May call: state, frame, store.
//! Never: take a block that does not follow the one before it.

use super::frame;
use super::state;
use super::store;
use crate::core::record::Block;

/// Where a log ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// The number of its last commit; 0: none.
    pub no: u64,
    /// The chain there.
    pub chain: u32,
    /// Its length, in bytes.
    pub bytes: usize,
}

/// The frames of `block` behind `tail`, and where the log ends then; `None`: it is too large for a block.
#[must_use]
pub fn framed(block: &Block, tail: Tail) -> Option<(Vec<u8>, Tail)> {
    let (frames, chain) = state::encode_block(block, tail.chain).ok()?;
    let frames = frames.concat();
    let tail = Tail {
        no: block.no.0,
        chain,
        bytes: tail.bytes + frames.len(),
    };
    Some((frames, tail))
}

/// The blocks of the log that `bytes` begin with, up to the first place where none follows.
#[must_use]
pub fn read(bytes: &[u8]) -> (Vec<Block>, Tail) {
    let (mut blocks, mut tail) = (Vec::new(), Tail::default());
    while let Some((block, next)) = read_one(bytes, tail) {
        blocks.push(block);
        tail = next;
    }
    (blocks, tail)
}

fn read_one(bytes: &[u8], tail: Tail) -> Option<(Block, Tail)> {
    let mut at = tail.bytes;
    let mut whole = Vec::new();
    let (first, _) = frame::decode(bytes.get(at..)?).ok()?;
    for part in 0..first.parts {
        let (head, body) = frame::decode(bytes.get(at..)?).ok()?;
        if (head.no, head.part, head.chain) != (first.no, part, first.chain) {
            return None;
        }
        whole.extend_from_slice(body);
        at += frame::HEAD_BYTES + body.len();
    }
    let follows = first.no == tail.no + 1 && frame::chain(tail.chain, &whole) == first.chain;
    let block = store::parse(&super::no_key(first.no), &whole).ok()?;
    follows.then_some((
        block,
        Tail {
            no: first.no,
            chain: first.chain,
            bytes: at,
        },
    ))
}
