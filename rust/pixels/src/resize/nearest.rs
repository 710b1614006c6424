//! The nearest sample: which one, as Pillow's `Geometry.c` steps.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positions lie inside a side, which is below 2^31"
)]

use crate::buffer::try_filled;
use crate::refusal::Refusal;

/// For each of `to` output samples, the sample of `from` that is copied.
pub(super) fn indices(from: u32, edges: [f32; 2], to: u32) -> Result<Vec<usize>, Refusal> {
    let last = from as usize - 1;
    let mut indices = try_filled(to as usize, 0)?;
    let step = f64::from(edges[1] - edges[0]) / f64::from(to);
    // Added up, so that its rounding adds up as well.
    let mut position = f64::from(edges[0]) + step * 0.5;
    for index in &mut indices {
        *index = (position as usize).min(last);
        position += step;
    }
    Ok(indices)
}
