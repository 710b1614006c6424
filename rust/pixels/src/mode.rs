//! Pillow's pixel modes, as they lie in memory here.

/// A pixel mode. Samples of more than eight bits are little-endian, as in Pillow's `tobytes`,
/// except in [`Mode::I16Big`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// `1`: one byte a pixel, 0 or 255 (Pillow's `tobytes` packs eight pixels in a byte).
    Bilevel,
    /// `L`: gray.
    L,
    /// `LA`: gray and alpha.
    La,
    /// `P`: an index into a palette.
    P,
    /// `PA`: an index and alpha.
    Pa,
    /// `RGB`.
    Rgb,
    /// `RGBX`: RGB and a fourth byte that means nothing.
    Rgbx,
    /// `RGBA`, alpha not premultiplied.
    Rgba,
    /// `CMYK`.
    Cmyk,
    /// `I;16`: unsigned 16-bit gray.
    I16,
    /// `I;16B`: the same, big-endian.
    I16Big,
    /// `I`: signed 32-bit gray.
    I,
    /// `F`: 32-bit float gray.
    F,
}

impl Mode {
    /// Pillow's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bilevel => "1",
            Self::L => "L",
            Self::La => "LA",
            Self::P => "P",
            Self::Pa => "PA",
            Self::Rgb => "RGB",
            Self::Rgbx => "RGBX",
            Self::Rgba => "RGBA",
            Self::Cmyk => "CMYK",
            Self::I16 => "I;16",
            Self::I16Big => "I;16B",
            Self::I => "I",
            Self::F => "F",
        }
    }

    /// Bytes of one pixel.
    #[must_use]
    pub fn pixel_bytes(self) -> usize {
        match self {
            Self::Bilevel | Self::L | Self::P => 1,
            Self::La | Self::Pa | Self::I16 | Self::I16Big => 2,
            Self::Rgb => 3,
            Self::Rgbx | Self::Rgba | Self::Cmyk | Self::I | Self::F => 4,
        }
    }

    /// Bytes of one sample.
    #[must_use]
    pub fn sample_bytes(self) -> usize {
        match self {
            Self::I16 | Self::I16Big => 2,
            Self::I | Self::F => 4,
            _ => 1,
        }
    }

    /// Whether there is an alpha band.
    #[must_use]
    pub fn has_alpha(self) -> bool {
        matches!(self, Self::La | Self::Pa | Self::Rgba)
    }
}
