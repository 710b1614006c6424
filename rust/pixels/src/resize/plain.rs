//! Both passes without vector instructions: what runs where there are none, and the oracle of the
//! others.

use super::weights::Axis;
use crate::Cancel;
use crate::refusal::Refusal;

/// Rows between two looks at the cancel flag.
const ROWS_PER_CHECK: usize = 16;

/// Resize each row. `rows` and `out` are rows of `from` and `axis` pixels of `channels` bytes.
pub(super) fn horizontal(
    rows: &[u8],
    from: usize,
    channels: usize,
    axis: &Axis,
    out: &mut [u8],
    cancel: &Cancel,
) -> Result<(), Refusal> {
    let to = axis.windows.len();
    let pairs = rows
        .chunks_exact(from * channels)
        .zip(out.chunks_exact_mut(to * channels));
    for (index, (row, out)) in pairs.enumerate() {
        if index % ROWS_PER_CHECK == 0 {
            cancel.check()?;
        }
        for (x, pixel) in out.chunks_exact_mut(channels).enumerate() {
            let taps = &row[axis.windows[x].start * channels..];
            blend(taps, channels, axis.weights(x), axis.precision, pixel);
        }
    }
    Ok(())
}

/// Resize each column, rows of `row_bytes`: to `output` and what follows, from `rows`, which hold
/// what the input has from its row `input` on.
pub(super) fn vertical(
    rows: &[u8],
    row_bytes: usize,
    axis: &Axis,
    (output, input): (usize, usize),
    out: &mut [u8],
    cancel: &Cancel,
) -> Result<(), Refusal> {
    for (y, out) in (output..).zip(out.chunks_exact_mut(row_bytes)) {
        if y % ROWS_PER_CHECK == 0 {
            cancel.check()?;
        }
        let taps = &rows[(axis.windows[y].start - input) * row_bytes..];
        blend(taps, row_bytes, axis.weights(y), axis.precision, out);
    }
    Ok(())
}

/// Each byte of `out` as the weighted sum of the bytes at its place in rows `stride` apart.
///
/// The sum wraps, as it does in the references and in every other order of its terms.
fn blend(taps: &[u8], stride: usize, weights: &[i32], precision: u32, out: &mut [u8]) {
    for (place, out) in out.iter_mut().enumerate() {
        let mut sum = 1_i32 << (precision - 1);
        for (tap, weight) in weights.iter().enumerate() {
            let level = i32::from(taps[tap * stride + place]);
            sum = sum.wrapping_add(level.wrapping_mul(*weight));
        }
        *out = u8::try_from((sum >> precision).clamp(0, 255)).unwrap_or(u8::MAX);
    }
}
