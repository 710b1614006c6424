//! Huffman decoding of the scans of a JPEG, in place of libjpeg's own.
//!
//! One look-up gives a coefficient whole: its zeros, its value and the bits of both. Anything that
//! a sound file does not have ends the decode, whether libjpeg would warn of it or not, so that
//! the file is declined. Must never read outside its window, nor write outside the blocks.

mod bits;
mod hooks;
mod progressive;
mod table;

pub(super) use hooks::Hooks;

use bits::{Bits, find_ff};
use hooks::{Codes, Layout, MAX_TABLES};
use progressive::Band;
use table::{END, Kind, LOOK, Table};

const MAX_COMPONENTS: usize = 4;

/// What a scan brings of each block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// All of it.
    Whole,
    /// The upper bits of the first coefficient, shifted by so much.
    DcFirst(u8),
    /// The bit of the first coefficient below those.
    DcRefine(u8),
    /// The upper bits of a band of the others.
    BandFirst,
    /// The bit below those.
    BandRefine,
}

/// The scan on its way.
pub(super) struct Scan<'a> {
    data: &'a [u8],
    /// The next byte of `data` that is not in the window.
    at: usize,
    window: Vec<u8>,
    /// Bytes of the window that are data; zeros follow.
    filled: usize,
    /// Whether the data ends there, at a marker or with the file.
    is_ended: bool,
    bits: Bits,
    /// Whether a scan was not taken on: what it left behind is not known, so none is any more.
    is_lost: bool,
    pass: Pass,
    band: Band,
    blocks: Vec<Block>,
    tables: Vec<Table>,
    /// DC of the block before, by component.
    dc: [i32; MAX_COMPONENTS],
    mcus_left: usize,
    restart_interval: u32,
    until_restart: u32,
    restarts: u8,
    #[cfg(target_arch = "x86_64")]
    is_bmi2: bool,
}

#[derive(Clone, Copy)]
struct Block {
    component: usize,
    dc: usize,
    ac: usize,
}

/// More than the longest MCU: ten blocks of 64 codes and values of 31 bits in all.
const RESERVE: usize = 2560;

/// Data in the window at most.
const WINDOW: usize = 16 << 10;

impl<'a> Scan<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self {
            data,
            at: 0,
            window: Vec::new(),
            filled: 0,
            is_ended: false,
            bits: Bits::default(),
            is_lost: false,
            pass: Pass::Whole,
            band: Band::default(),
            blocks: Vec::new(),
            tables: Vec::new(),
            dc: [0; MAX_COMPONENTS],
            mcus_left: 0,
            restart_interval: 0,
            until_restart: 0,
            restarts: 0,
            #[cfg(target_arch = "x86_64")]
            is_bmi2: std::arch::is_x86_feature_detected!("bmi2"),
        }
    }

    /// Take the scan on, unless it is none that can be decoded.
    fn start(&mut self, layout: &Layout) -> Option<()> {
        if layout.first > layout.last || layout.last > 63 || layout.low > 13 || layout.mcus == 0 {
            return None;
        }
        let low = layout.low;
        self.pass = match (layout.is_progressive != 0, layout.first, layout.high) {
            (false, ..) => Pass::Whole,
            (true, 0, _) if layout.last != 0 => return None,
            (true, 0, 0) => Pass::DcFirst(low),
            (true, 0, _) => Pass::DcRefine(low),
            (true, _, 0) => Pass::BandFirst,
            (true, _, _) => Pass::BandRefine,
        };
        if matches!(self.pass, Pass::BandFirst | Pass::BandRefine) {
            let span = (layout.first, layout.last);
            let number = usize::from(layout.number[0]);
            self.band.start(span, low, number, layout.mcus)?;
        }
        let (needs_dc, ac_kind) = match self.pass {
            Pass::Whole => (true, Some(Kind::Ac)),
            Pass::DcFirst(_) => (true, None),
            Pass::DcRefine(_) => (false, None),
            Pass::BandFirst => (false, Some(Kind::Band)),
            Pass::BandRefine => (false, Some(Kind::Refined)),
        };
        self.blocks.clear();
        self.tables.clear();
        let mut made = [[None; MAX_TABLES]; 2];
        for &component in layout.component.get(..layout.blocks as usize)? {
            let component = usize::from(component);
            let mut block = Block {
                component,
                dc: 0,
                ac: 0,
            };
            if needs_dc {
                let table = usize::from(*layout.dc_table.get(component)?);
                let codes = layout.dc_codes.get(table)?;
                block.dc = self.table(codes, Kind::Dc, made[0].get_mut(table)?)?;
            }
            if let Some(kind) = ac_kind {
                let table = usize::from(*layout.ac_table.get(component)?);
                let codes = layout.ac_codes.get(table)?;
                block.ac = self.table(codes, kind, made[1].get_mut(table)?)?;
            }
            self.blocks.push(block);
        }
        if self.blocks.is_empty() {
            return None;
        }
        self.at = layout.offset;
        self.window.resize(WINDOW + RESERVE + 8, 0);
        self.mcus_left = layout.mcus;
        self.restart_interval = layout.restart_interval;
        self.restarts = 0;
        self.begin();
        Some(())
    }

    /// The state at the beginning of a scan, and behind a restart marker.
    fn begin(&mut self) {
        self.until_restart = self.restart_interval;
        (self.filled, self.is_ended) = (0, false);
        self.bits = Bits::default();
        self.dc = [0; MAX_COMPONENTS];
        self.band.empty = 0;
    }

    /// The index of the table of `codes`, which `made` remembers.
    fn table(&mut self, codes: &Codes, kind: Kind, made: &mut Option<usize>) -> Option<usize> {
        if let Some(index) = *made {
            return Some(index);
        }
        let (counts, symbols) = codes.tables()?;
        self.tables.push(Table::new(counts, symbols, kind)?);
        *made = Some(self.tables.len() - 1);
        *made
    }

    /// Move what is left to the front of the window and fill it up, stuffed zeros taken out.
    fn fill(&mut self) {
        let (position, filled) = (self.bits.position.min(self.filled), self.filled);
        self.window.copy_within(position..filled, 0);
        self.filled -= position;
        self.bits.position -= position;
        while self.filled < WINDOW && !self.is_ended {
            let rest = self.data.get(self.at..).unwrap_or_default();
            let room = WINDOW - self.filled;
            let plain = &rest[..room.min(rest.len())];
            let length = find_ff(plain);
            self.window[self.filled..self.filled + length].copy_from_slice(&plain[..length]);
            self.filled += length;
            self.at += length;
            match rest.get(length..) {
                Some([0xFF, 0, ..]) if length < room => {
                    self.window[self.filled] = 0xFF;
                    self.filled += 1;
                    self.at += 2;
                }
                Some([0xFF, ..] | []) | None if length < room => self.is_ended = true,
                _ => {}
            }
        }
        let filled = self.filled;
        self.window[filled..filled + RESERVE + 8].fill(0);
    }

    /// Bits that are left of the data; below zero where zeros behind it were used.
    fn bits_left(&self) -> isize {
        let bytes = self.filled.cast_signed() - self.bits.position.cast_signed();
        bytes * 8 + (self.bits.count as usize).cast_signed()
    }

    fn fill_if_low(&mut self) {
        if !self.is_ended && self.filled < self.bits.position + RESERVE {
            self.fill();
        }
    }

    /// Whether the data ended at a marker, but for the bits that fill its last byte.
    fn is_spent(&mut self) -> bool {
        self.fill_if_low();
        self.is_ended && (0..8).contains(&self.bits_left())
    }

    fn restart(&mut self) -> Option<()> {
        if !self.is_spent() || self.data.get(self.at..)?.get(..2)? != [0xFF, 0xD0 + self.restarts] {
            return None;
        }
        self.at += 2;
        self.restarts = (self.restarts + 1) % 8;
        self.begin();
        Some(())
    }

    /// Decode the next MCU; whether it was the last one, or `None` for damage.
    fn next(&mut self, blocks: &mut [&mut [i16; 64]]) -> Option<bool> {
        if self.restart_interval != 0 {
            if self.until_restart == 0 {
                self.restart()?;
            }
            self.until_restart -= 1;
        }
        self.mcus_left = self.mcus_left.checked_sub(1)?;
        self.fill_if_low();
        let mut bits = self.bits;
        let is_sound = self.decode(&mut bits, blocks);
        self.bits = bits;
        if !is_sound || (self.is_ended && self.bits_left() < 0) {
            return None;
        }
        if self.mcus_left > 0 {
            return Some(false);
        }
        self.is_spent().then_some(true)
    }

    fn decode(&mut self, bits: &mut Bits, blocks: &mut [&mut [i16; 64]]) -> bool {
        #[cfg(target_arch = "x86_64")]
        if self.is_bmi2 {
            // SAFETY: the processor has BMI2.
            return unsafe {
                if self.pass == Pass::Whole {
                    self.whole_bmi2(bits, blocks)
                } else {
                    self.part_bmi2(bits, blocks)
                }
            };
        }
        if self.pass == Pass::Whole {
            self.whole(bits, blocks)
        } else {
            self.part(bits, blocks)
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi2")]
    fn whole_bmi2(&mut self, bits: &mut Bits, blocks: &mut [&mut [i16; 64]]) -> bool {
        self.whole(bits, blocks)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi2")]
    fn part_bmi2(&mut self, bits: &mut Bits, blocks: &mut [&mut [i16; 64]]) -> bool {
        self.part(bits, blocks)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "compiled once more for BMI2")]
    fn part(&mut self, bits: &mut Bits, blocks: &mut [&mut [i16; 64]]) -> bool {
        // A copy stays in registers.
        let mut now = *bits;
        let is_sound = match self.pass {
            Pass::Whole => false,
            Pass::DcFirst(low) => self.first(&mut now, blocks, low),
            Pass::DcRefine(low) => {
                now.refill(&self.window);
                for block in blocks {
                    block[0] |= i16::from(now.take() != 0) << low;
                }
                true
            }
            Pass::BandFirst | Pass::BandRefine => match (blocks, &*self.blocks, &*self.tables) {
                ([block], [_], [table]) if self.pass == Pass::BandFirst => {
                    self.band.begin(table, &self.window, &mut now, block)
                }
                ([block], [_], [table]) => self.band.refine(table, &self.window, &mut now, block),
                _ => false,
            },
        };
        *bits = now;
        is_sound
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "compiled once more for BMI2")]
    #[expect(clippy::cast_possible_truncation, reason = "as libjpeg does")]
    fn whole(&mut self, bits: &mut Bits, blocks: &mut [&mut [i16; 64]]) -> bool {
        let mut is_sound = true;
        let mut now = *bits;
        for (block, &Block { component, dc, ac }) in blocks.iter_mut().zip(&self.blocks) {
            now.refill(&self.window);
            let step = self.tables[dc].step(now.held);
            now.skip(step.bits.into());
            is_sound &= step.zeros == 0;
            let level = self.dc[component].wrapping_add(step.value.into());
            self.dc[component] = level;
            block[0] = level as i16;
            is_sound &= alternating(&self.tables[ac], &self.window, &mut now, block);
        }
        *bits = now;
        is_sound
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "compiled once more for BMI2")]
    #[expect(clippy::cast_possible_truncation, reason = "as libjpeg does")]
    fn first(&mut self, bits: &mut Bits, blocks: &mut [&mut [i16; 64]], low: u8) -> bool {
        let mut is_sound = true;
        for (block, &Block { component, dc, .. }) in blocks.iter_mut().zip(&self.blocks) {
            bits.refill(&self.window);
            let step = self.tables[dc].step(bits.held);
            bits.skip(step.bits.into());
            is_sound &= step.zeros == 0;
            let level = self.dc[component].wrapping_add(step.value.into());
            self.dc[component] = level;
            block[0] = (level << low) as i16;
        }
        is_sound
    }
}

/// Decode the 63 coefficients after the first; whether they are sound.
#[inline(always)]
#[expect(clippy::inline_always, reason = "compiled once more for BMI2")]
fn alternating(table: &Table, window: &[u8], bits: &mut Bits, block: &mut [i16; 64]) -> bool {
    let mut index = 1;
    while index < 64 {
        bits.refill(window);
        // A refill leaves enough for one of the longest codes behind two that one look decides
        // on; a longer one ends the round.
        for _ in 0..3 {
            let step = table.step(bits.held);
            bits.skip(step.bits.into());
            index += usize::from(step.zeros);
            if index > 63 {
                // Past the end by the code that says so, or by damage.
                return step.zeros == END;
            }
            block[usize::from(ZIGZAG[index])] = step.value;
            index += 1;
            if index > 63 || step.bits > LOOK {
                break;
            }
        }
    }
    true
}

/// Where a coefficient lies in its block.
const ZIGZAG: [u8; 64] = {
    let mut order = [0; 64];
    let (mut x, mut y) = (0u8, 0u8);
    let mut index = 0;
    while index < 64 {
        order[index] = y * 8 + x;
        let is_up = (x + y) & 1 == 0;
        if is_up && x == 7 {
            y += 1;
        } else if !is_up && y == 7 {
            x += 1;
        } else if is_up {
            x += 1;
            y = y.saturating_sub(1);
        } else {
            y += 1;
            x = x.saturating_sub(1);
        }
        index += 1;
    }
    order
};

#[cfg(test)]
mod tests {
    use super::ZIGZAG;

    #[test]
    fn the_walk_visits_every_place_once() {
        let mut seen = [false; 64];
        for place in ZIGZAG {
            seen[usize::from(place)] = true;
        }
        assert!(seen.iter().all(|&is_seen| is_seen));
        assert_eq!(ZIGZAG[..10], [0, 1, 8, 16, 9, 2, 3, 10, 17, 24]);
        assert_eq!(ZIGZAG[60..], [47, 55, 62, 63][..]);
    }
}
