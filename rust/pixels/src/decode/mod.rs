//! One decoder a format behind one trait, and the choice among them.
//!
//! Owns the order: header, limits, plan, memory, pixels. Each format is a file of its own.

mod bmp;
mod codec;
mod gif;
mod inflate;
#[cfg(feature = "jpeg")]
mod jpeg;
mod png;
mod pnm;
mod qoi;
mod reader;
mod scans;
mod tiff;
mod webp;

pub use codec::Header;
pub use scans::{has_too_many_scans, too_many_scans};

use safelight_core::Error;
use safelight_core::cancel::Cancel;

use crate::buffer::{reserved, zeroed};
use crate::convert;
use crate::picture::Picture;
use crate::refusal::{Declined, Refusal};
use crate::request::Request;

use codec::Codec;

/// The formats served, by their first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    #[cfg(feature = "jpeg")]
    Jpeg,
    Png,
    WebP,
    Gif,
    Bmp,
    Pnm,
    Qoi,
    Tiff,
}

fn sniff(data: &[u8]) -> Result<Format, Refusal> {
    match data {
        #[cfg(feature = "jpeg")]
        [0xFF, 0xD8, 0xFF, ..] => Ok(Format::Jpeg),
        [0x89, b'P', b'N', b'G', 0x0D, 0x0A, 0x1A, 0x0A, ..] => Ok(Format::Png),
        [
            b'R',
            b'I',
            b'F',
            b'F',
            _,
            _,
            _,
            _,
            b'W',
            b'E',
            b'B',
            b'P',
            b'V',
            b'P',
            b'8',
            b' ' | b'L' | b'X',
            ..,
        ] => Ok(Format::WebP),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Ok(Format::Gif),
        // The second is the size of a bitmap header, with which a DIB begins.
        [b'B', b'M', ..] | [12 | 40 | 52 | 56 | 64 | 108 | 124, 0, 0, 0, ..] => Ok(Format::Bmp),
        [b'P', b'1'..=b'6', ..] => Ok(Format::Pnm),
        [b'q', b'o', b'i', b'f', ..] => Ok(Format::Qoi),
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => Ok(Format::Tiff),
        _ => Err(Declined("format is not served").into()),
    }
}

/// What the decoder of the format says of `data`; `None` where Pillow has to be asked.
#[must_use]
pub fn header(data: &[u8]) -> Option<Header> {
    fn of<'a, C: Codec<'a>>(data: &'a [u8]) -> Option<Header> {
        C::open(data).ok().map(|codec| codec.header())
    }
    match sniff(data).ok()? {
        #[cfg(feature = "jpeg")]
        Format::Jpeg => of::<jpeg::Jpeg<'_>>(data),
        Format::Png => of::<png::Png<'_>>(data),
        Format::WebP => of::<webp::WebP<'_>>(data),
        Format::Gif => of::<gif::Gif<'_>>(data),
        Format::Bmp => of::<bmp::Bmp<'_>>(data),
        Format::Pnm => of::<pnm::Pnm<'_>>(data),
        Format::Qoi => of::<qoi::Qoi<'_>>(data),
        Format::Tiff => of::<tiff::Tiff<'_>>(data),
    }
}

pub(crate) fn decode(data: &[u8], request: &Request, cancel: &Cancel) -> Result<Picture, Refusal> {
    match sniff(data)? {
        #[cfg(feature = "jpeg")]
        Format::Jpeg => decode_as::<jpeg::Jpeg<'_>>(data, request, cancel),
        Format::Png => decode_as::<png::Png<'_>>(data, request, cancel),
        Format::WebP => decode_as::<webp::WebP<'_>>(data, request, cancel),
        Format::Gif => decode_as::<gif::Gif<'_>>(data, request, cancel),
        Format::Bmp => decode_as::<bmp::Bmp<'_>>(data, request, cancel),
        Format::Pnm => decode_as::<pnm::Pnm<'_>>(data, request, cancel),
        Format::Qoi => decode_as::<qoi::Qoi<'_>>(data, request, cancel),
        Format::Tiff => decode_as::<tiff::Tiff<'_>>(data, request, cancel),
    }
}

/// Pillow warns above this many pixels and refuses at twice as many, whatever our own limit is.
const PILLOW_MAX_PIXELS: u64 = 178_956_970;

fn decode_as<'a, C: Codec<'a>>(
    data: &'a [u8],
    request: &Request,
    cancel: &Cancel,
) -> Result<Picture, Refusal> {
    let mut codec = C::open(data)?;
    let header = codec.header();
    let pixels = u64::from(header.width) * u64::from(header.height);
    if pixels == 0 {
        return Err(Declined("no pixels").into());
    }
    if request.max_pixels != 0 && pixels > request.max_pixels {
        let Header { width, height, .. } = header;
        return Err(Refusal::Failed(Error::limit(
            format!(
                "image is {width}x{height} = {pixels} pixels, over max_image_pixels {}",
                request.max_pixels
            ),
            request.max_pixels,
            pixels,
        )));
    }
    if pixels > PILLOW_MAX_PIXELS {
        return Err(Declined("over the limit that Pillow has").into());
    }
    if let Some(target) = request.target {
        codec.aim(target);
    }
    codec.shrink(request.scale);
    let header = codec.header();
    let plan = codec.plan()?;
    let mut buffer = if codec.is_filling() {
        reserved(plan.buffer_bytes)?
    } else {
        zeroed(plan.buffer_bytes)?
    };
    cancel.check()?;
    codec.decode(&mut buffer, cancel)?;
    buffer.truncate(plan.pixel_bytes);
    let (palette, transparency) = codec.colors();
    let picture = Picture {
        width: header.width,
        height: header.height,
        mode: header.mode,
        pixels: buffer,
        palette,
        transparency,
    };
    convert::finish(picture, request, cancel)
}
