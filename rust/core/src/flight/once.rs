//! Something that is made once: the flight that makes it, whoever asks.
//!
//! Owns who joins which flight. A failed, cancelled or forgotten flight is nobody's: the next to ask
//! starts another. Must never keep a flight alive, nor what it made.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::Weak;

use super::Flight;
use crate::fork::Resident;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, lock};

/// One who wants the result of a flight. Dropped, it leaves; the last one to leave cancels.
pub struct Interest<T> {
    flight: Arc<Flight<T>>,
    has_left: AtomicBool,
}

impl<T> Interest<T> {
    pub(super) fn new(flight: Arc<Flight<T>>) -> Self {
        Self {
            flight,
            has_left: AtomicBool::new(false),
        }
    }

    /// The first interest in a flight that nobody else knows.
    #[must_use]
    pub fn first(flight: Arc<Flight<T>>) -> Self {
        lock(&flight.state).interested += 1;
        Self::new(flight)
    }

    /// The flight.
    #[must_use]
    pub fn flight(&self) -> &Arc<Flight<T>> {
        &self.flight
    }

    /// Leave, once: a flight that nobody else wants is withdrawn, or stopped in its first part.
    pub fn leave(&self) {
        if !self.has_left.swap(true, Ordering::AcqRel) {
            self.flight.leave();
        }
    }
}

impl<T> Deref for Interest<T> {
    type Target = Flight<T>;

    fn deref(&self) -> &Flight<T> {
        &self.flight
    }
}

impl<T> Drop for Interest<T> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The flight under way of something that is made once.
///
/// Its lock is held for a few instructions of an attached thread: a thread that forks never finds
/// it taken.
pub struct Once<T> {
    /// And the generation of the process in which it started.
    current: Mutex<(u32, Weak<Flight<T>>)>,
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self {
            current: Mutex::new((0, Weak::new())),
        }
    }
}

impl<T: Send + Sync + 'static> Once<T> {
    /// Join the flight under way, or the one that `start` gives; whether it was started here.
    ///
    /// A flight of another `generation` of the process has no thread here. `start` runs under the
    /// lock; `None` of it is that there is nothing left to make.
    pub fn join(
        &self,
        generation: u32,
        start: impl FnOnce() -> Option<Interest<T>>,
    ) -> Option<(Interest<T>, bool)> {
        // Declared first, dropped last: what an ended flight holds is not to go under the lock.
        let stale;
        let mut current = lock(&self.current);
        if current.0 == generation {
            stale = current.1.upgrade();
            if let Some(interest) = stale.as_ref().and_then(Flight::join) {
                return Some((interest, false));
            }
        }
        let interest = start()?;
        *current = (generation, Arc::downgrade(&interest.flight));
        Some((interest, true))
    }

    /// Whether `flight` is the one that started last.
    pub fn is_latest(&self, flight: &Arc<Flight<T>>) -> bool {
        std::ptr::eq(lock(&self.current).1.as_ptr(), Arc::as_ptr(flight))
    }
}

/// Flights under way by the identity of what they make, so that equal things are made once.
///
/// Locked as [`Once`] is.
pub struct Equals<K, T> {
    state: Mutex<Known<K, T>>,
}

struct Known<K, T> {
    /// And how many joined each.
    flights: HashMap<K, (Weak<Flight<T>>, usize)>,
    /// Looking for what has gone pays only once there are so many.
    bound: usize,
}

impl<K: Eq + Hash, T: Send + Sync + 'static> Known<K, T> {
    fn join(&mut self, key: &K, stale: &mut Option<Arc<Flight<T>>>) -> Option<Interest<T>> {
        let (flight, joined) = self.flights.get_mut(key)?;
        let interest = stale.insert(flight.upgrade()?).join()?;
        *joined += 1;
        Some(interest)
    }
}

const MIN_BOUND: usize = 64;

impl<K, T> Default for Equals<K, T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(Known {
                flights: HashMap::new(),
                bound: MIN_BOUND,
            }),
        }
    }
}

impl<K: Eq + Hash, T: Send + Sync + 'static> Equals<K, T> {
    /// Join the flight under way of `key`.
    pub fn join(&self, key: &K) -> Option<Interest<T>> {
        // Dropped without the lock, as in `Once::join`.
        let mut stale = None;
        lock(&self.state).join(key, &mut stale)
    }

    /// Make the flight of `own` that of `key`, unless one is under way by now, which is joined
    /// instead.
    pub fn join_or_insert(&self, key: K, own: &Interest<T>) -> Option<Interest<T>> {
        let mut stale = None;
        let mut state = lock(&self.state);
        if let Some(interest) = state.join(&key, &mut stale) {
            return Some(interest);
        }
        if state.flights.len() >= state.bound {
            state
                .flights
                .retain(|_, (flight, _)| flight.strong_count() > 0);
            state.bound = MIN_BOUND.max(state.flights.len() * 2);
        }
        state.flights.insert(key, (Arc::downgrade(&own.flight), 0));
        None
    }

    /// Let nobody join the flight of `key` any more; how many have. For that flight's own work.
    pub fn close(&self, key: &K) -> usize {
        let known = lock(&self.state).flights.remove(key);
        known.map_or(0, |(_, joined)| joined)
    }

    /// Number of keys, those included whose flights have ended and were not looked for since.
    pub fn len(&self) -> usize {
        lock(&self.state).flights.len()
    }

    /// Whether no key is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Send, T: Send + Sync> Resident for Equals<K, T> {
    fn after_fork(&self) {
        lock(&self.state).flights.clear();
    }
}
