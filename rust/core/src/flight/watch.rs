//! Many flights watched by one, who is woken once enough of them have ended.

use std::time::{Duration, Instant};

use super::{Flight, WakeEach, Waker, WakerId};
use crate::sync::{Arc, Condvar, Mutex, lock, wait_timeout};

/// See the module. Flights are known by the numbers under which they were added.
pub struct Watch {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Numbers of the flights that ended, in that order.
    ended: Vec<usize>,
    /// How many of `ended` were handed out.
    taken: usize,
    /// Who is to be woken once so many have ended. One waiter at a time.
    waiter: Option<(usize, Waker)>,
    /// The least that a blocked thread waits for: it is not woken for each flight before that.
    wanted: Option<usize>,
}

impl WakeEach for Watch {
    fn wake(&self, number: usize) {
        let (waiter, wanted) = {
            let mut state = lock(&self.state);
            state.ended.push(number);
            let count = state.ended.len();
            (
                state.waiter.take_if(|(wanted, _)| *wanted <= count),
                state.wanted.take_if(|wanted| *wanted <= count),
            )
        };
        if wanted.is_some() {
            self.changed.notify_all();
        }
        if let Some((_, waker)) = waiter {
            waker.wake();
        }
    }
}

impl Watch {
    /// A watch over nothing.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Watch `flight` under `number`; what [`Flight::detach`] takes to forget it.
    pub fn add<T: Send + Sync + 'static>(
        self: &Arc<Self>,
        number: usize,
        flight: &Flight<T>,
    ) -> Option<WakerId> {
        let each: Arc<dyn WakeEach> = Arc::<Self>::clone(self);
        flight.watch(Waker::Each(each, number))
    }

    /// The numbers of the flights that ended since the last call, in that order.
    pub fn take(&self) -> Vec<usize> {
        let mut state = lock(&self.state);
        let fresh = state.ended[state.taken..].to_vec();
        state.taken = state.ended.len();
        fresh
    }

    /// Number of flights that ended.
    pub fn ended(&self) -> usize {
        lock(&self.state).ended.len()
    }

    /// Wait until `count` flights have ended, at most for `timeout`; whether they have.
    pub fn wait(&self, count: usize, timeout: Option<Duration>) -> bool {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = lock(&self.state);
        while state.ended.len() < count {
            state.wanted = Some(state.wanted.map_or(count, |wanted| wanted.min(count)));
            state = match deadline {
                None => crate::sync::wait(&self.changed, state),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    wait_timeout(&self.changed, state, left)
                }
            };
        }
        true
    }

    /// Have `waker` called once `count` flights have ended, in the place of any before it.
    pub fn notify(&self, count: usize, waker: Waker) {
        let mut state = lock(&self.state);
        if state.ended.len() < count {
            let before = state.waiter.replace((count, waker));
            drop(state);
            drop(before);
        } else {
            let before = state.waiter.take();
            drop(state);
            drop(before);
            waker.wake();
        }
    }

    /// Forget who is to be woken.
    pub fn forget(&self) {
        let waiter = lock(&self.state).waiter.take();
        drop(waiter);
    }
}
