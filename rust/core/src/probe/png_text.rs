//! PNG text chunks, as far as they hold EXIF or XMP.
//!
//! Never reads more of a compressed text than a bound, so what lies behind it is not found.

use std::borrow::Cow;

use crate::limits::MAX_INFLATED_BYTES;
use crate::probe::inflate::inflate;

/// What a text may hold that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// An EXIF block that is spelled out in hexadecimal digits.
    RawProfile,
    /// An XMP packet.
    Xmp,
    /// An EXIF block as it is.
    Exif,
}

/// The keywords of these, with the NUL that ends a keyword.
const KEYWORDS: [(&[u8], Content); 3] = [
    (b"Raw profile type exif\0", Content::RawProfile),
    (b"XML:com.adobe.xmp\0", Content::Xmp),
    (b"exif\0", Content::Exif),
];

/// The text of a chunk, as it is stored.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    pub(super) stored: &'a [u8],
    is_deflated: bool,
}

impl<'a> Text<'a> {
    /// The text, or its beginning where it is compressed; `None` where it is damaged.
    pub(super) fn read(self) -> Option<Cow<'a, [u8]>> {
        if self.is_deflated {
            inflate(self.stored, MAX_INFLATED_BYTES).map(Cow::Owned)
        } else {
            Some(Cow::Borrowed(self.stored))
        }
    }
}

/// Content and text of a chunk of that name, if it matters.
pub(super) fn split(name: [u8; 4], body: &[u8]) -> Option<(Content, Text<'_>)> {
    let (content, rest) = KEYWORDS
        .iter()
        .find_map(|(keyword, content)| Some((*content, body.strip_prefix(*keyword)?)))?;
    let (stored, is_deflated) = match (&name, rest) {
        (b"tEXt", text) => (text, false),
        (b"zTXt", [0, text @ ..]) => (text, true),
        (b"iTXt", [compression, method, rest @ ..]) => {
            let (_language, rest) = until_nul(rest)?;
            let (_translation, text) = until_nul(rest)?;
            if *compression != 0 && *method != 0 {
                return None;
            }
            (text, *compression != 0)
        }
        _ => return None,
    };
    Some((
        content,
        Text {
            stored,
            is_deflated,
        },
    ))
}

fn until_nul(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(0, bytes)?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

/// The bytes that a raw profile spells out behind its third line break; `None` where it is not
/// hexadecimal.
pub(super) fn profile_bytes(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text
        .splitn(4, |&byte| byte == b'\n')
        .nth(3)
        .unwrap_or_default();
    let is_cut = digits.len() > MAX_INFLATED_BYTES;
    let digits = &digits[..digits.len().min(MAX_INFLATED_BYTES)];
    let mut bytes = Vec::new();
    let mut high = None;
    for &digit in digits {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            b'A'..=b'F' => digit - b'A' + 10,
            b'\n' => continue,
            b' ' | b'\t' | b'\r' | 0x0B | 0x0C if high.is_none() => continue,
            _ => return None,
        };
        match high.take() {
            Some(high) => bytes.push(high << 4 | value),
            None => high = Some(value),
        }
    }
    (high.is_none() || is_cut).then_some(bytes)
}
