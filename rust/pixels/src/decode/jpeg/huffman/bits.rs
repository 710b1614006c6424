//! Bits of coded data, stuffing already taken out.

/// The first 0xFF in `bytes`, or their end.
pub(super) fn find_ff(bytes: &[u8]) -> usize {
    let (words, _) = bytes.as_chunks::<16>();
    let skipped = words
        .iter()
        .take_while(|word| {
            word.iter()
                .fold(0, |count, &byte| count + u8::from(byte == 0xFF))
                == 0
        })
        .count()
        * 16;
    let rest = &bytes[skipped..];
    let found = rest.iter().position(|&byte| byte == 0xFF);
    skipped + found.unwrap_or(rest.len())
}

/// The next bits, at the top of `held`.
#[derive(Clone, Copy, Default)]
pub(super) struct Bits {
    pub(super) held: u64,
    /// How many of them count; those below are the ones that follow, or zeros.
    pub(super) count: u32,
    /// The next byte of the window to be held.
    pub(super) position: usize,
}

impl Bits {
    /// Hold at least 56 bits.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "compiled once more for BMI2")]
    pub(super) fn refill(&mut self, window: &[u8]) {
        let next = window.get(self.position..).unwrap_or_default();
        let next = next
            .first_chunk()
            .map_or(0, |bytes| u64::from_be_bytes(*bytes));
        self.held |= next >> (self.count & 63);
        self.position = self
            .position
            .wrapping_add(((63 - (self.count & 63)) / 8) as usize);
        self.count |= 0x38;
    }

    /// The next bit.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "compiled once more for BMI2")]
    pub(super) fn take(&mut self) -> u32 {
        let bit = (self.held >> 63) as u32;
        self.skip(1);
        bit
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "compiled once more for BMI2")]
    pub(super) fn skip(&mut self, count: u32) {
        self.held <<= count & 63;
        self.count = self.count.wrapping_sub(count);
    }
}

#[cfg(test)]
mod tests {
    use super::find_ff;

    #[test]
    fn markers_are_found_wherever_they_lie() {
        for length in 0..70 {
            let mut bytes = vec![0xFE; length];
            assert_eq!(find_ff(&bytes), length);
            for place in (0..length).rev() {
                bytes[place] = 0xFF;
                assert_eq!(find_ff(&bytes), place);
            }
        }
    }
}
