//! Packed RGB as planes of patches: what a vision encoder reads.
//!
//! Owns the order of patches and of the samples in one. Must never know of floats.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod plain;

#[cfg(target_arch = "x86_64")]
use avx2::planes;
#[cfg(not(target_arch = "x86_64"))]
use plain::planes;

/// Write a row of blocks: `merge` rows of patches, whose order is block, row in the block, column
/// in the block. A patch is three channels of `patch` rows of `patch` samples.
///
/// `rows` are `merge * patch` rows of `width` pixels; `lines` is scratch of one row.
pub(crate) fn block_row(
    rows: &[u8],
    width: usize,
    patch: usize,
    merge: usize,
    lines: &mut [u8],
    out: &mut [u8],
) {
    match patch {
        // Copies of a length that the compiler knows.
        14 => write::<14>(rows, width, 14, merge, lines, out),
        16 => write::<16>(rows, width, 16, merge, lines, out),
        _ => write::<0>(rows, width, patch, merge, lines, out),
    }
}

/// As `block_row`, for patches of `P` where it is not 0.
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "so that `patch` is a constant of each caller's"
)]
fn write<const P: usize>(
    rows: &[u8],
    width: usize,
    patch: usize,
    merge: usize,
    lines: &mut [u8],
    out: &mut [u8],
) {
    let (area, lines) = (patch * patch, &mut lines[..3 * width]);
    for (y, row) in rows.chunks_exact(width * 3).enumerate() {
        planes(row, lines);
        let (row_in_block, y) = (y / patch, y % patch);
        for (channel, line) in lines.chunks_exact(width).enumerate() {
            let offset = channel * area + y * patch;
            for (block, line) in line.chunks_exact(patch * merge).enumerate() {
                let first = (block * merge + row_in_block) * merge;
                for (column, run) in line.chunks_exact(patch).enumerate() {
                    let place = &mut out[(first + column) * 3 * area + offset..];
                    match (place.first_chunk_mut::<P>(), run.first_chunk::<P>()) {
                        (Some(place), Some(run)) if P != 0 => *place = *run,
                        _ => place[..patch].copy_from_slice(run),
                    }
                }
            }
        }
    }
}

/// Write `size` pixels of a picture, from `corner` on, as three planes.
pub(crate) fn crop_planes(
    pixels: &[u8],
    width: usize,
    corner: (usize, usize),
    size: (usize, usize),
    lines: &mut [u8],
    out: &mut [u8],
) {
    let area = size.0 * size.1;
    let lines = &mut lines[..3 * size.0];
    for y in 0..size.1 {
        let start = ((corner.1 + y) * width + corner.0) * 3;
        planes(&pixels[start..start + size.0 * 3], lines);
        for (channel, line) in lines.chunks_exact(size.0).enumerate() {
            out[channel * area + y * size.0..][..size.0].copy_from_slice(line);
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::{avx2, plain};

    #[test]
    fn vectors_agree_with_plain_code() {
        for pixels in [1, 15, 16, 17, 31, 33, 100] {
            let row: Vec<u8> = (0..=u8::MAX).cycle().take(pixels * 3).collect();
            let (mut expected, mut made) = (vec![0; row.len()], vec![0; row.len()]);
            plain::planes(&row, &mut expected);
            avx2::planes(&row, &mut made);
            assert_eq!(made, expected);
        }
    }
}
