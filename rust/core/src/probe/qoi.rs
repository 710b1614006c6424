//! QOI: fixed fields.

use crate::probe::format::Format;
use crate::probe::header::ImageHeader;
use crate::reader::{Endian, Parsed, Payload};

pub(super) fn parse(payload: Payload<'_>) -> Parsed<ImageHeader> {
    let width = payload.u32(4, Endian::Big)?;
    let height = payload.u32(8, Endian::Big)?;
    let has_alpha = payload.u8(12)? != 3;
    let mut header = ImageHeader::new(Format::Qoi, (width, height));
    header.mode = Some(if has_alpha { "RGBA" } else { "RGB" });
    header.bits = Some(8);
    header.has_alpha = Some(has_alpha);
    header.set_frames(1);
    Ok(header)
}
