//! WebP: RIFF chunks, as far as the flags of the first one promise something.

use crate::budget::Budget;
use crate::error::Error;
use crate::exif::{self, Block, ExifFacts};
use crate::probe::format::Format;
use crate::probe::header::{Declared, ImageHeader};
use crate::reader::{Endian, Parsed, Payload, Stop};
use crate::xmp;

const ANIMATION: u8 = 0x02;
const XMP: u8 = 0x04;
const EXIF: u8 = 0x08;
const ALPHA: u8 = 0x10;

const RIFF_HEAD_BYTES: usize = 12;
const CHUNK_HEAD_BYTES: usize = 8;

pub(super) fn parse(payload: Payload<'_>, declared: &mut Declared) -> Parsed<ImageHeader> {
    let kind = payload.array::<4>(RIFF_HEAD_BYTES)?;
    let body = RIFF_HEAD_BYTES + CHUNK_HEAD_BYTES;
    let (size, has_alpha) = match &kind {
        b"VP8 " => (lossy_size(payload, body)?, false),
        b"VP8L" => lossless_size(payload, body)?,
        b"VP8X" => return extended(payload, declared),
        _ => return Err(Error::malformed("WebP begins with an unknown chunk").into()),
    };
    let mut header = header(size, has_alpha);
    header.set_frames(1);
    Ok(header)
}

fn header(size: (u32, u32), has_alpha: bool) -> ImageHeader {
    let mut header = ImageHeader::new(Format::WebP, size);
    header.mode = Some(if has_alpha { "RGBA" } else { "RGB" });
    header.bits = Some(8);
    header.has_alpha = Some(has_alpha);
    header
}

/// The size of a key frame.
fn lossy_size(payload: Payload<'_>, at: usize) -> Parsed<(u32, u32)> {
    let [_, _, _, s0, s1, s2, w0, w1, h0, h1] = payload.array::<10>(at)?;
    if [s0, s1, s2] != [0x9D, 0x01, 0x2A] {
        return Err(Error::malformed("WebP image data does not begin with a key frame").into());
    }
    Ok((
        u32::from(u16::from_le_bytes([w0, w1]) & 0x3FFF),
        u32::from(u16::from_le_bytes([h0, h1]) & 0x3FFF),
    ))
}

/// Size and alpha of lossless image data.
fn lossless_size(payload: Payload<'_>, at: usize) -> Parsed<((u32, u32), bool)> {
    let [signature, bits @ ..] = payload.array::<5>(at)?;
    if signature != 0x2F {
        return Err(Error::malformed("WebP lossless signature is wrong").into());
    }
    let bits = u32::from_le_bytes(bits);
    let size = ((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1);
    Ok((size, bits >> 28 & 1 != 0))
}

/// What the chunks behind the extended header say.
#[derive(Default)]
struct Chunks<'a> {
    frames: u32,
    /// Alpha as the image data states it.
    alpha: Option<bool>,
    exif: Option<&'a [u8]>,
    xmp: Option<&'a [u8]>,
}

fn extended(payload: Payload<'_>, declared: &mut Declared) -> Parsed<ImageHeader> {
    let [flags, _, _, _, w0, w1, w2, h0, h1, h2] =
        payload.array::<10>(RIFF_HEAD_BYTES + CHUNK_HEAD_BYTES)?;
    let size = (
        u32::from_le_bytes([w0, w1, w2, 0]) + 1,
        u32::from_le_bytes([h0, h1, h2, 0]) + 1,
    );
    declared.size = Some(size);
    let mut chunks = Chunks::default();
    match chunks.walk(payload, flags) {
        Err(Stop::More(_)) if payload.is_whole => {}
        walk => walk?,
    }
    let is_animated = flags & ANIMATION != 0;
    if is_animated && chunks.frames == 0 {
        return Err(Error::malformed("WebP animation has no frame").into());
    }
    let has_alpha = if is_animated {
        flags & ALPHA != 0
    } else {
        chunks.alpha.unwrap_or(flags & ALPHA != 0)
    };
    let mut header = header(size, has_alpha);
    header.set_frames(if is_animated { chunks.frames } else { 1 });
    let facts = match chunks.exif {
        Some(bytes) => exif::parse_block(&Block::new(bytes), &mut Budget::default()),
        None => ExifFacts::default(),
    };
    header.set_facts(facts, || chunks.xmp.and_then(xmp::orientation));
    Ok(header)
}

impl<'a> Chunks<'a> {
    /// Read chunks until everything that `flags` promise is found, or to the end of the file.
    fn walk(&mut self, payload: Payload<'a>, flags: u8) -> Parsed<()> {
        let is_animated = flags & ANIMATION != 0;
        let riff_end = payload.u32(4, Endian::Little)?.saturating_add(8) as usize;
        let mut budget = Budget::default();
        let mut at = RIFF_HEAD_BYTES;
        while at.saturating_add(CHUNK_HEAD_BYTES) <= riff_end {
            let is_imaged = self.alpha.is_some() && !is_animated;
            let has_exif = self.exif.is_some() || flags & EXIF == 0;
            let has_xmp = self.xmp.is_some() || flags & XMP == 0;
            if is_imaged && has_exif && has_xmp {
                return Ok(());
            }
            budget.spend()?;
            let [n0, n1, n2, n3, length @ ..] = payload.array::<CHUNK_HEAD_BYTES>(at)?;
            let length = u32::from_le_bytes(length) as usize;
            let body = at + CHUNK_HEAD_BYTES;
            match &[n0, n1, n2, n3] {
                b"ALPH" if !is_animated => self.alpha = Some(true),
                b"VP8 " if self.alpha.is_none() => {
                    self.alpha = Some(flags & ALPHA != 0);
                }
                b"VP8L" => {
                    let (_, has_alpha) = lossless_size(payload, body)?;
                    self.alpha = Some(has_alpha || self.alpha == Some(true));
                }
                b"ANMF" => self.frames = self.frames.saturating_add(1),
                b"EXIF" if flags & EXIF != 0 && self.exif.is_none() => {
                    self.exif = Some(payload.get(body, length)?);
                }
                b"XMP " if flags & XMP != 0 && self.xmp.is_none() => {
                    self.xmp = Some(payload.get(body, length)?);
                }
                _ => {}
            }
            // Bodies are padded to an even length.
            at = body.saturating_add(length).saturating_add(length & 1);
        }
        Ok(())
    }
}
