//! Whole-buffer inflate and CRC-32, by libdeflate.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use libdeflate_sys::{
    libdeflate_alloc_decompressor, libdeflate_crc32, libdeflate_decompressor,
    libdeflate_free_decompressor, libdeflate_result_LIBDEFLATE_SUCCESS, libdeflate_zlib_decompress,
};

use super::Declined;

struct Decompressor(NonNull<libdeflate_decompressor>);

impl Decompressor {
    fn new() -> Result<Self, Declined> {
        // SAFETY: takes nothing, gives a decompressor or null.
        let pointer = unsafe { libdeflate_alloc_decompressor() };
        NonNull::new(pointer)
            .map(Self)
            .ok_or(Declined("out of memory"))
    }

    /// Inflate a zlib stream into `out`; the count of bytes that were written from its front, if
    /// the stream is whole and fits.
    fn zlib(&mut self, stream: &[u8], out: &mut [MaybeUninit<u8>]) -> Option<usize> {
        let mut count = 0;
        // SAFETY: `self.0` is a live decompressor used by this call alone; both pointers are
        // valid for the lengths given with them, and libdeflate writes within `out` only.
        let result = unsafe {
            libdeflate_zlib_decompress(
                self.0.as_ptr(),
                stream.as_ptr().cast::<c_void>(),
                stream.len(),
                out.as_mut_ptr().cast::<c_void>(),
                out.len(),
                &raw mut count,
            )
        };
        (result == libdeflate_result_LIBDEFLATE_SUCCESS).then_some(count)
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: `self.0` came from `libdeflate_alloc_decompressor` and is freed once.
        unsafe { libdeflate_free_decompressor(self.0.as_ptr()) }
    }
}

/// Inflate `stream`, checksum included, to exactly `length` bytes, which replace those of `out`.
pub(crate) fn zlib(stream: &[u8], out: &mut Vec<u8>, length: usize) -> Result<(), Declined> {
    out.clear();
    let room = out.spare_capacity_mut();
    let room = room.get_mut(..length).ok_or(Declined("plan"))?;
    if Decompressor::new()?.zlib(stream, room) != Some(length) {
        return Err(Declined("zlib stream is damaged, short or long"));
    }
    // SAFETY: libdeflate says that it wrote as many bytes from the front.
    unsafe { out.set_len(length) };
    Ok(())
}

/// Whether `stream` inflates to less than `limit` bytes without an error.
pub(crate) fn is_below(stream: &[u8], limit: usize) -> Result<bool, Declined> {
    // Deflate cannot grow its input further.
    if stream.len().saturating_mul(1032) < limit {
        return Ok(true);
    }
    let mut out = Vec::<u8>::new();
    out.try_reserve_exact(limit)
        .map_err(|_| Declined("out of memory"))?;
    let room = &mut out.spare_capacity_mut()[..limit - 1];
    Ok(Decompressor::new()?.zlib(stream, room).is_some())
}

/// CRC-32 of `data`.
pub(crate) fn crc32(data: &[u8]) -> u32 {
    // SAFETY: the pointer is valid for the length given with it.
    unsafe { libdeflate_crc32(0, data.as_ptr().cast::<c_void>(), data.len()) }
}
