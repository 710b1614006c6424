//! A flag by which a long computation is asked to stop.

use std::sync::atomic::{AtomicBool, Ordering};

/// Asked for from any thread, looked at by long loops at their own pace.
#[derive(Debug, Default)]
pub struct Cancel(AtomicBool);

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
}
