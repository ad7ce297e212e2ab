//! Owns: the frame around every stored value, and finding frames in raw bytes.
//! May call: crc32fast.
//! Never: know what a body means, or trust one whose CRC does not match (REC-03).
//!
//! # Layout (little endian)
//! | bytes | field |
//! | --- | --- |
//! | 0..8 | magic |
//! | 8..10 | format version |
//! | 10 | kind |
//! | 11, 12 | part, parts |
//! | 13..16 | zero |
//! | 16..24 | commit number |
//! | 24..32 | wall time, microseconds since 1970 |
//! | 32..36 | events in the body |
//! | 36..40 | length of this part's body |
//! | 40..44 | chain: CRC-32 over the chain of the commit before and the whole body |
//! | 44..48 | CRC-32 over everything before and the body |

/// Version of the frame.
pub const FORMAT_VERSION: u16 = 1;
/// Version of what a journal may hold, in its manifest (REC-05): a program that knows less refuses it. A journal of a
/// lower one is taken as it is, and marked. 2: sources and sinks of events, and a log that gave up telemetry.
pub const JOURNAL_VERSION: u16 = 2;
/// Makes frames findable in raw bytes.
pub const MAGIC: [u8; 8] = *b"\x89HFJRN\r\n";
/// Size of the head.
pub const HEAD_BYTES: usize = 48;
/// Most bytes of a body in one stored value: a whole leaf of these must never become a blob.
pub const PART_BYTES_MAX: usize = 40_000;
/// Most parts of one body.
pub const PARTS_COUNT_MAX: usize = 64;
/// Most bytes of one block's body.
pub const BLOCK_BYTES_MAX: usize = PART_BYTES_MAX * PARTS_COUNT_MAX;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Block = 1,
    Operation = 2,
    Tombstone = 3,
    Machine = 4,
    Cursor = 5,
    DeadLetter = 6,
    Meta = 7,
    Source = 8,
    Sink = 9,
    /// A block of which records are gone; the chain is that of the whole one.
    Thinned = 10,
    /// A run of commits of which nothing is left: its last number is the body, the chain is the last one's.
    Hollow = 11,
    Shed = 12,
}

impl Kind {
    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        [
            Self::Block,
            Self::Operation,
            Self::Tombstone,
            Self::Machine,
            Self::Cursor,
            Self::DeadLetter,
            Self::Meta,
            Self::Source,
            Self::Sink,
            Self::Thinned,
            Self::Hollow,
            Self::Shed,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) part: u8,
    pub(super) parts: u8,
    pub(super) no: u64,
    pub(super) wall_us: i64,
    pub(super) events: u32,
    pub(super) len: u32,
    pub(super) chain: u32,
}

/// Why bytes are no frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// Not one, or cut.
    #[error("no frame, or a cut one")]
    Shape,
    /// Written by a newer program.
    #[error("format version {0}; this program knows up to {FORMAT_VERSION}")]
    Version(u16),
    /// Altered.
    #[error("CRC-32 is {found:08x}, the frame says {stated:08x}")]
    Crc {
        /// Computed.
        found: u32,
        /// Written.
        stated: u32,
    },
}

/// The chain checksum of the commit with `body` behind the one whose chain is `before`.
pub(super) fn chain(before: u32, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&before.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

/// What goes into the head besides what is computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) kind: Kind,
    pub(super) no: u64,
    pub(super) wall_us: i64,
    pub(super) events: u32,
    pub(super) chain: u32,
}

/// The parts of one value, framed.
pub(super) type Frames = Vec<Vec<u8>>;

/// Frames `body`, in as many parts as it takes; `None` if it is larger than [`BLOCK_BYTES_MAX`].
pub(super) fn encode(facts: Facts, body: &[u8]) -> Option<Frames> {
    let pieces: Vec<&[u8]> = if body.is_empty() {
        vec![body]
    } else {
        body.chunks(PART_BYTES_MAX).collect()
    };
    if pieces.len() > PARTS_COUNT_MAX {
        return None;
    }
    let parts = u8::try_from(pieces.len()).ok()?;
    let frames = pieces.iter().zip(0_u8..).map(|(piece, part)| {
        let mut out = Vec::with_capacity(HEAD_BYTES + piece.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&[facts.kind as u8, part, parts, 0, 0, 0]);
        out.extend_from_slice(&facts.no.to_le_bytes());
        out.extend_from_slice(&facts.wall_us.to_le_bytes());
        out.extend_from_slice(&facts.events.to_le_bytes());
        // Pieces are at most PART_BYTES_MAX long.
        out.extend_from_slice(&(piece.len() as u32).to_le_bytes());
        out.extend_from_slice(&facts.chain.to_le_bytes());
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&out);
        hasher.update(piece);
        out.extend_from_slice(&hasher.finalize().to_le_bytes());
        out.extend_from_slice(piece);
        out
    });
    Some(frames.collect())
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// Reads the frame that begins `bytes` and checks it; more bytes may follow.
pub(super) fn decode(bytes: &[u8]) -> Result<(Head, &[u8]), FrameFault> {
    decode_opt(bytes).unwrap_or(Err(FrameFault::Shape))
}

fn decode_opt(bytes: &[u8]) -> Option<Result<(Head, &[u8]), FrameFault>> {
    if !bytes.starts_with(&MAGIC) || bytes.len() < HEAD_BYTES {
        return None;
    }
    let len = u32::from_le_bytes(array(bytes, 36)?);
    let body = bytes.get(HEAD_BYTES..HEAD_BYTES.checked_add(len as usize)?)?;
    let stated = u32::from_le_bytes(array(bytes, 44)?);
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..44]);
    hasher.update(body);
    let found = hasher.finalize();
    if found != stated {
        return Some(Err(FrameFault::Crc { found, stated }));
    }
    let version = u16::from_le_bytes(array(bytes, 8)?);
    if version != FORMAT_VERSION {
        return Some(Err(FrameFault::Version(version)));
    }
    let head = Head {
        kind: Kind::from_byte(bytes[10])?,
        part: bytes[11],
        parts: bytes[12],
        no: u64::from_le_bytes(array(bytes, 16)?),
        wall_us: i64::from_le_bytes(array(bytes, 24)?),
        events: u32::from_le_bytes(array(bytes, 32)?),
        len,
        chain: u32::from_le_bytes(array(bytes, 40)?),
    };
    Some(Ok((head, body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts = Facts {
        kind: Kind::Block,
        no: 7,
        wall_us: -3,
        events: 2,
        chain: 99,
    };

    // covers: REC-03
    #[test]
    fn every_flipped_bit_and_every_cut_is_seen() {
        let frame = encode(FACTS, b"some body").unwrap().remove(0);
        let (head, body) = decode(&frame).unwrap();
        assert_eq!(
            (head.no, head.wall_us, head.events, body),
            (7, -3, 2, &b"some body"[..])
        );
        for bit in 0..frame.len() * 8 {
            let mut bad = frame.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bad).is_err(), "bit {bit} flipped unseen");
        }
        for cut in 0..frame.len() {
            assert!(decode(&frame[..cut]).is_err(), "cut at {cut} unseen");
        }
    }

    #[test]
    fn a_large_body_is_cut_into_parts_and_a_larger_one_refused() {
        let body = vec![5; PART_BYTES_MAX * 2 + 1];
        let frames = encode(FACTS, &body).unwrap();
        let bodies: Vec<u8> = frames
            .iter()
            .flat_map(|f| decode(f).unwrap().1.to_vec())
            .collect();
        assert_eq!((frames.len(), bodies), (3, body));
        assert!(encode(FACTS, &vec![0; BLOCK_BYTES_MAX]).is_some());
        assert!(encode(FACTS, &vec![0; BLOCK_BYTES_MAX + 1]).is_none());
    }
}
