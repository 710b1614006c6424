//! PNG filters undone in place, filter bytes squeezed out.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "predictions are samples: 0..=255 in a wider type"
)]

use crate::Cancel;
use crate::decode::{Declined, Refusal};

/// Rows between two looks at the cancel flag.
const ROWS_PER_CHECK: usize = 64;

/// Undo the filters of `rows`, each a filter byte and `row_bytes` bytes, for pixels of `unit`
/// bytes. Afterward the rows lie packed at the front, without their filter bytes.
pub(super) fn undo(
    rows: &mut [u8],
    row_bytes: usize,
    unit: usize,
    cancel: &Cancel,
) -> Result<(), Refusal> {
    let height = rows.len() / (row_bytes + 1);
    let first = vec![0; row_bytes];
    for index in 0..height {
        if index % ROWS_PER_CHECK == 0 {
            cancel.check()?;
        }
        let stored = index * (row_bytes + 1);
        let filter = rows[stored];
        let start = index * row_bytes;
        rows.copy_within(stored + 1..stored + 1 + row_bytes, start);
        let (above, row) = rows.split_at_mut(start);
        let row = &mut row[..row_bytes];
        let above = if index == 0 {
            first.as_slice()
        } else {
            &above[start - row_bytes..]
        };
        match filter {
            0 => {}
            1 => sub(row, unit),
            2 => up(row, above),
            3 => average(row, above, unit),
            4 => paeth(row, above, unit),
            _ => return Err(Declined("unknown filter").into()),
        }
    }
    Ok(())
}

fn sub(row: &mut [u8], unit: usize) {
    match unit {
        1 => sub_by::<1>(row),
        2 => sub_by::<2>(row),
        3 => sub_by::<3>(row),
        4 => sub_by::<4>(row),
        6 => sub_by::<6>(row),
        _ => sub_by::<8>(row),
    }
}

fn sub_by<const N: usize>(row: &mut [u8]) {
    let mut left = [0; N];
    let (pixels, _) = row.as_chunks_mut::<N>();
    for pixel in pixels {
        for (sample, left) in pixel.iter_mut().zip(&mut left) {
            *sample = sample.wrapping_add(*left);
            *left = *sample;
        }
    }
}

fn up(row: &mut [u8], above: &[u8]) {
    for (sample, above) in row.iter_mut().zip(above) {
        *sample = sample.wrapping_add(*above);
    }
}

fn average(row: &mut [u8], above: &[u8], unit: usize) {
    match unit {
        1 => average_by::<1>(row, above),
        2 => average_by::<2>(row, above),
        3 => average_by::<3>(row, above),
        4 => average_by::<4>(row, above),
        6 => average_by::<6>(row, above),
        _ => average_by::<8>(row, above),
    }
}

fn average_by<const N: usize>(row: &mut [u8], above: &[u8]) {
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

fn paeth(row: &mut [u8], above: &[u8], unit: usize) {
    match unit {
        1 => paeth_by::<1>(row, above),
        2 => paeth_by::<2>(row, above),
        3 => paeth_by::<3>(row, above),
        4 => paeth_by::<4>(row, above),
        6 => paeth_by::<6>(row, above),
        _ => paeth_by::<8>(row, above),
    }
}

fn paeth_by<const N: usize>(row: &mut [u8], above: &[u8]) {
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
