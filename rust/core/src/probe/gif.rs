//! GIF: blocks up to the second image.

use crate::budget::Budget;
use crate::error::Error;
use crate::probe::format::Format;
use crate::probe::header::{Declared, ImageHeader};
use crate::reader::{Endian, Parsed, Payload, Stop};

const GRAPHIC_CONTROL: u8 = 0xF9;
const COMMENT: u8 = 0xFE;
const APPLICATION: u8 = 0xFF;

/// An image descriptor with what stands in front of it.
struct Frame {
    left: u32,
    top: u32,
    width: u32,
    height: u32,
    /// Whether its own color table is not a grey ramp; `None` where it has none.
    is_colored: Option<bool>,
    has_transparency: bool,
    /// Where its data blocks begin.
    data_at: usize,
}

struct Blocks<'a> {
    payload: Payload<'a>,
    budget: Budget,
}

pub(super) fn parse(payload: Payload<'_>, declared: &mut Declared) -> Parsed<ImageHeader> {
    let screen = payload.array::<13>(0)?;
    let word = |at: usize| u32::from(u16::from_le_bytes([screen[at], screen[at + 1]]));
    declared.size = Some((word(6), word(8)));
    let flags = screen[10];
    let mut at = screen.len();
    let mut is_colored = false;
    if flags & 0x80 != 0 {
        let table = color_table(payload, at, flags)?;
        is_colored = needs_palette(table);
        at += table.len();
    }
    let mut blocks = Blocks {
        payload,
        budget: Budget::default(),
    };
    let frame = match blocks.next_frame(at, true) {
        Ok(Some(frame)) => frame,
        Ok(None) => return Err(Error::malformed("GIF has no image").into()),
        Err(stop) => return Err(stop),
    };
    // The canvas grows to hold the first frame.
    let size = (
        word(6).max(frame.left + frame.width),
        word(8).max(frame.top + frame.height),
    );
    declared.size = Some(size);
    let mut header = ImageHeader::new(Format::Gif, size);
    header.mode = Some(if frame.is_colored.unwrap_or(is_colored) {
        "P"
    } else {
        "L"
    });
    header.bits = Some(8);
    header.has_alpha = Some(frame.has_transparency);
    header.is_animated = blocks.has_frame_after(frame.data_at)?;
    Ok(header)
}

impl Blocks<'_> {
    /// The next image descriptor from `at`; `None` at the trailer.
    fn next_frame(&mut self, mut at: usize, is_first: bool) -> Parsed<Option<Frame>> {
        let mut has_transparency = false;
        loop {
            self.budget.spend()?;
            let introducer = self.payload.u8(at)?;
            at += 1;
            match introducer {
                b';' => return Ok(None),
                b',' => return self.image(at, has_transparency).map(Some),
                b'!' => {
                    let label = self.payload.u8(at)?;
                    let (block, after) = self.data(at + 1)?;
                    at = after;
                    match (label, block) {
                        (COMMENT, None) => continue,
                        (GRAPHIC_CONTROL, Some(&[flags, ..])) if flags & 1 != 0 => {
                            has_transparency = true;
                        }
                        (APPLICATION, Some(block))
                            if is_first && block.starts_with(b"NETSCAPE2.0") =>
                        {
                            at = self.data(at)?.1;
                        }
                        _ => {}
                    }
                    at = self.skip_data(at)?;
                }
                // Junk between blocks is passed over.
                _ => {}
            }
        }
    }

    fn image(&self, at: usize, has_transparency: bool) -> Parsed<Frame> {
        let descriptor = self.payload.array::<9>(at)?;
        let mut at = at + descriptor.len();
        let flags = descriptor[8];
        let mut is_colored = None;
        if flags & 0x80 != 0 {
            let table = color_table(self.payload, at, flags)?;
            is_colored = Some(needs_palette(table));
            at += table.len();
        }
        self.payload.u8(at)?;
        let word = |at: usize| u32::from(Endian::Little.u16([descriptor[at], descriptor[at + 1]]));
        Ok(Frame {
            left: word(0),
            top: word(2),
            width: word(4),
            height: word(6),
            is_colored,
            has_transparency,
            data_at: at + 1,
        })
    }

    /// One data block and the offset behind it; `None` for the terminator.
    fn data(&self, at: usize) -> Parsed<(Option<&[u8]>, usize)> {
        let length = usize::from(self.payload.u8(at)?);
        let block = self.payload.get(at + 1, length)?;
        Ok(((length > 0).then_some(block), at + 1 + length))
    }

    /// The offset behind the next terminator.
    fn skip_data(&mut self, mut at: usize) -> Parsed<usize> {
        loop {
            self.budget.spend()?;
            let length = usize::from(self.payload.u8(at)?);
            at += 1 + length;
            if length == 0 {
                return Ok(at);
            }
        }
    }

    /// Whether an image follows the data at `at`; `None` where that is too far to walk.
    fn has_frame_after(&mut self, at: usize) -> Parsed<Option<bool>> {
        let found = self
            .skip_data(at)
            .and_then(|after| self.next_frame(after, false));
        match found {
            Ok(frame) => Ok(Some(frame.is_some())),
            Err(Stop::Fail(_)) => Ok(None),
            // A missing trailer is common.
            Err(Stop::More(_)) if self.payload.is_whole => Ok(Some(false)),
            Err(stop) => Err(stop),
        }
    }
}

fn color_table(payload: Payload<'_>, at: usize, flags: u8) -> Parsed<&[u8]> {
    payload.get(at, 3 << ((flags & 7) + 1))
}

/// Whether a color table is anything but 0,0,0, 1,1,1, 2,2,2 …, which makes the image grey.
fn needs_palette(table: &[u8]) -> bool {
    table
        .chunks_exact(3)
        .enumerate()
        .any(|(index, color)| color.iter().any(|&level| usize::from(level) != index))
}
