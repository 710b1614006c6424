//! The format of a payload, by its first bytes and nothing else.

use crate::error::Error;
use crate::reader::{Parsed, Payload, Stop};

/// A format whose header is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// JPEG.
    Jpeg,
    /// JPEG with further pictures behind the first.
    Mpo,
    /// PNG and APNG.
    Png,
    /// WebP.
    WebP,
    /// GIF.
    Gif,
}

impl Format {
    /// Every format.
    pub const ALL: &[Self] = &[Self::Jpeg, Self::Mpo, Self::Png, Self::WebP, Self::Gif];

    /// The format with that [`name`](Self::name).
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|format| format.name() == name)
    }

    /// The name that Pillow gives it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Mpo => "MPO",
            Self::Png => "PNG",
            Self::WebP => "WEBP",
            Self::Gif => "GIF",
        }
    }

    /// The media type to label the payload with. MPO is JPEG to everyone who does not ask for
    /// its further pictures.
    #[must_use]
    pub fn mime_type(self) -> &'static str {
        match self {
            Self::Jpeg | Self::Mpo => "image/jpeg",
            Self::Png => "image/png",
            Self::WebP => "image/webp",
            Self::Gif => "image/gif",
        }
    }
}

pub(super) fn sniff(payload: Payload<'_>) -> Parsed<Format> {
    let bytes = payload.bytes;
    match bytes {
        [0xFF, 0xD8, 0xFF, ..] => Ok(Format::Jpeg),
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => Ok(Format::Png),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Ok(Format::Gif),
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
            ..,
        ] => Ok(Format::WebP),
        _ if bytes.len() < 12 => Err(Stop::More(Some(12))),
        _ => Err(Error::malformed("payload is not an image of a known format").into()),
    }
}
