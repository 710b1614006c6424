//! What a header says: all of it, and what it has declared so far.

use crate::exif::ExifFacts;
use crate::probe::format::Format;

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
    pub(super) fn new(format: Format, (width, height): (u32, u32)) -> Self {
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
    pub(super) fn set_facts(&mut self, facts: ExifFacts, xmp: impl FnOnce() -> Option<u8>) {
        self.image_id = facts.image_id;
        self.image_unique_id = facts.image_unique_id;
        self.set_orientation(facts.orientation.or_else(xmp).unwrap_or(1));
    }

    /// Take an orientation that is still to be applied.
    pub(super) fn set_orientation(&mut self, orientation: u8) {
        self.orientation = orientation;
        self.upright_size = match orientation {
            5..=8 => (self.height, self.width),
            _ => (self.width, self.height),
        };
    }

    pub(super) fn set_frames(&mut self, count: u32) {
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

/// What a header has declared before it is complete or found to be damaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Declared {
    /// The format, once it is known.
    pub format: Option<Format>,
    /// Width and height in pixels.
    pub size: Option<(u32, u32)>,
}
