//! The long middle of a text, 128 characters at a time, with AVX2 behind a safe interface.
//!
//! The classification and packing are those of W. Muła and D. Lemire, "Faster Base64 Encoding and
//! Decoding Using AVX2 Instructions" (ACM Trans. Web 12, 3, 2018), section 4.

use std::arch::x86_64::__m256i;

use bytemuck::cast;
use pulp::NullaryFnOnce;
use pulp::x86::V3;

use super::Slot;

/// Characters a round.
const ROUND: usize = 128;
/// Bytes that a round decodes to.
const DECODED: usize = ROUND / 4 * 3;
/// Bytes that a round writes: the last vector's end is written over by the next round.
const WRITTEN: usize = DECODED + 8;

/// Decode whole rounds of `text` into the front of `out`, which has room for all of it.
///
/// Returns how many characters were decoded (a multiple of four; 0 where the processor has no
/// AVX2), or `None` where one is not of the alphabet. Padding is never reached.
pub(super) fn decode_rounds<S: Slot>(text: &[u8], out: &mut [S]) -> Option<usize> {
    match V3::try_new() {
        Some(simd) => simd.vectorize(Rounds { simd, text, out }),
        None => Some(0),
    }
}

struct Rounds<'a, S> {
    simd: V3,
    text: &'a [u8],
    out: &'a mut [S],
}

impl<S: Slot> NullaryFnOnce for Rounds<'_, S> {
    type Output = Option<usize>;

    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "it must be compiled into the caller, which has the features"
    )]
    fn call(self) -> Option<usize> {
        let Self { simd, text, out } = self;
        let (avx, avx2) = (simd.avx, simd.avx2);
        let vector = Vector::new(simd);
        let mut decoded = 0;
        for round in text.as_chunks::<ROUND>().0 {
            // So there is more text behind this round, and the padding is in it.
            let Some(slots) = out.get_mut(decoded..decoded + WRITTEN) else {
                break;
            };
            let mut faults = avx._mm256_setzero_si256();
            let mut packed = [faults; 4];
            for (characters, packed) in round.as_chunks::<32>().0.iter().zip(&mut packed) {
                let (bytes, fault) = vector.decode(cast(*characters));
                faults = avx2._mm256_or_si256(faults, fault);
                *packed = bytes;
            }
            if avx._mm256_testz_si256(faults, faults) == 0 {
                return None;
            }
            for (index, bytes) in packed.into_iter().enumerate() {
                if let Some(slots) = slots[24 * index..].first_chunk_mut::<32>() {
                    *slots = cast::<__m256i, [u8; 32]>(bytes).map(S::of);
                }
            }
            decoded += DECODED;
        }
        Some(decoded / 3 * 4)
    }
}

/// The constants of the method, in registers.
struct Vector {
    simd: V3,
    low_classes: __m256i,
    high_classes: __m256i,
    offsets: __m256i,
    slash: __m256i,
    pairs: __m256i,
    quads: __m256i,
    order: __m256i,
    lanes: __m256i,
}

impl Vector {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as `Rounds::call`")]
    fn new(simd: V3) -> Self {
        let avx = simd.avx;
        Self {
            simd,
            // A character is of the alphabet where its two nibbles' classes share no bit.
            low_classes: cast(
                [[
                    0x15_u8, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x13, 0x1A,
                    0x1B, 0x1B, 0x1B, 0x1A,
                ]; 2],
            ),
            high_classes: cast(
                [[
                    0x10_u8, 0x10, 0x01, 0x02, 0x04, 0x08, 0x04, 0x08, 0x10, 0x10, 0x10, 0x10,
                    0x10, 0x10, 0x10, 0x10,
                ]; 2],
            ),
            // From a character to its value, by its high nibble; '/' has a place of its own.
            offsets: cast([[0_i8, 16, 19, 4, -65, -65, -71, -71, 0, 0, 0, 0, 0, 0, 0, 0]; 2]),
            slash: avx._mm256_set1_epi8(0x2F),
            pairs: avx._mm256_set1_epi32(0x0140_0140),
            quads: avx._mm256_set1_epi32(0x0001_1000),
            order: cast([[2_i8, 1, 0, 6, 5, 4, 10, 9, 8, 14, 13, 12, -1, -1, -1, -1]; 2]),
            lanes: cast([0_u32, 1, 2, 4, 5, 6, 3, 7]),
        }
    }

    /// The 24 bytes of 32 characters, at the front; and the bits of faults, if any.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as `Rounds::call`")]
    fn decode(&self, characters: __m256i) -> (__m256i, __m256i) {
        let avx2 = self.simd.avx2;
        // Bit 5 of the mask, and what the shift brings there, are bits that a shuffle ignores.
        let high = avx2._mm256_and_si256(avx2._mm256_srli_epi32::<4>(characters), self.slash);
        let low = avx2._mm256_and_si256(characters, self.slash);
        let fault = avx2._mm256_and_si256(
            avx2._mm256_shuffle_epi8(self.low_classes, low),
            avx2._mm256_shuffle_epi8(self.high_classes, high),
        );
        let is_slash = avx2._mm256_cmpeq_epi8(characters, self.slash);
        let offset = avx2._mm256_shuffle_epi8(self.offsets, avx2._mm256_add_epi8(is_slash, high));
        let values = avx2._mm256_add_epi8(characters, offset);
        let pairs = avx2._mm256_maddubs_epi16(values, self.pairs);
        let quads = avx2._mm256_madd_epi16(pairs, self.quads);
        let packed = avx2._mm256_shuffle_epi8(quads, self.order);
        (avx2._mm256_permutevar8x32_epi32(packed, self.lanes), fault)
    }
}
