//! The formats whose headers are read, by the names that Pillow gives them.

use std::fmt;

/// A format whose header is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// AV1 in HEIF.
    Avif,
    /// Windows bitmap with its file header.
    Bmp,
    /// Windows cursor.
    Cur,
    /// DirectDraw surface.
    Dds,
    /// Windows bitmap without its file header.
    Dib,
    /// GIF.
    Gif,
    /// HEIF with any other codec; HEIC is the common one.
    Heif,
    /// Apple icon.
    Icns,
    /// Windows icon.
    Ico,
    /// JPEG.
    Jpeg,
    /// JPEG 2000, boxed or not.
    Jpeg2000,
    /// JPEG XL, boxed or not.
    JpegXl,
    /// JPEG with further pictures behind the first.
    Mpo,
    /// Paintbrush.
    Pcx,
    /// PNG and APNG.
    Png,
    /// Portable bitmaps of every kind, PAM and PFM included.
    Pnm,
    /// Photoshop.
    Psd,
    /// Quite OK Image.
    Qoi,
    /// Silicon Graphics image.
    Sgi,
    /// Targa.
    Tga,
    /// TIFF and BigTIFF.
    Tiff,
    /// WebP.
    WebP,
}

impl Format {
    /// Every format.
    pub const ALL: &[Self] = &[
        Self::Avif,
        Self::Bmp,
        Self::Cur,
        Self::Dds,
        Self::Dib,
        Self::Gif,
        Self::Heif,
        Self::Icns,
        Self::Ico,
        Self::Jpeg,
        Self::Jpeg2000,
        Self::JpegXl,
        Self::Mpo,
        Self::Pcx,
        Self::Png,
        Self::Pnm,
        Self::Psd,
        Self::Qoi,
        Self::Sgi,
        Self::Tga,
        Self::Tiff,
        Self::WebP,
    ];

    /// The name that Pillow, or its plugin for the format, gives it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Avif => "AVIF",
            Self::Bmp => "BMP",
            Self::Cur => "CUR",
            Self::Dds => "DDS",
            Self::Dib => "DIB",
            Self::Gif => "GIF",
            Self::Heif => "HEIF",
            Self::Icns => "ICNS",
            Self::Ico => "ICO",
            Self::Jpeg => "JPEG",
            Self::Jpeg2000 => "JPEG2000",
            Self::JpegXl => "JXL",
            Self::Mpo => "MPO",
            Self::Pcx => "PCX",
            Self::Png => "PNG",
            Self::Pnm => "PPM",
            Self::Psd => "PSD",
            Self::Qoi => "QOI",
            Self::Sgi => "SGI",
            Self::Tga => "TGA",
            Self::Tiff => "TIFF",
            Self::WebP => "WEBP",
        }
    }

    /// The format with that [`name`](Self::name).
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|format| format.name() == name)
    }

    /// The media type to label a payload with. MPO is JPEG to everyone who does not ask for its
    /// further pictures.
    #[must_use]
    pub fn mime_type(self) -> &'static str {
        match self {
            Self::Avif => "image/avif",
            Self::Bmp | Self::Dib => "image/bmp",
            Self::Cur => "image/x-win-bitmap",
            Self::Dds => "image/vnd-ms.dds",
            Self::Gif => "image/gif",
            Self::Heif => "image/heif",
            Self::Icns => "image/icns",
            Self::Ico => "image/x-icon",
            Self::Jpeg | Self::Mpo => "image/jpeg",
            Self::Jpeg2000 => "image/jp2",
            Self::JpegXl => "image/jxl",
            Self::Pcx => "image/x-pcx",
            Self::Png => "image/png",
            Self::Pnm => "image/x-portable-anymap",
            Self::Psd => "image/vnd.adobe.photoshop",
            Self::Qoi => "image/qoi",
            Self::Sgi => "image/sgi",
            Self::Tga => "image/x-tga",
            Self::Tiff => "image/tiff",
            Self::WebP => "image/webp",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
