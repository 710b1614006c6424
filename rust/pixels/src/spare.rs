//! Memory of large pictures that is kept for the next ones.
//!
//! Finding memory for a picture of many megabytes, and giving it back, takes the system longer than
//! anything else around a decode, and holds up other threads too. What is kept is bounded, and the
//! system may take the pages back whenever it needs them. Must never be waited for: in a forked
//! child the lock may be held for ever.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError, TryLockError};

/// Buffers smaller than this are left to the allocator, which keeps them itself: glibc never keeps
/// what is larger.
const MIN_BYTES: usize = 32 << 20;

/// What is kept in all: five pictures of twelve megapixels.
const MAX_BYTES: usize = 256 << 20;

static SPARES: Mutex<Spares> = Mutex::new(Spares::new(MAX_BYTES));

/// Keep the memory of `buffer` for a picture to come, or free it.
pub fn recycle(buffer: Vec<u8>) {
    if buffer.capacity() >= MIN_BYTES {
        // Freed once the lock is released.
        let _freed = with(|spares| spares.keep(buffer));
    }
}

/// An empty buffer with room for `len` bytes, if one is kept that is not much larger.
pub(crate) fn take(len: usize) -> Option<Vec<u8>> {
    if len < MIN_BYTES {
        return None;
    }
    with(|spares| spares.take(len)).flatten()
}

fn with<R>(use_it: impl FnOnce(&mut Spares) -> R) -> Option<R> {
    let mut spares = match SPARES.try_lock() {
        Ok(spares) => spares,
        Err(TryLockError::Poisoned(poison)) => PoisonError::into_inner(poison),
        Err(TryLockError::WouldBlock) => return None,
    };
    Some(use_it(&mut spares))
}

/// Buffers, the one that was freed last at the end.
struct Spares {
    buffers: VecDeque<Vec<u8>>,
    bytes: usize,
    max_bytes: usize,
}

impl Spares {
    const fn new(max_bytes: usize) -> Self {
        Self {
            buffers: VecDeque::new(),
            bytes: 0,
            max_bytes,
        }
    }

    /// Keep `buffer`; what there is no more room for, the oldest first.
    fn keep(&mut self, mut buffer: Vec<u8>) -> Vec<Vec<u8>> {
        buffer.clear();
        release_pages(&mut buffer);
        self.bytes += buffer.capacity();
        self.buffers.push_back(buffer);
        let mut freed = Vec::new();
        while self.bytes > self.max_bytes
            && let Some(oldest) = self.buffers.pop_front()
        {
            self.bytes -= oldest.capacity();
            freed.push(oldest);
        }
        freed
    }

    /// The smallest buffer with room for `len` bytes, if it wastes no more than a quarter.
    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let most = len.saturating_add(len / 4);
        let fitting = self.buffers.iter().enumerate().rev();
        let (place, _) = fitting
            .filter(|(_, buffer)| (len..=most).contains(&buffer.capacity()))
            .min_by_key(|(_, buffer)| buffer.capacity())?;
        let buffer = self.buffers.remove(place)?;
        self.bytes -= buffer.capacity();
        Some(buffer)
    }
}

/// Let the system take the pages of an empty buffer back when it is short of memory.
#[cfg(target_os = "linux")]
fn release_pages(buffer: &mut Vec<u8>) {
    const PAGE: usize = 4096;
    let room = buffer.spare_capacity_mut();
    let skipped = room.as_ptr().align_offset(PAGE);
    let whole = room.len().saturating_sub(skipped) / PAGE * PAGE;
    if whole > 0 {
        // SAFETY: the range is whole pages of memory that is ours and holds nothing: what the
        // advice may do to their content is of no consequence, nor is a refusal.
        unsafe {
            libc::madvise(
                room.as_mut_ptr().add(skipped).cast(),
                whole,
                libc::MADV_FREE,
            )
        };
    }
}

#[cfg(not(target_os = "linux"))]
fn release_pages(_buffer: &mut Vec<u8>) {}

#[cfg(test)]
mod tests {
    use super::Spares;

    fn kept(spares: &Spares) -> Vec<usize> {
        spares.buffers.iter().map(Vec::capacity).collect()
    }

    #[test]
    fn the_oldest_make_room_for_what_was_freed_last() {
        let mut spares = Spares::new(100_000);
        for size in [40_000, 30_000, 30_000] {
            assert!(spares.keep(vec![1; size]).is_empty());
        }
        let freed = spares.keep(vec![1; 50_000]);
        assert_eq!(
            freed.iter().map(Vec::capacity).collect::<Vec<_>>(),
            [40_000, 30_000]
        );
        assert_eq!(kept(&spares), [30_000, 50_000]);
        assert_eq!(spares.bytes, 80_000);
        // What is too large for all is freed, and so is everything else.
        assert_eq!(spares.keep(vec![1; 100_001]).len(), 3);
        assert_eq!((spares.bytes, kept(&spares).len()), (0, 0));
    }

    #[test]
    fn the_smallest_that_fits_is_taken_unless_it_wastes_much() {
        let mut spares = Spares::new(1 << 20);
        for size in [50_000, 60_000, 80_000] {
            spares.keep(vec![7; size]);
        }
        assert!(spares.take(39_999).is_none());
        assert!(spares.take(80_001).is_none());
        let buffer = spares.take(50_001).unwrap();
        assert_eq!((buffer.len(), buffer.capacity()), (0, 60_000));
        assert_eq!(spares.take(40_000).unwrap().capacity(), 50_000);
        assert_eq!(kept(&spares), [80_000]);
        assert_eq!(spares.bytes, 80_000);
    }
}
