//! Huffman decoding of the one scan of a sequential JPEG, in place of libjpeg's own.
//!
//! One look-up gives a coefficient whole: its zeros, its value and the bits of both. Anything that
//! a sound file does not have ends the decode, whether libjpeg would warn of it or not, so that
//! the file is declined. Must never read outside its window, nor write outside the blocks.

mod table;

use std::ffi::{c_int, c_void};
use std::slice;

use table::{END, LOOK, Table};

/// What libjpeg found out about the scan; `struct safelight_scan` of the shim.
#[repr(C)]
pub(super) struct Layout {
    /// Where the coded data begins in the file.
    offset: usize,
    /// MCUs in the scan.
    mcus: usize,
    /// MCUs between restart markers; 0 is none.
    restart_interval: u32,
    /// Blocks of an MCU.
    blocks: u32,
    /// The component of each block of an MCU, counted within the scan.
    component: [u8; MAX_BLOCKS],
    /// Tables of each component.
    dc_table: [u8; MAX_COMPONENTS],
    ac_table: [u8; MAX_COMPONENTS],
    /// Codes of each length from 1 to 16 in each table, and the symbols by code; null is no table.
    dc_codes: [Codes; MAX_TABLES],
    ac_codes: [Codes; MAX_TABLES],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Codes {
    /// 17 bytes, the first without a meaning.
    counts: *const u8,
    /// 256 bytes.
    symbols: *const u8,
}

const MAX_BLOCKS: usize = 10;
const MAX_COMPONENTS: usize = 4;
const MAX_TABLES: usize = 4;

/// How the shim decodes by [`Scan`]; `struct safelight_huffman`.
#[repr(C)]
pub(super) struct Hooks {
    state: *mut c_void,
    /// Take a scan on: 0 if it will be decoded.
    start: unsafe extern "C" fn(*mut c_void, *const Layout) -> c_int,
    /// Decode the next MCU into zeroed blocks: 0 more to come, 1 the last one, 2 damaged. After
    /// the last one the size is the offset of the marker behind the scan.
    next: unsafe extern "C" fn(*mut c_void, *mut *mut [i16; 64], *mut usize) -> c_int,
}

impl Hooks {
    /// Hooks into `scan`, valid for as long as it is borrowed by nothing else.
    pub(super) fn new(scan: &mut Scan<'_>) -> Self {
        Self {
            state: (&raw mut *scan).cast(),
            start,
            next,
        }
    }
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
    blocks: Vec<Block>,
    tables: Vec<Table>,
    /// DC of the block before, by component.
    dc: [i32; MAX_COMPONENTS],
    mcus_left: usize,
    restart_interval: u32,
    until_restart: u32,
    restarts: u8,
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
            blocks: Vec::new(),
            tables: Vec::new(),
            dc: [0; MAX_COMPONENTS],
            mcus_left: 0,
            restart_interval: 0,
            until_restart: 0,
            restarts: 0,
            is_bmi2: false,
        }
    }

    /// Take the scan on, unless it is none that can be decoded.
    fn start(&mut self, layout: &Layout) -> Option<()> {
        let mut made = [[None; MAX_TABLES]; 2];
        let blocks = layout.component.get(..layout.blocks as usize)?;
        for &component in blocks {
            let component = usize::from(component);
            let dc = usize::from(*layout.dc_table.get(component)?);
            let ac = usize::from(*layout.ac_table.get(component)?);
            let dc = self.table(layout.dc_codes.get(dc)?, false, made[0].get_mut(dc)?)?;
            let ac = self.table(layout.ac_codes.get(ac)?, true, made[1].get_mut(ac)?)?;
            self.blocks.push(Block { component, dc, ac });
        }
        if self.blocks.is_empty() || layout.mcus == 0 {
            return None;
        }
        self.at = layout.offset;
        self.window = vec![0; WINDOW + RESERVE + 8];
        self.mcus_left = layout.mcus;
        self.restart_interval = layout.restart_interval;
        self.until_restart = layout.restart_interval;
        #[cfg(target_arch = "x86_64")]
        {
            self.is_bmi2 = std::arch::is_x86_feature_detected!("bmi2");
        }
        Some(())
    }

    /// The index of the table of `codes`, which `made` remembers.
    fn table(&mut self, codes: &Codes, is_ac: bool, made: &mut Option<usize>) -> Option<usize> {
        if let Some(index) = *made {
            return Some(index);
        }
        if codes.counts.is_null() || codes.symbols.is_null() {
            return None;
        }
        // SAFETY: libjpeg's tables are of these lengths and stay for the whole decode.
        let (counts, symbols) = unsafe {
            (
                slice::from_raw_parts(codes.counts, 17),
                slice::from_raw_parts(codes.symbols, 256),
            )
        };
        self.tables.push(Table::new(counts, symbols, is_ac)?);
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
        self.until_restart = self.restart_interval;
        (self.filled, self.is_ended) = (0, false);
        self.bits = Bits::default();
        self.dc = [0; MAX_COMPONENTS];
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
        if self.is_bmi2 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the processor has BMI2.
            return unsafe { self.decode_bmi2(bits, blocks) };
        }
        self.decode_blocks(bits, blocks)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi2")]
    fn decode_bmi2(&mut self, bits: &mut Bits, blocks: &mut [&mut [i16; 64]]) -> bool {
        self.decode_blocks(bits, blocks)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "compiled once more for BMI2")]
    fn decode_blocks(&mut self, bits: &mut Bits, blocks: &mut [&mut [i16; 64]]) -> bool {
        let mut is_sound = true;
        let mut now = *bits;
        for (block, &Block { component, dc, ac }) in blocks.iter_mut().zip(&self.blocks) {
            now.refill(&self.window);
            let step = self.tables[dc].step(now.held);
            now.skip(step.bits.into());
            is_sound &= step.zeros == 0;
            let level = self.dc[component].wrapping_add(i32::from(step.value));
            self.dc[component] = level;
            #[expect(clippy::cast_possible_truncation, reason = "as libjpeg does")]
            let level = level as i16;
            block[0] = level;
            is_sound &= alternating(&self.tables[ac], &self.window, &mut now, block);
        }
        *bits = now;
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

/// The first 0xFF in `bytes`, or their end.
fn find_ff(bytes: &[u8]) -> usize {
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
struct Bits {
    held: u64,
    /// How many of them count; those below are the ones that follow, or zeros.
    count: u32,
    /// The next byte of the window to be held.
    position: usize,
}

impl Bits {
    /// Hold at least 56 bits.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "compiled once more for BMI2")]
    fn refill(&mut self, window: &[u8]) {
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

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "compiled once more for BMI2")]
    fn skip(&mut self, count: u32) {
        self.held <<= count & 63;
        self.count = self.count.wrapping_sub(count);
    }
}

/// # Safety
/// `state` is that of [`Hooks`], whose scan is borrowed by nothing else; `layout` is valid, its
/// tables too for as long as the scan is decoded.
unsafe extern "C" fn start(state: *mut c_void, layout: *const Layout) -> c_int {
    // SAFETY: as promised.
    let (scan, layout) = unsafe { (&mut *state.cast::<Scan<'_>>(), &*layout) };
    scan.start(layout).map_or(1, |()| 0)
}

/// # Safety
/// `state` as above; `blocks` are as many pointers as the layout said, to different blocks, which
/// nothing else refers to during the call; `offset` is valid for a write.
unsafe extern "C" fn next(
    state: *mut c_void,
    blocks: *mut *mut [i16; 64],
    offset: *mut usize,
) -> c_int {
    // SAFETY: as promised. A reference is laid out as a pointer.
    let (scan, blocks) = unsafe {
        let scan = &mut *state.cast::<Scan<'_>>();
        let blocks = blocks.cast::<&mut [i16; 64]>();
        let blocks = slice::from_raw_parts_mut(blocks, scan.blocks.len());
        (scan, blocks)
    };
    match scan.next(blocks) {
        None => 2,
        Some(false) => 0,
        Some(true) => {
            // SAFETY: as promised.
            unsafe { *offset = scan.at };
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ZIGZAG, find_ff};

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
