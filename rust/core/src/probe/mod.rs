//! Every header, no pixels: what an image is, from its first bytes.
//!
//! Owns the answer ([`ImageHeader`]) and the choice of the parser; each format is a file of its
//! own. Works on slices, allocates nothing that a file's own numbers size, spends a
//! budget (see [`limits`](crate::limits)) on every walk, and must never decode a pixel.

mod bmp;
mod dds;
mod files;
mod format;
mod gif;
mod heif;
mod icns;
mod ico;
mod inflate;
mod isobmff;
mod jpeg;
mod jpeg2000;
mod jxl;
mod pcx;
mod png;
mod png_text;
mod pnm;
mod psd;
mod qoi;
mod sgi;
mod sniff;
mod tga;
mod tiff;
mod unserved;
mod webp;

use std::num::NonZeroU64;

use crate::error::{Error, Result};
use crate::exif::ExifFacts;
use crate::reader::{Glimpse, Parsed, Payload, Stop};

pub use files::probe_file;
pub use format::Format;

/// What a header says of an image.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageHeader {
    /// The format, by the bytes alone.
    pub format: Format,
    /// Stored width in pixels, before any orientation: Pillow's `size[0]`.
    pub width: u32,
    /// Stored height in pixels.
    pub height: u32,
    /// The mode of the first frame, by Pillow's name; `None` where only a decoder could tell.
    pub mode: Option<&'static str>,
    /// Bits per sample (per index of a palette) as stored.
    pub bits: Option<u8>,
    /// Whether there is an alpha channel or a transparent color.
    pub has_alpha: Option<bool>,
    /// Whether there is more than one frame or page.
    pub is_animated: Option<bool>,
    /// Frames or pages, where the header says.
    pub frame_count: Option<u32>,
    /// EXIF orientation, 1 to 8; 1 where none is stated.
    pub orientation: u8,
    /// Width and height once the orientation is applied. That of a TIFF is applied to `width`
    /// and `height` already, because that is how it is decoded.
    pub upright_size: (u32, u32),
    /// EXIF `ImageID`.
    pub image_id: Option<Box<str>>,
    /// EXIF `ImageUniqueID`.
    pub image_unique_id: Option<Box<str>>,
}

impl ImageHeader {
    /// A header with a size and nothing else known.
    fn new(format: Format, (width, height): (u32, u32)) -> Self {
        Self {
            format,
            width,
            height,
            mode: None,
            bits: None,
            has_alpha: None,
            is_animated: None,
            frame_count: None,
            orientation: 1,
            upright_size: (width, height),
            image_id: None,
            image_unique_id: None,
        }
    }

    /// Take the ids and the orientation, `xmp` where EXIF states none.
    fn set_facts(&mut self, facts: ExifFacts, xmp: impl FnOnce() -> Option<u8>) {
        self.image_id = facts.image_id;
        self.image_unique_id = facts.image_unique_id;
        self.set_orientation(facts.orientation.or_else(xmp).unwrap_or(1));
    }

    /// Take an orientation that is still to be applied.
    fn set_orientation(&mut self, orientation: u8) {
        self.orientation = orientation;
        self.upright_size = match orientation {
            5..=8 => (self.height, self.width),
            _ => (self.width, self.height),
        };
    }

    fn set_frames(&mut self, count: u32) {
        self.frame_count = Some(count);
        self.is_animated = Some(count > 1);
    }
}

/// Every mode that a header may have, by Pillow's name.
const MODES: &[&str] = &[
    "1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I", "F", "LA", "PA", "RGBX", "RGBa",
    "La", "I;16", "I;16B",
];

/// The mode of that name.
#[must_use]
pub fn mode_by_name(name: &str) -> Option<&'static str> {
    MODES.iter().copied().find(|mode| *mode == name)
}

/// More of the payload is needed to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NeedMoreBytes {
    /// No prefix shorter than this many bytes can be answered; `None` where it is not known.
    pub at_least: Option<u64>,
    /// The format, once it is known.
    pub format: Option<Format>,
    /// Width and height as declared so far, so that an oversize image can be refused before
    /// its header is complete.
    pub size: Option<(u32, u32)>,
}

/// The answer for the beginning of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prefix {
    /// The header, equal to that of the whole payload.
    Header(ImageHeader),
    /// The prefix is too short.
    NeedMoreBytes(NeedMoreBytes),
}

/// The header of a whole payload.
///
/// # Errors
/// Truncated or malformed where the bytes are not an image, or not enough of one; unsupported
/// for what is recognized but not served.
pub fn probe(bytes: &[u8]) -> Result<ImageHeader> {
    let payload = Payload {
        bytes,
        is_whole: true,
    };
    let mut glimpse = None;
    match parse(payload, &mut glimpse) {
        Ok(header) => Ok(header),
        Err(Stop::Fail(error)) => Err(*error),
        Err(Stop::More(_)) => Err(truncated(bytes, glimpse)),
    }
}

/// The header of a payload of which these are the first bytes.
///
/// An answer for a prefix is the answer for every longer one.
///
/// # Errors
/// As [`probe`], as soon as no further bytes can help.
pub fn probe_prefix(bytes: &[u8]) -> Result<Prefix> {
    let payload = Payload {
        bytes,
        is_whole: false,
    };
    let mut glimpse = None;
    match parse(payload, &mut glimpse) {
        Ok(header) => Ok(Prefix::Header(header)),
        Err(Stop::Fail(error)) => Err(*error),
        Err(Stop::More(at_least)) => Ok(Prefix::NeedMoreBytes(NeedMoreBytes {
            at_least: at_least.map(NonZeroU64::get),
            format: glimpse.map(|glimpse| glimpse.format),
            size: glimpse.and_then(|glimpse| glimpse.size),
        })),
    }
}

fn parse(payload: Payload<'_>, glimpse: &mut Option<Glimpse>) -> Parsed<ImageHeader> {
    let format = sniff::sniff(payload)?;
    *glimpse = Some(Glimpse { format, size: None });
    let header = match format {
        Format::Jpeg | Format::Mpo => jpeg::parse(payload, glimpse),
        Format::Png => png::parse(payload, glimpse),
        Format::WebP => webp::parse(payload, glimpse),
        Format::Gif => gif::parse(payload, glimpse),
        Format::Bmp | Format::Dib => bmp::parse(payload, format, glimpse),
        Format::Tiff => tiff::parse(payload, glimpse),
        Format::Avif | Format::Heif => heif::parse(payload, format, glimpse),
        Format::Cur | Format::Ico => ico::parse(payload, format),
        Format::Dds => dds::parse(payload),
        Format::Icns => icns::parse(payload),
        Format::Jpeg2000 => jpeg2000::parse(payload),
        Format::JpegXl => jxl::parse(payload),
        Format::Pcx => pcx::parse(payload),
        Format::Pnm => pnm::parse(payload),
        Format::Psd => psd::parse(payload),
        Format::Qoi => qoi::parse(payload),
        Format::Sgi => sgi::parse(payload),
        Format::Tga => tga::parse(payload),
    }?;
    if header.width == 0 || header.height == 0 {
        return Err(Error::malformed(format!(
            "{} image is {}x{}",
            header.format, header.width, header.height
        ))
        .into());
    }
    Ok(header)
}

#[cold]
fn truncated(bytes: &[u8], glimpse: Option<Glimpse>) -> Error {
    match glimpse {
        Some(Glimpse { format, .. }) => Error::truncated(format!("{format} header is cut short")),
        None if bytes.is_empty() => Error::truncated("payload is empty"),
        None => Error::malformed("payload is not an image of a known format"),
    }
}
