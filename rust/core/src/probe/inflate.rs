//! The beginning of a zlib stream, inflated within a bound.
//!
//! PNG may hide EXIF and XMP in compressed text; this reads just enough of it. It is no general
//! decompressor: output, blocks and tables are bounded by constants, never by the stream.

/// Blocks of one stream; deflaters start one every ten thousand bytes or so.
const MAX_BLOCKS: usize = 64;

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
            let byte = self.bits.small(8)?;
            self.output.push(byte);
        }
        Ok(())
    }

    fn block(&mut self, literals: &Codes, distances: &Codes) -> Result<(), Stop> {
        loop {
            let symbol = literals.decode(&mut self.bits)?;
            if let Ok(literal) = u8::try_from(symbol) {
                self.room()?;
                self.output.push(literal);
                continue;
            }
            if symbol == END_OF_BLOCK {
                return Ok(());
            }
            let index = usize::from(symbol - END_OF_BLOCK - 1);
            let &(base, extra) = LENGTHS.get(index).ok_or(Stop::Damaged)?;
            let length = usize::from(base) + self.bits.take(u32::from(extra))? as usize;
            let index = usize::from(distances.decode(&mut self.bits)?);
            let &(base, extra) = DISTANCES.get(index).ok_or(Stop::Damaged)?;
            let distance = usize::from(base) + self.bits.take(u32::from(extra))? as usize;
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
        let literals = self.bits.take(5)? as usize + 257;
        let distances = self.bits.take(5)? as usize + 1;
        let stated = self.bits.take(4)? as usize + 4;
        if literals > 286 || distances > DISTANCE_CODES {
            return Err(Stop::Damaged);
        }
        let mut lengths = [0; 19];
        for &code in &CODE_ORDER[..stated] {
            lengths[code] = self.bits.small(3)?;
        }
        let codes = Codes::new(&lengths)?;
        if codes.is_incomplete {
            return Err(Stop::Damaged);
        }
        let mut lengths = [0; 286 + DISTANCE_CODES];
        let lengths = &mut lengths[..literals + distances];
        let mut at = 0;
        while at < lengths.len() {
            let (length, times) = match codes.decode(&mut self.bits)? {
                16 => {
                    let last = at.checked_sub(1).ok_or(Stop::Damaged)?;
                    (lengths[last], 3 + self.bits.take(2)?)
                }
                17 => (0, 3 + self.bits.take(3)?),
                18 => (0, 11 + self.bits.take(7)?),
                length => (u8::try_from(length).map_err(|_| Stop::Damaged)?, 1),
            };
            let end = at + times as usize;
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
    /// Symbol and length by the next bits of the stream; length 0 for what takes more bits.
    fast: [(u16, u8); 1 << FAST_BITS],
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
            fast: [(0, 0); 1 << FAST_BITS],
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
                    *entry = (symbol, length);
                }
            }
        }
        Ok(this)
    }

    fn decode(&self, bits: &mut Bits<'_>) -> Result<u16, Stop> {
        let (symbol, length) = self.fast[bits.peek(FAST_BITS) as usize];
        if length > 0 {
            bits.take(u32::from(length))?;
            return Ok(symbol);
        }
        let (mut code, mut first, mut index) = (0_u32, 0_u32, 0_u32);
        for &count in &self.counts[1..] {
            code |= bits.take(1)?;
            let count = u32::from(count);
            if let Some(offset) = code.checked_sub(first).filter(|&offset| offset < count) {
                return Ok(self.symbols[(index + offset) as usize]);
            }
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        Err(Stop::Damaged)
    }
}

/// Bits from the lowest of each byte upwards.
struct Bits<'a> {
    bytes: &'a [u8],
    buffer: u64,
    filled: u32,
}

impl<'a> Bits<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            buffer: 0,
            filled: 0,
        }
    }

    fn fill(&mut self) {
        if let Some(word) = self.bytes.first_chunk::<8>() {
            // Bits above `filled` may be set already: to the very bits that are added here.
            self.buffer |= u64::from_le_bytes(*word) << self.filled;
            let added = (63 - self.filled) / 8;
            self.bytes = &self.bytes[added as usize..];
            self.filled += 8 * added;
            return;
        }
        while let Some((&byte, rest)) = self.bytes.split_first().filter(|_| self.filled <= 56) {
            self.buffer |= u64::from(byte) << self.filled;
            self.filled += 8;
            self.bytes = rest;
        }
    }

    /// The next bits, zeros beyond the end.
    fn peek(&mut self, count: u32) -> u32 {
        if self.filled < count {
            self.fill();
        }
        u32::try_from(self.buffer & ((1 << count) - 1)).unwrap_or(0)
    }

    fn take(&mut self, count: u32) -> Result<u32, Stop> {
        let value = self.peek(count);
        self.filled = self.filled.checked_sub(count).ok_or(Stop::Enough)?;
        self.buffer >>= count;
        Ok(value)
    }

    fn small(&mut self, count: u32) -> Result<u8, Stop> {
        u8::try_from(self.take(count)?).map_err(|_| Stop::Damaged)
    }

    fn align(&mut self) {
        let odd = self.filled % 8;
        self.buffer >>= odd;
        self.filled -= odd;
    }

    /// The checksum behind the stream, if it is there.
    fn checksum(&mut self) -> Option<u32> {
        self.align();
        let mut sum = 0;
        for _ in 0..4 {
            sum = sum << 8 | self.take(8).ok()?;
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
