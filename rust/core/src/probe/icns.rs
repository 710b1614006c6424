//! ICNS: the largest size that the file has a picture for.

use crate::budget::Budget;
use crate::error::Error;
use crate::probe::format::Format;
use crate::probe::header::ImageHeader;
use crate::reader::{Endian, Parsed, Payload, Stop};

const HEAD_BYTES: usize = 8;

pub(super) fn parse(payload: Payload<'_>) -> Parsed<ImageHeader> {
    let end = payload.u32(4, Endian::Big)? as usize;
    let mut budget = Budget::default();
    let mut at = HEAD_BYTES;
    let mut best = None;
    while at < end {
        budget.spend()?;
        let head = match payload.array::<HEAD_BYTES>(at) {
            Err(Stop::More(_)) if payload.is_whole => break,
            head => head?,
        };
        let [k0, k1, k2, k3, size @ ..] = head;
        best = best.max(sides([k0, k1, k2, k3]));
        let size = u32::from_be_bytes(size) as usize;
        if size < HEAD_BYTES {
            return Err(Error::malformed("ICNS has a block shorter than its header").into());
        }
        at = at.saturating_add(size);
    }
    let (_, side) = best.ok_or_else(|| Error::malformed("ICNS holds no picture"))?;
    let mut header = ImageHeader::new(Format::Icns, (side, side));
    header.mode = Some("RGBA");
    Ok(header)
}

/// Points and pixels of a side: of two pictures, the one of more points is picked.
fn sides(kind: [u8; 4]) -> Option<(u32, u32)> {
    Some(match &kind {
        b"ic10" => (512, 1024),
        b"ic09" => (512, 512),
        b"ic14" => (256, 512),
        b"ic08" => (256, 256),
        b"ic13" => (128, 256),
        b"ic07" | b"it32" | b"t8mk" => (128, 128),
        b"icp6" => (64, 64),
        b"ih32" | b"h8mk" => (48, 48),
        b"ic12" => (32, 64),
        b"icp5" | b"il32" | b"l8mk" => (32, 32),
        b"ic11" => (16, 32),
        b"icp4" | b"is32" | b"s8mk" => (16, 16),
        _ => return None,
    })
}
