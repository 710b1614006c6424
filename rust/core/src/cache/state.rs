//! What is under the cache's lock, and the registration by which a flight leaves it.

use std::collections::{HashMap, VecDeque};

use super::{CacheFlight, Computed, Stats};
use crate::lru::{Insert, Left, Lru};
use crate::pool::{Job, Pool};
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, lock};

pub(super) struct Shared<V, E> {
    pub(super) state: Mutex<State<V, E>>,
    pub(super) max_bytes: u64,
    pub(super) max_in_flight_bytes: u64,
}

impl<V, E> Shared<V, E> {
    pub(super) fn new(max_bytes: u64, max_in_flight_bytes: u64) -> Self {
        Self {
            state: Mutex::new(State {
                lru: Lru::new(max_bytes),
                flights: HashMap::new(),
                parked: VecDeque::new(),
                next_flight: 0,
                in_flight: 0,
                in_flight_bytes: 0,
                stats: Stats::default(),
            }),
            max_bytes,
            max_in_flight_bytes,
        }
    }
}

pub(super) struct State<V, E> {
    pub(super) lru: Lru<V>,
    pub(super) flights: HashMap<Box<[u8]>, Entry<V, E>>,
    /// Flights that wait for in-flight bytes, oldest first.
    pub(super) parked: VecDeque<Parked>,
    pub(super) next_flight: u64,
    /// Flights that have not ended, those of invalidated keys included.
    pub(super) in_flight: usize,
    pub(super) in_flight_bytes: u64,
    pub(super) stats: Stats,
}

pub(super) struct Entry<V, E> {
    pub(super) id: u64,
    pub(super) flight: Arc<CacheFlight<V, E>>,
    pub(super) job: Job,
}

pub(super) struct Parked {
    pub(super) pool: Arc<Pool>,
    pub(super) job: Job,
    pub(super) admission: Arc<Admission>,
}

/// The bytes that one flight occupies: none until it is admitted.
pub(super) struct Admission {
    pub(super) predicted: u64,
    /// Read and written under the cache's lock.
    pub(super) admitted: AtomicBool,
}

/// The registration of a flight, held by its work: however the work ends, it ends too.
pub(super) struct Registration<V, E> {
    pub(super) shared: Arc<Shared<V, E>>,
    pub(super) key: Box<[u8]>,
    pub(super) id: u64,
    pub(super) admission: Arc<Admission>,
    pub(super) began: bool,
    pub(super) settled: bool,
}

impl<V, E> State<V, E> {
    #[inline]
    pub(super) fn insert(
        &mut self,
        key: &[u8],
        value: V,
        weight: u64,
        left: &mut Left<V>,
    ) -> Insert {
        let insert = self.lru.insert(key, value, weight, left);
        match insert {
            Insert::Stored { evicted } => self.stats.evictions += evicted,
            Insert::Refused => self.stats.oversize += 1,
        }
        insert
    }

    pub(super) fn occupy(&mut self, admission: &Admission) {
        if !admission.admitted.swap(true, Ordering::Relaxed) {
            self.in_flight_bytes = self.in_flight_bytes.saturating_add(admission.predicted);
        }
    }

    fn vacate(&mut self, admission: &Admission) {
        if admission.admitted.load(Ordering::Relaxed) {
            self.in_flight_bytes = self.in_flight_bytes.saturating_sub(admission.predicted);
        }
    }

    /// Take the parked jobs that can go or have gone, in their order.
    fn unpark(&mut self, max_in_flight_bytes: u64) -> Vec<(Arc<Pool>, Job)> {
        let mut jobs = Vec::new();
        while let Some(parked) = self.parked.front() {
            let sum = self
                .in_flight_bytes
                .saturating_add(parked.admission.predicted);
            let begun = !parked.job.task.is_waiting();
            if !begun && self.in_flight_bytes > 0 && sum > max_in_flight_bytes {
                break;
            }
            let Some(parked) = self.parked.pop_front() else {
                break;
            };
            if !begun {
                self.occupy(&parked.admission);
            }
            // Also what has begun elsewhere: it is not to be dropped under the lock.
            jobs.push((parked.pool, parked.job));
        }
        jobs
    }
}

impl<V: Clone, E> Registration<V, E> {
    pub(super) fn begin(&mut self) {
        self.began = true;
        lock(&self.shared.state).occupy(&self.admission);
    }

    /// Store what was computed, unless the key was invalidated meanwhile; the flight's answer.
    pub(super) fn settle(mut self, computed: Computed<V, E>) -> Result<V, E> {
        self.settled = true;
        let mut left = Left::new();
        // Copied before the lock is taken: a copy may do anything.
        let computed = computed.map(|(value, weight)| (value.clone(), value, weight));
        let mut state = lock(&self.shared.state);
        // Out of the map before anybody is woken: the next caller meets the value, or starts anew.
        let registered = state.deregister(&self.key, self.id);
        let answer = match computed {
            Ok((copy, value, weight)) => {
                if registered.is_some() {
                    state.insert(&self.key, copy, weight, &mut left);
                } else {
                    left.push(copy);
                }
                Ok(value)
            }
            Err(error) => {
                state.stats.failures += 1;
                Err(error)
            }
        };
        let jobs = state.release(&self.admission, self.shared.max_in_flight_bytes);
        drop(state);
        drop((left, registered));
        submit(jobs);
        answer
    }
}

impl<V, E> State<V, E> {
    fn deregister(&mut self, key: &[u8], id: u64) -> Option<Entry<V, E>> {
        // By identity: the key may have been invalidated and asked for again.
        if self.flights.get(key)?.id == id {
            self.flights.remove(key)
        } else {
            None
        }
    }

    fn release(
        &mut self,
        admission: &Admission,
        max_in_flight_bytes: u64,
    ) -> Vec<(Arc<Pool>, Job)> {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.vacate(admission);
        self.unpark(max_in_flight_bytes)
    }
}

impl<V, E> Drop for Registration<V, E> {
    /// The work panicked, or was withdrawn.
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let mut state = lock(&self.shared.state);
        let registered = state.deregister(&self.key, self.id);
        if self.began {
            state.stats.failures += 1;
        }
        let jobs = state.release(&self.admission, self.shared.max_in_flight_bytes);
        drop(state);
        drop(registered);
        submit(jobs);
    }
}

fn submit(jobs: Vec<(Arc<Pool>, Job)>) {
    for (pool, job) in jobs {
        if job.task.is_waiting() && pool.push(job.clone()).is_err() {
            job.task.withdraw();
        }
    }
}
