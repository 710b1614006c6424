//! What a caller asks for.

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
