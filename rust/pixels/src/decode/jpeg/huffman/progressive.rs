//! The passes of a progressive file over the coefficients after the first.

use super::bits::Bits;
use super::table::{END, LOOK, Table};
use super::{MAX_COMPONENTS, ZIGZAG};

/// Some coefficients of each block of a component, and where their decode stands.
#[derive(Default)]
pub(super) struct Band {
    first: usize,
    last: usize,
    /// How far the coefficients of this pass are shifted.
    low: u8,
    /// Blocks to come in which nothing begins.
    pub(super) empty: u32,
    /// By component and block: which coefficients are not zero, a bit each in the order of the
    /// file. Where none is, a block need not be looked at.
    taken: [Vec<u64>; MAX_COMPONENTS],
    component: usize,
    block: usize,
}

impl Band {
    /// Go to the first of `blocks` blocks of a component.
    pub(super) fn start(
        &mut self,
        (first, last): (u8, u8),
        low: u8,
        component: usize,
        blocks: usize,
    ) -> Option<()> {
        (self.first, self.last) = (first.into(), last.into());
        self.low = low;
        self.component = component;
        self.block = 0;
        let taken = self.taken.get_mut(component)?;
        taken.try_reserve(blocks.saturating_sub(taken.len())).ok()?;
        taken.resize(blocks, 0);
        (1 <= first && first <= last && last < 64).then_some(())
    }

    /// Begin the coefficients of a block, with their upper bits; whether they are sound.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "compiled once more for BMI2")]
    #[expect(clippy::cast_possible_truncation, reason = "as libjpeg does")]
    pub(super) fn begin(
        &mut self,
        table: &Table,
        window: &[u8],
        bits: &mut Bits,
        block: &mut [i16; 64],
    ) -> bool {
        self.block += 1;
        if self.empty > 0 {
            self.empty -= 1;
            return true;
        }
        let mut taken = 0u64;
        let mut index = self.first;
        let mut is_sound = true;
        'block: while index <= self.last {
            bits.refill(window);
            // As in a sequential file: three of those that one look decides on.
            for _ in 0..3 {
                let step = table.step(bits.held);
                bits.skip(step.bits.into());
                if step.zeros >= END {
                    self.empty = ended_blocks(step.zeros, window, bits) - 1;
                    break 'block;
                }
                index += usize::from(step.zeros);
                if index > self.last {
                    is_sound = false;
                    break 'block;
                }
                let level = (i32::from(step.value) << self.low) as i16;
                block[usize::from(ZIGZAG[index & 63])] = level;
                taken |= u64::from(level != 0) << (index & 63);
                index += 1;
                if index > self.last || step.bits > LOOK {
                    break;
                }
            }
        }
        self.taken[self.component][self.block - 1] |= taken;
        is_sound
    }

    /// Refine the coefficients of a block by one bit; whether they are sound.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "compiled once more for BMI2")]
    #[expect(clippy::cast_possible_truncation, reason = "as libjpeg does")]
    pub(super) fn refine(
        &mut self,
        table: &Table,
        window: &[u8],
        bits: &mut Bits,
        block: &mut [i16; 64],
    ) -> bool {
        let before = self.taken[self.component][self.block];
        self.block += 1;
        // The coefficients that are left of the band.
        let mut left = (u64::MAX << self.first) & (u64::MAX >> (63 - self.last));
        let one = 1i16 << self.low;
        let mut taken = 0;
        while self.empty == 0 && left != 0 {
            bits.refill(window);
            let step = table.step(bits.held);
            bits.skip(step.bits.into());
            if step.zeros >= END {
                self.empty = ended_blocks(step.zeros, window, bits);
                break;
            }
            if step.zeros > 15 {
                return false;
            }
            let mut zeros = left & !before;
            for _ in 0..step.zeros {
                zeros &= zeros.wrapping_sub(1);
            }
            // Up to the zero that the code is for, all others are refined.
            let target = zeros & zeros.wrapping_neg();
            refine(
                left & before & target.wrapping_sub(1),
                one,
                window,
                bits,
                block,
            );
            if step.value != 0 {
                if target == 0 {
                    return false;
                }
                let level = (i32::from(step.value) << self.low) as i16;
                block[usize::from(ZIGZAG[(target.trailing_zeros() & 63) as usize])] = level;
                taken |= target;
            }
            left &= !(target | target.wrapping_sub(1));
        }
        if self.empty > 0 {
            self.empty -= 1;
            refine(left & before, one, window, bits, block);
        }
        self.taken[self.component][self.block - 1] = before | taken;
        true
    }
}

/// Move the `places` of `block` away from zero by `one`, each if the next bit says so.
#[inline(always)]
#[expect(clippy::inline_always, reason = "compiled once more for BMI2")]
fn refine(mut places: u64, one: i16, window: &[u8], bits: &mut Bits, block: &mut [i16; 64]) {
    while places != 0 {
        let level = &mut block[usize::from(ZIGZAG[(places.trailing_zeros() & 63) as usize])];
        places &= places - 1;
        if bits.count == 0 {
            bits.refill(window);
        }
        let is_refined = i16::from(bits.take() != 0);
        let is_farther = is_refined * i16::from(*level & one == 0);
        let sign = *level >> 15;
        let step = (one ^ sign).wrapping_sub(sign);
        *level = level.wrapping_add(step * is_farther);
    }
}

/// Blocks that a code ends, the present one among them: 2^n and the number of n bits behind it.
#[inline(always)]
#[expect(clippy::inline_always, reason = "compiled once more for BMI2")]
#[expect(clippy::cast_possible_truncation, reason = "at most 14 bits")]
fn ended_blocks(zeros: u8, window: &[u8], bits: &mut Bits) -> u32 {
    let size = u32::from(zeros & 15);
    bits.refill(window);
    // In two steps: a shift by all 64 bits is none.
    let more = (bits.held >> 1 >> (63 - size)) as u32;
    bits.skip(size);
    (1 << size) + more
}
