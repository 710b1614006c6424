//! Packed RGB as three lines, sixteen pixels at once.

use std::arch::x86_64::{__m128i, _mm_or_si128, _mm_shuffle_epi8};
use std::mem::transmute;

/// Pixels a round.
const ROUND: usize = 16;

/// As `plain::planes`.
pub(super) fn planes(row: &[u8], lines: &mut [u8]) {
    let count = row.len() / 3;
    if count < ROUND || !std::arch::is_x86_feature_detected!("avx2") {
        return super::plain::planes(row, lines);
    }
    // SAFETY: the instructions are there.
    unsafe { rounds(row, count, lines) };
}

#[target_feature(enable = "avx2")]
fn rounds(row: &[u8], count: usize, lines: &mut [u8]) {
    let (red, others) = lines.split_at_mut(count);
    let (green, blue) = others.split_at_mut(count);
    let mut first = 0;
    loop {
        let round = &row[first * 3..][..ROUND * 3];
        let parts = round.as_chunks::<ROUND>().0;
        for (channel, line) in [&mut *red, &mut *green, &mut *blue].into_iter().enumerate() {
            let picked =
                |part: usize| _mm_shuffle_epi8(vector(parts[part]), vector(PICKS[channel][part]));
            let samples = _mm_or_si128(_mm_or_si128(picked(0), picked(1)), picked(2));
            // SAFETY: both types are sixteen bytes.
            let samples = unsafe { transmute::<__m128i, [u8; ROUND]>(samples) };
            line[first..first + ROUND].copy_from_slice(&samples);
        }
        if first + ROUND == count {
            return;
        }
        // The last round overlaps the one before it, and writes the same there.
        first = (first + ROUND).min(count - ROUND);
    }
}

fn vector(bytes: [u8; ROUND]) -> __m128i {
    // SAFETY: both types are sixteen bytes of which every pattern is a value.
    unsafe { transmute(bytes) }
}

/// For each channel and each third of 48 bytes, which of its bytes go where; 128 is none.
#[expect(clippy::cast_possible_truncation, reason = "below sixteen")]
const PICKS: [[[u8; ROUND]; 3]; 3] = {
    let mut picks = [[[128; ROUND]; 3]; 3];
    let mut at = 0;
    while at < 3 * ROUND {
        picks[at % 3][at / ROUND][at / 3] = (at % ROUND) as u8;
        at += 1;
    }
    picks
};
