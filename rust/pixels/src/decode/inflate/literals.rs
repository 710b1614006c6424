//! How many symbols of a zlib stream are literals, as the codes of its first block have it.
//!
//! A code of n bits stands for a symbol that comes once in 2^n, or the encoder would have chosen
//! otherwise. An estimate only: it decides who inflates the stream, never what comes of it.

/// Bits of a stream, the low ones first.
struct Bits<'a> {
    stream: &'a [u8],
    /// Bits that were taken.
    at: usize,
}

impl Bits<'_> {
    /// The next `count` bits, eight at most.
    fn take(&mut self, count: usize) -> Option<usize> {
        let low = usize::from(*self.stream.get(self.at / 8)?);
        // The last bits may lie in the last byte.
        let high = self.stream.get(self.at / 8 + 1).copied().unwrap_or(0);
        let both = low | usize::from(high) << 8;
        let value = both >> (self.at % 8) & ((1 << count) - 1);
        self.at += count;
        Some(value)
    }
}

/// The order in which the lengths of the codes for lengths are stored.
const ORDER: [usize; 19] = [
    16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
];

/// Literals among 32,768 symbols of the first block, or `None` if it has no codes of its own.
pub(super) fn share(stream: &[u8]) -> Option<usize> {
    // Behind the header of two bytes: the last block or not, and its type.
    let mut bits = Bits { stream, at: 17 };
    if bits.take(2)? != 2 {
        return None;
    }
    bits.take(5)?;
    bits.take(5)?;
    let stored = bits.take(4)? + 4;
    let mut lengths = [0; 19];
    for &symbol in ORDER.iter().take(stored) {
        lengths[symbol] = bits.take(3)?;
    }
    let symbols = table(lengths)?;
    let (mut share, mut done, mut last) = (0, 0, 0);
    // Literals come first.
    while done < 256 {
        let mut ahead = Bits {
            at: bits.at,
            ..bits
        };
        let (symbol, length) = symbols[ahead.take(7)?]?;
        bits.at += length;
        let (length, times) = match symbol {
            16 => (last, 3 + bits.take(2)?),
            17 => (0, 3 + bits.take(3)?),
            18 => (0, 11 + bits.take(7)?),
            length => (length, 1),
        };
        if length > 0 {
            share += (1 << 15 >> length) * times.min(256 - done);
        }
        last = length;
        done += times;
    }
    Some(share)
}

/// Symbols and the lengths of their codes, by the next seven bits.
fn table(lengths: [usize; 19]) -> Option<[Option<(usize, usize)>; 128]> {
    let mut table = [None; 128];
    let mut code = 0usize;
    for length in 1..=7 {
        for (symbol, _) in lengths
            .iter()
            .enumerate()
            .filter(|entry| *entry.1 == length)
        {
            // Codes are stored with their highest bit first.
            let first = code.reverse_bits() >> (usize::BITS as usize - length);
            for index in (first..128).step_by(1 << length) {
                table[index] = Some((symbol, length));
            }
            code += 1;
        }
        if code > 1 << length {
            return None;
        }
        code <<= 1;
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::super::MOSTLY_LITERALS;
    use super::super::tests::{deflated, levels};
    use super::share;

    #[test]
    fn noise_is_literals_and_what_repeats_is_not() {
        let noise = deflated(&levels(true));
        assert!(share(&noise).is_some_and(|share| (MOSTLY_LITERALS..=1 << 15).contains(&share)));
        let repeated = deflated(&levels(false));
        assert!(share(&repeated).is_some_and(|share| share < MOSTLY_LITERALS));
        for end in 0..200 {
            // Cut anywhere there is no answer, or one.
            let _ = share(&noise[..end]);
        }
    }
}
