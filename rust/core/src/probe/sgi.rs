//! SGI: fixed fields.

use crate::probe::format::Format;
use crate::probe::header::ImageHeader;
use crate::reader::{Endian, Parsed, Payload};

pub(super) fn parse(payload: Payload<'_>) -> Parsed<ImageHeader> {
    let fields = payload.array::<12>(0)?;
    let word = |at: usize| Endian::Big.u16([fields[at], fields[at + 1]]);
    let (dimension, channels) = (word(4), word(10));
    let mode = match (dimension, channels) {
        (1 | 2, 1) => Some("L"),
        (3, 3) => Some("RGB"),
        (3, 4) => Some("RGBA"),
        _ => None,
    };
    let size = (u32::from(word(6)), u32::from(word(8)));
    let mut header = ImageHeader::new(Format::Sgi, size);
    header.mode = mode;
    header.bits = fields[3].checked_mul(8);
    header.has_alpha = mode.map(|mode| mode == "RGBA");
    header.set_frames(1);
    Ok(header)
}
