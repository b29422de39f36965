//! What a sequence of random numbers is taken from.

use rand_mt::Mt;

/// The seed that PyTorch's generators start from.
pub const DEFAULT_SEED: u64 = 67_280_421_310_721;

/// The generator of CPU tensors: MT19937.
#[derive(Debug)]
pub struct CpuGenerator {
    seed: u64,
    engine: Mt,
    /// The second value of the last pair of normal values, not yet handed out.
    next_normal: Option<f64>,
}

impl Default for CpuGenerator {
    fn default() -> Self {
        Self::new(DEFAULT_SEED)
    }
}

impl CpuGenerator {
    /// A generator at the start of the sequence of `seed`. Only its lower 32 bits matter.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, engine: Mt::new(seed as u32), next_normal: None }
    }

    /// Starts the sequence of `seed` (`torch.manual_seed`).
    pub fn manual_seed(&mut self, seed: u64) {
        *self = Self::new(seed);
    }

    /// The seed the sequence was started from (`torch.initial_seed`).
    #[must_use]
    pub fn initial_seed(&self) -> u64 {
        self.seed
    }

    /// The next 32 random bits.
    pub fn random(&mut self) -> u32 {
        self.engine.next_u32()
    }

    /// The second value of a pair of normal values, for the next draw of one.
    pub fn keep_normal(&mut self, value: f64) {
        self.next_normal = Some(value);
    }

    /// The value that was kept, if there is one; it is handed out once.
    pub fn take_normal(&mut self) -> Option<f64> {
        self.next_normal.take()
    }

    /// The next 64 random bits, the earlier draw in the upper half.
    pub fn random64(&mut self) -> u64 {
        let high = u64::from(self.random());
        high << 32 | u64::from(self.random())
    }
}

/// The generator of one device: Philox4x32-10, which computes any part of its sequence from the
/// seed and a position alone.
#[derive(Debug)]
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
    /// Starts the sequence of `seed` (`torch.cuda.manual_seed`).
    pub fn manual_seed(&mut self, seed: u64) {
        (self.seed, self.offset) = (seed, 0);
    }

    /// The seed the sequence was started from (`torch.cuda.initial_seed`).
    #[must_use]
    pub fn initial_seed(&self) -> u64 {
        self.seed
    }

    /// How many values each thread's sequence has been advanced by.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Moves to another place of the sequence (`Generator.set_offset`). Rounded up to a multiple
    /// of 4, since a draw makes four values; the sequence of a thread begins anew after 2^64.
    pub fn set_offset(&mut self, offset: u64) {
        self.offset = offset.checked_next_multiple_of(4).unwrap_or(0);
    }

    /// The seed and place for a kernel of which no thread takes more than `values` values.
    pub fn advance(&mut self, values: u64) -> (u64, u64) {
        let offset = self.offset;
        self.offset = offset.wrapping_add(values.next_multiple_of(4));
        (self.seed, offset)
    }
}
