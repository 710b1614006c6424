//! The filters that look to the left, with SSE2: one pixel a register, four rows of Paeth at once.

use std::arch::x86_64::{
    __m128i, _mm_add_epi8, _mm_add_epi16, _mm_and_si128, _mm_andnot_si128, _mm_avg_epu8,
    _mm_cmpeq_epi16, _mm_cvtsi32_si128, _mm_cvtsi128_si32, _mm_max_epi16, _mm_min_epi16,
    _mm_or_si128, _mm_packus_epi16, _mm_set1_epi8, _mm_setzero_si128, _mm_srli_si128, _mm_sub_epi8,
    _mm_sub_epi16, _mm_unpackhi_epi64, _mm_unpacklo_epi8, _mm_unpacklo_epi32, _mm_unpacklo_epi64,
    _mm_xor_si128,
};

#[inline]
#[target_feature(enable = "sse2")]
fn load<const N: usize>(pixel: [u8; N]) -> __m128i {
    let mut bytes = [0; 4];
    bytes[..N].copy_from_slice(&pixel);
    _mm_cvtsi32_si128(i32::from_le_bytes(bytes))
}

#[inline]
#[target_feature(enable = "sse2")]
fn store<const N: usize>(register: __m128i) -> [u8; N] {
    let bytes = _mm_cvtsi128_si32(register).to_le_bytes();
    let mut pixel = [0; N];
    pixel.copy_from_slice(&bytes[..N]);
    pixel
}

pub(super) fn sub<const N: usize>(row: &mut [u8]) {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { sub_sse2::<N>(row) }
}

#[target_feature(enable = "sse2")]
fn sub_sse2<const N: usize>(row: &mut [u8]) {
    let mut left = _mm_setzero_si128();
    let (pixels, _) = row.as_chunks_mut::<N>();
    for pixel in pixels {
        left = _mm_add_epi8(load(*pixel), left);
        *pixel = store(left);
    }
}

pub(super) fn average<const N: usize>(row: &mut [u8], above: &[u8]) {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { average_sse2::<N>(row, above) }
}

#[target_feature(enable = "sse2")]
fn average_sse2<const N: usize>(row: &mut [u8], above: &[u8]) {
    let mut left = _mm_setzero_si128();
    let (pixels, _) = row.as_chunks_mut::<N>();
    let (above, _) = above.as_chunks::<N>();
    for (pixel, above) in pixels.iter_mut().zip(above) {
        let up = load(*above);
        // The instruction rounds up; the filter rounds down.
        let odd = _mm_and_si128(_mm_xor_si128(left, up), _mm_set1_epi8(1));
        let mean = _mm_sub_epi8(_mm_avg_epu8(left, up), odd);
        left = _mm_add_epi8(load(*pixel), mean);
        *pixel = store(left);
    }
}

pub(super) fn paeth<const N: usize>(row: &mut [u8], above: &[u8]) {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { paeth_sse2::<N>(row, above) }
}

/// Pixels that are looked at together for a run of zeros.
const BLOCK: usize = 16;

#[target_feature(enable = "sse2")]
fn paeth_sse2<const N: usize>(row: &mut [u8], above: &[u8]) {
    let mut lane = Lane::new();
    // Below and right of equal pixels, the predictor of zero differences is the pixel above,
    // and leaves equal pixels behind: a run of zeros is a copy of the row above.
    let mut is_equal = true;
    let blocks = row.chunks_mut(BLOCK * N).zip(above.chunks(BLOCK * N));
    for (row, above) in blocks {
        if is_equal && row.iter().fold(0, |sum, sample| sum | sample) == 0 {
            row.copy_from_slice(above);
            if let Some(last) = above.as_chunks::<N>().0.last() {
                lane.left = widen(load(*last));
                lane.corner = lane.left;
            }
            continue;
        }
        let (pixels, _) = row.as_chunks_mut::<N>();
        let (above, _) = above.as_chunks::<N>();
        for (pixel, above) in pixels.iter_mut().zip(above) {
            let left = lane.step(widen(load(*above)), widen(load(*pixel)));
            *pixel = store(_mm_packus_epi16(left, left));
        }
        is_equal = pixels.last() == above.last();
    }
}

/// Undo four rows of the Paeth filter at once.
///
/// A pixel waits for the one to its left, so a row alone leaves most of the processor idle.
/// Here each row runs one pixel behind the row above it: two rows share a register, two
/// registers run side by side.
pub(super) fn paeth_four<const N: usize>(rows: &mut [u8], above: &[u8]) {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { paeth_four_sse2::<N>(rows, above) }
}

#[target_feature(enable = "sse2")]
fn paeth_four_sse2<const N: usize>(rows: &mut [u8], above: &[u8]) {
    let mut parts = rows.chunks_exact_mut(above.len());
    let mut next = || parts.next().unwrap_or_default().as_chunks_mut::<N>().0;
    let rows = [next(), next(), next(), next()];
    let (above, _) = above.as_chunks::<N>();
    let count = above.len();
    let mut lanes = Lanes::new();
    let middle = 3.min(count);
    let mut rows = rows;
    for x in 0..middle {
        lanes.edge(above, &mut rows, x);
    }
    let [first, second, third, fourth] = &mut rows;
    // Between the edges every row has a pixel to undo: the first one `x`, each other the one
    // before that of the row above.
    let pixels = first[middle..]
        .iter_mut()
        .zip(&mut second[middle.saturating_sub(1)..]);
    let more = third[middle.saturating_sub(2)..]
        .iter_mut()
        .zip(&mut fourth[..]);
    for ((above, (first, second)), (third, fourth)) in above[middle..].iter().zip(pixels).zip(more)
    {
        let done = lanes.step(
            load(*above),
            [load(*first), load(*second), load(*third), load(*fourth)],
        );
        *first = store(done);
        *second = store(_mm_srli_si128(done, 4));
        *third = store(_mm_srli_si128(done, 8));
        *fourth = store(_mm_srli_si128(done, 12));
    }
    for x in middle.max(count)..count + 3 {
        lanes.edge(above, &mut rows, x);
    }
}

/// The state of four rows.
struct Lanes {
    /// The first and the second row.
    front: Lane,
    /// The third and the fourth.
    back: Lane,
}

impl Lanes {
    #[inline]
    #[target_feature(enable = "sse2")]
    fn new() -> Self {
        Self {
            front: Lane::new(),
            back: Lane::new(),
        }
    }

    /// Undo one pixel of each row; the results lie in the four quarters.
    #[inline]
    #[target_feature(enable = "sse2")]
    fn step(&mut self, above: __m128i, pixels: [__m128i; 4]) -> __m128i {
        let first = widen(_mm_unpacklo_epi32(pixels[0], pixels[1]));
        let second = widen(_mm_unpacklo_epi32(pixels[2], pixels[3]));
        // Above each row's pixel is what the row above it gave in the step before.
        let front_up = _mm_unpacklo_epi64(widen(above), self.front.left);
        let back_up = _mm_unpacklo_epi64(
            _mm_unpackhi_epi64(self.front.left, self.front.left),
            self.back.left,
        );
        let first = self.front.step(front_up, first);
        let second = self.back.step(back_up, second);
        _mm_packus_epi16(first, second)
    }

    /// The same at an end of the rows, where some have no pixel; zeros stand for those.
    #[target_feature(enable = "sse2")]
    fn edge<const N: usize>(
        &mut self,
        above: &[[u8; N]],
        rows: &mut [&mut [[u8; N]]; 4],
        x: usize,
    ) {
        let mut pixels = [_mm_setzero_si128(); 4];
        for (behind, pixel) in pixels.iter_mut().enumerate() {
            if let Some(stored) = rows[behind].get(x.wrapping_sub(behind)) {
                *pixel = load(*stored);
            }
        }
        let above = above
            .get(x)
            .map_or(_mm_setzero_si128(), |above| load(*above));
        let done = self.step(above, pixels);
        let done = [
            done,
            _mm_srli_si128(done, 4),
            _mm_srli_si128(done, 8),
            _mm_srli_si128(done, 12),
        ];
        for (behind, done) in done.into_iter().enumerate() {
            if let Some(place) = rows[behind].get_mut(x.wrapping_sub(behind)) {
                *place = store(done);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "sse2")]
fn widen(pixels: __m128i) -> __m128i {
    _mm_unpacklo_epi8(pixels, _mm_setzero_si128())
}

/// The state of up to two rows: the pixels to the left, and those above them.
struct Lane {
    left: __m128i,
    corner: __m128i,
}

impl Lane {
    #[inline]
    #[target_feature(enable = "sse2")]
    fn new() -> Self {
        let zero = _mm_setzero_si128();
        Self {
            left: zero,
            corner: zero,
        }
    }

    /// Undo the filter of `pixel`, below `up`; samples are sixteen bits wide.
    #[inline]
    #[target_feature(enable = "sse2")]
    fn step(&mut self, up: __m128i, pixel: __m128i) -> __m128i {
        let to_left = _mm_sub_epi16(up, self.corner);
        let to_up = _mm_sub_epi16(self.left, self.corner);
        let far_left = distance(to_left);
        let far_up = distance(to_up);
        let far_corner = distance(_mm_add_epi16(to_left, to_up));
        let nearest = _mm_min_epi16(far_corner, _mm_min_epi16(far_left, far_up));
        let is_left = _mm_cmpeq_epi16(nearest, far_left);
        let is_up = _mm_cmpeq_epi16(nearest, far_up);
        let up_or_corner = select(is_up, up, self.corner);
        let predicted = select(is_left, self.left, up_or_corner);
        self.corner = up;
        // Only the low byte of each lane is set, so the sum wraps within it.
        self.left = _mm_add_epi8(pixel, predicted);
        self.left
    }
}

#[inline]
#[target_feature(enable = "sse2")]
fn distance(step: __m128i) -> __m128i {
    _mm_max_epi16(step, _mm_sub_epi16(_mm_setzero_si128(), step))
}

#[inline]
#[target_feature(enable = "sse2")]
fn select(mask: __m128i, yes: __m128i, no: __m128i) -> __m128i {
    _mm_or_si128(_mm_and_si128(mask, yes), _mm_andnot_si128(mask, no))
}
