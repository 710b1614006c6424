//! A conversion of libwebp's in a faster form, where the processor has SSSE3.
//!
//! libwebp chooses its functions at run time, through pointers that it fills once, but is compiled
//! here for SSE2 alone. The pointer for lossless rows to RGB is pointed to ours instead.

use std::ffi::c_int;

#[cfg(target_arch = "x86_64")]
use std::sync::Once;

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    /// Fills the pointers, unless they are filled.
    fn VP8LDspInit();

    /// Blue, green, red and alpha to red, green and blue.
    static mut VP8LConvertBGRAToRGB: unsafe extern "C" fn(*const u32, c_int, *mut u8);
}

/// Put ours in place. To be called before every use of libwebp.
pub(super) fn prepare() {
    #[cfg(target_arch = "x86_64")]
    {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            if std::arch::is_x86_feature_detected!("ssse3") {
                // SAFETY: libwebp is used by this crate alone, and only after this call, so that
                // no other thread reads the pointer; filled once, it stays as it is set here.
                unsafe {
                    VP8LDspInit();
                    VP8LConvertBGRAToRGB = to_rgb;
                }
            }
        });
    }
}

/// # Safety
/// The processor has SSSE3; `pixels` has `count` pixels and `out` room for three bytes of each.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn to_rgb(pixels: *const u32, count: c_int, out: *mut u8) {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: as promised; libwebp's rows are aligned to pixels, and do not overlap the output.
    unsafe {
        let pixels = std::slice::from_raw_parts(pixels.cast::<[u8; 4]>(), count);
        let out = std::slice::from_raw_parts_mut(out.cast::<[u8; 3]>(), count);
        narrow(pixels, out);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "ssse3")]
fn narrow(pixels: &[[u8; 4]], out: &mut [[u8; 3]]) {
    use std::arch::x86_64::{
        __m128i, _mm_or_si128, _mm_setr_epi8, _mm_shuffle_epi8, _mm_slli_si128, _mm_srli_si128,
    };
    let order = _mm_setr_epi8(2, 1, 0, 6, 5, 4, 10, 9, 8, 14, 13, 12, -1, -1, -1, -1);
    let (blocks, rest) = pixels.as_chunks::<16>();
    let (to_blocks, to_rest) = out.as_chunks_mut::<16>();
    for (block, to) in blocks.iter().zip(to_blocks) {
        // SAFETY: both are 64 bytes of which every pattern is a value.
        let block = unsafe { std::mem::transmute::<[[u8; 4]; 16], [__m128i; 4]>(*block) };
        let [a, b, c, d] = block.map(|four| _mm_shuffle_epi8(four, order));
        let packed = [
            _mm_or_si128(a, _mm_slli_si128::<12>(b)),
            _mm_or_si128(_mm_srli_si128::<4>(b), _mm_slli_si128::<8>(c)),
            _mm_or_si128(_mm_srli_si128::<8>(c), _mm_slli_si128::<4>(d)),
        ];
        // SAFETY: both are 48 bytes of which every pattern is a value.
        *to = unsafe { std::mem::transmute::<[__m128i; 3], [[u8; 3]; 16]>(packed) };
    }
    for ([blue, green, red, _], to) in rest.iter().zip(to_rest) {
        *to = [*red, *green, *blue];
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::to_rgb;

    #[test]
    fn every_length_is_narrowed() {
        if !std::arch::is_x86_feature_detected!("ssse3") {
            return;
        }
        for count in 0u8..70 {
            let pixels: Vec<u32> = (0..count)
                .map(|n| u32::from_le_bytes([n, n + 70, n + 140, 255 - n]))
                .collect();
            let expected: Vec<u8> = (0..count).flat_map(|n| [n + 140, n + 70, n]).collect();
            let mut out = vec![0; expected.len()];
            // SAFETY: the processor has SSSE3, and `out` has the length.
            unsafe { to_rgb(pixels.as_ptr(), count.into(), out.as_mut_ptr()) };
            assert_eq!(out, expected);
        }
    }
}
