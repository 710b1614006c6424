//! PCX: fixed fields. Whether a picture of one 8-bit plane is grey stands at the end of the
//! file, so its mode is left open.

use crate::error::Error;
use crate::probe::format::Format;
use crate::probe::header::ImageHeader;
use crate::reader::{Endian, Parsed, Payload};

pub(super) fn parse(payload: Payload<'_>) -> Parsed<ImageHeader> {
    let fields = payload.array::<68>(0)?;
    let word = |at: usize| u32::from(Endian::Little.u16([fields[at], fields[at + 1]]));
    let side = |from: u32, to: u32| (to + 1).checked_sub(from).filter(|side| *side > 0);
    let size = side(word(4), word(8))
        .zip(side(word(6), word(10)))
        .ok_or_else(|| Error::malformed("PCX image has no extent"))?;
    let (bits, planes) = (fields[3], fields[65]);
    let mut header = ImageHeader::new(Format::Pcx, size);
    header.mode = match (bits, planes) {
        (1, 1) => Some("1"),
        (1, 2 | 4) => Some("P"),
        (8, 3) => Some("RGB"),
        _ => None,
    };
    header.bits = Some(bits);
    header.has_alpha = Some(false);
    header.set_frames(1);
    Ok(header)
}
