//! The questions: what is in a whole payload, and in the first bytes of one.

use std::fmt;
use std::num::NonZeroU64;

use crate::error::Error;
use crate::probe::format::Format;
use crate::probe::header::{Declared, ImageHeader};
use crate::probe::{
    bmp, dds, gif, heif, icns, ico, jpeg, jpeg2000, jxl, pcx, png, pnm, psd, qoi, sgi, sniff, tga,
    tiff, webp,
};
use crate::reader::{Parsed, Payload, Stop};

/// More of the payload is needed to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NeedMoreBytes {
    /// No prefix shorter than this many bytes can be answered; `None` where it is not known.
    pub at_least: Option<u64>,
    /// What is declared so far, so that an oversize image can be refused before its header is
    /// complete.
    pub declared: Declared,
}

/// Why there is no header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeError {
    /// Whose fault it is, and the message.
    pub error: Error,
    /// What was declared before, so that an oversize image is refused as one however damaged.
    pub declared: Declared,
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for ProbeError {}

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
pub fn probe(bytes: &[u8]) -> Result<ImageHeader, ProbeError> {
    let payload = Payload {
        bytes,
        is_whole: true,
    };
    let mut declared = Declared::default();
    match parse(payload, &mut declared) {
        Ok(header) => Ok(header),
        Err(Stop::Fail(error)) => Err(failed(*error, declared)),
        Err(Stop::More(_)) => Err(failed(truncated(bytes, declared.format), declared)),
    }
}

/// The header of a payload of which these are the first bytes.
///
/// An answer for a prefix is the answer for every longer one, but for what a PNG states behind
/// its pixels: its orientation and ids are then those that stand in front.
///
/// # Errors
/// As [`probe`], as soon as no further bytes can help.
pub fn probe_prefix(bytes: &[u8]) -> Result<Prefix, ProbeError> {
    let payload = Payload {
        bytes,
        is_whole: false,
    };
    let mut declared = Declared::default();
    match parse(payload, &mut declared) {
        Ok(header) => Ok(Prefix::Header(header)),
        Err(Stop::Fail(error)) => Err(failed(*error, declared)),
        Err(Stop::More(at_least)) => Ok(Prefix::NeedMoreBytes(NeedMoreBytes {
            at_least: at_least.map(NonZeroU64::get),
            declared,
        })),
    }
}

fn parse(payload: Payload<'_>, declared: &mut Declared) -> Parsed<ImageHeader> {
    let format = sniff::sniff(payload)?;
    declared.format = Some(format);
    let header = match format {
        Format::Jpeg | Format::Mpo => jpeg::parse(payload, declared),
        Format::Png => png::parse(payload, declared),
        Format::WebP => webp::parse(payload, declared),
        Format::Gif => gif::parse(payload, declared),
        Format::Bmp | Format::Dib => bmp::parse(payload, format, declared),
        Format::Tiff => tiff::parse(payload, declared),
        Format::Avif | Format::Heif => heif::parse(payload, format, declared),
        Format::Cur | Format::Ico => ico::parse(payload, format),
        Format::Dds => dds::parse(payload, declared),
        Format::Icns => icns::parse(payload),
        Format::Jpeg2000 => jpeg2000::parse(payload, declared),
        Format::JpegXl => jxl::parse(payload),
        Format::Pcx => pcx::parse(payload),
        Format::Pnm => pnm::parse(payload, declared),
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
fn failed(error: Error, declared: Declared) -> ProbeError {
    ProbeError { error, declared }
}

#[cold]
fn truncated(bytes: &[u8], format: Option<Format>) -> Error {
    match format {
        Some(format) => Error::truncated(format!("{format} header is cut short")),
        None if bytes.is_empty() => Error::truncated("payload is empty"),
        None => Error::malformed("payload is not an image of a known format"),
    }
}
