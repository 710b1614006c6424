//! Image decoders whose result equals Pillow's, byte for byte.
//!
//! Owns the pixels: one decoder a format, Pillow's modes and their conversions, and turning
//! upright. A file is decoded only where equality with Pillow is proven; for everything else,
//! damaged files above all, the answer is [`Outcome::Declined`] and Pillow has the last word. The
//! only crate with C or SIMD; must never know of Python, nor do more work than the limits allow.

mod buffer;
mod convert;
mod decode;
mod features;
mod mode;
mod picture;
mod spare;
mod turn;

pub use safelight_core::cancel::Cancel;
use safelight_core::{Error, Result};

pub use decode::{Declined, Header, has_too_many_scans, header, too_many_scans};
pub use features::{libraries, vector_instructions};
pub use mode::Mode;
pub use picture::{Palette, Picture, Transparency};
pub use spare::recycle;

use decode::Refusal;

/// What to decode to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The mode to convert to; `None` keeps the image's own.
    pub target: Option<Target>,
    /// What a picture with transparency is pasted over when the target is RGB; `None` drops the
    /// alpha instead, as Pillow's plain `convert` does.
    pub background: Option<[u8; 3]>,
    /// The largest width times height; 0 is no limit.
    pub max_pixels: u64,
    /// EXIF orientation to undo, 1 to 8.
    pub orientation: u8,
    /// The fraction of its size, 1/`scale` with a scale of 1, 2, 4 or 8, that a JPEG is decoded to,
    /// as by Pillow's `draft`: sides are rounded up, and the scale is no more than the shorter one.
    pub scale: u8,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            target: Some(Target::Rgb),
            background: Some([255; 3]),
            max_pixels: 178_956_970,
            orientation: 1,
            scale: 1,
        }
    }
}

/// A mode that every picture converts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// One byte a pixel, ITU-R 601-2 luma.
    L,
    /// Three bytes a pixel.
    Rgb,
    /// RGB and a fourth byte that is always 255: how Pillow stores RGB.
    Rgbx,
    /// Four bytes a pixel, alpha not premultiplied.
    Rgba,
}

/// What became of a request.
#[derive(Debug)]
pub enum Outcome {
    /// Decoded: equal to what Pillow makes of the file.
    Decoded(Picture),
    /// Not served here; the reason is for tests and counters.
    Declined(Declined),
    /// It was asked to stop.
    Cancelled,
}

/// Decode the first picture of `data`.
///
/// # Errors
/// A limit error over `max_pixels`; malformed where the orientation is not 1 to 8, or the scale
/// none of its four. Damaged files are declined, not errors.
pub fn decode(data: &[u8], request: &Request, cancel: &Cancel) -> Result<Outcome> {
    if !(1..=8).contains(&request.orientation) {
        return Err(Error::malformed("orientation is not 1 to 8"));
    }
    if !matches!(request.scale, 1 | 2 | 4 | 8) {
        return Err(Error::malformed("scale is not 1, 2, 4 or 8"));
    }
    match decode::decode(data, request, cancel) {
        Ok(picture) => Ok(Outcome::Decoded(picture)),
        Err(Refusal::Declined(reason)) => Ok(Outcome::Declined(reason)),
        Err(Refusal::Cancelled) => Ok(Outcome::Cancelled),
        Err(Refusal::Failed(error)) => Err(error),
    }
}
