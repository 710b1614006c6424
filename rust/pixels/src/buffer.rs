//! Memory for pixels: zeroed lazily by the system, and a failure to get it is an answer.

use std::alloc::{Layout, alloc_zeroed};

use crate::refusal::{Declined, Refusal};
use crate::spare;

/// `len` zero bytes. Pages that are never written cost nothing, so a file that claims more
/// pixels than it brings takes address space only.
pub(crate) fn zeroed(len: usize) -> Result<Vec<u8>, Refusal> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let layout = Layout::array::<u8>(len).map_err(|_| Declined("too large"))?;
    // SAFETY: `layout` has a size above zero.
    let pointer = unsafe { alloc_zeroed(layout) };
    if pointer.is_null() {
        return Err(Declined("out of memory").into());
    }
    advise(pointer, len);
    let bytes = std::ptr::slice_from_raw_parts_mut(pointer, len);
    // SAFETY: the global allocator gave `pointer` for `len` bytes of alignment 1, all initialized
    // to zero; the box is their only owner.
    Ok(unsafe { Box::from_raw(bytes) }.into_vec())
}

/// Room for `len` bytes that are yet to be written.
pub(crate) fn reserved(len: usize) -> Result<Vec<u8>, Refusal> {
    if let Some(bytes) = spare::take(len) {
        return Ok(bytes);
    }
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(len)
        .map_err(|_| Declined("out of memory"))?;
    advise(bytes.as_mut_ptr(), len);
    Ok(bytes)
}

/// Ask for huge pages where the memory is large enough to hold some.
#[cfg(target_os = "linux")]
fn advise(start: *mut u8, len: usize) {
    const HUGE: usize = 2 << 20;
    const PAGE: usize = 4096;
    if len < 2 * HUGE {
        return;
    }
    let skipped = start.align_offset(PAGE);
    if skipped < len {
        // SAFETY: the range lies inside one allocation of ours and starts on a page; the advice
        // changes how it is backed, never what it holds. A refusal is of no consequence.
        unsafe {
            libc::madvise(
                start.add(skipped).cast(),
                len - skipped,
                libc::MADV_HUGEPAGE,
            )
        };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise(_start: *mut u8, _len: usize) {}

/// Width times height times `unit`, or a refusal.
pub(crate) fn area(width: u32, height: u32, unit: usize) -> Result<usize, Refusal> {
    usize::try_from(u64::from(width) * u64::from(height))
        .ok()
        .and_then(|pixels| pixels.checked_mul(unit))
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(|| Declined("too large").into())
}

/// A vector of `len` copies of `value`.
pub(crate) fn try_filled<T: Clone>(len: usize, value: T) -> Result<Vec<T>, Refusal> {
    let mut values = Vec::new();
    values
        .try_reserve_exact(len)
        .map_err(|_| Declined("out of memory"))?;
    values.resize(len, value);
    Ok(values)
}
