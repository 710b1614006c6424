//! A Huffman table by which one look at the next bits gives a whole coefficient.

/// Zeros of the code that ends a block, and of one that no sound block has. Progressive codes that
/// end 2^n blocks and more have n more.
pub(super) const END: u8 = 128;
const BROKEN: u8 = 64;

/// Bits that one look-up decides on.
pub(super) const LOOK: u8 = 10;

/// What the symbols of a table are for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first coefficient of a block.
    Dc,
    /// All others.
    Ac,
    /// A band of the others, in a progressive file.
    Band,
    /// Coefficients that a band is refined by: one of one bit, or none.
    Refined,
}

pub(super) struct Table {
    /// By the next bits: how many of them are code and value (0: too many for one look), how
    /// many zeros come first, and the value.
    steps: [Step; 1 << LOOK],
    /// By the next bits: the symbol, and the length of its code; 0 is a longer one.
    symbols: [(u8, u8); 1 << LOOK],
    /// By length: one more than the last code, filled up to 16 bits; and what makes an index of
    /// a code.
    ends: [usize; 17],
    offsets: [usize; 17],
    by_code: [u8; 256],
    kind: Kind,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Step {
    pub(super) value: i16,
    /// Zeros before the value.
    pub(super) zeros: u8,
    /// Bits of code and value.
    pub(super) bits: u8,
}

impl Table {
    /// `None` for codes that do not fit their lengths.
    pub(super) fn new(counts: &[u8], symbols: &[u8], kind: Kind) -> Option<Self> {
        let mut table = Self {
            steps: [Step::default(); 1 << LOOK],
            symbols: [(0, 0); 1 << LOOK],
            ends: [0; 17],
            offsets: [0; 17],
            by_code: [0; 256],
            kind,
        };
        table.by_code.copy_from_slice(symbols.get(..256)?);
        let (mut code, mut index) = (0usize, 0usize);
        for length in 1..=16u8 {
            let count = usize::from(*counts.get(usize::from(length))?);
            let last = code.checked_add(count)?;
            // No code may be all ones.
            if count > 0 && last >= 1 << length {
                return None;
            }
            table.offsets[usize::from(length)] = index.wrapping_sub(code);
            if length <= LOOK {
                for step in 0..count {
                    let symbol = *symbols.get(index + step)?;
                    table.enter(code + step, length, symbol)?;
                }
            }
            index += count;
            table.ends[usize::from(length)] = if count > 0 { last << (16 - length) } else { 0 };
            code = last << 1;
        }
        (index <= 256).then_some(table)
    }

    /// Enter a code at every value of the bits behind it.
    fn enter(&mut self, code: usize, length: u8, symbol: u8) -> Option<()> {
        let spare = LOOK.checked_sub(length)?;
        let first = code << spare;
        let (zeros, size) = self.meaning(symbol);
        let symbols = self.symbols.get_mut(first..first + (1 << spare))?;
        symbols.fill((symbol, length));
        if let Some(behind) = spare.checked_sub(size) {
            let steps = self.steps.get_mut(first..first + (1 << spare))?;
            // Each value stands for all that may follow it.
            for (value, steps) in (0..).zip(steps.chunks_mut(1 << behind)) {
                steps.fill(Step {
                    value: extend(value, size.into()),
                    zeros,
                    bits: length + size,
                });
            }
        }
        Some(())
    }

    /// Zeros before the coefficient, and the bits of its value.
    fn meaning(&self, symbol: u8) -> (u8, u8) {
        let (zeros, size) = (symbol >> 4, symbol & 15);
        match (self.kind, zeros, size) {
            (Kind::Dc, ..) => (0, size),
            // Sixteen zeros: fifteen before one that is as good as any coefficient.
            (_, 15, 0) => (15, 0),
            (Kind::Band | Kind::Refined, _, 0) | (Kind::Ac, 0, 0) => (END + zeros, 0),
            (Kind::Ac, _, 0) | (Kind::Refined, _, 2..) => (BROKEN, 0),
            _ => (zeros, size),
        }
    }

    /// The next coefficient, by the bits held: up to 31 of them.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "compiled once more for BMI2")]
    pub(super) fn step(&self, held: u64) -> Step {
        let step = self.steps[top(held, LOOK.into())];
        if step.bits == 0 {
            self.long(held)
        } else {
            step
        }
    }

    /// A code and a value that do not fit one look.
    #[inline(never)]
    fn long(&self, held: u64) -> Step {
        let (mut symbol, mut length) = self.symbols[top(held, LOOK.into())];
        if length == 0 {
            let next = top(held, 16);
            let found = (LOOK + 1..=16).find(|&length| next < self.ends[usize::from(length)]);
            let Some(found) = found else {
                return Step {
                    value: 0,
                    zeros: BROKEN,
                    bits: 16,
                };
            };
            let code = next >> (16 - found);
            let index = code.wrapping_add(self.offsets[usize::from(found)]);
            symbol = self.by_code[index & 255];
            length = found;
        }
        let (zeros, size) = self.meaning(symbol);
        let value = match size {
            0 => 0,
            _ => top(held << length, size.into()),
        };
        Step {
            value: extend(value, size.into()),
            zeros,
            bits: length + size,
        }
    }
}

/// The first bits of those held: 1 to 16.
#[inline(always)]
#[expect(clippy::inline_always, reason = "compiled once more for BMI2")]
#[expect(clippy::cast_possible_truncation, reason = "at most 16 bits")]
fn top(held: u64, count: u32) -> usize {
    (held >> (64 - count)) as usize
}

/// What `size` bits mean: the lower half of the numbers is negative.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "at most 15 bits"
)]
fn extend(value: usize, size: u32) -> i16 {
    let value = value as i32;
    if size > 0 && value < 1 << (size - 1) {
        (value - (1 << size) + 1) as i16
    } else {
        value as i16
    }
}

#[cfg(test)]
mod tests {
    use super::{END, Kind, Table, extend};

    #[test]
    fn short_and_long_codes_give_the_same_coefficients() {
        // One code of each length from 1 to 16 bits: k - 1 ones and a zero.
        let mut counts = [1; 17];
        counts[0] = 0;
        let mut symbols = [0; 256];
        let meant = [
            0, 0xF0, 1, 0x21, 5, 0x3A, 15, 0x8F, 2, 0x11, 7, 0xE9, 10, 4, 0x76, 0x5F,
        ];
        symbols[..16].copy_from_slice(&meant);
        let table = Table::new(&counts, &symbols, Kind::Ac).expect("a code");
        for (ones, symbol) in (0u32..).zip(meant) {
            let code = !(u64::MAX >> ones);
            for value in [0usize, 1, 0x2AAA, 0x7FFF] {
                let size = u32::from(symbol & 15);
                let value = value & ((1 << size) - 1);
                let step = table.step(code | (value as u64) << (63 - ones - size));
                let zeros = if symbol == 0 { END } else { symbol >> 4 };
                assert_eq!((step.value, step.zeros), (extend(value, size), zeros));
                assert_eq!(u32::from(step.bits), ones + 1 + size);
            }
        }
        assert!(
            Table::new(
                &[0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                &symbols,
                Kind::Ac
            )
            .is_none()
        );
    }
}
