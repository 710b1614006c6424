//! The synchronization primitives of `flight`, `fork`, `pool` and `cache`, in one place.
//!
//! `tests/flight_shuttle.rs` compiles those modules over shuttle's primitives instead and explores
//! their interleavings, so nothing there may name `std::sync` or `std::thread` itself.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub(crate) use std::thread;
pub(crate) use std::thread_local;

/// Lock `mutex`, poisoned or not.
///
/// Every critical section leaves its state whole before it can panic, so poison says nothing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Wait on `condvar`, poisoned or not.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar
        .wait(guard)
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Wait on `condvar` for at most `timeout`; whether it was is for the caller's clock to say.
pub(crate) fn wait_timeout<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: std::time::Duration,
) -> MutexGuard<'a, T> {
    condvar
        .wait_timeout(guard, timeout)
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .0
}
