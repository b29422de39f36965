//! Conversions of half-width floats without branches or calls, so that loops of them vectorize.
//! Results are rounded to the nearest value, ties to even. NaNs stay NaNs and become quiet, as in
//! hardware conversions.

use half::{bf16, f16};

/// Converts an `f16` to `f32`.
#[inline(always)]
pub(super) fn from_f16(value: f16) -> f32 {
    let bits = u32::from(value.to_bits());
    let (sign, rest) = ((bits & 0x8000) << 16, (bits & 0x7fff) << 13);
    // The multiplication corrects the exponent's bias. A subnormal `f16` becomes a normal `f32`.
    let finite = (f32::from_bits(rest) * f32::from_bits((127 + 127 - 15) << 23)).to_bits();
    let quiet = if rest > 0x0f80_0000 { 0x0040_0000 } else { 0 };
    let special = rest | 0x7f80_0000 | quiet;
    f32::from_bits(sign | if rest >= 0x0f80_0000 { special } else { finite })
}

/// Rounds to the nearest `f16`.
#[inline(always)]
pub(super) fn to_f16(value: f32) -> f16 {
    let bits = value.to_bits();
    let (sign, rest) = (bits >> 16 & 0x8000, bits & 0x7fff_ffff);
    let odd = rest >> 13 & 1;
    let normal = rest.wrapping_sub((127 - 15) << 23).wrapping_add(0x0fff + odd) >> 13;
    // The last bit of a number near 0.5 is the smallest positive `f16`, so the addition rounds to a
    // multiple of this `f16`.
    let small = (f32::from_bits(rest) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let nan = 0x7e00 | (rest >> 13 & 0x03ff);
    let special = if rest > 0x7f80_0000 { nan } else { 0x7c00 };
    let finite = if rest < 0x3880_0000 { small } else { normal };
    f16::from_bits((sign | if rest >= 0x4780_0000 { special } else { finite }) as u16)
}

/// Converts a `bf16` to `f32`.
#[inline(always)]
pub(super) fn from_bf16(value: bf16) -> f32 {
    let bits = u32::from(value.to_bits());
    let quiet = if bits & 0x7fff > 0x7f80 { 0x0040 } else { 0 };
    f32::from_bits((bits | quiet) << 16)
}

/// Rounds to the nearest `bf16`.
#[inline(always)]
pub(super) fn to_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 | 0x0040;
    bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { nearest } as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_has_its_value() {
        for bits in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert_eq!(from_f16(h).to_bits(), h.to_f32().to_bits(), "{bits:#x}");
            assert_eq!(from_bf16(b).to_bits(), b.to_f32().to_bits(), "{bits:#x}");
        }
    }

    fn check(bits: u32) {
        let x = f32::from_bits(bits);
        assert_eq!(to_f16(x).to_bits(), f16::from_f32(x).to_bits(), "{bits:#x}");
        assert_eq!(to_bf16(x).to_bits(), bf16::from_f32(x).to_bits(), "{bits:#x}");
    }

    #[test]
    fn sampled_values_have_their_nearest_half() {
        // All values of the upper 16 bits, each with lower 16 bits around the rounding thresholds.
        // Then a sample of all bit patterns.
        for upper in 0..=u32::from(u16::MAX) {
            for lower in
                [0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff]
            {
                check(upper << 16 | lower);
            }
        }
        (0..u32::MAX).step_by(997).for_each(check);
    }

    #[test]
    #[ignore = "takes a minute"]
    fn all_values_have_their_nearest_half() {
        (0..=u32::MAX).for_each(check);
    }
}
