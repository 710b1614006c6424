//! Both passes with AVX2, 32 bytes at once.
//!
//! One kernel makes a run of bytes of the runs above each other that it is a weighted sum of. A
//! vertical pass is made of such sums as it is; a horizontal pass is, once 32 rows are transposed.
//! Two samples and two weights of sixteen bits are one multiply-add. A weight `w` of Pillow is too
//! wide for that and goes as `w = high * 2^11 + low` in two sums, which holds modulo 2^32.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_cvtsi32_si128, _mm256_add_epi32, _mm256_castsi128_si256,
    _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_inserti128_si256, _mm256_madd_epi16,
    _mm256_packs_epi32, _mm256_packus_epi16, _mm256_set1_epi32, _mm256_setzero_si256,
    _mm256_slli_epi32, _mm256_sra_epi32, _mm256_unpackhi_epi8, _mm256_unpacklo_epi8,
};
use std::mem::transmute;

use super::weights::{Axis, LOW_BITS};
use crate::Cancel;
use crate::buffer::zeroed;
use crate::refusal::Refusal;

/// Bytes of a vector.
const LANES: usize = 32;
/// Bytes of half a vector.
const HALF: usize = LANES / 2;
/// Columns of the output that are made of one transposed tile, which stays in the first cache.
const TILE: usize = 64;

/// Whether this machine has the instructions.
pub(super) fn is_available() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

/// As `plain::vertical`.
pub(super) fn vertical(
    rows: &[u8],
    row_bytes: usize,
    axis: &Axis,
    (output, input): (usize, usize),
    out: &mut [u8],
    cancel: &Cancel,
) -> Result<(), Refusal> {
    if row_bytes < LANES || !is_available() {
        return super::plain::vertical(rows, row_bytes, axis, (output, input), out, cancel);
    }
    for (y, out) in (output..).zip(out.chunks_exact_mut(row_bytes)) {
        if y % HALF == 0 {
            cancel.check()?;
        }
        let taps = &rows[(axis.windows[y].start - input) * row_bytes..];
        // SAFETY: the instructions are there.
        unsafe { sum(axis, y, taps, row_bytes, out) };
    }
    Ok(())
}

/// As `plain::horizontal`.
pub(super) fn horizontal(
    rows: &[u8],
    from: usize,
    channels: usize,
    axis: &Axis,
    out: &mut [u8],
    cancel: &Cancel,
) -> Result<(), Refusal> {
    if !is_available() {
        return super::plain::horizontal(rows, from, channels, axis, out, cancel);
    }
    let to = axis.windows.len();
    let (row_bytes, out_bytes) = (from * channels, to * channels);
    let tiles = || (0..to).step_by(TILE).map(|x| x..to.min(x + TILE));
    let widest = tiles()
        .map(|tile| axis.span(tile.start, tile.end).count)
        .max()
        .unwrap_or(0);
    let mut columns = zeroed((widest * channels).next_multiple_of(HALF) * LANES)?;
    let mut blended = zeroed((TILE * channels).next_multiple_of(HALF) * LANES)?;
    let strips = rows
        .chunks(row_bytes * LANES)
        .zip(out.chunks_mut(out_bytes * LANES));
    for (rows, out) in strips {
        cancel.check()?;
        for tile in tiles() {
            let span = axis.span(tile.start, tile.end);
            let bytes = span.start * channels..(span.start + span.count) * channels;
            // SAFETY: the instructions are there.
            unsafe { to_columns(rows, row_bytes, bytes, &mut columns) };
            let pixel = channels * LANES;
            for (x, place) in tile.clone().zip(blended.chunks_exact_mut(pixel)) {
                let taps = &columns[(axis.windows[x].start - span.start) * pixel..];
                // SAFETY: as above.
                unsafe { sum(axis, x, taps, pixel, place) };
            }
            let bytes = tile.start * channels..tile.end * channels;
            // SAFETY: as above.
            unsafe { to_rows(&blended, bytes, out, out_bytes) };
        }
    }
    Ok(())
}

/// `out` as the weighted sum that is output `index`, of rows `stride` apart.
#[target_feature(enable = "avx2")]
fn sum(axis: &Axis, index: usize, taps: &[u8], stride: usize, out: &mut [u8]) {
    let (words, count) = (axis.pairs(index), axis.windows[index].count);
    if axis.is_wide() {
        blend::<true>(taps, stride, words, count, axis.precision, out);
    } else {
        blend::<false>(taps, stride, words, count, axis.precision, out);
    }
}

#[target_feature(enable = "avx2")]
fn blend<const WIDE: bool>(
    taps: &[u8],
    stride: usize,
    words: &[[i32; 2]],
    count: usize,
    precision: u32,
    out: &mut [u8],
) {
    let length = out.len();
    assert!(length >= LANES && words.len() == count.div_ceil(2));
    assert!(count == 0 || taps.len() >= (count - 1) * stride + length);
    let zero = _mm256_setzero_si256();
    let half = _mm256_set1_epi32(1 << (precision - 1));
    let shift = _mm_cvtsi32_si128(precision.cast_signed());
    let mut place = 0;
    loop {
        let mut low = [half; 4];
        let mut high = [zero; 4];
        for (pair, [high_word, low_word]) in words.iter().enumerate() {
            let first = 2 * pair * stride + place;
            // The second of an odd last pair has weight 0.
            let second = if 2 * pair + 1 < count {
                first + stride
            } else {
                first
            };
            // SAFETY: both rows are among `count`, whose ends were compared with `taps`, and
            // `place + LANES` is no more than `length`.
            let (first, second) = unsafe {
                (
                    load(taps.as_ptr().add(first)),
                    load(taps.as_ptr().add(second)),
                )
            };
            let front = _mm256_unpacklo_epi8(first, second);
            let back = _mm256_unpackhi_epi8(first, second);
            let samples = [
                _mm256_unpacklo_epi8(front, zero),
                _mm256_unpackhi_epi8(front, zero),
                _mm256_unpacklo_epi8(back, zero),
                _mm256_unpackhi_epi8(back, zero),
            ];
            let weights = _mm256_set1_epi32(*low_word);
            for (sum, samples) in low.iter_mut().zip(samples) {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(samples, weights));
            }
            if WIDE {
                let weights = _mm256_set1_epi32(*high_word);
                for (sum, samples) in high.iter_mut().zip(samples) {
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(samples, weights));
                }
            }
        }
        if WIDE {
            for (low, high) in low.iter_mut().zip(high) {
                *low = _mm256_add_epi32(*low, _mm256_slli_epi32::<LOW_BITS>(high));
            }
        }
        let [a, b, c, d] = low.map(|sum| _mm256_sra_epi32(sum, shift));
        let bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        // SAFETY: `place + LANES` is no more than `length`.
        unsafe { store(out.as_mut_ptr().add(place), bytes) };
        if place + LANES == length {
            break;
        }
        // The last run overlaps the one before it, and writes the same there.
        place = (place + LANES).min(length - LANES);
    }
}

/// Columns `bytes` of up to 32 rows, each as 32 bytes; missing rows repeat the last one.
#[target_feature(enable = "avx2")]
fn to_columns(rows: &[u8], row_bytes: usize, bytes: std::ops::Range<usize>, columns: &mut [u8]) {
    let last = rows.len() / row_bytes - 1;
    let starts: [usize; LANES] = std::array::from_fn(|row| row.min(last) * row_bytes);
    let blocks = columns.as_chunks_mut::<{ HALF * LANES }>().0;
    for (first, block) in bytes.clone().step_by(HALF).zip(blocks) {
        let run = |row: usize| {
            let from = &rows[starts[row] + first..];
            match from.first_chunk::<HALF>() {
                Some(run) => *run,
                // The end of the last row.
                None => std::array::from_fn(|index| from.get(index).copied().unwrap_or(0)),
            }
        };
        let mut vectors = [_mm256_setzero_si256(); HALF];
        for (row, vector) in vectors.iter_mut().enumerate() {
            *vector = joined(run(row), run(row + HALF));
        }
        let vectors = transposed(vectors);
        for (vector, column) in vectors.iter().zip(block.as_chunks_mut::<LANES>().0) {
            // SAFETY: the type is thirty-two bytes.
            *column = unsafe { transmute::<__m256i, [u8; LANES]>(*vector) };
        }
    }
}

/// The other way: `columns` written to `bytes` of as many rows as there are.
#[target_feature(enable = "avx2")]
fn to_rows(columns: &[u8], bytes: std::ops::Range<usize>, rows: &mut [u8], row_bytes: usize) {
    let count = rows.len() / row_bytes;
    let blocks = columns.as_chunks::<{ HALF * LANES }>().0;
    for (first, block) in bytes.clone().step_by(HALF).zip(blocks) {
        let mut vectors = [_mm256_setzero_si256(); HALF];
        for (vector, column) in vectors.iter_mut().zip(block.as_chunks::<LANES>().0) {
            // SAFETY: the type is thirty-two bytes of which every pattern is a value.
            *vector = unsafe { transmute::<[u8; LANES], __m256i>(*column) };
        }
        let length = HALF.min(bytes.end - first);
        for (row, vector) in transposed(vectors).into_iter().enumerate() {
            for (row, run) in [row, row + HALF].into_iter().zip(split(vector)) {
                if row >= count {
                    continue;
                }
                let place = &mut rows[row * row_bytes + first..];
                match place.first_chunk_mut::<HALF>() {
                    Some(place) if length == HALF => *place = run,
                    _ => place[..length].copy_from_slice(&run[..length]),
                }
            }
        }
    }
}

/// Two transposed matrices of 16 by 16 bytes, one in each half.
///
/// To interleave a vector with the one eight after it turns the eight bits of every byte's place,
/// four of row and four of column, by one; after four times they have changed sides.
#[target_feature(enable = "avx2")]
fn transposed(mut vectors: [__m256i; HALF]) -> [__m256i; HALF] {
    for _ in 0..4 {
        let before = vectors;
        for index in 0..HALF / 2 {
            let (first, second) = (before[index], before[index + HALF / 2]);
            vectors[2 * index] = _mm256_unpacklo_epi8(first, second);
            vectors[2 * index + 1] = _mm256_unpackhi_epi8(first, second);
        }
    }
    vectors
}

#[target_feature(enable = "avx2")]
fn joined(front: [u8; HALF], back: [u8; HALF]) -> __m256i {
    // SAFETY: both types are sixteen bytes of which every pattern is a value.
    let [front, back] = unsafe { transmute::<[[u8; HALF]; 2], [__m128i; 2]>([front, back]) };
    _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(front), back)
}

#[target_feature(enable = "avx2")]
fn split(vector: __m256i) -> [[u8; HALF]; 2] {
    let back = _mm256_extracti128_si256::<1>(vector);
    // SAFETY: both types are sixteen bytes.
    unsafe { transmute::<[__m128i; 2], [[u8; HALF]; 2]>([_mm256_castsi256_si128(vector), back]) }
}

/// # Safety
/// Thirty-two bytes must be there to read.
#[target_feature(enable = "avx2")]
unsafe fn load(from: *const u8) -> __m256i {
    // SAFETY: the caller's; an unaligned read of any bytes.
    unsafe { from.cast::<__m256i>().read_unaligned() }
}

/// # Safety
/// Thirty-two bytes must be there to write.
#[target_feature(enable = "avx2")]
unsafe fn store(to: *mut u8, bytes: __m256i) {
    // SAFETY: the caller's; an unaligned write.
    unsafe { to.cast::<__m256i>().write_unaligned(bytes) };
}
