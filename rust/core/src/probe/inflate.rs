//! The beginning of a zlib stream, inflated within a bound.
//!
//! PNG may hide EXIF and XMP in compressed text; this reads just enough of it. It is no general
//! decompressor: output, blocks and tables are bounded by constants, never by the stream.

/// Blocks of one stream; deflaters start one every ten thousand bytes or so.
const MAX_BLOCKS: usize = 128;

const MAX_CODE_BITS: usize = 15;
const FAST_BITS: u32 = 9;
const LITERAL_CODES: usize = 288;
const DISTANCE_CODES: usize = 30;
const END_OF_BLOCK: u16 = 256;

/// Base and extra bits of the length codes from 257.
#[rustfmt::skip]
const LENGTHS: [(u16, u8); 29] = [
    (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0), (9, 0), (10, 0), (11, 1), (13, 1),
    (15, 1), (17, 1), (19, 2), (23, 2), (27, 2), (31, 2), (35, 3), (43, 3), (51, 3), (59, 3),
    (67, 4), (83, 4), (99, 4), (115, 4), (131, 5), (163, 5), (195, 5), (227, 5), (258, 0),
];

/// Base and extra bits of the distance codes.
#[rustfmt::skip]
const DISTANCES: [(u16, u8); DISTANCE_CODES] = [
    (1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (7, 1), (9, 2), (13, 2), (17, 3), (25, 3),
    (33, 4), (49, 4), (65, 5), (97, 5), (129, 6), (193, 6), (257, 7), (385, 7), (513, 8),
    (769, 8), (1025, 9), (1537, 9), (2049, 10), (3073, 10), (4097, 11), (6145, 11),
    (8193, 12), (12289, 12), (16385, 13), (24577, 13),
];

/// The order in which a block states the lengths of its length codes.
const CODE_ORDER: [usize; 19] = [
    16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
];

/// Why inflating stopped.
enum Stop {
    /// The stream ends here, or the output is full: what there is counts.
    Enough,
    /// The stream is damaged: nothing of it counts, as in Pillow.
    Damaged,
}

/// Inflate a zlib stream to at most `limit` bytes; `None` where it is damaged. A stream that is
/// cut short gives what it has.
pub(super) fn inflate(stream: &[u8], limit: usize) -> Option<Vec<u8>> {
    let (&[method, flags], body) = stream.split_first_chunk::<2>()?;
    let check = u16::from_be_bytes([method, flags]);
    let has_dictionary = flags & 0x20 != 0;
    if method & 0x0F != 8 || method >> 4 > 7 || check % 31 != 0 || has_dictionary {
        return None;
    }
    let mut inflater = Inflater {
        bits: Bits::new(body),
        output: Vec::new(),
        limit,
    };
    match inflater.run() {
        Ok(()) => match inflater.bits.checksum() {
            Some(sum) if sum != adler(&inflater.output) => None,
            _ => Some(inflater.output),
        },
        Err(Stop::Enough) => Some(inflater.output),
        Err(Stop::Damaged) => None,
    }
}

/// The checksum that ends a zlib stream.
fn adler(bytes: &[u8]) -> u32 {
    let (mut low, mut high) = (1_u32, 0_u32);
    // As many as can be added up before the sums overflow.
    for chunk in bytes.chunks(5552) {
        for &byte in chunk {
            low += u32::from(byte);
            high += low;
        }
        low %= 65_521;
        high %= 65_521;
    }
    high << 16 | low
}

struct Inflater<'a> {
    bits: Bits<'a>,
    output: Vec<u8>,
    limit: usize,
}

impl Inflater<'_> {
    fn run(&mut self) -> Result<(), Stop> {
        for _ in 0..MAX_BLOCKS {
            let is_last = self.bits.take(1)? == 1;
            match self.bits.take(2)? {
                0 => self.stored()?,
                1 => {
                    let mut lengths = [8; LITERAL_CODES];
                    lengths[144..256].fill(9);
                    lengths[256..280].fill(7);
                    self.block(&Codes::new(&lengths)?, &Codes::new(&[5; 32])?)?;
                }
                2 => {
                    let (literals, distances) = self.codes()?;
                    self.block(&literals, &distances)?;
                }
                _ => return Err(Stop::Damaged),
            }
            if is_last {
                return Ok(());
            }
        }
        Err(Stop::Enough)
    }

    /// Bytes that may still be written.
    fn room(&self) -> Result<usize, Stop> {
        match self.limit - self.output.len() {
            0 => Err(Stop::Enough),
            room => Ok(room),
        }
    }

    fn stored(&mut self) -> Result<(), Stop> {
        self.bits.align();
        let length = self.bits.take(16)?;
        if self.bits.take(16)? != !length & 0xFFFF {
            return Err(Stop::Damaged);
        }
        for _ in 0..length {
            self.room()?;
            let byte = self.bits.byte()?;
            self.output.push(byte);
        }
        Ok(())
    }

    fn block(&mut self, literals: &Codes, distances: &Codes) -> Result<(), Stop> {
        loop {
            // One fill holds the longest pair: 15 + 5 bits of length, 15 + 13 of distance.
            self.bits.fill();
            let symbol = literals.decode(&mut self.bits)?;
            if let Ok(literal) = u8::try_from(symbol) {
                self.bits.check()?;
                self.room()?;
                self.output.push(literal);
                continue;
            }
            if symbol == END_OF_BLOCK {
                return self.bits.check();
            }
            let index = usize::from(symbol - END_OF_BLOCK - 1);
            let &(base, extra) = LENGTHS.get(index).ok_or(Stop::Damaged)?;
            let length = usize::from(base) + self.bits.held(extra);
            let index = usize::from(distances.decode(&mut self.bits)?);
            let &(base, extra) = DISTANCES.get(index).ok_or(Stop::Damaged)?;
            let distance = usize::from(base) + self.bits.held(extra);
            self.bits.check()?;
            self.copy(distance, length)?;
        }
    }

    /// Repeat `length` bytes from `distance` back; they may overlap what is written.
    fn copy(&mut self, distance: usize, length: usize) -> Result<(), Stop> {
        let mut length = length.min(self.room()?);
        let written = self.output.len();
        let start = written.checked_sub(distance).ok_or(Stop::Damaged)?;
        while length > 0 {
            let known = length.min(self.output.len() - start);
            self.output.extend_from_within(start..start + known);
            length -= known;
        }
        Ok(())
    }

    /// The codes that a block states for itself.
    fn codes(&mut self) -> Result<(Codes, Codes), Stop> {
        let literals = self.bits.take(5)? + 257;
        let distances = self.bits.take(5)? + 1;
        let stated = self.bits.take(4)? + 4;
        if literals > 286 || distances > DISTANCE_CODES {
            return Err(Stop::Damaged);
        }
        let mut lengths = [0; 19];
        for &code in &CODE_ORDER[..stated] {
            lengths[code] = u8::try_from(self.bits.take(3)?).map_err(|_| Stop::Damaged)?;
        }
        let codes = Codes::new(&lengths)?;
        if codes.is_incomplete {
            return Err(Stop::Damaged);
        }
        let mut lengths = [0; 286 + DISTANCE_CODES];
        let lengths = &mut lengths[..literals + distances];
        let mut at = 0;
        while at < lengths.len() {
            self.bits.fill();
            let (length, times) = match codes.decode(&mut self.bits)? {
                16 => {
                    let last = at.checked_sub(1).ok_or(Stop::Damaged)?;
                    (lengths[last], 3 + self.bits.take(2)?)
                }
                17 => (0, 3 + self.bits.take(3)?),
                18 => (0, 11 + self.bits.take(7)?),
                length => (u8::try_from(length).map_err(|_| Stop::Damaged)?, 1),
            };
            self.bits.check()?;
            let end = at + times;
            lengths.get_mut(at..end).ok_or(Stop::Damaged)?.fill(length);
            at = end;
        }
        let (literals, distances) = lengths.split_at(literals);
        if literals[usize::from(END_OF_BLOCK)] == 0 {
            return Err(Stop::Damaged);
        }
        Ok((Codes::new(literals)?, Codes::new(distances)?))
    }
}

/// A canonical Huffman code.
struct Codes {
    /// Symbol, and below it in four bits its length, by the next bits of the stream; 0 for what
    /// takes more bits.
    fast: [u16; 1 << FAST_BITS],
    counts: [u16; MAX_CODE_BITS + 1],
    symbols: [u16; LITERAL_CODES],
    is_incomplete: bool,
}

impl Codes {
    fn new(lengths: &[u8]) -> Result<Self, Stop> {
        let mut counts = [0; MAX_CODE_BITS + 1];
        for &length in lengths {
            counts[usize::from(length)] += 1;
        }
        counts[0] = 0;
        let mut left = 1_i32;
        let mut starts = [0; MAX_CODE_BITS + 2];
        let mut codes = [0_u32; MAX_CODE_BITS + 2];
        for length in 1..=MAX_CODE_BITS {
            left = 2 * left - i32::from(counts[length]);
            if left < 0 {
                return Err(Stop::Damaged);
            }
            starts[length + 1] = starts[length] + counts[length];
            codes[length + 1] = (codes[length] + u32::from(counts[length])) << 1;
        }
        // Only a code of at most one symbol may leave bit patterns unused.
        let is_incomplete = left > 0;
        if is_incomplete && counts[2..].iter().any(|&count| count > 0) {
            return Err(Stop::Damaged);
        }
        let mut this = Self {
            fast: [0; 1 << FAST_BITS],
            counts,
            symbols: [0; LITERAL_CODES],
            is_incomplete,
        };
        for (symbol, &length) in (0..).zip(lengths) {
            let slot = usize::from(length);
            if slot == 0 {
                continue;
            }
            this.symbols[usize::from(starts[slot])] = symbol;
            starts[slot] += 1;
            let code = codes[slot];
            codes[slot] += 1;
            if u32::from(length) <= FAST_BITS {
                // Codes come from the stream with their highest bit first.
                let first = (code.reverse_bits() >> (32 - u32::from(length))) as usize;
                for entry in this.fast[first..].iter_mut().step_by(1 << length) {
                    *entry = symbol << 4 | u16::from(length);
                }
            }
        }
        Ok(this)
    }

    /// The next symbol, of the bits that are held.
    #[inline]
    fn decode(&self, bits: &mut Bits<'_>) -> Result<u16, Stop> {
        let entry = self.fast[bits.held_without(FAST_BITS)];
        if entry == 0 {
            return self.decode_long(bits);
        }
        bits.drop(u32::from(entry & 15));
        Ok(entry >> 4)
    }

    #[cold]
    fn decode_long(&self, bits: &mut Bits<'_>) -> Result<u16, Stop> {
        let (mut code, mut first, mut index) = (0, 0, 0);
        for &count in &self.counts[1..] {
            code |= bits.held(1);
            let count = usize::from(count);
            if let Some(offset) = code.checked_sub(first).filter(|&offset| offset < count) {
                return Ok(self.symbols[index + offset]);
            }
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        Err(Stop::Damaged)
    }
}

/// Bits from the lowest of each byte upwards.
///
/// `fill` and then several of `held`, `drop` and one `check` is the quick way; `take` is all in
/// one.
struct Bits<'a> {
    bytes: &'a [u8],
    buffer: u64,
    /// Bits in the buffer; below zero once more were dropped than there were.
    filled: i32,
}

impl<'a> Bits<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            buffer: 0,
            filled: 0,
        }
    }

    /// Hold at least 56 bits, or all that are left; zeros follow the last.
    #[inline]
    fn fill(&mut self) {
        if self.filled > 55 {
            return;
        }
        match self.bytes.first_chunk::<8>() {
            Some(word) if self.filled >= 0 => {
                // Bits above `filled` may be set already: to the very bits that are added here.
                self.buffer |= u64::from_le_bytes(*word) << self.filled;
                let added = (63 - self.filled) / 8;
                self.bytes = &self.bytes[added.unsigned_abs() as usize..];
                self.filled += 8 * added;
            }
            _ => self.fill_slowly(),
        }
    }

    #[cold]
    fn fill_slowly(&mut self) {
        while let Some((&byte, rest)) = self
            .bytes
            .split_first()
            .filter(|_| (0..=55).contains(&self.filled))
        {
            self.buffer |= u64::from(byte) << self.filled;
            self.filled += 8;
            self.bytes = rest;
        }
    }

    /// The next bits, which stay.
    #[inline]
    fn held_without(&self, count: u32) -> usize {
        let mask = (1 << count) - 1;
        usize::try_from(self.buffer & mask).unwrap_or(0)
    }

    #[inline]
    fn drop(&mut self, count: u32) {
        self.buffer >>= count;
        self.filled -= count.cast_signed();
    }

    /// The next bits, of those that are held.
    #[inline]
    fn held(&mut self, count: u8) -> usize {
        let value = self.held_without(u32::from(count));
        self.drop(u32::from(count));
        value
    }

    /// Whether all that was dropped was there.
    #[inline]
    fn check(&self) -> Result<(), Stop> {
        if self.filled < 0 {
            Err(Stop::Enough)
        } else {
            Ok(())
        }
    }

    fn take(&mut self, count: u8) -> Result<usize, Stop> {
        self.fill();
        let value = self.held(count);
        self.check()?;
        Ok(value)
    }

    fn byte(&mut self) -> Result<u8, Stop> {
        let value = self.take(8)?;
        u8::try_from(value).map_err(|_| Stop::Damaged)
    }

    /// Pass over the rest of a byte.
    fn align(&mut self) {
        self.drop(self.filled.unsigned_abs() % 8);
    }

    /// The checksum behind the stream, if it is there.
    fn checksum(&mut self) -> Option<u32> {
        self.align();
        let mut sum = 0;
        for _ in 0..4 {
            sum = sum << 8 | u32::from(self.byte().ok()?);
        }
        Some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::inflate;

    /// `zlib.compress(b"a" * 300)`: one fixed block with an overlapping copy.
    const RUN: &[u8] = &[
        0x78, 0x9C, 0x4B, 0x4C, 0x1C, 0x05, 0xC4, 0x02, 0x00, 0xD8, 0xA8, 0x71, 0xAD,
    ];

    #[test]
    fn a_run_is_inflated_and_checked() {
        assert_eq!(inflate(RUN, 1000), Some(vec![b'a'; 300]));
    }

    #[test]
    fn output_stops_at_the_limit() {
        assert_eq!(inflate(RUN, 7), Some(vec![b'a'; 7]));
    }

    #[test]
    fn a_cut_stream_gives_what_it_has() {
        assert!(inflate(&RUN[..5], 1000).is_some_and(|output| !output.is_empty()));
    }

    #[test]
    fn a_wrong_checksum_or_header_gives_nothing() {
        let mut damaged = RUN.to_vec();
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(inflate(&damaged, 1000), None);
        damaged = RUN.to_vec();
        damaged[1] ^= 1;
        assert_eq!(inflate(&damaged, 1000), None);
        assert_eq!(inflate(&[], 1000), None);
    }
}
