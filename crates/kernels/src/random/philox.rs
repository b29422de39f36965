//! Philox4x32-10: random words computed from a key and a counter.

/// The four words of `counter` in the thread `subsequence` of the sequence of `seed`.
#[inline]
pub(super) fn philox(seed: u64, subsequence: u64, counter: u64) -> [u32; 4] {
    const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    let mut c =
        [counter as u32, (counter >> 32) as u32, subsequence as u32, (subsequence >> 32) as u32];
    let mut k = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let p0 = MULTIPLIERS[0] * u64::from(c[0]);
        let p1 = MULTIPLIERS[1] * u64::from(c[2]);
        c = [
            (p1 >> 32) as u32 ^ c[1] ^ k[0],
            p1 as u32,
            (p0 >> 32) as u32 ^ c[3] ^ k[1],
            p0 as u32,
        ];
        k = [k[0].wrapping_add(WEYL[0]), k[1].wrapping_add(WEYL[1])];
    }
    c
}

/// A float in `(0, 1]` from each of four words.
#[inline]
pub(super) fn uniform4(words: [u32; 4]) -> [f32; 4] {
    // One rounding of an exact sum, as the fused operation of the kernel.
    words.map(|w| (f64::from(w as f32) * TWO_POW_M32 + TWO_POW_M32 / 2.0) as f32)
}

/// Two doubles in `(0, 1]` from four words.
#[inline]
pub(super) fn uniform2(words: [u32; 4]) -> [f64; 2] {
    let one = |a: u32, b: u32| {
        ((u64::from(a) ^ u64::from(b) << 21) as f64).mul_add(TWO_POW_M53, TWO_POW_M53 / 2.0)
    };
    [one(words[0], words[1]), one(words[2], words[3])]
}

/// Four normal floats from four words.
#[inline]
pub(super) fn normal4(words: [u32; 4]) -> [f32; 4] {
    let pair = |a: u32, b: u32| {
        const TURN: f32 = TWO_POW_M32 as f32 * std::f32::consts::TAU;
        let u = (f64::from(a as f32) * TWO_POW_M32 + TWO_POW_M32 / 2.0) as f32;
        let v = (b as f32).mul_add(TURN, TURN / 2.0);
        let radius = (-2.0 * u.ln()).sqrt();
        let (sin, cos) = v.sin_cos();
        [sin * radius, cos * radius]
    };
    let ([a, b], [c, d]) = (pair(words[0], words[1]), pair(words[2], words[3]));
    [a, b, c, d]
}

/// Two normal doubles from four words.
#[inline]
pub(super) fn normal2(words: [u32; 4]) -> [f64; 2] {
    let [u, _] = uniform2(words);
    let z = u64::from(words[2]) ^ u64::from(words[3]) << 21;
    let half_turns = (z as f64).mul_add(TWO_POW_M53 * 2.0, TWO_POW_M53);
    let radius = (-2.0 * u.ln()).sqrt();
    let (sin, cos) = (half_turns * std::f64::consts::PI).sin_cos();
    [sin * radius, cos * radius]
}

/// Two 64-bit integers from four words.
#[inline]
pub(super) fn pairs(words: [u32; 4]) -> [u64; 2] {
    let one = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
    [one(words[0], words[1]), one(words[2], words[3])]
}

const TWO_POW_M32: f64 = 1.0 / 4_294_967_296.0;
const TWO_POW_M53: f64 = 1.0 / 9_007_199_254_740_992.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of Random123, the authors' own library.
    #[test]
    fn philox_gives_the_published_numbers() {
        assert_eq!(philox(0, 0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox(u64::MAX, u64::MAX, u64::MAX),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(0x299f_31d0_a409_3822, 0x0370_7344_1319_8a2e, 0x85a3_08d3_243f_6a88),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
