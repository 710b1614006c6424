//! Image decoders whose result equals Pillow's, and image processors whose result equals
//! transformers', byte for byte.
//!
//! Owns the pixels: one decoder a format, Pillow's modes and their conversions, turning upright,
//! and what makes a model's input of a picture: resize, patches, and tables of floats. A file is decoded only where equality with Pillow is proven; for everything else,
//! damaged files above all, the answer is [`Outcome::Declined`] and Pillow has the last word. The
//! only crate with C or SIMD; must never know of Python, nor do more work than the limits allow.

mod buffer;
mod convert;
mod decode;
mod features;
mod mode;
mod patchify;
mod picture;
mod process;
mod refusal;
mod request;
mod resize;
mod spare;
mod table;
mod turn;

pub use safelight_core::cancel::Cancel;
use safelight_core::{Error, Result};

pub use decode::{Header, has_too_many_scans, header, too_many_scans};
pub use features::{libraries, vector_instructions};
pub use mode::Mode;
pub use picture::{Palette, Picture, Transparency};
pub use process::{Form, Processor};
pub use refusal::Declined;
pub use request::{Request, Target};
pub use resize::{Filter, Resize, Rule, View, resize};
pub use spare::recycle;
pub use table::{Channels, Normalization, Table};

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
        Err(refusal) => refusal.into_outcome(),
    }
}
