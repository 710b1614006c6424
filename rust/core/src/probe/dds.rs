//! DDS: fixed fields.

use crate::error::Error;
use crate::probe::format::Format;
use crate::probe::header::{Declared, ImageHeader};
use crate::reader::{Endian, Parsed, Payload};

const HEADER_BYTES: u32 = 124;

pub(super) fn parse(payload: Payload<'_>, declared: &mut Declared) -> Parsed<ImageHeader> {
    if payload.u32(4, Endian::Little)? != HEADER_BYTES {
        return Err(Error::malformed("DDS header is of another length than 124").into());
    }
    let height = payload.u32(12, Endian::Little)?;
    let width = payload.u32(16, Endian::Little)?;
    declared.size = Some((width, height));
    payload.get(0, 4 + HEADER_BYTES as usize)?;
    Ok(ImageHeader::new(Format::Dds, (width, height)))
}
