//! Turning stored pixels upright, in the same pass as they are mapped.
//!
//! Owns where each pixel goes. What becomes of a run of pixels is the caller's.

use std::mem::MaybeUninit;

use safelight_core::cancel::Cancel;

use crate::buffer::reserved;
use crate::refusal::{Declined, Refusal};
use crate::spare::recycle;

/// Side of the tiles in which a picture is turned, so that both sides stay in cache.
const TILE: usize = 32;

/// The longest run. Steps over pixels follow each other only after so many: a wide load of what
/// narrow stores have just left behind would wait for them.
const RUN: usize = TILE * TILE;

/// Runs between two looks at the cancel flag.
const RUNS_PER_CHECK: usize = 64;

/// `pixels` of `S` bytes as pixels of `D`, mapped by `run` and with `orientation` (1 to 8; EXIF)
/// undone. `run` gets no more than [`RUN`] pixels and as many places.
pub(crate) fn turn<const S: usize, const D: usize>(
    mut pixels: Vec<u8>,
    (width, height): (u32, u32),
    orientation: u8,
    cancel: &Cancel,
    run: impl Fn(&[[u8; S]], &mut [[u8; D]]),
) -> Result<Vec<u8>, Refusal> {
    let (width, height) = (width as usize, height as usize);
    if orientation == 1 && D <= S {
        map_in_place(&mut pixels, cancel, run)?;
        pixels.shrink_to_fit();
        return Ok(pixels);
    }
    let (stored, _) = pixels.as_chunks::<S>();
    if stored.len() != width * height {
        return Err(Declined("plan").into());
    }
    let bytes = width * height * D;
    let mut out = reserved(bytes)?;
    let room = out.spare_capacity_mut();
    let room = room.get_mut(..bytes).ok_or(Declined("plan"))?;
    let (upright, _) = room.as_chunks_mut::<D>();
    if orientation == 1 {
        map_rows(stored, upright, cancel, run)?;
    } else {
        map_tiles(
            stored,
            upright,
            Walk::new(orientation, width, height),
            cancel,
            run,
        )?;
    }
    // SAFETY: both functions write every pixel of `upright`, which is all of `bytes`.
    unsafe { out.set_len(bytes) };
    recycle(pixels);
    Ok(out)
}

/// Map at the front of the same memory. A run never lies behind what is read, because a pixel
/// does not grow.
fn map_in_place<const S: usize, const D: usize>(
    pixels: &mut Vec<u8>,
    cancel: &Cancel,
    run: impl Fn(&[[u8; S]], &mut [[u8; D]]),
) -> Result<(), Refusal> {
    let count = pixels.len() / S;
    let (mut stored, mut places) = ([[0; S]; RUN], [[0; D]; RUN]);
    for (index, first) in (0..count).step_by(RUN).enumerate() {
        if index % RUNS_PER_CHECK == 0 {
            cancel.check()?;
        }
        let length = RUN.min(count - first);
        let (stored, places) = (&mut stored[..length], &mut places[..length]);
        let end = first + length;
        stored
            .as_flattened_mut()
            .copy_from_slice(&pixels[first * S..end * S]);
        run(stored, places);
        pixels[first * D..end * D].copy_from_slice(places.as_flattened());
    }
    pixels.truncate(count * D);
    Ok(())
}

fn map_rows<const S: usize, const D: usize>(
    stored: &[[u8; S]],
    upright: &mut [[MaybeUninit<u8>; D]],
    cancel: &Cancel,
    run: impl Fn(&[[u8; S]], &mut [[u8; D]]),
) -> Result<(), Refusal> {
    let mut places = [[0; D]; RUN];
    let runs = stored.chunks(RUN).zip(upright.chunks_mut(RUN));
    for (index, (from, to)) in runs.enumerate() {
        if index % RUNS_PER_CHECK == 0 {
            cancel.check()?;
        }
        let places = &mut places[..from.len()];
        run(from, places);
        for (pixel, to) in places.iter().zip(to) {
            *to = pixel.map(MaybeUninit::new);
        }
    }
    Ok(())
}

/// Turn tile by tile: each is copied first, because rows of a picture may lie so far apart that
/// they push each other out of the cache; then mapped in upright runs.
fn map_tiles<const S: usize, const D: usize>(
    stored: &[[u8; S]],
    upright: &mut [[MaybeUninit<u8>; D]],
    walk: Walk,
    cancel: &Cancel,
    run: impl Fn(&[[u8; S]], &mut [[u8; D]]),
) -> Result<(), Refusal> {
    let (mut tile, mut turned) = ([[0; S]; RUN], [[0; S]; RUN]);
    let mut places = [[0; D]; RUN];
    for (band, rows) in upright.chunks_mut(walk.width * TILE).enumerate() {
        cancel.check()?;
        let height = rows.len() / walk.width;
        for left in (0..walk.width).step_by(TILE) {
            let width = TILE.min(walk.width - left);
            let part = walk.part(left, band * TILE, width, height);
            let lines = stored[part.first..].chunks(walk.stride);
            for (line, copy) in lines
                .zip(tile.chunks_mut(part.walk.stride))
                .take(part.lines)
            {
                copy.copy_from_slice(&line[..part.walk.stride]);
            }
            for (y, row) in turned.chunks_mut(width).take(height).enumerate() {
                let (mut at, step) = (part.walk.stored(0, y), part.walk.column);
                for pixel in row {
                    // In range by its making; the remainder spares the check.
                    *pixel = tile[at % tile.len()];
                    at = at.wrapping_add_signed(step);
                }
            }
            let count = width * height;
            run(&turned[..count], &mut places[..count]);
            for (row, from) in rows.chunks_mut(walk.width).zip(places.chunks(width)) {
                for (to, pixel) in row[left..left + width].iter_mut().zip(from) {
                    *to = pixel.map(MaybeUninit::new);
                }
            }
        }
    }
    Ok(())
}

/// A walk over stored pixels in upright order: `start + x * column + y * row`, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Walk {
    orientation: u8,
    /// Upright width.
    width: usize,
    /// Upright height.
    height: usize,
    /// Stored width.
    stride: usize,
    start: usize,
    column: isize,
    row: isize,
}

/// A rectangle of the upright picture, as it is stored.
struct Part {
    /// Index of its first stored pixel.
    first: usize,
    /// Stored rows.
    lines: usize,
    /// The walk over it, as if it were a picture by itself.
    walk: Walk,
}

impl Walk {
    /// The walk that undoes `orientation` on `width` x `height` stored pixels.
    fn new(orientation: u8, width: usize, height: usize) -> Self {
        let across = 1isize;
        let down = width.cast_signed();
        let (right, bottom) = (width - 1, (height - 1) * width);
        let (start, column, row) = match orientation {
            2 => (right, -across, down),
            3 => (bottom + right, -across, -down),
            4 => (bottom, across, -down),
            5 => (0, down, across),
            6 => (bottom, -down, across),
            7 => (bottom + right, -down, -across),
            8 => (right, down, -across),
            _ => (0, across, down),
        };
        let stride = width;
        let (width, height) = if orientation >= 5 {
            (height, width)
        } else {
            (width, height)
        };
        Self {
            orientation,
            width,
            height,
            stride,
            start,
            column,
            row,
        }
    }

    /// Index of the stored pixel that is upright at (`x`, `y`).
    #[inline]
    fn stored(&self, x: usize, y: usize) -> usize {
        self.start
            .wrapping_add_signed(self.column.wrapping_mul(x.cast_signed()))
            .wrapping_add_signed(self.row.wrapping_mul(y.cast_signed()))
    }

    /// The part that is upright at (`left`, `top`), `width` x `height`.
    fn part(&self, left: usize, top: usize, width: usize, height: usize) -> Part {
        // The first pixel in stored order is one of two opposite corners or of the other two.
        let (right, bottom) = (left + width - 1, top + height - 1);
        let corners = [(left, top), (right, top), (left, bottom), (right, bottom)];
        let first = corners.map(|(x, y)| self.stored(x, y)).into_iter().min();
        let (width, lines) = if self.orientation >= 5 {
            (height, width)
        } else {
            (width, height)
        };
        Part {
            first: first.unwrap_or_default(),
            lines,
            walk: Self::new(self.orientation, width, lines),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Walk, turn};
    use safelight_core::cancel::Cancel;

    #[test]
    fn orientations_of_a_three_by_two_picture() {
        let turned = |orientation| {
            let walk = Walk::new(orientation, 3, 2);
            let order = (0..walk.height).flat_map(|y| (0..walk.width).map(move |x| (x, y)));
            let order: Vec<_> = order.map(|(x, y)| walk.stored(x, y)).collect();
            (walk.width, walk.height, order)
        };
        assert_eq!(turned(1), (3, 2, vec![0, 1, 2, 3, 4, 5]));
        assert_eq!(turned(2), (3, 2, vec![2, 1, 0, 5, 4, 3]));
        assert_eq!(turned(3), (3, 2, vec![5, 4, 3, 2, 1, 0]));
        assert_eq!(turned(4), (3, 2, vec![3, 4, 5, 0, 1, 2]));
        assert_eq!(turned(5), (2, 3, vec![0, 3, 1, 4, 2, 5]));
        assert_eq!(turned(6), (2, 3, vec![3, 0, 4, 1, 5, 2]));
        assert_eq!(turned(7), (2, 3, vec![5, 2, 4, 1, 3, 0]));
        assert_eq!(turned(8), (2, 3, vec![2, 5, 1, 4, 0, 3]));
    }

    #[test]
    fn tiles_follow_the_walk() {
        for (width, height) in [(1u16, 1u16), (33, 1), (1, 33), (31, 65), (64, 32), (70, 45)] {
            let pixels: Vec<[u8; 2]> = (0..width * height).map(u16::to_le_bytes).collect();
            for orientation in 1..=8 {
                let walk = Walk::new(orientation, width.into(), height.into());
                let order = (0..walk.height).flat_map(|y| (0..walk.width).map(move |x| (x, y)));
                let expected: Vec<_> = order
                    .flat_map(|(x, y)| {
                        let [low, high] = pixels[walk.stored(x, y)];
                        [low, high, !low]
                    })
                    .collect();
                let turned = turn(
                    pixels.as_flattened().to_vec(),
                    (width.into(), height.into()),
                    orientation,
                    &Cancel::default(),
                    |from: &[[u8; 2]], to: &mut [[u8; 3]]| {
                        for ([low, high], place) in from.iter().zip(to) {
                            *place = [*low, *high, !*low];
                        }
                    },
                );
                assert_eq!(turned.unwrap(), expected, "{width}x{height} {orientation}");
            }
        }
    }
}
