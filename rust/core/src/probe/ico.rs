//! ICO and CUR: the picture that a decoder picks.
//!
//! The directory's own sizes are bytes and often wrong, so the chosen picture's header rules.

use crate::error::Error;
use crate::probe::bmp::Bitmap;
use crate::probe::format::Format;
use crate::probe::header::ImageHeader;
use crate::reader::{Endian, Parsed, Payload, index};

const DIRECTORY_AT: usize = 6;
const ENTRY_BYTES: usize = 16;

const PNG_MAGIC: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// A picture of the directory.
#[derive(Clone, Copy)]
struct Entry {
    width: u8,
    height: u8,
    depth: u32,
    at: usize,
}

pub(super) fn parse(payload: Payload<'_>, format: Format) -> Parsed<ImageHeader> {
    let count = usize::from(payload.u16(4, Endian::Little)?);
    let directory = payload.get(DIRECTORY_AT, count * ENTRY_BYTES)?;
    let mut entries = directory.chunks_exact(ENTRY_BYTES).map(entry);
    let first = entries
        .next()
        .ok_or_else(|| Error::malformed(format!("{format} holds no picture")))?;
    let best = entries.fold(first, |best, entry| {
        let is_better = match format {
            Format::Cur => entry.width > best.width && entry.height > best.height,
            // The largest; among equals, the one of fewest colors.
            _ => (area(entry), best.depth) > (area(best), entry.depth),
        };
        if is_better { entry } else { best }
    });
    let size = match payload.array::<8>(best.at)? {
        PNG_MAGIC => (
            payload.u32(best.at.saturating_add(16), Endian::Big)?,
            payload.u32(best.at.saturating_add(20), Endian::Big)?,
        ),
        // A bitmap holds a mask of the same height below the picture.
        _ => {
            let (width, height) = Bitmap::read(payload, best.at)?.size;
            (width, height / 2)
        }
    };
    Ok(ImageHeader::new(format, size))
}

fn entry(bytes: &[u8]) -> Entry {
    let number =
        |at: usize| Endian::Little.u32([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let bits = u32::from(Endian::Little.u16([bytes[6], bytes[7]]));
    Entry {
        width: bytes[0],
        height: bytes[1],
        depth: match (bits, bytes[2]) {
            (0, 0) => 256,
            (0, colors) => u32::from(colors).next_power_of_two().trailing_zeros(),
            (bits, _) => bits,
        },
        at: index(u64::from(number(12))),
    }
}

/// The area of an icon, whose sides of 256 are written as 0.
fn area(entry: Entry) -> u32 {
    let side = |side: u8| if side == 0 { 256 } else { u32::from(side) };
    side(entry.width) * side(entry.height)
}
