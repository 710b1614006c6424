//! Strips of a TIFF expanded, to exactly the bytes that their rows have.

use crate::decode::inflate;
use crate::refusal::Declined;

/// How strips are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    PackBits,
    Lzw,
    Deflate,
}

impl Compression {
    pub(super) fn new(number: u32) -> Result<Self, Declined> {
        match number {
            1 => Ok(Self::None),
            5 => Ok(Self::Lzw),
            8 | 32_946 => Ok(Self::Deflate),
            32_773 => Ok(Self::PackBits),
            _ => Err(Declined("compression")),
        }
    }

    /// Whether rows may be stored as differences.
    pub(super) fn has_predictor(self) -> bool {
        matches!(self, Self::Lzw | Self::Deflate)
    }

    /// Expand `stored` to exactly `length` bytes, which replace those of `out`.
    pub(super) fn expand(
        self,
        stored: &[u8],
        out: &mut Vec<u8>,
        length: usize,
    ) -> Result<(), Declined> {
        out.clear();
        out.try_reserve_exact(length)
            .map_err(|_| Declined("out of memory"))?;
        match self {
            Self::None => return Err(Declined("not compressed")),
            Self::Deflate => return inflate::zlib(stored, out, length),
            Self::PackBits => unpack_bits(stored, out, length)?,
            Self::Lzw => unpack_lzw(stored, out, length)?,
        }
        if out.len() != length {
            return Err(Declined("strip is short or long"));
        }
        Ok(())
    }
}

fn unpack_bits(stored: &[u8], out: &mut Vec<u8>, length: usize) -> Result<(), Declined> {
    let mut rest = stored;
    while out.len() < length {
        let (&head, tail) = rest.split_first().ok_or(Declined("strip is short"))?;
        let head = head.cast_signed();
        rest = match head {
            0.. => {
                let (bytes, tail) = tail
                    .split_at_checked(usize::from(head.unsigned_abs()) + 1)
                    .ok_or(Declined("strip is short"))?;
                out.extend_from_slice(bytes);
                tail
            }
            -128 => tail,
            _ => {
                let (&byte, tail) = tail.split_first().ok_or(Declined("strip is short"))?;
                let count = usize::from(head.unsigned_abs()) + 1;
                out.resize(out.len() + count, byte);
                tail
            }
        };
    }
    Ok(())
}

const CLEAR: usize = 256;
const END: usize = 257;

/// Codes with the high bit first, nine to twelve bits long, one longer a code early; each string
/// is a part of the output that went before, as in GIF.
fn unpack_lzw(stored: &[u8], out: &mut Vec<u8>, length: usize) -> Result<(), Declined> {
    // Before TIFF 6 the low bit came first.
    if let [0, second, ..] = stored
        && second & 1 == 1
    {
        return Err(Declined("old order of bits"));
    }
    let mut table = vec![(0usize, 0usize); 4096];
    let mut bytes = stored.iter();
    let (mut bits, mut held, mut size) = (0u32, 0u32, 9u32);
    let mut next = 258;
    let mut last: Option<(usize, usize)> = None;
    let mut is_cleared = false;
    while out.len() < length {
        while held < size {
            let byte = *bytes.next().ok_or(Declined("strip is short"))?;
            bits = bits << 8 | u32::from(byte);
            held += 8;
        }
        held -= size;
        let code = (bits >> held) as usize & ((1 << size) - 1);
        bits &= (1 << held) - 1;
        if code == CLEAR {
            (next, size, last, is_cleared) = (258, 9, None, true);
            continue;
        }
        if code == END || !is_cleared {
            return Err(Declined("order of codes"));
        }
        let place = out.len();
        let string = match last {
            _ if code < CLEAR => {
                out.push(u8::try_from(code).unwrap_or_default());
                (place, 1)
            }
            None => return Err(Declined("first code")),
            Some((start, count)) => {
                let (start, count) = match code.cmp(&next) {
                    std::cmp::Ordering::Less => table[code],
                    std::cmp::Ordering::Equal => (start, count + 1),
                    std::cmp::Ordering::Greater => return Err(Declined("code")),
                };
                for index in start..start + count {
                    let byte = out[index];
                    out.push(byte);
                }
                (place, count)
            }
        };
        if let Some((start, count)) = last {
            if next >= 4095 {
                return Err(Declined("table is full"));
            }
            table[next] = (start, count + 1);
            next += 1;
            if next == (1 << size) - 1 && size < 12 {
                size += 1;
            }
        }
        last = Some(string);
    }
    Ok(())
}

/// Sum the differences of a row, for samples of `unit.0` bytes and pixels of `unit.1` samples.
/// Samples of two bytes are little-endian.
pub(super) fn sum(row: &mut [u8], (bytes, samples): (usize, usize)) {
    let step = bytes * samples;
    if bytes == 1 {
        for index in step..row.len() {
            row[index] = row[index].wrapping_add(row[index - step]);
        }
        return;
    }
    let (values, _) = row.as_chunks_mut::<2>();
    for index in samples..values.len() {
        let left = u16::from_le_bytes(values[index - samples]);
        let difference = u16::from_le_bytes(values[index]);
        values[index] = difference.wrapping_add(left).to_le_bytes();
    }
}
