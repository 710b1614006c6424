//! A flag by which a long computation is asked to stop.

use std::sync::atomic::{AtomicBool, Ordering};

/// Asked for from any thread, looked at by long loops at their own pace.
#[derive(Debug, Default)]
pub struct Cancel(AtomicBool);

/// The work was asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

impl Cancel {
    /// Ask the work to stop.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked for the work to stop.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// As [`Cancel::is_requested`], for loops that end with `?`.
    pub fn check(&self) -> Result<(), Cancelled> {
        if self.is_requested() {
            Err(Cancelled)
        } else {
            Ok(())
        }
    }

    /// The flag as a byte that C reads, atomically, while others may write it.
    #[must_use]
    pub fn as_byte(&self) -> *const u8 {
        self.0.as_ptr().cast::<u8>().cast_const()
    }
}
