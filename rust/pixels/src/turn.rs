//! Where each pixel of the upright picture lies in the stored one.

/// A walk over stored pixels in upright order: `start + x * column + y * row`, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    /// Upright width.
    pub(crate) width: usize,
    /// Upright height.
    pub(crate) height: usize,
    start: usize,
    column: isize,
    row: isize,
}

impl Walk {
    /// The walk that undoes `orientation` (1 to 8; EXIF) on `width` x `height` stored pixels.
    pub(crate) fn new(orientation: u8, width: usize, height: usize) -> Self {
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
        let (width, height) = if orientation >= 5 {
            (height, width)
        } else {
            (width, height)
        };
        Self {
            width,
            height,
            start,
            column,
            row,
        }
    }

    /// Index of the stored pixel that is upright at (`x`, `y`).
    #[inline]
    pub(crate) fn stored(&self, x: usize, y: usize) -> usize {
        self.start
            .wrapping_add_signed(self.column.wrapping_mul(x.cast_signed()))
            .wrapping_add_signed(self.row.wrapping_mul(y.cast_signed()))
    }
}

#[cfg(test)]
mod tests {
    use super::Walk;

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
}
