//! TGA: fixed fields.

use crate::probe::format::Format;
use crate::probe::header::ImageHeader;
use crate::reader::{Endian, Parsed, Payload};

pub(super) fn parse(payload: Payload<'_>) -> Parsed<ImageHeader> {
    let fields = payload.array::<18>(0)?;
    let word = |at: usize| u32::from(Endian::Little.u16([fields[at], fields[at + 1]]));
    let (has_map, kind, bits) = (fields[1] != 0, fields[2] & 7, fields[16]);
    let mode = match (kind, bits) {
        (1, _) if has_map => "P",
        (3, 1) => "1",
        (3, 16) => "LA",
        (1 | 3, _) => "L",
        (_, 24) => "RGB",
        _ => "RGBA",
    };
    let mut header = ImageHeader::new(Format::Tga, (word(12), word(14)));
    header.mode = Some(mode);
    header.bits = Some(bits);
    header.set_frames(1);
    Ok(header)
}
