//! BMP and DIB: the bitmap header, and the palette where it decides the mode.

use crate::error::{Error, Result};
use crate::probe::format::Format;
use crate::probe::header::{Declared, ImageHeader};
use crate::reader::{Endian, Parsed, Payload, Stop};

const FILE_HEADER_BYTES: usize = 14;
const CORE_HEADER_BYTES: u32 = 12;

const RAW: u32 = 0;
const RLE8: u32 = 1;
const RLE4: u32 = 2;
const BIT_FIELDS: u32 = 3;

/// More palette entries than this are refused.
const MAX_COLORS: u32 = 65_536;

/// A bitmap header.
pub(super) struct Bitmap {
    pub(super) size: (u32, u32),
    bits: u16,
    compression: u32,
    colors: u32,
    header_bytes: u32,
}

pub(super) fn parse(
    payload: Payload<'_>,
    format: Format,
    declared: &mut Declared,
) -> Parsed<ImageHeader> {
    let at = if format == Format::Bmp {
        FILE_HEADER_BYTES
    } else {
        0
    };
    let bitmap = Bitmap::read(payload, at)?;
    declared.size = Some(bitmap.size);
    let mode = bitmap.mode(payload, at)?;
    let mut header = ImageHeader::new(format, bitmap.size);
    header.mode = Some(mode);
    header.bits = u8::try_from(bitmap.bits).ok();
    header.has_alpha = Some(mode == "RGBA");
    header.set_frames(1);
    Ok(header)
}

impl Bitmap {
    pub(super) fn read(payload: Payload<'_>, at: usize) -> Parsed<Self> {
        let header_bytes = payload.u32(at, Endian::Little)?;
        if header_bytes == CORE_HEADER_BYTES {
            let [w0, w1, h0, h1, _, _, b0, b1] = payload.array::<8>(at.saturating_add(4))?;
            let word = |low, high| Endian::Little.u16([low, high]);
            return Ok(Self {
                size: (u32::from(word(w0, w1)), u32::from(word(h0, h1))),
                bits: word(b0, b1),
                compression: RAW,
                colors: 0,
                header_bytes,
            });
        }
        if !matches!(header_bytes, 40 | 52 | 56 | 64 | 108 | 124) {
            return Err(Error::unsupported("BMP header of unknown length is not served").into());
        }
        let header = payload.array::<40>(at)?;
        payload.get(at, header_bytes as usize)?;
        let number = |at: usize| {
            Endian::Little.u32([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        // Rows run downwards where the height is negative.
        let height = match header[11] {
            0xFF => number(8).wrapping_neg(),
            _ => number(8),
        };
        Ok(Self {
            size: (number(4), height),
            bits: Endian::Little.u16([header[14], header[15]]),
            compression: number(16),
            colors: number(32),
            header_bytes,
        })
    }

    /// The mode, which for indexed pixels depends on the palette behind the header at `at`.
    fn mode(&self, payload: Payload<'_>, at: usize) -> Parsed<&'static str> {
        let behind = at.saturating_add(self.header_bytes as usize);
        let mode = match (self.compression, self.bits) {
            (BIT_FIELDS, 16 | 24 | 32) => {
                let (masks, alpha) = self.masks(payload, at)?;
                return Ok(mode_of_masks(self.bits, masks, alpha)?);
            }
            (RAW | RLE8 | RLE4, 1 | 4 | 8) => "P",
            (RAW | RLE8 | RLE4, 16 | 24 | 32) => "RGB",
            (RAW..=BIT_FIELDS, bits) => {
                return Err(Error::unsupported(format!("BMP with {bits}-bit pixels")).into());
            }
            _ => return Err(Error::unsupported("BMP compression is not served").into()),
        };
        if mode == "P" {
            self.palette_mode(payload, behind)
        } else {
            Ok(mode)
        }
    }

    /// The masks of red, green and blue, and that of alpha.
    fn masks(&self, payload: Payload<'_>, at: usize) -> Parsed<([u32; 3], u32)> {
        const MASKS_AT: usize = 40;
        let mask =
            |index: usize| payload.u32(at.saturating_add(MASKS_AT + 4 * index), Endian::Little);
        let masks = [mask(0)?, mask(1)?, mask(2)?];
        let has_alpha = self.header_bytes >= 56;
        Ok((masks, if has_alpha { mask(3)? } else { 0 }))
    }

    /// Grey where every palette entry is its own index (black and white for two colors).
    fn palette_mode(&self, payload: Payload<'_>, at: usize) -> Parsed<&'static str> {
        let colors = match self.colors {
            0 => 1 << self.bits,
            colors => colors,
        };
        if colors > MAX_COLORS {
            return Err(Error::malformed("BMP palette has too many colors").into());
        }
        let entry_bytes = match self.header_bytes {
            CORE_HEADER_BYTES => 3,
            _ => 4,
        };
        for index in 0..colors {
            let at = at.saturating_add(entry_bytes * index as usize);
            let [blue, green, red] = match payload.array::<3>(at) {
                Err(Stop::More(_)) if payload.is_whole => return Ok("P"),
                color => color?,
            };
            let level = if colors == 2 { index * 255 } else { index };
            if [blue, green, red].map(u32::from) != [level; 3] {
                return Ok("P");
            }
        }
        Ok(if colors <= 2 { "1" } else { "L" })
    }
}

/// The layouts that are decoded; any other is refused.
fn mode_of_masks(bits: u16, masks: [u32; 3], alpha: u32) -> Result<&'static str> {
    const BYTES_DOWN: [u32; 3] = [0xFF_0000, 0xFF00, 0xFF];
    const BYTES_UP: [u32; 3] = [0xFF, 0xFF00, 0xFF_0000];
    const HIGH_BYTES: [u32; 3] = [0xFF00_0000, 0xFF_0000, 0xFF00];
    const APART: [u32; 3] = [0xFF00_0000, 0xFF00, 0xFF];
    match (bits, masks) {
        (16, [0xF800, 0x7E0, 0x1F] | [0x7C00, 0x3E0, 0x1F]) | (24, BYTES_DOWN) => Ok("RGB"),
        (32, BYTES_DOWN | HIGH_BYTES | APART) if alpha == 0 => Ok("RGB"),
        (32, BYTES_DOWN | BYTES_UP) if alpha == 0xFF00_0000 => Ok("RGBA"),
        (32, HIGH_BYTES) if alpha == 0xFF => Ok("RGBA"),
        (32, APART) if alpha == 0xFF_0000 => Ok("RGBA"),
        (32, [0, 0, 0]) if alpha == 0 => Ok("RGBA"),
        _ => Err(Error::unsupported("BMP bit field layout is not served")),
    }
}
