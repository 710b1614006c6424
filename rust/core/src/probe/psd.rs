//! PSD and PSB: fixed fields.

use crate::probe::format::Format;
use crate::probe::header::ImageHeader;
use crate::reader::{Endian, Parsed, Payload};

pub(super) fn parse(payload: Payload<'_>) -> Parsed<ImageHeader> {
    let header_bytes = payload.array::<26>(0)?;
    let word = |at: usize| Endian::Big.u16([header_bytes[at], header_bytes[at + 1]]);
    let channels = word(12);
    let height = payload.u32(14, Endian::Big)?;
    let width = payload.u32(18, Endian::Big)?;
    let bits = word(22);
    let mode = match (word(24), bits, channels) {
        (0, 1, 1..) => Some("1"),
        (0 | 1 | 7 | 8, 8, 1..) => Some("L"),
        (2, 8, 1..) => Some("P"),
        (3, 8, 4) => Some("RGBA"),
        (3, 8, 3..) => Some("RGB"),
        (4, 8, 4..) => Some("CMYK"),
        (9, 8, 3..) => Some("LAB"),
        _ => None,
    };
    let mut header = ImageHeader::new(Format::Psd, (width, height));
    header.mode = mode;
    header.bits = u8::try_from(bits).ok();
    header.has_alpha = mode.map(|mode| mode == "RGBA");
    Ok(header)
}
