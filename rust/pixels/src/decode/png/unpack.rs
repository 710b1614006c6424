//! Rows of a PNG as pixels of Pillow's modes.

use crate::mode::Mode;
use crate::refusal::Declined;

/// How a row is stored, by bit depth and color type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// 1, 2 or 4 bits: gray is spread over 0..=255, an index is kept.
    Packed { bits: u8, mode: Mode },
    /// 8 bits: pixels as they are.
    Plain(Mode),
    /// 16-bit gray, kept.
    Gray16,
    /// 16-bit gray and alpha: Pillow makes RGBA of the high bytes.
    GrayAlpha16,
    /// 16-bit color, with or without alpha: the high bytes.
    Color16(Mode),
}

impl Layout {
    pub(super) fn new(bits: u8, color_type: u8) -> Result<Self, Declined> {
        Ok(match (bits, color_type) {
            (1, 0) => Self::Packed {
                bits,
                mode: Mode::Bilevel,
            },
            (2 | 4, 0) => Self::Packed {
                bits,
                mode: Mode::L,
            },
            (1 | 2 | 4, 3) => Self::Packed {
                bits,
                mode: Mode::P,
            },
            (8, 0) => Self::Plain(Mode::L),
            (8, 2) => Self::Plain(Mode::Rgb),
            (8, 3) => Self::Plain(Mode::P),
            (8, 4) => Self::Plain(Mode::La),
            (8, 6) => Self::Plain(Mode::Rgba),
            (16, 0) => Self::Gray16,
            (16, 4) => Self::GrayAlpha16,
            (16, 2) => Self::Color16(Mode::Rgb),
            (16, 6) => Self::Color16(Mode::Rgba),
            _ => return Err(Declined("bit depth and color type")),
        })
    }

    pub(super) fn mode(self) -> Mode {
        match self {
            Self::Packed { mode, .. } | Self::Plain(mode) | Self::Color16(mode) => mode,
            Self::Gray16 => Mode::I16,
            Self::GrayAlpha16 => Mode::Rgba,
        }
    }

    /// Bits of a stored pixel.
    pub(super) fn pixel_bits(self) -> usize {
        match self {
            Self::Packed { bits, .. } => usize::from(bits),
            Self::Plain(mode) => mode.pixel_bytes() * 8,
            Self::Gray16 => 16,
            Self::GrayAlpha16 => 32,
            Self::Color16(mode) => mode.pixel_bytes() * 16,
        }
    }

    /// Whether a pixel is never longer than it is stored, so that rows can be narrowed in place.
    pub(super) fn is_narrowing(self) -> bool {
        !matches!(self, Self::Packed { .. })
    }

    /// Turn packed rows into pixels, at the front of the same memory.
    pub(super) fn narrow(self, rows: &mut [u8]) {
        match self {
            Self::Packed { .. } | Self::Plain(_) => {}
            Self::Gray16 => {
                let (samples, _) = rows.as_chunks_mut::<2>();
                for sample in samples {
                    sample.swap(0, 1);
                }
            }
            Self::GrayAlpha16 => {
                let (pixels, _) = rows.as_chunks_mut::<4>();
                for pixel in pixels {
                    *pixel = gray_alpha(*pixel);
                }
            }
            Self::Color16(_) => {
                for index in 0..rows.len() / 2 {
                    rows[index] = rows[index * 2];
                }
            }
        }
    }

    /// Spread a packed row of `count` pixels over `line`, from column `left` in steps of `across`.
    pub(super) fn unpack(
        self,
        row: &[u8],
        line: &mut [u8],
        count: usize,
        (left, across): (usize, usize),
    ) {
        match self {
            Self::Packed { bits, mode } => {
                let unpack = Unpack::new(bits, mode);
                let places = line[left..].iter_mut().step_by(across).take(count);
                match bits {
                    1 => unpack.spread::<8>(row, places),
                    2 => unpack.spread::<4>(row, places),
                    _ => unpack.spread::<2>(row, places),
                }
            }
            Self::Plain(mode) => match mode.pixel_bytes() {
                1 => place::<1, 1>(row, line, (left, across), |pixel| pixel),
                2 => place::<2, 2>(row, line, (left, across), |pixel| pixel),
                3 => place::<3, 3>(row, line, (left, across), |pixel| pixel),
                _ => place::<4, 4>(row, line, (left, across), |pixel| pixel),
            },
            Self::Gray16 => place::<2, 2>(row, line, (left, across), |[high, low]| [low, high]),
            Self::GrayAlpha16 => place::<4, 4>(row, line, (left, across), gray_alpha),
            Self::Color16(Mode::Rgb) => {
                place::<6, 3>(row, line, (left, across), |[r, _, g, _, b, _]| [r, g, b]);
            }
            Self::Color16(_) => {
                place::<8, 4>(row, line, (left, across), |[r, _, g, _, b, _, a, _]| {
                    [r, g, b, a]
                });
            }
        }
    }
}

fn gray_alpha([level, _, alpha, _]: [u8; 4]) -> [u8; 4] {
    [level, level, level, alpha]
}

fn place<const S: usize, const D: usize>(
    row: &[u8],
    line: &mut [u8],
    (left, across): (usize, usize),
    each: impl Fn([u8; S]) -> [u8; D],
) {
    let (stored, _) = row.as_chunks::<S>();
    let (places, _) = line.as_chunks_mut::<D>();
    for (pixel, place) in stored.iter().zip(places[left..].iter_mut().step_by(across)) {
        *place = each(*pixel);
    }
}

struct Unpack {
    bits: u8,
    /// What one step of a sample is worth.
    scale: u8,
}

impl Unpack {
    fn new(bits: u8, mode: Mode) -> Self {
        let scale = match (mode, bits) {
            (Mode::P, _) => 1,
            (_, 1) => 255,
            (_, 2) => 85,
            _ => 17,
        };
        Self { bits, scale }
    }

    fn spread<'p, const N: usize>(&self, row: &[u8], places: impl Iterator<Item = &'p mut u8>) {
        let mask = u8::MAX >> (8 - self.bits);
        let samples = row.iter().flat_map(|&byte| {
            let mut samples = [0; N];
            for (index, sample) in (0u8..).zip(&mut samples) {
                *sample = (byte >> (8 - self.bits * (index + 1)) & mask) * self.scale;
            }
            samples
        });
        for (place, sample) in places.zip(samples) {
            *place = sample;
        }
    }
}
