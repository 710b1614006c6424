//! The border to the shim: what it says of a scan, and what it calls.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use super::{MAX_COMPONENTS, Scan};

/// What libjpeg found out about the scan; `struct safelight_scan` of the shim.
#[repr(C)]
pub(super) struct Layout {
    /// Where the coded data begins in the file.
    pub(super) offset: usize,
    /// MCUs in the scan.
    pub(super) mcus: usize,
    /// MCUs between restart markers; 0 is none.
    pub(super) restart_interval: u32,
    /// Blocks of an MCU.
    pub(super) blocks: u32,
    /// Whether the file is progressive; where it is not, the rest is that of a whole block.
    pub(super) is_progressive: u8,
    /// First and last coefficient, and how far they are shifted: in the scan before, and in this.
    pub(super) first: u8,
    pub(super) last: u8,
    pub(super) high: u8,
    pub(super) low: u8,
    /// The component of each block of an MCU, counted within the scan.
    pub(super) component: [u8; MAX_BLOCKS],
    /// Number of each component, among all of the file, and its tables.
    pub(super) number: [u8; MAX_COMPONENTS],
    pub(super) dc_table: [u8; MAX_COMPONENTS],
    pub(super) ac_table: [u8; MAX_COMPONENTS],
    /// Codes of each length from 1 to 16 in each table, and the symbols by code; null is no table.
    pub(super) dc_codes: [Codes; MAX_TABLES],
    pub(super) ac_codes: [Codes; MAX_TABLES],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Codes {
    /// 17 bytes, the first without a meaning.
    counts: *const u8,
    /// 256 bytes.
    symbols: *const u8,
}

impl Codes {
    /// How many codes there are of each length, and their symbols.
    pub(super) fn tables(&self) -> Option<(&[u8], &[u8])> {
        if self.counts.is_null() || self.symbols.is_null() {
            return None;
        }
        // SAFETY: libjpeg's tables are of these lengths. A layout is lent to the start of a scan,
        // for which they stay as they are.
        Some(unsafe {
            (
                slice::from_raw_parts(self.counts, 17),
                slice::from_raw_parts(self.symbols, 256),
            )
        })
    }
}

const MAX_BLOCKS: usize = 10;
pub(super) const MAX_TABLES: usize = 4;

/// How the shim decodes by [`Scan`]; `struct safelight_huffman`.
#[repr(C)]
pub(in super::super) struct Hooks {
    state: *mut c_void,
    /// Take a scan on: 0 if it will be decoded.
    start: unsafe extern "C" fn(*mut c_void, *const Layout) -> c_int,
    /// Decode the next MCU into its blocks, which are zeros before the first scan: 0 more to come,
    /// 1 the last one, 2 damaged. After the last one the size is the offset of the marker behind
    /// the scan.
    next: unsafe extern "C" fn(*mut c_void, *mut *mut [i16; 64], *mut usize) -> c_int,
}

impl Hooks {
    /// Hooks into `scan`, valid for as long as it is borrowed by nothing else.
    pub(in super::super) fn new(scan: &mut Scan<'_>) -> Self {
        Self {
            state: (&raw mut *scan).cast(),
            start,
            next,
        }
    }
}

/// # Safety
/// `state` is that of [`Hooks`], whose scan is borrowed by nothing else; `layout` is valid, its
/// tables too for as long as the scan is decoded.
unsafe extern "C" fn start(state: *mut c_void, layout: *const Layout) -> c_int {
    // SAFETY: as promised.
    let (scan, layout) = unsafe { (&mut *state.cast::<Scan<'_>>(), &*layout) };
    if !scan.is_lost {
        // A panic must not reach C, where it would abort the process.
        let started = catch_unwind(AssertUnwindSafe(|| scan.start(layout)));
        scan.is_lost = !matches!(started, Ok(Some(())));
    }
    scan.is_lost.into()
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
    // As above.
    match catch_unwind(AssertUnwindSafe(|| scan.next(blocks))).unwrap_or(None) {
        None => 2,
        Some(false) => 0,
        Some(true) => {
            // SAFETY: as promised.
            unsafe { *offset = scan.at };
            1
        }
    }
}
