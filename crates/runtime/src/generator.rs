//! Random number generators, with PyTorch's sequences and states.

use std::fmt;

use rand_mt::Mt;

#[cfg(doc)]
use crate::ErrorKind;
use crate::{Error, Result};

/// Default seed, as in PyTorch.
pub const DEFAULT_SEED: u64 = 67_280_421_310_721;

/// Number of values that MT19937 produces at a time.
const BLOCK: usize = 624;

/// The generator of CPU tensors: MT19937 (`torch.Generator`).
#[derive(Clone)]
pub struct CpuGenerator {
    seed: u64,
    /// The engine, whose next output follows the last value of `block`.
    engine: Mt,
    block: Box<[u32; BLOCK]>,
    /// Number of values of `block` that have been returned.
    used: usize,
    /// The second value of the last pair of normal values, if it is still unused.
    next_normal: Option<f64>,
}

impl fmt::Debug for CpuGenerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuGenerator").field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl Default for CpuGenerator {
    fn default() -> Self {
        Self::new(DEFAULT_SEED)
    }
}

impl CpuGenerator {
    /// Creates a generator at the start of the sequence of `seed`. Only the lower 32 bits of `seed`
    /// determine the sequence.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // The engine's state words, stored as if they were the outputs of a block that precedes the
        // first one.
        let mut word = seed as u32;
        let mut block = Box::new([temper(word); BLOCK]);
        for (i, number) in block.iter_mut().enumerate().skip(1) {
            word = 1_812_433_253u32.wrapping_mul(word ^ word >> 30).wrapping_add(i as u32);
            *number = temper(word);
        }
        Self { seed, engine: Mt::from(*block), block, used: BLOCK, next_normal: None }
    }

    /// Restarts the sequence with `seed` (`torch.manual_seed`).
    pub fn manual_seed(&mut self, seed: u64) {
        *self = Self::new(seed);
    }

    /// Returns the seed of the sequence (`torch.initial_seed`).
    #[must_use]
    pub fn initial_seed(&self) -> u64 {
        self.seed
    }

    /// Returns the next 32 random bits.
    #[inline]
    pub fn random(&mut self) -> u32 {
        if self.used == BLOCK {
            self.block.fill_with(|| self.engine.next_u32());
            self.used = 0;
        }
        let number = self.block[self.used];
        self.used += 1;
        number
    }

    /// Keeps the second value of a pair of normal values for the next draw of a single value.
    pub fn keep_normal(&mut self, value: f64) {
        self.next_normal = Some(value);
    }

    /// Returns the kept value, if there is one, and removes it.
    pub fn take_normal(&mut self) -> Option<f64> {
        self.next_normal.take()
    }

    /// Returns the next 64 random bits, the earlier draw in the upper half.
    pub fn random64(&mut self) -> u64 {
        let high = u64::from(self.random());
        high << 32 | u64::from(self.random())
    }

    /// Returns the numbers from 0 to `n - 1` in random order (`torch.randperm`).
    pub fn permutation(&mut self, n: usize) -> Vec<i64> {
        let mut numbers: Vec<i64> = (0..n as i64).collect();
        let n = n as u64;
        let wide = n >= u64::from(u32::MAX / 20);
        for i in 0..n.saturating_sub(1) {
            let bits = if wide { self.random64() } else { self.random().into() };
            numbers.swap(i as usize, (i + bits % (n - i)) as usize);
        }
        numbers
    }

    /// Returns the generator's state, in the byte format of `torch.get_rng_state`.
    #[must_use]
    pub fn state(&self) -> Vec<u8> {
        let left = (BLOCK - self.used + 1) as u32;
        let mut state = Vec::with_capacity(STATE);
        state.extend(self.seed.to_le_bytes());
        state.extend(left.to_le_bytes());
        // PyTorch's field `seeded`.
        state.extend(1u32.to_le_bytes());
        state.extend((self.used as u64 % BLOCK as u64).to_le_bytes());
        for number in self.block.iter() {
            state.extend(u64::from(untemper(*number)).to_le_bytes());
        }
        let normal = self.next_normal;
        for field in [0.0, normal.unwrap_or(0.0), 0.0] {
            state.extend(field.to_le_bytes());
        }
        state.extend(u64::from(normal.is_some()).to_le_bytes());
        // PyTorch's kept normal value of `f32`, which Warpline never keeps.
        state.extend([0; 8]);
        state
    }

    /// Restores a state returned by [`CpuGenerator::state`] (`torch.set_rng_state`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `state` does not have the length of a state, is not marked
    /// as seeded, or has a position outside the block of numbers.
    #[track_caller]
    pub fn set_state(&mut self, state: &[u8]) -> Result<()> {
        const OP: &str = "set_rng_state";
        if state.len() != STATE {
            let reason = format!(
                "a CPU generator's state has {STATE} bytes, but {} were given",
                state.len()
            );
            return Err(Error::invalid(OP, reason));
        }
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&state[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (left, seeded) = (word(8) as u32 as usize, word(8) >> 32);
        if seeded != 1 || !(1..=BLOCK).contains(&left) {
            let reason = "the bytes are not those of a CPU generator's state";
            return Err(Error::invalid(OP, reason));
        }
        let mut block = Box::new([0; BLOCK]);
        for (i, number) in block.iter_mut().enumerate() {
            *number = temper(word(24 + 8 * i) as u32);
        }
        let normal = 24 + 8 * BLOCK;
        let kept = word(normal + 24) as u32 != 0;
        *self = Self {
            seed: word(0),
            engine: Mt::from(*block),
            block,
            used: BLOCK - (left - 1),
            next_normal: kept.then(|| f64::from_bits(word(normal + 8))),
        };
        Ok(())
    }
}

/// Size of a CPU generator's state, in bytes.
const STATE: usize = 24 + 8 * BLOCK + 4 * 8 + 8;

/// Computes MT19937's output for a state word.
fn temper(mut word: u32) -> u32 {
    word ^= word >> 11;
    word ^= word << 7 & 0x9d2c_5680;
    word ^= word << 15 & 0xefc6_0000;
    word ^ word >> 18
}

/// Computes the state word for an output of [`temper`].
fn untemper(mut number: u32) -> u32 {
    number ^= number >> 18;
    number ^= number << 15 & 0xefc6_0000;
    // Each round recovers 7 more bits.
    let shifted = number;
    for _ in 0..4 {
        number = shifted ^ (number << 7 & 0x9d2c_5680);
    }
    number ^ number >> 11 ^ number >> 22
}

/// The generator of one device: Philox4x32-10. Any part of its sequence follows from the seed and
/// an offset alone.
#[derive(Clone, Debug)]
pub struct CudaGenerator {
    seed: u64,
    offset: u64,
}

impl Default for CudaGenerator {
    fn default() -> Self {
        Self { seed: DEFAULT_SEED, offset: 0 }
    }
}

impl CudaGenerator {
    /// Restarts the sequence with `seed` (`torch.cuda.manual_seed`).
    pub fn manual_seed(&mut self, seed: u64) {
        (self.seed, self.offset) = (seed, 0);
    }

    /// Returns the seed of the sequence (`torch.cuda.initial_seed`).
    #[must_use]
    pub fn initial_seed(&self) -> u64 {
        self.seed
    }

    /// Returns the number of values by which each thread's sequence has advanced.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Sets the offset in each thread's sequence (`Generator.set_offset`). Rounds it up to a
    /// multiple of 4, because a draw produces four values. A thread's sequence repeats after 2^64
    /// values.
    pub fn set_offset(&mut self, offset: u64) {
        self.offset = offset.checked_next_multiple_of(4).unwrap_or(0);
    }

    /// Returns the seed and the offset, in the byte format of `torch.cuda.get_rng_state`.
    #[must_use]
    pub fn state(&self) -> Vec<u8> {
        [self.seed.to_le_bytes(), self.offset.to_le_bytes()].concat()
    }

    /// Restores a state returned by [`CudaGenerator::state`] (`torch.cuda.set_rng_state`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the length is not 16 bytes.
    #[track_caller]
    pub fn set_state(&mut self, state: &[u8]) -> Result<()> {
        let (words, rest) = state.as_chunks::<8>();
        let (&[seed, offset], []) = (words, rest) else {
            let reason =
                format!("a GPU generator's state has 16 bytes, but {} were given", state.len());
            return Err(Error::invalid("set_rng_state", reason));
        };
        self.seed = u64::from_le_bytes(seed);
        self.set_offset(u64::from_le_bytes(offset));
        Ok(())
    }

    /// Returns the seed and the offset for a kernel whose threads take at most `values` values
    /// each, and advances past them.
    pub fn advance(&mut self, values: u64) -> (u64, u64) {
        let offset = self.offset;
        self.offset = offset.wrapping_add(values.next_multiple_of(4));
        (self.seed, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_mt19937() {
        let mut generator = CpuGenerator::new(5489);
        let mut engine = Mt::new(5489);
        for _ in 0..3 * BLOCK {
            assert_eq!(generator.random(), engine.next_u32());
        }
    }

    #[test]
    fn a_restored_state_continues_with_the_same_numbers() {
        for before in [0, 1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK] {
            let mut generator = CpuGenerator::new(42);
            for _ in 0..before {
                generator.random();
            }
            generator.keep_normal(-0.25);
            let state = generator.state();
            assert_eq!(state.len(), 5056);
            let mut other = CpuGenerator::new(1);
            other.set_state(&state).unwrap();
            assert_eq!((other.initial_seed(), other.state()), (42, state));
            assert_eq!(other.take_normal(), generator.take_normal());
            for _ in 0..2 * BLOCK {
                assert_eq!(other.random(), generator.random(), "after {before}");
            }
        }
    }

    #[test]
    fn untemper_inverts_temper() {
        for word in [0, 1, 0x8000_0000, 0xdead_beef, u32::MAX] {
            assert_eq!(untemper(temper(word)), word);
        }
        // The first state word of a new generator is its seed.
        assert_eq!(CpuGenerator::new(42).state()[24..32], 42u64.to_le_bytes());
    }

    #[test]
    fn an_invalid_state_is_an_error_and_changes_nothing() {
        let mut generator = CpuGenerator::new(42);
        let state = generator.state();
        assert!(generator.set_state(&state[1..]).is_err());
        assert!(generator.set_state(&[0; STATE]).is_err());
        assert_eq!(generator.state(), state);
        let mut generator = CudaGenerator::default();
        generator.advance(8);
        let state = generator.state();
        assert!(generator.set_state(&state[..15]).is_err());
        generator.manual_seed(1);
        generator.set_state(&state).unwrap();
        assert_eq!((generator.initial_seed(), generator.offset()), (DEFAULT_SEED, 8));
    }
}
