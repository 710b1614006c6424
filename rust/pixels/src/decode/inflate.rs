//! Whole-buffer inflate and CRC-32, by libdeflate.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use libdeflate_sys::{
    libdeflate_alloc_decompressor, libdeflate_crc32, libdeflate_decompressor,
    libdeflate_free_decompressor, libdeflate_result_LIBDEFLATE_SUCCESS, libdeflate_zlib_decompress,
};

use crate::refusal::Declined;

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
    if out.capacity() < length {
        return Err(Declined("plan"));
    }
    let room = &mut out.spare_capacity_mut()[..length];
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

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use libdeflate_sys::{
        libdeflate_alloc_compressor, libdeflate_free_compressor, libdeflate_zlib_compress,
    };

    use super::zlib;

    fn deflated(bytes: &[u8]) -> Vec<u8> {
        let mut stream = vec![0u8; bytes.len() + 1024];
        // SAFETY: the compressor is used here alone and freed once; pointers go with lengths.
        let length = unsafe {
            let compressor = libdeflate_alloc_compressor(6);
            let length = libdeflate_zlib_compress(
                compressor,
                bytes.as_ptr().cast::<c_void>(),
                bytes.len(),
                stream.as_mut_ptr().cast::<c_void>(),
                stream.len(),
            );
            libdeflate_free_compressor(compressor);
            length
        };
        stream.truncate(length);
        stream
    }

    /// Levels around a middle one, or few in the same order again and again.
    fn levels(is_noise: bool) -> Vec<u8> {
        let mut state = 1u32;
        let mut next = |index: u32| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            let level = if is_noise {
                state % 64 + state / 64 % 64
            } else {
                index / 7 % 50
            };
            level.to_le_bytes()[0]
        };
        (0..1 << 16).map(&mut next).collect()
    }

    #[test]
    fn only_a_whole_stream_of_the_right_length_is_taken() {
        for is_noise in [true, false] {
            let bytes = levels(is_noise);
            let stream = deflated(&bytes);
            let mut out = Vec::with_capacity(bytes.len() + 1);
            assert!(zlib(&stream, &mut out, bytes.len()).is_ok());
            assert_eq!(out, bytes);
            for length in [0, 1, bytes.len() - 1, bytes.len() + 1] {
                assert!(zlib(&stream, &mut out, length).is_err());
            }
            for cut in [1, 4, 5, 100, stream.len() - 1] {
                assert!(zlib(&stream[..stream.len() - cut], &mut out, bytes.len()).is_err());
            }
            let mut wrong = stream.clone();
            *wrong.last_mut().expect("a checksum") ^= 1;
            assert!(zlib(&wrong, &mut out, bytes.len()).is_err());
        }
    }
}
