//! PNG text chunks, as far as they hold EXIF or XMP.
//!
//! Never reads more of a compressed text than a bound, so what lies behind it is not found.

use std::borrow::Cow;

use crate::budget::Budget;
use crate::exif::{self, Block, ExifFacts};
use crate::limits::MAX_INFLATED_BYTES;
use crate::probe::inflate::inflate;
use crate::xmp;

/// Of a raw profile, the part that is read first.
const FIRST_PROFILE_BYTES: usize = 2048;

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
    /// At least `limit` bytes of the text, or all of it; `None` where it is damaged.
    fn read(self, limit: usize) -> Option<Cow<'a, [u8]>> {
        if self.is_deflated {
            inflate(self.stored, limit).map(Cow::Owned)
        } else {
            Some(Cow::Borrowed(self.stored))
        }
    }

    /// The orientation that an XMP packet states.
    pub(super) fn xmp_orientation(self) -> Option<u8> {
        xmp::orientation(&self.read(MAX_INFLATED_BYTES)?)
    }

    /// What a raw profile holds.
    ///
    /// Its beginning nearly always has the answer, so no more is inflated and spelled out until
    /// it is asked for. How long the block is, the profile itself says.
    pub(super) fn profile_facts(self, budget: &mut Budget) -> ExifFacts {
        let mut facts = ExifFacts::default();
        for limit in [FIRST_PROFILE_BYTES, MAX_INFLATED_BYTES] {
            let Some(text) = self.read(limit) else {
                return ExifFacts::default();
            };
            let text = &text[..text.len().min(limit)];
            let is_cut = text.len() == limit;
            let profile = Profile::read(text).filter(|profile| is_cut || !profile.is_odd);
            let Some(profile) = profile else {
                // Not hexadecimal: Pillow gives up, XMP included.
                return ExifFacts {
                    orientation: Some(1),
                    ..ExifFacts::default()
                };
            };
            let length = if is_cut { profile.length } else { 0 };
            let block = Block::beginning(&profile.bytes, length);
            match exif::try_parse_block(&block, budget) {
                Ok(complete) => return complete,
                Err(found) => facts = found,
            }
        }
        facts
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

/// A raw profile: an empty line, its name, its length, and lines of hexadecimal digits.
struct Profile {
    length: usize,
    bytes: Vec<u8>,
    /// Whether the digits end within a byte.
    is_odd: bool,
}

impl Profile {
    /// Read as much of a profile as there is; `None` where it is not hexadecimal.
    fn read(text: &[u8]) -> Option<Self> {
        let mut lines = text.splitn(4, |&byte| byte == b'\n').skip(2);
        let stated = lines.next().unwrap_or_default().trim_ascii();
        let digits = lines.next().unwrap_or_default();
        let mut bytes = Vec::with_capacity(digits.len() / 2);
        let mut high = None;
        for &digit in digits {
            let value = DIGITS[usize::from(digit)];
            match (value, high) {
                (0..=15, None) => high = Some(value),
                (0..=15, Some(first)) => {
                    bytes.push(first << 4 | value);
                    high = None;
                }
                (LINE_BREAK, _) | (SPACE, None) => {}
                _ => return None,
            }
        }
        Some(Self {
            length: str::from_utf8(stated)
                .ok()
                .and_then(|stated| stated.parse().ok())
                .unwrap_or(0),
            bytes,
            is_odd: high.is_some(),
        })
    }
}

const LINE_BREAK: u8 = 16;
const SPACE: u8 = 17;
const NO_DIGIT: u8 = 18;

/// The value of each byte as a digit.
const DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut value = 0;
    while value < 16 {
        let digit = b"0123456789abcdef"[value as usize];
        digits[digit as usize] = value;
        digits[digit.to_ascii_uppercase() as usize] = value;
        value += 1;
    }
    digits[b'\n' as usize] = LINE_BREAK;
    digits[b' ' as usize] = SPACE;
    digits[b'\t' as usize] = SPACE;
    digits[b'\r' as usize] = SPACE;
    digits[0x0B] = SPACE;
    digits[0x0C] = SPACE;
    digits
};
