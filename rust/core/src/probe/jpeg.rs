//! JPEG and MPO: segments up to the first scan.
//!
//! Walks as Pillow does, junk and fill bytes between segments included, because what is found
//! first decides: the last frame header, the last XMP packet, all EXIF segments joined.

use crate::budget::Budget;
use crate::error::Error;
use crate::exif::{self, Block, Directory, End};
use crate::probe::format::Format;
use crate::probe::header::{Declared, ImageHeader};
use crate::reader::{Endian, Parsed, Payload, Stop};
use crate::xmp;

const SOF0: u8 = 0xC0;
const DHT: u8 = 0xC4;
const JPG: u8 = 0xC8;
const DAC: u8 = 0xCC;
const SOF15: u8 = 0xCF;
const RST0: u8 = 0xD0;
const EOI: u8 = 0xD9;
const SOS: u8 = 0xDA;
const DHP: u8 = 0xDE;
const APP1: u8 = 0xE1;
const APP2: u8 = 0xE2;
const APP15: u8 = 0xEF;
const COM: u8 = 0xFE;

const EXIF: &[u8] = b"Exif\0\0";
const XMP: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";
const MPF: &[u8] = b"MPF\0";
/// Marks the XMP of a picture whose second picture is only a gain map.
const GAIN_MAP: &[u8] = b" hdrgm:Version=\"";

/// A frame header.
#[derive(Clone, Copy)]
struct Frame {
    size: (u32, u32),
    mode: &'static str,
}

/// What the segments before the scan say.
#[derive(Default)]
struct Segments<'a> {
    frame: Option<Frame>,
    exif: Option<Block<'a>>,
    xmp: Option<&'a [u8]>,
    mpf: Option<&'a [u8]>,
}

pub(super) fn parse(payload: Payload<'_>, declared: &mut Declared) -> Parsed<ImageHeader> {
    let mut budget = Budget::default();
    let mut segments = Segments::default();
    let walk = walk(payload, &mut budget, |marker, body| {
        if is_frame(marker) {
            declared.size = frame_size(body);
        }
        Ok(segments.take(marker, body)?)
    });
    match walk {
        // A whole file may end between two segments: its size is known all the same.
        Err(Stop::More(_)) if payload.is_whole && ends_between(payload, &mut Budget::default()) => {
        }
        walk => walk?,
    }
    let frame = segments
        .frame
        .ok_or_else(|| Error::malformed("JPEG has no frame header"))?;

    let pictures = segments
        .mpf
        .and_then(|index| picture_count(index, &mut budget))
        .filter(|&count| count > 1 && !has_gain_map(payload));
    let format = match pictures {
        Some(_) => Format::Mpo,
        None => Format::Jpeg,
    };
    let mut header = ImageHeader::new(format, frame.size);
    header.mode = Some(frame.mode);
    header.bits = Some(8);
    header.has_alpha = Some(false);
    header.set_frames(pictures.unwrap_or(1));
    let facts = segments
        .exif
        .map(|block| exif::parse_block(&block, &mut budget))
        .unwrap_or_default();
    header.set_facts(facts, || segments.xmp.and_then(xmp::orientation));
    Ok(header)
}

/// Call `each` with the marker and body of every segment up to and including the scan header.
fn walk<'a>(
    payload: Payload<'a>,
    budget: &mut Budget,
    mut each: impl FnMut(u8, &'a [u8]) -> Parsed<()>,
) -> Parsed<()> {
    let mut at = 2;
    loop {
        budget.spend()?;
        let (marker, after) = next_marker(payload, at, budget)?;
        at = after;
        if !has_body(marker)? {
            continue;
        }
        // A length below 2 leaves an empty body and is passed over.
        let length = usize::from(payload.u16(at, Endian::Big)?).max(2);
        let body = payload.get(at + 2, length - 2)?;
        each(marker, body)?;
        if marker == SOS {
            return Ok(());
        }
        at += length;
    }
}

/// The next marker from `at` and the offset behind it.
#[inline]
fn next_marker(payload: Payload<'_>, at: usize, budget: &mut Budget) -> Parsed<(u8, usize)> {
    match payload.bytes.get(at..) {
        Some(&[0xFF, marker @ 1..=0xFE, ..]) => Ok((marker, at + 2)),
        _ => marker_behind_junk(payload, at, budget),
    }
}

/// As [`next_marker`], past junk, fill bytes and escaped zeros.
#[cold]
fn marker_behind_junk(
    payload: Payload<'_>,
    mut at: usize,
    budget: &mut Budget,
) -> Parsed<(u8, usize)> {
    loop {
        let rest = payload.bytes.get(at..).unwrap_or_default();
        let junk = memchr::memchr(0xFF, rest).ok_or(Stop::more(payload.bytes.len() + 1))?;
        at += junk + fill_length(&rest[junk..]);
        match payload.u8(at)? {
            0 => at += 1,
            marker => return Ok((marker, at + 1)),
        }
        budget.spend()?;
    }
}

/// The number of FF bytes in front.
fn fill_length(bytes: &[u8]) -> usize {
    let words = bytes
        .chunks_exact(8)
        .take_while(|word| *word == [0xFF; 8])
        .count();
    let rest = &bytes[8 * words..];
    8 * words + rest.iter().take_while(|&&byte| byte == 0xFF).count()
}

/// Whether a marker begins a frame header, served or not.
fn is_frame(marker: u8) -> bool {
    matches!(marker, SOF0..=SOF15 | DHP) && !matches!(marker, DHT | JPG | DAC)
}

/// Whether a marker is followed by a length; an error for a reserved one.
fn has_body(marker: u8) -> Result<bool, Error> {
    match marker {
        JPG | RST0..=EOI | 0xF0..=0xFD => Ok(false),
        SOF0..=APP15 | COM => Ok(true),
        _ => Err(Error::malformed("JPEG has a reserved marker in its header")),
    }
}

/// Whether the bytes end where a marker could begin.
fn ends_between(payload: Payload<'_>, budget: &mut Budget) -> bool {
    let mut end = 2;
    loop {
        if !budget.try_spend() {
            return false;
        }
        let Ok((marker, after)) = next_marker(payload, end, budget) else {
            return true;
        };
        end = after;
        if has_body(marker) == Ok(true) {
            let Ok(length) = payload.u16(end, Endian::Big) else {
                return false;
            };
            end += usize::from(length.max(2));
            if end > payload.bytes.len() {
                return false;
            }
        }
    }
}

impl<'a> Segments<'a> {
    fn take(&mut self, marker: u8, body: &'a [u8]) -> Result<(), Error> {
        match marker {
            _ if is_frame(marker) => self.frame = Some(frame(body)?),
            APP1 => {
                if body.starts_with(EXIF) {
                    match &mut self.exif {
                        Some(block) => block.push(&body[EXIF.len()..]),
                        None => self.exif = Some(Block::new(body)),
                    }
                } else if let Some(packet) = body.strip_prefix(XMP) {
                    self.xmp = Some(packet);
                }
            }
            APP2 => {
                if let Some(index) = body.strip_prefix(MPF) {
                    self.mpf = Some(index);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn frame(body: &[u8]) -> Result<Frame, Error> {
    let (Some(size), [bits, _, _, _, _, layers, components @ ..]) = (frame_size(body), body) else {
        return Err(Error::malformed("JPEG frame header is cut short"));
    };
    if *bits != 8 {
        return Err(Error::unsupported(format!("JPEG with {bits}-bit samples")));
    }
    let mode = match layers {
        1 => "L",
        3 => "RGB",
        4 => "CMYK",
        _ => {
            return Err(Error::unsupported(format!("JPEG with {layers} components")));
        }
    };
    if components.len() % 3 != 0 {
        return Err(Error::malformed("JPEG frame header is cut short"));
    }
    Ok(Frame { size, mode })
}

fn frame_size(body: &[u8]) -> Option<(u32, u32)> {
    let &[_, h0, h1, w0, w1, ..] = body else {
        return None;
    };
    Some((
        u32::from(u16::from_be_bytes([w0, w1])),
        u32::from(u16::from_be_bytes([h0, h1])),
    ))
}

/// The number of pictures of a well-formed MPF index.
fn picture_count(index: &[u8], budget: &mut Budget) -> Option<u32> {
    const NUMBER_OF_IMAGES: u16 = 0xB001;
    const ENTRIES: u16 = 0xB002;
    const UNDEFINED: u16 = 7;
    const ENTRY_BYTES: usize = 16;
    const FORMAT_BITS: u32 = 7 << 24;

    let block = Block::new(index);
    let (directory, first) = Directory::open(&block)?;
    let mut count = None;
    let mut entries = None;
    let end = directory.visit(first, budget, |entry| match entry.tag {
        NUMBER_OF_IMAGES if entry.count == 1 => count = directory.unsigned(entry),
        ENTRIES if entry.kind == UNDEFINED => {
            entries = index
                .get(entry.at..)
                .and_then(|rest| rest.get(..entry.bytes));
        }
        _ => {}
    });
    if end == End::Exhausted {
        return None;
    }
    let count = u32::try_from(count?).ok()?;
    let entries = entries?.chunks_exact(ENTRY_BYTES);
    // Every entry is there and is of a JPEG picture, else the file is a JPEG with a bad index.
    let sound = entries
        .take(count as usize)
        .filter(|entry| {
            let attribute = directory
                .endian
                .u32([entry[0], entry[1], entry[2], entry[3]]);
            attribute & FORMAT_BITS == 0
        })
        .count();
    (sound == count as usize).then_some(count)
}

fn has_gain_map(payload: Payload<'_>) -> bool {
    let mut found = false;
    let walk = walk(payload, &mut Budget::default(), |marker, body| {
        found |= marker == APP1 && memchr::memmem::find(body, GAIN_MAP).is_some();
        Ok(())
    });
    walk.is_ok() && found
}
