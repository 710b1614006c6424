//! JPEG 2000: the image header box, or the size marker of a bare codestream.

use crate::budget::Budget;
use crate::error::Error;
use crate::probe::format::Format;
use crate::probe::header::{Declared, ImageHeader};
use crate::probe::isobmff;
use crate::reader::{Endian, Parsed, Payload};

const SIGNATURE_BOX_BYTES: usize = 12;

/// Enumerated color space of CMYK.
const ENUMERATED_CMYK: u32 = 12;

pub(super) fn parse(payload: Payload<'_>, declared: &mut Declared) -> Parsed<ImageHeader> {
    if payload.u8(0)? == 0xFF {
        return codestream(payload);
    }
    let mut budget = Budget::default();
    let start = SIGNATURE_BOX_BYTES;
    let place = isobmff::find(payload, start, *b"jp2h", Format::Jpeg2000, &mut budget)?;
    match place.read(payload) {
        Ok(body) => boxes(body, declared, &mut budget),
        Err(stop) => {
            // The size is declared first; a color profile behind it may be long.
            let part = payload.bytes.get(place.body..).unwrap_or_default();
            let _ = boxes(part, declared, &mut budget);
            Err(stop)
        }
    }
}

/// The header that the boxes of the header box describe.
fn boxes(body: &[u8], declared: &mut Declared, budget: &mut Budget) -> Parsed<ImageHeader> {
    let mut header = None;
    for (kind, body) in isobmff::children(body) {
        budget.spend()?;
        match (&kind, body) {
            (b"ihdr", &[h0, h1, h2, h3, w0, w1, w2, w3, c0, c1, depth, ..]) => {
                let size = (
                    u32::from_be_bytes([w0, w1, w2, w3]),
                    u32::from_be_bytes([h0, h1, h2, h3]),
                );
                declared.size = Some(size);
                header = Some(of_components(
                    size,
                    u16::from_be_bytes([c0, c1]),
                    // Signedness is in the highest bit; 255 stands for depths that differ.
                    (depth != 255).then_some((depth & 0x7F) + 1),
                ));
            }
            (b"colr", &[1, _, _, e0, e1, e2, e3, ..]) => {
                let is_cmyk = u32::from_be_bytes([e0, e1, e2, e3]) == ENUMERATED_CMYK;
                if let Some(header) = header.as_mut().filter(|header| header.mode == Some("RGBA"))
                    && is_cmyk
                {
                    header.mode = Some("CMYK");
                    header.has_alpha = Some(false);
                }
            }
            // A palette: what the mode becomes depends on its depths.
            (b"pclr", _) => {
                if let Some(header) = header.as_mut() {
                    header.mode = None;
                    header.has_alpha = None;
                }
            }
            _ => {}
        }
    }
    Ok(header.ok_or_else(|| Error::malformed("JPEG 2000 has no image header"))?)
}

fn codestream(payload: Payload<'_>) -> Parsed<ImageHeader> {
    let fields = payload.array::<43>(0)?;
    let number =
        |at: usize| Endian::Big.u32([fields[at], fields[at + 1], fields[at + 2], fields[at + 3]]);
    let size = number(8)
        .checked_sub(number(16))
        .zip(number(12).checked_sub(number(20)))
        .ok_or_else(|| Error::malformed("JPEG 2000 image lies outside its grid"))?;
    let components = Endian::Big.u16([fields[40], fields[41]]);
    Ok(of_components(
        size,
        components,
        Some((fields[42] & 0x7F) + 1),
    ))
}

fn of_components(size: (u32, u32), components: u16, bits: Option<u8>) -> ImageHeader {
    let mut header = ImageHeader::new(Format::Jpeg2000, size);
    header.mode = match (components, bits) {
        (1, Some(9..)) => Some("I;16"),
        (1, _) => Some("L"),
        (2, _) => Some("LA"),
        (3, _) => Some("RGB"),
        (4, _) => Some("RGBA"),
        _ => None,
    };
    header.bits = bits;
    header.has_alpha = header.mode.map(|mode| matches!(mode, "LA" | "RGBA"));
    header.set_frames(1);
    header
}
