//! PNG and APNG: chunks up to the first image data, and in a whole payload the EXIF and XMP behind.
//!
//! All but the orientation and the ids is told before the pixels have arrived.

use crate::budget::Budget;
use crate::error::Error;
use crate::exif::{self, Block, ExifFacts};
use crate::probe::format::Format;
use crate::probe::header::{Declared, ImageHeader};
use crate::probe::png_text::{self, Content, Text};
use crate::reader::{Endian, Parsed, Payload};

/// Chunk length and type, and the checksum behind the body.
const HEAD_BYTES: usize = 8;
const CRC_BYTES: usize = 4;

#[derive(Default)]
struct Chunks<'a> {
    size: (u32, u32),
    bits: u8,
    mode: Option<&'static str>,
    has_transparency: bool,
    exif: Option<&'a [u8]>,
    raw_profile: Option<Text<'a>>,
    xmp: Option<Text<'a>>,
    frames: Option<u32>,
    has_frame_control: bool,
}

pub(super) fn parse(payload: Payload<'_>, declared: &mut Declared) -> Parsed<ImageHeader> {
    let mut budget = Budget::default();
    let mut chunks = Chunks::default();
    let mut at = 8;
    let (is_default_image, behind) = loop {
        budget.spend()?;
        let [l0, l1, l2, l3, name @ ..] = payload.array::<HEAD_BYTES>(at)?;
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        at += HEAD_BYTES;
        match &name {
            b"IDAT" => break (!chunks.has_frame_control, at.saturating_add(length)),
            b"fdAT" | b"IEND" => break (false, at.saturating_add(length)),
            _ if !is_name(name) => {
                return Err(Error::malformed("PNG has a chunk without a name").into());
            }
            _ => {}
        }
        if name == *b"IHDR" && length >= 8 {
            let width = payload.u32(at, Endian::Big)?;
            declared.size = Some((width, payload.u32(at + 4, Endian::Big)?));
        }
        let body = payload.get(at, length)?;
        chunks.take(name, body)?;
        at = at.saturating_add(length).saturating_add(CRC_BYTES);
    };

    let mode = chunks
        .mode
        .ok_or_else(|| Error::malformed("PNG has no usable IHDR"))?;
    let mut header = ImageHeader::new(Format::Png, chunks.size);
    header.mode = Some(mode);
    header.bits = Some(chunks.bits);
    header.has_alpha = Some(chunks.has_transparency || matches!(mode, "LA" | "RGBA"));
    header.set_frames(match chunks.frames {
        // The still picture in front of an animation is a frame of its own to Pillow.
        Some(frames) => frames.saturating_add(u32::from(is_default_image)),
        None => 1,
    });
    if payload.is_whole {
        let is_animated = header.is_animated == Some(true);
        chunks.take_behind(payload, behind.saturating_add(CRC_BYTES), is_animated);
    }
    let facts = chunks.facts(&mut budget);
    header.set_facts(facts, || chunks.xmp?.xmp_orientation());
    Ok(header)
}

impl<'a> Chunks<'a> {
    fn take(&mut self, name: [u8; 4], body: &'a [u8]) -> Result<(), Error> {
        match &name {
            b"IHDR" => self.header(body),
            b"tRNS" => self.transparency(body),
            b"acTL" => self.animation(body),
            b"fcTL" => {
                self.has_frame_control = true;
                Ok(())
            }
            b"eXIf" => {
                self.exif = Some(body);
                Ok(())
            }
            b"tEXt" | b"zTXt" | b"iTXt" => {
                self.text(name, body);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Take the EXIF and XMP behind the pixels of the first frame, where the last counts as well.
    fn take_behind(&mut self, payload: Payload<'a>, mut at: usize, is_animated: bool) {
        let mut budget = Budget::default();
        while budget.try_spend()
            && let Ok([l0, l1, l2, l3, name @ ..]) = payload.array::<HEAD_BYTES>(at)
        {
            let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
            let body = at + HEAD_BYTES;
            at = body.saturating_add(length).saturating_add(CRC_BYTES);
            let body = match &name {
                b"IEND" => return,
                // Pillow reads no further than to the next frame.
                b"fcTL" if is_animated => return,
                b"eXIf" | b"tEXt" | b"zTXt" | b"iTXt" => payload.get(body, length),
                _ if is_name(name) => continue,
                _ => return,
            };
            let Ok(body) = body else { return };
            if name == *b"eXIf" {
                self.exif = Some(body);
            } else {
                self.text(name, body);
            }
        }
    }

    /// Take a text that holds EXIF or XMP; the last of a kind counts.
    fn text(&mut self, name: [u8; 4], body: &'a [u8]) {
        match png_text::split(name, body) {
            Some((Content::RawProfile, text)) => self.raw_profile = Some(text),
            Some((Content::Xmp, text)) => self.xmp = Some(text),
            // An eXIf chunk by another name, to Pillow.
            Some((Content::Exif, text)) if name == *b"tEXt" => self.exif = Some(text.stored),
            _ => {}
        }
    }

    /// EXIF of its own chunk, or else of a raw profile.
    fn facts(&self, budget: &mut Budget) -> ExifFacts {
        match (self.exif, self.raw_profile) {
            (Some(bytes), _) => exif::parse_block(&Block::new(bytes), budget),
            (None, Some(profile)) => profile.profile_facts(budget),
            (None, None) => ExifFacts::default(),
        }
    }

    fn header(&mut self, body: &[u8]) -> Result<(), Error> {
        let Some((&[w0, w1, w2, w3, h0, h1, h2, h3, bits, color, _, filter, _], _)) =
            body.split_first_chunk::<13>()
        else {
            return Err(Error::malformed("PNG header chunk is cut short"));
        };
        if filter != 0 {
            return Err(Error::malformed("PNG has an unknown filter method"));
        }
        self.size = (
            Endian::Big.u32([w0, w1, w2, w3]),
            Endian::Big.u32([h0, h1, h2, h3]),
        );
        self.bits = bits;
        self.mode = mode(bits, color).or(self.mode);
        Ok(())
    }

    fn transparency(&mut self, body: &[u8]) -> Result<(), Error> {
        let needed = match self.mode {
            Some("P") => 0,
            Some("RGB") => 6,
            Some("1" | "L" | "I;16") => 2,
            _ => return Ok(()),
        };
        if body.len() < needed {
            return Err(Error::malformed("PNG transparency chunk is cut short"));
        }
        self.has_transparency = true;
        Ok(())
    }

    fn animation(&mut self, body: &[u8]) -> Result<(), Error> {
        let Some((frames, _)) = body.split_first_chunk::<4>().filter(|_| body.len() >= 8) else {
            return Err(Error::malformed("PNG animation chunk is cut short"));
        };
        let frames = u32::from_be_bytes(*frames);
        let is_valid = (1..=1 << 31).contains(&frames);
        // A second animation chunk makes both invalid.
        self.frames = (is_valid && self.frames.is_none()).then_some(frames);
        Ok(())
    }
}

fn is_name(name: [u8; 4]) -> bool {
    name.iter().all(|c| c.is_ascii_alphanumeric() || *c == b'_')
}

fn mode(bits: u8, color: u8) -> Option<&'static str> {
    match (color, bits) {
        (0, 1) => Some("1"),
        (0, 2 | 4 | 8) => Some("L"),
        (0, 16) => Some("I;16"),
        (2, 8 | 16) => Some("RGB"),
        (3, 1 | 2 | 4 | 8) => Some("P"),
        (4, 8) => Some("LA"),
        (4, 16) | (6, 8 | 16) => Some("RGBA"),
        _ => None,
    }
}
