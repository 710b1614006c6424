//! The plain kinds of TIFF: whole strips of one plane, uncompressed, `PackBits`, LZW or Deflate.
//!
//! Gray of 1, 8 and 16 bits, RGB, RGBA, CMYK and palettes. Whatever else a file has, tiles, other
//! compressions, an orientation, metadata that Pillow walks after the load, is declined.

mod directory;
mod strip;

use safelight_core::cancel::Cancel;

use crate::mode::Mode;
use crate::picture::{Palette, Transparency};
use crate::refusal::{Declined, Refusal};

use super::codec::{Codec, Header};
use directory::Directory;
use strip::Compression;

/// A TIFF file with its first directory read.
pub(crate) struct Tiff<'a> {
    data: &'a [u8],
    header: Header,
    layout: Layout,
    strips: Strips,
    palette: Option<Palette>,
}

/// How a row becomes pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// One bit a pixel; whether 0 is white.
    Bits { is_inverted: bool },
    /// 8-bit gray where 0 is white.
    Inverted,
    /// Pixels as they are.
    Plain,
    /// Four bytes of which the last means nothing.
    Padded,
}

#[derive(Debug)]
struct Strips {
    compression: Compression,
    /// Bytes of a sample and samples of a pixel, where differences are to be summed.
    predictor: Option<(usize, usize)>,
    row_bytes: usize,
    rows: usize,
    /// Where each strip lies, and how long it is; the length of an uncompressed one is computed.
    places: Vec<(usize, usize)>,
}

const WIDTH: u16 = 256;
const LENGTH: u16 = 257;
const BITS: u16 = 258;
const COMPRESSION: u16 = 259;
const PHOTOMETRIC: u16 = 262;
const FILL_ORDER: u16 = 266;
const STRIP_OFFSETS: u16 = 273;
const ORIENTATION: u16 = 274;
const SAMPLES: u16 = 277;
const STRIP_ROWS: u16 = 278;
const STRIP_BYTES: u16 = 279;
const PLANAR: u16 = 284;
const PREDICTOR: u16 = 317;
const COLOR_MAP: u16 = 320;
const EXTRA_SAMPLES: u16 = 338;
const SAMPLE_FORMAT: u16 = 339;

impl<'a> Codec<'a> for Tiff<'a> {
    fn open(data: &'a [u8]) -> Result<Self, Refusal> {
        let directory = Directory::read(data)?;
        let (width, height) = (directory.one(WIDTH)?, directory.one(LENGTH)?);
        let (width, height) = (
            width.ok_or(Declined("no width"))?,
            height.ok_or(Declined("no height"))?,
        );
        for (tag, plain) in [(FILL_ORDER, 1), (ORIENTATION, 1), (PLANAR, 1)] {
            if directory.one(tag)?.unwrap_or(plain) != plain {
                return Err(Declined("organization").into());
            }
        }
        let bits = directory.all(BITS)?.unwrap_or_else(|| vec![1]);
        let samples = directory.one(SAMPLES)?.unwrap_or(1) as usize;
        let formats = directory.all(SAMPLE_FORMAT)?.unwrap_or_default();
        let extra = directory.all(EXTRA_SAMPLES)?.unwrap_or_default();
        if bits.len() != samples || formats.iter().any(|&format| format != 1) {
            return Err(Declined("samples").into());
        }
        let photometric = directory.one(PHOTOMETRIC)?.unwrap_or(0);
        let compression = Compression::new(directory.one(COMPRESSION)?.unwrap_or(1))?;
        let (mode, layout) = kind(photometric, &bits, &extra)?;
        let mode = match mode {
            Mode::I16 if directory.is_big() && compression == Compression::None => Mode::I16Big,
            Mode::I16 if directory.is_big() => return Err(Declined("byte order").into()),
            mode => mode,
        };
        let palette = match mode {
            Mode::P => Some(palette(&directory)?),
            _ => None,
        };
        let pixel_bits = bits.iter().sum::<u32>() as usize;
        let row_bytes = (width as usize * pixel_bits).div_ceil(8);
        let predictor = match directory.one(PREDICTOR)?.unwrap_or(1) {
            _ if !compression.has_predictor() => None,
            1 => None,
            2 if bits[0] >= 8 => Some((bits[0] as usize / 8, samples)),
            _ => return Err(Declined("predictor").into()),
        };
        let strips = strips(
            &directory,
            compression,
            predictor,
            (row_bytes, height as usize),
        )?;
        Ok(Self {
            data,
            header: Header {
                format: "TIFF",
                width,
                height,
                mode,
            },
            layout,
            strips,
            palette,
        })
    }

    fn header(&self) -> Header {
        self.header
    }

    fn decode(&mut self, buffer: &mut Vec<u8>, cancel: &Cancel) -> Result<(), Refusal> {
        let strips = &self.strips;
        let line_bytes = self.header.width as usize * self.header.mode.pixel_bytes();
        let mut lines = buffer.chunks_exact_mut(line_bytes);
        let height = self.header.height as usize;
        let mut scratch = Vec::new();
        for (index, &(offset, length)) in strips.places.iter().enumerate() {
            cancel.check()?;
            let count = strips.rows.min(height - index * strips.rows);
            let bytes = count * strips.row_bytes;
            let stored = self.data.get(offset..).ok_or(Declined("strip"))?;
            let rows = if strips.compression == Compression::None {
                stored.get(..bytes).ok_or(Declined("data ends too early"))?
            } else {
                let stored = stored.get(..length).ok_or(Declined("strip"))?;
                strips.compression.expand(stored, &mut scratch, bytes)?;
                if let Some(unit) = strips.predictor {
                    for row in scratch.chunks_exact_mut(strips.row_bytes) {
                        strip::sum(row, unit);
                    }
                }
                &scratch
            };
            for (row, line) in rows.chunks_exact(strips.row_bytes).zip(&mut lines) {
                self.layout.unpack(row, line);
            }
        }
        Ok(())
    }

    fn colors(&mut self) -> (Option<Palette>, Option<Transparency>) {
        (self.palette.take(), None)
    }
}

impl Layout {
    fn unpack(self, row: &[u8], line: &mut [u8]) {
        match self {
            Self::Plain => line.copy_from_slice(row),
            Self::Inverted => {
                for (pixel, sample) in line.iter_mut().zip(row) {
                    *pixel = !sample;
                }
            }
            Self::Padded => {
                let (stored, _) = row.as_chunks::<4>();
                let (pixels, _) = line.as_chunks_mut::<3>();
                for (pixel, [r, g, b, _]) in pixels.iter_mut().zip(stored) {
                    *pixel = [*r, *g, *b];
                }
            }
            Self::Bits { is_inverted } => {
                for (pixels, byte) in line.chunks_mut(8).zip(row) {
                    for (shift, pixel) in (0..8u8).rev().zip(pixels) {
                        let is_set = byte >> shift & 1 == 1;
                        *pixel = if is_set == is_inverted { 0 } else { 255 };
                    }
                }
            }
        }
    }
}

fn kind(photometric: u32, bits: &[u32], extra: &[u32]) -> Result<(Mode, Layout), Declined> {
    Ok(match (photometric, bits, extra) {
        (0, [1], []) => (Mode::Bilevel, Layout::Bits { is_inverted: true }),
        (1, [1], []) => (Mode::Bilevel, Layout::Bits { is_inverted: false }),
        (0, [8], []) => (Mode::L, Layout::Inverted),
        (1, [8], []) => (Mode::L, Layout::Plain),
        (1, [16], []) => (Mode::I16, Layout::Plain),
        (2, [8, 8, 8], []) => (Mode::Rgb, Layout::Plain),
        (2, [8, 8, 8, 8], [] | [2]) => (Mode::Rgba, Layout::Plain),
        (2, [8, 8, 8, 8], [0]) => (Mode::Rgb, Layout::Padded),
        (3, [8], []) => (Mode::P, Layout::Plain),
        (5, [8, 8, 8, 8], []) => (Mode::Cmyk, Layout::Plain),
        _ => return Err(Declined("kind of pixels")),
    })
}

fn palette(directory: &Directory<'_>) -> Result<Palette, Declined> {
    let map = directory
        .all(COLOR_MAP)?
        .filter(|map| map.len() == 768)
        .ok_or(Declined("color map"))?;
    let level = |index: usize| u8::try_from(map[index] >> 8).unwrap_or(u8::MAX);
    let rgb: Vec<u8> = (0..256)
        .flat_map(|index| [level(index), level(index + 256), level(index + 512)])
        .collect();
    Ok(Palette::from_rgb(&rgb))
}

fn strips(
    directory: &Directory<'_>,
    compression: Compression,
    predictor: Option<(usize, usize)>,
    (row_bytes, height): (usize, usize),
) -> Result<Strips, Declined> {
    let rows = directory
        .one(STRIP_ROWS)?
        .map_or(height, |rows| rows as usize);
    let rows = rows.min(height);
    let offsets = directory.all(STRIP_OFFSETS)?.ok_or(Declined("no strips"))?;
    let lengths = directory.all(STRIP_BYTES)?.ok_or(Declined("no lengths"))?;
    if rows == 0 || offsets.len() != height.div_ceil(rows) || lengths.len() != offsets.len() {
        return Err(Declined("strips"));
    }
    // Pillow drops a strip that only differs from the one before by its offset.
    let places: Vec<_> = offsets
        .iter()
        .zip(&lengths)
        .map(|(&offset, &length)| (offset as usize, length as usize))
        .collect();
    if compression == Compression::None
        && !places.is_sorted_by(|before, after| before.0 + rows * row_bytes <= after.0)
    {
        return Err(Declined("order of strips"));
    }
    Ok(Strips {
        compression,
        predictor,
        row_bytes,
        rows,
        places,
    })
}
