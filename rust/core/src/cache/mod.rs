//! The cache: an LRU by bytes, one flight per key, and counters, under one lock.
//!
//! The work of a flight belongs to the pool, never to who asked for it. A failure is never stored.
//! Values that leave the cache are handed back or dropped after the lock is released, because a
//! destructor may call the cache. Must never run the work, a waker or a destructor under the lock.

use crate::cancel::Cancel;
use crate::flight::{Flight, is_runner};
use crate::fork::{Renewable, Resident};
use crate::lru::{Insert, Left};
use crate::pool::{Job, Pool, Priority, Site, SubmitError, Task};
use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, lock};
use state::{Admission, Entry, Parked, Registration, Shared, State};

mod state;

/// What work returns: a value and its weight in bytes.
pub type Computed<V, E> = Result<(V, u64), E>;

/// A flight of this cache.
pub type CacheFlight<V, E> = Flight<Result<V, E>>;

/// Counters, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Look-ups that found a value.
    pub hits: u64,
    /// Look-ups that found somebody else's flight.
    pub joins: u64,
    /// Look-ups that found neither.
    pub misses: u64,
    /// Flights that ended without a value.
    pub failures: u64,
    /// Values that were returned but not stored, because they do not fit.
    pub oversize: u64,
    /// Values that left to make room.
    pub evictions: u64,
    /// Waiters that left before their flight ended.
    pub cancelled: u64,
    /// Entries held.
    pub entries: usize,
    /// Sum of their weights.
    pub bytes: u64,
    /// Sum of the weights of the pinned ones.
    pub pinned_bytes: u64,
    /// The bound of `bytes`.
    pub max_bytes: u64,
    /// Flights that have not ended.
    pub in_flight: usize,
    /// Sum of the predicted bytes of those that were admitted.
    pub in_flight_bytes: u64,
}

/// What a look-up that may start a flight found.
pub enum Begin<V, E, R> {
    /// The value, as the caller's `read` made it.
    Hit(R),
    /// A flight to wait for; whether this call started it.
    Flight(Arc<CacheFlight<V, E>>, bool),
}

/// How a flight is to be run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// Bytes that the work is expected to need; what admission counts.
    pub predicted: u64,
    /// Where it runs.
    pub site: Site,
    /// Its queue.
    pub priority: Priority,
}

/// See the module.
pub struct Cache<V, E> {
    shared: Renewable<Arc<Shared<V, E>>>,
}

impl<V, E> Cache<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// An empty cache of at most `max_bytes`; with 0 it stores nothing and only joins flights.
    ///
    /// Flights whose predicted bytes sum to more than `max_in_flight_bytes` wait for each other;
    /// one alone is always admitted.
    #[must_use]
    pub fn new(max_bytes: u64, max_in_flight_bytes: u64) -> Self {
        Self {
            shared: Renewable::new(Arc::new(Shared::new(max_bytes, max_in_flight_bytes))),
        }
    }

    fn shared(&self) -> &Arc<Shared<V, E>> {
        self.shared.get()
    }

    /// What `read` makes of the value of `key`, which becomes the most recently used.
    ///
    /// `read` runs under the lock: it may copy or count a reference, nothing else.
    pub fn get<R>(&self, key: &[u8], read: impl FnOnce(&V) -> R) -> Option<R> {
        let mut state = lock(&self.shared().state);
        let found = state.lru.get(key).map(read);
        match found {
            Some(_) => state.stats.hits += 1,
            None => state.stats.misses += 1,
        }
        found
    }

    /// As [`Cache::get`], but a miss is not counted: the caller goes on to [`Cache::begin`].
    pub fn hit<R>(&self, key: &[u8], read: impl FnOnce(&V) -> R) -> Option<R> {
        let mut state = lock(&self.shared().state);
        let found = state.lru.get(key).map(read)?;
        state.stats.hits += 1;
        Some(found)
    }

    /// What `read` makes of the value of `key`; neither the order nor a counter changes.
    pub fn peek<R>(&self, key: &[u8], read: impl FnOnce(&V) -> R) -> Option<R> {
        lock(&self.shared().state).lru.peek(key).map(read)
    }

    /// Make `key` the most recently used; false if it is not there. Not counted.
    #[must_use]
    pub fn touch(&self, key: &[u8]) -> bool {
        lock(&self.shared().state).lru.touch(key)
    }

    /// Keep `key` from eviction until it is unpinned as often; false if it is not there.
    #[must_use]
    pub fn pin(&self, key: &[u8]) -> bool {
        lock(&self.shared().state).lru.pin(key)
    }

    /// Take back one pin; false if `key` is not there or not pinned.
    #[must_use]
    pub fn unpin(&self, key: &[u8]) -> bool {
        lock(&self.shared().state).lru.unpin(key)
    }

    /// Store `value`; whether it fitted. What left the cache goes to `left`, which the caller
    /// drops in whatever way suits it.
    pub fn put(&self, key: &[u8], value: V, weight: u64, left: &mut Left<V>) -> bool {
        let insert = lock(&self.shared().state).insert(key, value, weight, left);
        insert != Insert::Refused
    }

    /// Forget `key`; whether it was there. A flight of it goes on, but stores nothing.
    #[must_use]
    pub fn invalidate(&self, key: &[u8]) -> bool {
        let mut state = lock(&self.shared().state);
        let value = state.lru.remove(key);
        let flight = state.flights.remove(key);
        drop(state);
        drop(flight);
        value.is_some()
    }

    /// Forget everything. Flights go on, but store nothing.
    pub fn clear(&self) {
        let mut state = lock(&self.shared().state);
        let values = state.lru.clear();
        let flights = std::mem::take(&mut state.flights);
        drop(state);
        drop((values, flights));
    }

    /// The value of `key`, or the flight that makes it: the one under way, or one that is started
    /// here on `pool` (where room is no question: whoever asked waits for it).
    ///
    /// A thread that runs work gets a flight that it has to run itself, by waiting for it.
    pub fn begin<R>(
        &self,
        pool: &Arc<Pool>,
        key: &[u8],
        request: Request,
        read: impl FnOnce(&V) -> R,
        work: impl FnOnce(&Cancel) -> Computed<V, E> + Send + 'static,
    ) -> Result<Begin<V, E, R>, SubmitError> {
        let mut state = lock(&self.shared().state);
        if let Some(found) = state.lru.get(key).map(read) {
            state.stats.hits += 1;
            return Ok(Begin::Hit(found));
        }
        if let Some(entry) = state.flights.get(key) {
            let (flight, job) = (Arc::clone(&entry.flight), entry.job.clone());
            state.stats.joins += 1;
            drop(state);
            if job.priority == Priority::Background && request.priority == Priority::Foreground {
                pool.promote(&job.task);
            }
            return Ok(Begin::Flight(flight, false));
        }
        state.stats.misses += 1;
        let (flight, parked) = self.register(&mut state, pool, key, request, work);
        drop(state);
        match parked {
            // Parked: whoever makes room for it submits it.
            None => {}
            Some(_) if is_runner() => {}
            Some(job) => {
                if let Err(error) = pool.push(job) {
                    flight.withdraw();
                    return Err(error);
                }
            }
        }
        Ok(Begin::Flight(flight, true))
    }

    /// Note that a waiter left before its flight ended.
    ///
    /// The work goes on, unless it has not begun, nobody is left and there is no room: then it
    /// gives way, as if it had waited for room.
    pub fn leave(&self, pool: &Pool, flight: &CacheFlight<V, E>) {
        lock(&self.shared().state).stats.cancelled += 1;
        if flight.waiters() == 0 && flight.is_waiting() && (pool.is_full() || self.has_parked()) {
            flight.withdraw();
        }
    }

    /// Counters, at one moment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let state = lock(&self.shared().state);
        Stats {
            entries: state.lru.len(),
            bytes: state.lru.bytes(),
            pinned_bytes: state.lru.pinned_bytes(),
            max_bytes: state.lru.max_bytes(),
            in_flight: state.in_flight,
            in_flight_bytes: state.in_flight_bytes,
            ..state.stats
        }
    }

    /// Call `visit` with every value, unless the lock is held: then nothing, and false.
    pub fn try_visit(&self, mut visit: impl FnMut(&V)) -> bool {
        let Some(state) = try_lock(&self.shared().state) else {
            return false;
        };
        state.lru.values().for_each(&mut visit);
        true
    }

    /// Check the invariants of the LRU, for tests.
    ///
    /// # Errors
    ///
    /// The first invariant that does not hold.
    pub fn validate(&self) -> Result<(), &'static str> {
        lock(&self.shared().state).lru.validate()
    }

    fn has_parked(&self) -> bool {
        !lock(&self.shared().state).parked.is_empty()
    }

    /// Make the flight of `key`; its job, if it was admitted.
    fn register(
        &self,
        state: &mut MutexGuard<'_, State<V, E>>,
        pool: &Arc<Pool>,
        key: &[u8],
        request: Request,
        work: impl FnOnce(&Cancel) -> Computed<V, E> + Send + 'static,
    ) -> (Arc<CacheFlight<V, E>>, Option<Job>) {
        let id = state.next_flight;
        state.next_flight += 1;
        state.in_flight += 1;
        let admission = Arc::new(Admission {
            predicted: request.predicted,
            admitted: AtomicBool::new(false),
        });
        let mut registration = Registration {
            shared: Arc::clone(self.shared()),
            key: key.into(),
            id,
            admission: Arc::clone(&admission),
            began: false,
            settled: false,
        };
        let flight: Arc<CacheFlight<V, E>> = Flight::new(Box::new(move |cancel: &Cancel| {
            registration.begin();
            let computed = work(cancel);
            registration.settle(computed)
        }));
        let task: Arc<dyn Task> = Arc::clone(&flight) as Arc<dyn Task>;
        let job = Job {
            site: request.site,
            priority: request.priority,
            ..Job::new(task)
        };
        let entry = Entry {
            id,
            flight: Arc::clone(&flight),
            job: job.clone(),
        };
        state.flights.insert(key.into(), entry);
        let fits = state.in_flight_bytes == 0
            || state
                .in_flight_bytes
                .checked_add(request.predicted)
                .is_some_and(|sum| sum <= self.shared().max_in_flight_bytes);
        if is_runner() || (fits && state.parked.is_empty()) {
            state.occupy(&admission);
            return (flight, Some(job));
        }
        state.parked.push_back(Parked {
            pool: Arc::clone(pool),
            job,
            admission,
        });
        (flight, None)
    }
}

impl<V: Send + Sync, E: Send + Sync> Resident for Cache<V, E> {
    /// Forget the flights, whose threads are not there, and keep the values, unless the lock was
    /// held at the fork: then nothing is known of them.
    fn after_fork(&self) {
        let shared = self.shared.get();
        if let Some(mut state) = try_lock(&shared.state) {
            // Their own locks may be held for ever and their waiters are the parent's: leaked.
            std::mem::forget(std::mem::take(&mut state.flights));
            std::mem::forget(std::mem::take(&mut state.parked));
            state.in_flight = 0;
            state.in_flight_bytes = 0;
            return;
        }
        self.shared.replace(Arc::new(Shared::new(
            shared.max_bytes,
            shared.max_in_flight_bytes,
        )));
    }
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}
