//! Uncompressed BMP, and DIB, which is BMP without a file header: palettes, 16, 24 and 32 bits, and the bit fields that Pillow knows.
//!
//! Run-length coding is declined: its skipped pixels differ even between versions of Pillow.

use safelight_core::cancel::Cancel;

use crate::mode::Mode;
use crate::picture::{Palette, Transparency};
use crate::refusal::{Declined, Refusal};

use super::codec::{Codec, Header};
use super::reader::Reader;

/// A BMP file with its header and palette read.
pub(crate) struct Bmp<'a> {
    header: Header,
    layout: Layout,
    is_bottom_up: bool,
    /// Bytes from row to row.
    stride: usize,
    palette: Option<Palette>,
    rows: &'a [u8],
}

/// How a pixel is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Indices or gray of so many bits, the first pixel in the high bits.
    Packed(u8),
    /// Five bits a color, blue lowest.
    Blue555,
    /// Five, six and five bits.
    Blue565,
    /// Bytes: where red, green and blue lie among three or four.
    Bytes { count: usize, colors: [usize; 3] },
    /// Four bytes with alpha: where red, green, blue and alpha lie.
    Alpha([usize; 4]),
}

struct Info {
    header_bytes: usize,
    width: u32,
    height: u32,
    is_bottom_up: bool,
    bits: u16,
    compression: u32,
    colors: u32,
    masks: Option<[u32; 4]>,
}

impl<'a> Codec<'a> for Bmp<'a> {
    fn open(data: &'a [u8]) -> Result<Self, Refusal> {
        let is_file = data.starts_with(b"BM");
        let mut reader = Reader::at(data, if is_file { 10 } else { 0 });
        let mut offset = if is_file {
            reader.u32_le()? as usize
        } else {
            0
        };
        let info = info(&mut reader)?;
        let mut layout = layout(&info)?;
        let mut mode = match layout {
            Layout::Packed(_) => Mode::P,
            Layout::Alpha(_) => Mode::Rgba,
            _ => Mode::Rgb,
        };
        let mut palette = None;
        if let Layout::Packed(bits) = layout {
            let unit = if info.header_bytes == 12 { 3 } else { 4 };
            let colors = match info.colors {
                0 => 1 << info.bits,
                1..=256 => info.colors as usize,
                _ => return Err(Declined("palette size").into()),
            };
            if offset == 14 + info.header_bytes {
                offset += unit * colors;
            }
            let entries = reader.take(unit * colors)?;
            if is_gray(entries, unit) {
                mode = match (bits, colors) {
                    (1, 2) => Mode::Bilevel,
                    (8, 3..) => Mode::L,
                    _ => return Err(Declined("gray palette").into()),
                };
                layout = Layout::Packed(bits);
            } else {
                palette = Some(table(entries, unit));
            }
        }
        // Without an offset the pixels follow what was read.
        let rows = match offset {
            0 => Some(reader.rest()),
            _ => data.get(offset..),
        };
        let bits = u64::from(info.width) * u64::from(info.bits);
        let stride = usize::try_from(((bits + 31) >> 3) & !3).map_err(|_| Declined("too large"))?;
        Ok(Self {
            header: Header {
                format: if is_file { "BMP" } else { "DIB" },
                width: info.width,
                height: info.height,
                mode,
            },
            layout,
            is_bottom_up: info.is_bottom_up,
            stride,
            palette,
            rows: rows.ok_or(Declined("no pixels"))?,
        })
    }

    fn header(&self) -> Header {
        self.header
    }

    fn decode(&mut self, buffer: &mut Vec<u8>, cancel: &Cancel) -> Result<(), Refusal> {
        let (width, height) = (self.header.width as usize, self.header.height as usize);
        let stored = match self.layout {
            Layout::Packed(bits) => (width * usize::from(bits)).div_ceil(8),
            Layout::Blue555 | Layout::Blue565 => width * 2,
            Layout::Bytes { count, .. } => width * count,
            Layout::Alpha(_) => width * 4,
        };
        // The last row may lack its padding.
        if self.rows.len() < self.stride * (height - 1) + stored {
            return Err(Declined("data ends too early").into());
        }
        let scale = if self.header.mode == Mode::Bilevel {
            255
        } else {
            1
        };
        let row_bytes = width * self.header.mode.pixel_bytes();
        for (y, line) in buffer.chunks_exact_mut(row_bytes).enumerate() {
            if y % 64 == 0 {
                cancel.check()?;
            }
            let index = if self.is_bottom_up { height - 1 - y } else { y };
            let row = &self.rows[index * self.stride..][..stored];
            unpack(row, line, self.layout, scale);
        }
        Ok(())
    }

    fn colors(&mut self) -> (Option<Palette>, Option<Transparency>) {
        (self.palette.take(), None)
    }
}

fn info(reader: &mut Reader<'_>) -> Result<Info, Declined> {
    let header_bytes = reader.u32_le()? as usize;
    if header_bytes == 12 {
        let (width, height) = (reader.u16_le()?, reader.u16_le()?);
        let (_planes, bits) = (reader.u16_le()?, reader.u16_le()?);
        return Ok(Info {
            header_bytes,
            width: width.into(),
            height: height.into(),
            is_bottom_up: true,
            bits,
            compression: 0,
            colors: 0,
            masks: None,
        });
    }
    if !matches!(header_bytes, 40 | 52 | 56 | 64 | 108 | 124) {
        return Err(Declined("header size"));
    }
    let mut rest = Reader::new(reader.take(header_bytes - 4)?);
    let (width, height) = (rest.u32_le()?, rest.u32_le()?);
    let (_planes, bits) = (rest.u16_le()?, rest.u16_le()?);
    let compression = rest.u32_le()?;
    rest.take(12)?;
    let colors = rest.u32_le()?;
    rest.take(4)?;
    let masks = if compression == 3 {
        // After a header of 40 bytes the masks follow it, and there is none for alpha.
        let source = if header_bytes == 40 {
            reader
        } else {
            &mut rest
        };
        let colors = [source.u32_le()?, source.u32_le()?, source.u32_le()?];
        let alpha = if header_bytes >= 56 {
            source.u32_le()?
        } else {
            0
        };
        Some([colors[0], colors[1], colors[2], alpha])
    } else {
        None
    };
    let is_bottom_up = height >> 24 != 0xFF;
    Ok(Info {
        header_bytes,
        width,
        height: if is_bottom_up {
            height
        } else {
            height.wrapping_neg()
        },
        is_bottom_up,
        bits,
        compression,
        colors,
        masks,
    })
}

fn layout(info: &Info) -> Result<Layout, Declined> {
    let bytes = |count, colors| Layout::Bytes { count, colors };
    match (info.bits, info.compression, info.masks) {
        (1, 0, _) => Ok(Layout::Packed(1)),
        (4, 0, _) => Ok(Layout::Packed(4)),
        (8, 0, _) => Ok(Layout::Packed(8)),
        (16, 0, _) | (16, 3, Some([0x7C00, 0x3E0, 0x1F, _])) => Ok(Layout::Blue555),
        (24, 0, _) | (24, 3, Some([0xFF_0000, 0xFF00, 0xFF, _])) => Ok(bytes(3, [2, 1, 0])),
        (32, 0, _) => Ok(bytes(4, [2, 1, 0])),
        (16, 3, Some([0xF800, 0x7E0, 0x1F, _])) => Ok(Layout::Blue565),
        (32, 3, Some(masks)) => match masks {
            [0xFF_0000, 0xFF00, 0xFF, 0] => Ok(bytes(4, [2, 1, 0])),
            [0xFF00_0000, 0xFF_0000, 0xFF00, 0] => Ok(bytes(4, [3, 2, 1])),
            [0xFF00_0000, 0xFF00, 0xFF, 0] => Ok(bytes(4, [3, 1, 0])),
            [0xFF00_0000, 0xFF_0000, 0xFF00, 0xFF] => Ok(Layout::Alpha([3, 2, 1, 0])),
            [0xFF, 0xFF00, 0xFF_0000, 0xFF00_0000] => Ok(Layout::Alpha([0, 1, 2, 3])),
            [0xFF_0000, 0xFF00, 0xFF, 0xFF00_0000] | [0, 0, 0, 0] => {
                Ok(Layout::Alpha([2, 1, 0, 3]))
            }
            [0xFF00_0000, 0xFF00, 0xFF, 0xFF_0000] => Ok(Layout::Alpha([3, 1, 0, 2])),
            _ => Err(Declined("bit fields")),
        },
        _ => Err(Declined("bits and compression")),
    }
}

/// Whether the entries are black and white, or gray `i` for each index `i`.
fn is_gray(entries: &[u8], unit: usize) -> bool {
    let levels: &[u8] = if entries.len() == 2 * unit {
        &[0, 255]
    } else {
        &[]
    };
    let level = |index: usize| levels.get(index).map_or(index, |&level| level.into());
    entries
        .chunks_exact(unit)
        .enumerate()
        .all(|(index, entry)| {
            entry[..3]
                .iter()
                .all(|&sample| usize::from(sample) == level(index))
        })
}

fn table(entries: &[u8], unit: usize) -> Palette {
    let rgb: Vec<u8> = entries
        .chunks_exact(unit)
        .flat_map(|entry| [entry[2], entry[1], entry[0]])
        .collect();
    Palette::from_rgb(&rgb)
}

fn unpack(row: &[u8], line: &mut [u8], layout: Layout, scale: u8) {
    match layout {
        Layout::Packed(8) => line.copy_from_slice(row),
        Layout::Packed(bits) => {
            let per_byte = usize::from(8 / bits);
            let mask = u8::MAX >> (8 - bits);
            for (pixels, byte) in line.chunks_mut(per_byte).zip(row) {
                for (shift, pixel) in (1u8..).zip(pixels) {
                    *pixel = (byte >> (8 - bits * shift) & mask) * scale;
                }
            }
        }
        Layout::Blue555 => short(row, line, 5),
        Layout::Blue565 => short(row, line, 6),
        Layout::Bytes { count: 3, colors } => pick::<3, 3>(row, line, colors),
        Layout::Bytes { colors, .. } => pick::<4, 3>(row, line, colors),
        Layout::Alpha(samples) => pick::<4, 4>(row, line, samples),
    }
}

fn pick<const S: usize, const D: usize>(row: &[u8], line: &mut [u8], order: [usize; D]) {
    let (stored, _) = row.as_chunks::<S>();
    let (pixels, _) = line.as_chunks_mut::<D>();
    for (stored, pixel) in stored.iter().zip(pixels) {
        *pixel = order.map(|place| stored[place]);
    }
}

/// Two-byte pixels with five bits of red and blue, and `green` bits between them.
fn short(row: &[u8], line: &mut [u8], green: u32) {
    let spread = |value: u32, bits: u32| {
        let top = (1 << bits) - 1;
        u8::try_from((value & top) * 255 / top).unwrap_or(u8::MAX)
    };
    let (stored, _) = row.as_chunks::<2>();
    let (pixels, _) = line.as_chunks_mut::<3>();
    for (stored, pixel) in stored.iter().zip(pixels) {
        let value = u32::from(u16::from_le_bytes(*stored));
        *pixel = [
            spread(value >> (5 + green), 5),
            spread(value >> 5, green),
            spread(value, 5),
        ];
    }
}
