//! The chunks of a PNG, read as Pillow reads them.
//!
//! Whatever would make Pillow refuse the file, warn, or read it otherwise than the plain way is
//! declined: this walk need not be complete, only never wrong.

use std::borrow::Cow;

use crate::decode::inflate::{crc32, is_below};
use crate::decode::reader::Reader;
use crate::picture::Transparency;
use crate::refusal::Declined;

/// Pillow's bound on an inflated text or profile.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Keywords of text chunks that Pillow stores under the name of something else.
const RESERVED_KEYWORDS: [&[u8]; 8] = [
    b"transparency",
    b"interlace",
    b"bbox",
    b"default_image",
    b"disposal",
    b"blend",
    b"loop",
    b"duration",
];

/// What the chunks say.
#[derive(Debug)]
pub(super) struct Chunks<'a> {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) bits: u8,
    pub(super) color_type: u8,
    pub(super) is_interlaced: bool,
    pub(super) palette: Option<&'a [u8]>,
    pub(super) transparency: Option<Transparency>,
    data: Vec<&'a [u8]>,
}

impl<'a> Chunks<'a> {
    pub(super) fn compressed_bytes(&self) -> usize {
        self.data.iter().map(|part| part.len()).sum()
    }

    /// The zlib stream, in one piece.
    pub(super) fn stream(&self) -> Cow<'a, [u8]> {
        match self.data.as_slice() {
            [one] => Cow::Borrowed(one),
            parts => Cow::Owned(parts.concat()),
        }
    }
}

struct Chunk<'a> {
    name: [u8; 4],
    body: &'a [u8],
}

/// Which chunks have their checksum looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verified {
    Every,
    /// What Pillow lets pass behind the pixels. Pixels it lets pass too, but where it finds their
    /// stream broken, libdeflate need not: damage has to show here.
    Pixels,
}

/// The next chunk, its checksum verified; `None` where Pillow stops reading.
fn next<'a>(reader: &mut Reader<'a>, verified: Verified) -> Result<Option<Chunk<'a>>, Declined> {
    if reader.rest().len() < 8 {
        return Ok(None);
    }
    let length = reader.u32_be()? as usize;
    let mut covered = *reader;
    let name: [u8; 4] = reader.array()?;
    if !name.iter().all(u8::is_ascii_alphabetic) {
        return Err(Declined("chunk name"));
    }
    let body = reader.take(length)?;
    let crc = reader.u32_be();
    let is_verified = verified == Verified::Every || &name == b"IDAT";
    // A fuzzer does not find checksums.
    if is_verified && !cfg!(fuzzing) && crc? != crc32(covered.take(4 + body.len())?) {
        return Err(Declined("chunk checksum"));
    }
    Ok(Some(Chunk { name, body }))
}

/// Read all chunks of `data`, which starts with the signature.
pub(super) fn read(data: &[u8]) -> Result<Chunks<'_>, Declined> {
    let mut reader = Reader::at(data, 8);
    let first = next(&mut reader, Verified::Every)?.ok_or(Declined("cut short"))?;
    let mut chunks = header(&first)?;
    let mut state = State::default();
    loop {
        let chunk = next(&mut reader, Verified::Every)?.ok_or(Declined("cut short"))?;
        if &chunk.name == b"IDAT" {
            chunks.data.push(chunk.body);
            break;
        }
        state.take(&mut chunks, &chunk)?;
    }
    if chunks.color_type == 3 && chunks.palette.is_none() {
        return Err(Declined("no palette"));
    }
    // Pillow has one frame more to show where the default image is none of the frames.
    let is_animated = state.frames + u32::from(state.frames > 0 && !state.has_control) > 1;
    while let Some(chunk) = next(&mut reader, Verified::Pixels)? {
        match &chunk.name {
            b"IDAT" if !state.is_past_pixels => chunks.data.push(chunk.body),
            b"IEND" => break,
            b"fcTL" if is_animated => break,
            b"tEXt" | b"zTXt" | b"iTXt" | b"eXIf" | b"tIME" => {
                if may_turn(&chunk) {
                    // A probe does not look behind the pixels, but Pillow turns by what is there.
                    return Err(Declined("orientation behind the pixels"));
                }
                state.is_past_pixels = true;
                state.take(&mut chunks, &chunk)?;
            }
            _ => return Err(Declined("chunk after the pixels")),
        }
    }
    Ok(chunks)
}

/// Whether `chunk` may hold an EXIF orientation.
fn may_turn(chunk: &Chunk<'_>) -> bool {
    match &chunk.name {
        b"eXIf" => true,
        b"tEXt" | b"zTXt" | b"iTXt" => split(chunk.body).is_some_and(|(keyword, _)| {
            keyword == b"Raw profile type exif" || keyword == b"XML:com.adobe.xmp"
        }),
        _ => false,
    }
}

fn header<'a>(chunk: &Chunk<'a>) -> Result<Chunks<'a>, Declined> {
    if &chunk.name != b"IHDR" || chunk.body.len() != 13 {
        return Err(Declined("no IHDR"));
    }
    let mut reader = Reader::new(chunk.body);
    let (width, height) = (reader.u32_be()?, reader.u32_be()?);
    let [bits, color_type, compression, filter, interlace] = reader.array()?;
    if compression != 0 || filter != 0 || interlace > 1 || width == 0 || height == 0 {
        return Err(Declined("IHDR"));
    }
    Ok(Chunks {
        width,
        height,
        bits,
        color_type,
        is_interlaced: interlace == 1,
        palette: None,
        transparency: None,
        data: Vec::new(),
    })
}

#[derive(Default)]
struct State {
    text_bytes: usize,
    /// Frames that acTL announces.
    frames: u32,
    /// A frame control came before the pixels: they are the first frame.
    has_control: bool,
    is_past_pixels: bool,
    has_transparency: bool,
}

impl State {
    fn take<'a>(&mut self, chunks: &mut Chunks<'a>, chunk: &Chunk<'a>) -> Result<(), Declined> {
        let body = chunk.body;
        let at_least = |length| {
            if body.len() < length {
                return Err(Declined("chunk is too short"));
            }
            Ok(())
        };
        match &chunk.name {
            b"PLTE" => {
                if chunks.palette.is_some() || self.has_transparency {
                    return Err(Declined("second PLTE, or after tRNS"));
                }
                if body.is_empty() || !body.len().is_multiple_of(3) || body.len() > 768 {
                    return Err(Declined("PLTE"));
                }
                chunks.palette = Some(body);
            }
            b"tRNS" => {
                if self.has_transparency {
                    return Err(Declined("second tRNS"));
                }
                self.has_transparency = true;
                chunks.transparency = transparency(chunks, body)?;
            }
            b"gAMA" => at_least(4)?,
            b"cHRM" => at_least(32)?,
            b"sRGB" => at_least(1)?,
            b"pHYs" => at_least(9)?,
            b"iCCP" => {
                let (_, profile) = split(body).ok_or(Declined("iCCP"))?;
                compressed(profile.split_first().ok_or(Declined("iCCP"))?)?;
            }
            b"tEXt" => {
                let (keyword, text) = split(body).unwrap_or((body, &[]));
                check_keyword(keyword)?;
                self.text(text.len())?;
            }
            b"zTXt" => {
                let (keyword, text) = split(body).unwrap_or((body, &[]));
                check_keyword(keyword)?;
                if let Some(text) = text.split_first() {
                    compressed(text)?;
                    self.text(MAX_TEXT_BYTES)?;
                }
            }
            b"iTXt" => {
                if let Some((keyword, rest)) = split(body) {
                    check_keyword(keyword)?;
                    self.international(rest)?;
                }
            }
            b"acTL" => {
                at_least(8)?;
                let frames = Reader::new(body).u32_be()?;
                // Pillow warns of the other cases.
                if self.frames != 0 || frames == 0 || frames > 0x8000_0000 {
                    return Err(Declined("acTL"));
                }
                self.frames = frames;
            }
            b"fcTL" => {
                at_least(26)?;
                let mut reader = Reader::new(body);
                let sequence = reader.u32_be()?;
                let frame = [
                    reader.u32_be()?,
                    reader.u32_be()?,
                    reader.u32_be()?,
                    reader.u32_be()?,
                ];
                if sequence != 0 || self.has_control {
                    return Err(Declined("fcTL"));
                }
                self.has_control = true;
                if frame != [chunks.width, chunks.height, 0, 0] {
                    return Err(Declined("first frame is a part of the canvas"));
                }
            }
            b"IHDR" | b"IEND" | b"fdAT" | b"DDAT" => return Err(Declined("chunk order")),
            _ => {}
        }
        Ok(())
    }

    fn text(&mut self, bytes: usize) -> Result<(), Declined> {
        self.text_bytes += bytes;
        if self.text_bytes > 63 * MAX_TEXT_BYTES {
            return Err(Declined("text is too long"));
        }
        Ok(())
    }

    fn international(&mut self, rest: &[u8]) -> Result<(), Declined> {
        let [is_compressed, method, rest @ ..] = rest else {
            return Ok(());
        };
        let Some((_, text)) = split(rest).and_then(|(_, rest)| split(rest)) else {
            return Ok(());
        };
        if *is_compressed == 0 {
            return self.text(text.len());
        }
        if *method == 0 {
            compressed((&0, text))?;
        }
        self.text(MAX_TEXT_BYTES)
    }
}

fn check_keyword(keyword: &[u8]) -> Result<(), Declined> {
    if RESERVED_KEYWORDS.contains(&keyword) {
        return Err(Declined("text keyword"));
    }
    Ok(())
}

/// Decline what Pillow refuses: another method than zlib, or more than its bound.
fn compressed((method, stream): (&u8, &[u8])) -> Result<(), Declined> {
    if *method != 0 || !is_below(stream, MAX_TEXT_BYTES)? {
        return Err(Declined("compressed text or profile"));
    }
    Ok(())
}

/// The parts before and after the first zero byte.
fn split(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = body.iter().position(|&byte| byte == 0)?;
    Some((&body[..end], &body[end + 1..]))
}

fn transparency(chunks: &Chunks<'_>, body: &[u8]) -> Result<Option<Transparency>, Declined> {
    let mut reader = Reader::new(body);
    Ok(match (chunks.bits, chunks.color_type) {
        (_, 3) => {
            if body.len() > 256 {
                return Err(Declined("tRNS"));
            }
            let clear = body.iter().position(|&alpha| alpha == 0);
            let is_simple = body.iter().filter(|&&alpha| alpha != 255).count() == 1;
            match clear {
                // One clear entry among opaque ones is kept as its index.
                Some(index) if is_simple => {
                    Some(Transparency::Index(u8::try_from(index).unwrap_or(u8::MAX)))
                }
                _ => Some(Transparency::Alphas(body.to_vec())),
            }
        }
        (1, 0) => Some(Transparency::Gray(if reader.u16_be()? == 0 {
            0
        } else {
            255
        })),
        (_, 0) => Some(Transparency::Gray(reader.u16_be()?)),
        (8 | 16, 2) => Some(Transparency::Color([
            reader.u16_be()?,
            reader.u16_be()?,
            reader.u16_be()?,
        ])),
        _ => None,
    })
}
