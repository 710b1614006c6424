//! What a decoder of one format is: a header, a plan of its memory, and pixels.
//!
//! Owns the contract between the formats and the order in which they are asked.

use safelight_core::cancel::Cancel;

use crate::buffer::area;
use crate::mode::Mode;
use crate::picture::{Palette, Transparency};
use crate::refusal::Refusal;
use crate::request::Target;

/// What a decoder says of a file before it touches a pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Pillow's name of the format.
    pub format: &'static str,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// The mode that the file decodes to.
    pub mode: Mode,
}

/// Memory that a decode needs from its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Bytes of the buffer. The pixels come to lie at its front; a codec may use the rest.
    pub(crate) buffer_bytes: usize,
    /// Bytes of the pixels.
    pub(crate) pixel_bytes: usize,
}

impl Plan {
    /// A buffer of exactly the pixels of `header`.
    pub(crate) fn exact(header: Header) -> Result<Self, Refusal> {
        let bytes = area(header.width, header.height, header.mode.pixel_bytes())?;
        Ok(Self {
            buffer_bytes: bytes,
            pixel_bytes: bytes,
        })
    }
}

/// A decoder of one format, opened on one file.
pub(crate) trait Codec<'a>: Sized {
    /// Read the header. Everything that makes Pillow refuse the file at open is declined here.
    fn open(data: &'a [u8]) -> Result<Self, Refusal>;

    /// Take note of the target before the plan is made. A decoder that can write it at no more cost,
    /// with the result of Pillow's conversion, takes its mode for its own.
    fn aim(&mut self, _target: Target) {}

    /// Take note of the scale, once the limits were judged by the full size. Only a format that Pillow
    /// decodes smaller heeds it.
    fn shrink(&mut self, _scale: u8) {}

    /// Size and mode.
    fn header(&self) -> Header;

    /// The memory that [`Codec::decode`] needs; checked arithmetic, no allocation.
    fn plan(&self) -> Result<Plan, Refusal> {
        Plan::exact(self.header())
    }

    /// Whether [`Codec::decode`] writes every byte itself, and so needs no zeros to start from.
    fn is_filling(&self) -> bool {
        false
    }

    /// Decode into `buffer`: [`Plan::buffer_bytes`] zero bytes, or where the codec fills it, room
    /// for as many. It has that length afterward.
    fn decode(&mut self, buffer: &mut Vec<u8>, cancel: &Cancel) -> Result<(), Refusal>;

    /// The palette and the transparent color, once decoded.
    fn colors(&mut self) -> (Option<Palette>, Option<Transparency>) {
        (None, None)
    }
}
