//! JPEG XL: the size and the orientation in front of the codestream.

use crate::budget::Budget;
use crate::error::Error;
use crate::probe::format::Format;
use crate::probe::header::ImageHeader;
use crate::probe::isobmff;
use crate::reader::{Parsed, Payload, Stop};

const SIGNATURE_BOX_BYTES: usize = 12;
/// The codestream signature, and the bits that size and orientation take at most.
const SIGNATURE_BYTES: usize = 2;
const HEADER_BYTES: usize = 12;

pub(super) fn parse(payload: Payload<'_>) -> Parsed<ImageHeader> {
    let at = if payload.u8(0)? == 0xFF {
        0
    } else {
        codestream(payload)?
    };
    if payload.array::<SIGNATURE_BYTES>(at)? != [0xFF, 0x0A] {
        return Err(Error::malformed("JPEG XL codestream has no signature").into());
    }
    let start = at.saturating_add(SIGNATURE_BYTES);
    // The shortest codestreams are shorter than the longest header.
    let header = match payload.get(start, HEADER_BYTES) {
        Ok(header) => header,
        Err(Stop::More(_)) if payload.is_whole => payload.bytes.get(start..).unwrap_or_default(),
        Err(stop) => return Err(stop),
    };
    let mut bits = Bits::new(header);
    let size = bits.size();
    let orientation = bits.orientation();
    if bits.taken > 8 * u32::try_from(header.len()).unwrap_or(0) {
        return Err(Stop::More(None));
    }
    let mut header = ImageHeader::new(Format::JpegXl, size);
    header.set_orientation(orientation);
    Ok(header)
}

/// Where the codestream begins in its box.
fn codestream(payload: Payload<'_>) -> Parsed<usize> {
    let mut budget = Budget::default();
    let mut at = SIGNATURE_BOX_BYTES;
    loop {
        budget.spend()?;
        let place = isobmff::place(payload, at)?;
        match (&place.kind, place.end) {
            (b"jxlc", _) => return Ok(place.body),
            // A part begins with its number.
            (b"jxlp", _) => return Ok(place.body.saturating_add(4)),
            (_, Some(end)) => at = end,
            (_, None) => return Err(Error::malformed("JPEG XL holds no codestream").into()),
        }
    }
}

/// Bits from the lowest of the first byte upwards; zeros beyond the end.
struct Bits {
    bits: u128,
    taken: u32,
}

impl Bits {
    fn new(bytes: &[u8]) -> Self {
        let mut wide = [0; 16];
        for (wide, byte) in wide.iter_mut().zip(bytes) {
            *wide = *byte;
        }
        Self {
            bits: u128::from_le_bytes(wide),
            taken: 0,
        }
    }

    fn take(&mut self, count: u32) -> u32 {
        let mask = (1_u128 << count) - 1;
        let value = u32::try_from(self.bits & mask).unwrap_or(0);
        self.bits >>= count;
        self.taken += count;
        value
    }

    fn size(&mut self) -> (u32, u32) {
        let is_small = self.take(1) == 1;
        let height = self.side(is_small);
        let width = match self.take(3) {
            0 => self.side(is_small),
            1 => height,
            2 => ratio(height, 12, 10),
            3 => ratio(height, 4, 3),
            4 => ratio(height, 3, 2),
            5 => ratio(height, 16, 9),
            6 => ratio(height, 5, 4),
            _ => ratio(height, 2, 1),
        };
        (width, height)
    }

    /// A side: eighths in five bits, or a number of one of four widths.
    fn side(&mut self, is_small: bool) -> u32 {
        if is_small {
            return 8 * (self.take(5) + 1);
        }
        let width = [9, 13, 18, 30][self.take(2) as usize];
        self.take(width) + 1
    }

    fn orientation(&mut self) -> u8 {
        let is_default = self.take(1) == 1;
        if is_default || self.take(1) == 0 {
            return 1;
        }
        u8::try_from(self.take(3) + 1).unwrap_or(1)
    }
}

fn ratio(height: u32, over: u64, under: u64) -> u32 {
    u32::try_from(u64::from(height) * over / under).unwrap_or(u32::MAX)
}
