//! A decoded picture: pixels in one of Pillow's modes, and what its conversion needs besides.

use crate::mode::Mode;

/// A decoded picture. Pixels are packed, row after row, top first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// The mode of `pixels`.
    pub mode: Mode,
    /// Width x height x [`Mode::pixel_bytes`] bytes.
    pub pixels: Vec<u8>,
    /// The palette of `P` and `PA`.
    pub palette: Option<Palette>,
    /// The transparent color, where the mode has no alpha band for it.
    pub transparency: Option<Transparency>,
}

/// The colors of an indexed picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Palette {
    /// RGBA; entries that the file does not define are opaque black.
    pub(crate) colors: Box<[[u8; 4]; 256]>,
    /// How many entries the file defines.
    pub(crate) len: usize,
}

impl Palette {
    /// A palette of packed RGB entries, of which the first 256 count.
    pub(crate) fn from_rgb(bytes: &[u8]) -> Self {
        let mut palette = Self::blank();
        let (entries, _) = bytes.as_chunks::<3>();
        for (color, entry) in palette.colors.iter_mut().zip(entries) {
            *color = [entry[0], entry[1], entry[2], 255];
        }
        palette.len = entries.len().min(256);
        palette
    }

    /// Opaque black for every index, which is what Pillow takes an undefined entry for.
    pub(crate) fn blank() -> Self {
        Self {
            colors: Box::new([[0, 0, 0, 255]; 256]),
            len: 256,
        }
    }

    /// The entries that the file defines, as packed RGB.
    #[must_use]
    pub fn rgb(&self) -> Vec<u8> {
        let colors = self.colors.iter().take(self.len);
        colors
            .flat_map(|color| [color[0], color[1], color[2]])
            .collect()
    }
}

/// Pillow's `info["transparency"]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transparency {
    /// The one transparent index of a palette.
    Index(u8),
    /// An alpha for each of the first entries of a palette.
    Alphas(Vec<u8>),
    /// The transparent gray, as the file has it.
    Gray(u16),
    /// The transparent color, as the file has it.
    Color([u16; 3]),
}
