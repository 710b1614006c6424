//! Pasting over a background with the picture's own alpha, exactly as Pillow rounds it.
//!
//! Runs are pasted with SSE2, four pixels at once, where there is SSE2: every x86-64 has it.

/// `color` pasted over `background` with its own alpha.
#[inline]
pub(super) fn over([r, g, b, alpha]: [u8; 4], background: [u8; 3]) -> [u8; 3] {
    // Most pixels are one or the other, and the formula gives the same.
    match alpha {
        255 => return [r, g, b],
        0 => return background,
        _ => {}
    }
    let blend = |ink: u8, paper: u8| {
        let (ink, paper, alpha) = (u32::from(ink), u32::from(paper), u32::from(alpha));
        let sum = ink * alpha + paper * (255 - alpha) + 128;
        // Division by 255, rounded: exact for every sum up to 255 * 255 + 128.
        (((sum >> 8) + sum) >> 8) as u8
    };
    [
        blend(r, background[0]),
        blend(g, background[1]),
        blend(b, background[2]),
    ]
}

/// `colors` pasted over `background`, as RGB.
pub(super) fn over_rgb(colors: &[[u8; 4]], background: [u8; 3], places: &mut [[u8; 3]]) {
    let (fours, rest) = colors.as_chunks::<4>();
    let (to_fours, to_rest) = places.as_chunks_mut::<4>();
    let paper = Paper::new(background);
    for (four, to) in fours.iter().zip(to_fours) {
        let [first, second, third, last] = paper.under(*four).map(u32::from_le_bytes);
        // Each place takes three bytes of its pixel.
        let front = u64::from(first & 0xFF_FFFF)
            | u64::from(second & 0xFF_FFFF) << 24
            | u64::from(third & 0xFFFF) << 48;
        let back = (third >> 16 & 0xFF) | last << 8;
        let to = to.as_flattened_mut();
        to[..8].copy_from_slice(&front.to_le_bytes());
        to[8..].copy_from_slice(&back.to_le_bytes());
    }
    for (color, to) in rest.iter().zip(to_rest) {
        *to = over(*color, background);
    }
}

/// `colors` pasted over `background`, as RGB and an opaque fourth byte.
pub(super) fn over_rgbx(colors: &[[u8; 4]], background: [u8; 3], places: &mut [[u8; 4]]) {
    let (fours, rest) = colors.as_chunks::<4>();
    let (to_fours, to_rest) = places.as_chunks_mut::<4>();
    let paper = Paper::new(background);
    for (four, to) in fours.iter().zip(to_fours) {
        *to = paper.under(*four);
    }
    for (color, to) in rest.iter().zip(to_rest) {
        let [r, g, b] = over(*color, background);
        *to = [r, g, b, 255];
    }
}

#[cfg(not(target_arch = "x86_64"))]
struct Paper([u8; 3]);

#[cfg(not(target_arch = "x86_64"))]
impl Paper {
    fn new(background: [u8; 3]) -> Self {
        Self(background)
    }

    fn under(&self, colors: [[u8; 4]; 4]) -> [[u8; 4]; 4] {
        colors.map(|color| {
            let [r, g, b] = over(color, self.0);
            [r, g, b, 255]
        })
    }
}

#[cfg(target_arch = "x86_64")]
use packed::Paper;

#[cfg(target_arch = "x86_64")]
mod packed {
    use std::arch::x86_64::{
        __m128i, _mm_add_epi16, _mm_mullo_epi16, _mm_or_si128, _mm_packus_epi16, _mm_set_epi16,
        _mm_set1_epi16, _mm_set1_epi32, _mm_setzero_si128, _mm_shufflehi_epi16,
        _mm_shufflelo_epi16, _mm_srli_epi16, _mm_sub_epi16, _mm_unpackhi_epi8, _mm_unpacklo_epi8,
    };

    /// The background, two pixels in a register.
    #[derive(Clone, Copy)]
    pub(super) struct Paper {
        levels: __m128i,
        /// 255 times the levels, and half of 255 to round.
        opaque: __m128i,
    }

    impl Paper {
        #[inline]
        pub(super) fn new(background: [u8; 3]) -> Self {
            let [r, g, b] = background.map(i16::from);
            // SAFETY: SSE2 is part of x86-64.
            unsafe {
                let levels = _mm_set_epi16(0, b, g, r, 0, b, g, r);
                let opaque = _mm_mullo_epi16(levels, _mm_set1_epi16(255));
                Self {
                    levels,
                    opaque: _mm_add_epi16(opaque, _mm_set1_epi16(128)),
                }
            }
        }

        /// `colors` over this, opaque.
        #[inline]
        pub(super) fn under(&self, colors: [[u8; 4]; 4]) -> [[u8; 4]; 4] {
            // SAFETY: SSE2 is part of x86-64; both types are sixteen bytes of which every pattern
            // is a value.
            unsafe {
                let colors = std::mem::transmute::<[[u8; 4]; 4], __m128i>(colors);
                let zero = _mm_setzero_si128();
                let front = self.blend(_mm_unpacklo_epi8(colors, zero));
                let back = self.blend(_mm_unpackhi_epi8(colors, zero));
                let opaque = _mm_set1_epi32(0xFF00_0000_u32.cast_signed());
                let pasted = _mm_or_si128(_mm_packus_epi16(front, back), opaque);
                std::mem::transmute::<__m128i, [[u8; 4]; 4]>(pasted)
            }
        }

        #[inline]
        #[target_feature(enable = "sse2")]
        fn blend(self, colors: __m128i) -> __m128i {
            let alpha = _mm_shufflehi_epi16(_mm_shufflelo_epi16(colors, 0xFF), 0xFF);
            // ink * alpha + paper * (255 - alpha) + 128, with one product. The sum fits sixteen
            // bits, so that it does not matter where the difference wraps.
            let product = _mm_mullo_epi16(_mm_sub_epi16(colors, self.levels), alpha);
            let sum = _mm_add_epi16(product, self.opaque);
            _mm_srli_epi16(_mm_add_epi16(sum, _mm_srli_epi16(sum, 8)), 8)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{over, over_rgb, over_rgbx};

    #[test]
    fn runs_agree_with_single_pixels() {
        // Every level with every alpha, over every kind of background.
        for background in [[0, 127, 255], [1, 128, 254], [255; 3], [37, 201, 90]] {
            for alpha in 0..=255 {
                let colors: Vec<[u8; 4]> = (0..=255)
                    .map(|level| [level, 255 - level, level ^ 0x55, alpha])
                    .collect();
                for length in [256, 7, 3] {
                    let colors = &colors[..length];
                    let expected: Vec<_> = colors
                        .iter()
                        .map(|&color| over(color, background))
                        .collect();
                    let mut rgb = vec![[0; 3]; length];
                    over_rgb(colors, background, &mut rgb);
                    assert_eq!(rgb, expected);
                    let mut rgbx = vec![[0; 4]; length];
                    over_rgbx(colors, background, &mut rgbx);
                    let expected: Vec<_> =
                        expected.iter().map(|&[r, g, b]| [r, g, b, 255]).collect();
                    assert_eq!(rgbx, expected);
                }
            }
        }
    }
}
