//! Owns: spreading things out in time, from a seed that the shell hands in.
//! May call: nothing.
//! Never: decide anything that must be unpredictable.

/// SplitMix64 (Steele, Lea, Flood 2014): the same seed gives the same spread.
#[derive(Clone, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }
    /// A number in `0..bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        if bound == 0 { 0 } else { z % bound }
    }
}
