//! PNG filters undone in place, filter bytes squeezed out.
//!
//! The filters that depend on the pixel to the left run a pixel at a time: for pixels of three
//! and four bytes in one SSE2 register, which every x86-64 has, otherwise sample by sample.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "predictions are samples: 0..=255 in a wider type"
)]

use safelight_core::cancel::Cancel;

use crate::refusal::{Declined, Refusal};

/// Undo the filters of `rows`, each a filter byte and `row_bytes` bytes, for pixels of `unit`
/// bytes. Afterward the rows lie packed at the front, without their filter bytes.
pub(super) fn undo(
    rows: &mut [u8],
    row_bytes: usize,
    unit: usize,
    cancel: &Cancel,
) -> Result<(), Refusal> {
    let height = rows.len() / (row_bytes + 1);
    let blank = vec![0; row_bytes];
    let mut index = 0;
    while index < height {
        cancel.check()?;
        // Four rows of the Paeth filter are undone at once; see `packed::paeth_four`.
        let is_group = (index..height)
            .take(4)
            .filter(|row| rows[row * (row_bytes + 1)] == 4)
            .count()
            == 4;
        let count = if is_group { 4 } else { 1 };
        let filter = rows[index * (row_bytes + 1)];
        for row in index..index + count {
            let stored = row * (row_bytes + 1) + 1;
            rows.copy_within(stored..stored + row_bytes, row * row_bytes);
        }
        let start = index * row_bytes;
        let (above, current) = rows.split_at_mut(start);
        let current = &mut current[..count * row_bytes];
        let above = above.get(start.wrapping_sub(row_bytes)..).unwrap_or(&blank);
        match filter {
            0 => {}
            1 => sub(current, unit),
            2 => up(current, above),
            3 => average(current, above, unit),
            4 if is_group => paeth_four(current, above, unit),
            4 => paeth(current, above, unit),
            _ => return Err(Declined("unknown filter").into()),
        }
        index += count;
    }
    Ok(())
}

fn up(row: &mut [u8], above: &[u8]) {
    for (sample, above) in row.iter_mut().zip(above) {
        *sample = sample.wrapping_add(*above);
    }
}

fn sub(row: &mut [u8], unit: usize) {
    match unit {
        1 => scalar::sub::<1>(row),
        2 => scalar::sub::<2>(row),
        3 => packed::sub::<3>(row),
        4 => packed::sub::<4>(row),
        6 => scalar::sub::<6>(row),
        _ => scalar::sub::<8>(row),
    }
}

fn average(row: &mut [u8], above: &[u8], unit: usize) {
    match unit {
        1 => scalar::average::<1>(row, above),
        2 => scalar::average::<2>(row, above),
        3 => packed::average::<3>(row, above),
        4 => packed::average::<4>(row, above),
        6 => scalar::average::<6>(row, above),
        _ => scalar::average::<8>(row, above),
    }
}

fn paeth(row: &mut [u8], above: &[u8], unit: usize) {
    match unit {
        1 => scalar::paeth::<1>(row, above),
        2 => scalar::paeth::<2>(row, above),
        3 => packed::paeth::<3>(row, above),
        4 => packed::paeth::<4>(row, above),
        6 => scalar::paeth::<6>(row, above),
        _ => scalar::paeth::<8>(row, above),
    }
}

fn paeth_four(rows: &mut [u8], above: &[u8], unit: usize) {
    match unit {
        3 => packed::paeth_four::<3>(rows, above),
        4 => packed::paeth_four::<4>(rows, above),
        _ => one_by_one(rows, above, |row, above| paeth(row, above, unit)),
    }
}

/// Undo rows of the same length as `above`, each below the one before it.
fn one_by_one(rows: &mut [u8], above: &[u8], undo: impl Fn(&mut [u8], &[u8])) {
    rows.chunks_exact_mut(above.len())
        .fold(above, |above, row| {
            undo(row, above);
            row
        });
}

mod scalar {
    pub(super) fn sub<const N: usize>(row: &mut [u8]) {
        let mut left = [0; N];
        let (pixels, _) = row.as_chunks_mut::<N>();
        for pixel in pixels {
            for (sample, left) in pixel.iter_mut().zip(&mut left) {
                *sample = sample.wrapping_add(*left);
                *left = *sample;
            }
        }
    }

    pub(super) fn average<const N: usize>(row: &mut [u8], above: &[u8]) {
        let mut left = [0; N];
        let (pixels, _) = row.as_chunks_mut::<N>();
        let (above, _) = above.as_chunks::<N>();
        for (pixel, above) in pixels.iter_mut().zip(above) {
            for ((sample, left), above) in pixel.iter_mut().zip(&mut left).zip(above) {
                let mean = u16::midpoint(u16::from(*left), u16::from(*above)) as u8;
                *sample = sample.wrapping_add(mean);
                *left = *sample;
            }
        }
    }

    pub(super) fn paeth<const N: usize>(row: &mut [u8], above: &[u8]) {
        let mut left = [0i16; N];
        let mut corner = [0i16; N];
        let (pixels, _) = row.as_chunks_mut::<N>();
        let (above, _) = above.as_chunks::<N>();
        for (pixel, above) in pixels.iter_mut().zip(above) {
            for index in 0..N {
                let up = i16::from(above[index]);
                let (to_left, to_up) = (up - corner[index], left[index] - corner[index]);
                let (far_left, far_up) = (to_left.abs(), to_up.abs());
                let far_corner = (to_left + to_up).abs();
                let predicted = if far_left <= far_up && far_left <= far_corner {
                    left[index]
                } else if far_up <= far_corner {
                    up
                } else {
                    corner[index]
                };
                pixel[index] = pixel[index].wrapping_add(predicted as u8);
                left[index] = i16::from(pixel[index]);
                corner[index] = up;
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod packed {
    pub(super) use super::scalar::{average, paeth, sub};

    pub(super) fn paeth_four<const N: usize>(rows: &mut [u8], above: &[u8]) {
        super::one_by_one(rows, above, paeth::<N>);
    }
}

#[cfg(target_arch = "x86_64")]
mod packed;

#[cfg(test)]
mod tests {
    use super::{packed, scalar, undo};
    use safelight_core::cancel::Cancel;

    /// Bytes that look random, with runs of zeros among them.
    fn noise(length: usize, seed: u32) -> Vec<u8> {
        let mut state = seed.wrapping_mul(2_654_435_761) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state
        };
        (0..length)
            .map(|index| {
                if (index / 50) % 3 == 0 {
                    0
                } else {
                    next() as u8
                }
            })
            .collect()
    }

    fn agree<const N: usize>() {
        for pixels in (1..70).chain([255, 256]) {
            let seed = u32::try_from(pixels).unwrap();
            let above = noise(pixels * N, seed);
            let stored = noise(pixels * N, seed + 1000);
            let undone = |undo: &dyn Fn(&mut [u8], &[u8])| {
                let mut row = stored.clone();
                undo(&mut row, &above);
                row
            };
            assert_eq!(
                undone(&|row, _| packed::sub::<N>(row)),
                undone(&|row, _| scalar::sub::<N>(row))
            );
            assert_eq!(
                undone(&|row, above| packed::average::<N>(row, above)),
                undone(&|row, above| scalar::average::<N>(row, above))
            );
            assert_eq!(
                undone(&|row, above| packed::paeth::<N>(row, above)),
                undone(&|row, above| scalar::paeth::<N>(row, above))
            );
            let mut four = noise(pixels * N * 4, seed + 2000);
            let mut one_by_one = four.clone();
            packed::paeth_four::<N>(&mut four, &above);
            super::one_by_one(&mut one_by_one, &above, scalar::paeth::<N>);
            assert_eq!(four, one_by_one, "{pixels} pixels");
        }
    }

    #[test]
    fn registers_agree_with_samples() {
        agree::<3>();
        agree::<4>();
    }

    #[test]
    fn a_cancelled_decode_stops_at_the_next_rows() {
        let cancel = Cancel::default();
        cancel.request();
        assert!(undo(&mut [0; 40], 3, 3, &cancel).is_err());
    }

    #[test]
    fn an_unknown_filter_is_declined() {
        assert!(undo(&mut [5, 1, 2, 3], 3, 3, &Cancel::default()).is_err());
    }
}
