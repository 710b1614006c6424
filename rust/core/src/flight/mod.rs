//! One piece of work, run at most once, awaited by any number of threads and event loops.
//!
//! A flight owns its work; a waiter only looks on. However the work ends (a value, a panic, a
//! dropped leader, withdrawal before it began) the flight ends and every waiter is woken. Those who
//! hold an [`Interest`] in it decide together: the last to leave cancels it. Must never run foreign
//! code under its lock.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::cancel::Cancel;
use crate::sync::{Arc, AtomicBool, Condvar, Mutex, Ordering, lock};
use graph::Runner;
use wakers::Wakers;

pub use graph::{WaitGraph, is_runner};
pub use mailbox::Mailbox;
pub use once::{Equals, Interest, Once};
pub use wakers::{Wake, WakeEach, Waker, WakerId};
pub use watch::Watch;

mod graph;
mod mailbox;
mod once;
mod wakers;
mod watch;

/// How a flight ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ending<T> {
    /// The work returned.
    Returned(T),
    /// The work panicked.
    Panicked,
    /// The work was withdrawn before it began, or stopped midway because it was asked to.
    Withdrawn,
    /// The leader was dropped without an answer: its thread died.
    Abandoned,
}

/// The work of a flight.
pub type Work<T> = Box<dyn FnOnce(&Cancel) -> T + Send>;

/// Work of which the second part may have to run elsewhere; none if it stopped as it was asked to.
pub type StagedWork<T> = Box<dyn FnOnce(&Cancel) -> Option<LastPart<T>> + Send>;

/// The part of work that makes its result.
pub type LastPart<T> = Box<dyn FnOnce() -> T + Send>;

/// The second part of work that was begun. Calling it ends the flight; dropping it abandons it.
pub type Unfinished = Box<dyn FnOnce() + Send>;

/// Why a wait did not end with the flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitError {
    /// The time was up first.
    Timeout,
    /// The waiting work is, through others, what the flight itself waits for.
    Cycle,
}

/// See the module.
pub struct Flight<T> {
    state: Mutex<State<T>>,
    ended: Condvar,
    ending: OnceLock<Ending<T>>,
    cancel: Cancel,
    leader: Option<Arc<Flight<T>>>,
    is_staged: bool,
}

struct State<T> {
    phase: Phase<T>,
    /// Number of [`Interest`]s that have not left.
    interested: usize,
    wakers: Wakers,
    /// Set by the ending flight before its thread goes on to anything else; made for the first
    /// waiter that the wait graph has to know.
    over: Option<Arc<AtomicBool>>,
    /// Threads that wait.
    blocked: usize,
}

enum Stages<T> {
    One(Work<T>),
    Two(StagedWork<T>),
}

enum Phase<T> {
    Waiting(Stages<T>),
    Running {
        by: Option<Runner>,
        /// Whether the work may still stop as it was asked to: in the first of two parts.
        can_stop: bool,
    },
    Ended,
}

/// The duty to end a flight, which dropping it fulfils: with `ending`, or as abandoned.
struct Leader<T, F: Deref<Target = Flight<T>>> {
    flight: F,
    ending: Option<Ending<T>>,
}

impl<T, F: Deref<Target = Flight<T>>> Leader<T, F> {
    fn new(flight: F) -> Self {
        let ending = None;
        Self { flight, ending }
    }

    /// Do a part of the work, on whose panic the flight ends.
    fn attempt<R>(&mut self, part: impl FnOnce(&Cancel) -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(|| part(&self.flight.cancel))) {
            Ok(result) => Some(result),
            Err(panic) => {
                // A payload's own destructor may panic too.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
                self.ending = Some(Ending::Panicked);
                None
            }
        }
    }

    /// Do the first of two parts; what is left.
    fn begin(mut self, first: StagedWork<T>) -> Option<(Self, LastPart<T>)> {
        match self.attempt(first)? {
            Some(last) if self.flight.commit() => Some((self, last)),
            _ => {
                self.ending = Some(Ending::Withdrawn);
                None
            }
        }
    }

    /// Do the last part of the work and end the flight.
    fn finish(mut self, part: impl FnOnce(&Cancel) -> T) {
        if let Some(value) = self.attempt(part) {
            self.ending = Some(Ending::Returned(value));
        }
    }
}

impl<T, F: Deref<Target = Flight<T>>> Drop for Leader<T, F> {
    fn drop(&mut self) {
        let ending = self.ending.take().unwrap_or(Ending::Abandoned);
        self.flight.end(ending);
    }
}

impl<T: Send + Sync + 'static> Flight<T> {
    /// A flight whose work nobody runs yet.
    #[must_use]
    pub fn new(work: Work<T>) -> Arc<Self> {
        Self::of(Stages::One(work), None)
    }

    /// As [`Flight::new`], of work in two parts.
    #[must_use]
    pub fn staged(work: StagedWork<T>) -> Arc<Self> {
        Self::of(Stages::Two(work), None)
    }

    /// A flight whose work is to wait for that of `leader` and to make its result of the ending.
    ///
    /// The ending is `None` where waiting would close a cycle. Whoever waits for a follower does
    /// better to wait for its [`Flight::leader`] first than to run it.
    #[must_use]
    pub fn follow(
        leader: Interest<T>,
        last: impl FnOnce(Option<&Ending<T>>) -> T + Send + 'static,
    ) -> Arc<Self> {
        let followed = Arc::clone(leader.flight());
        let first: StagedWork<T> = Box::new(move |_| {
            let is_known = leader.flight().wait(None).is_ok();
            Some(Box::new(move || {
                last(leader.flight().ending().filter(|_| is_known))
            }))
        });
        Self::of(Stages::Two(first), Some(followed))
    }

    fn of(stages: Stages<T>, leader: Option<Arc<Self>>) -> Arc<Self> {
        let is_staged = matches!(stages, Stages::Two(_));
        Arc::new(Self {
            leader,
            is_staged,
            state: Mutex::new(State {
                phase: Phase::Waiting(stages),
                interested: 0,
                wakers: Wakers::default(),
                over: None,
                blocked: 0,
            }),
            ended: Condvar::new(),
            ending: OnceLock::new(),
            cancel: Cancel::default(),
        })
    }

    /// Run the work here, all of it, unless somebody runs or ran it; whether it was run here.
    ///
    /// A panic ends the flight and goes no further.
    pub fn run(&self) -> bool {
        let Some(stages) = self.claim() else {
            return false;
        };
        let leader = Leader::new(self);
        match stages {
            Stages::One(work) => leader.finish(work),
            Stages::Two(first) => {
                if let Some((leader, last)) = leader.begin(first) {
                    leader.finish(|_| last());
                }
            }
        }
        true
    }

    /// Run the first part of the work here, unless somebody runs or ran it.
    ///
    /// `None` if nothing is left to do here. The rest is owed soon: others may wait for it.
    pub fn begin(self: Arc<Self>) -> Option<Unfinished> {
        let stages = self.claim()?;
        let leader = Leader::new(self);
        match stages {
            Stages::One(work) => {
                leader.finish(work);
                None
            }
            Stages::Two(first) => {
                let (leader, last) = leader.begin(first)?;
                Some(Box::new(move || leader.finish(|_| last())))
            }
        }
    }

    /// End the flight if nobody runs it yet; whether it was withdrawn by this call.
    pub fn withdraw(&self) -> bool {
        let Some(work) = self.claim() else {
            return false;
        };
        drop(work);
        self.end(Ending::Withdrawn);
        true
    }

    /// Withdraw the flight, or ask its work to stop if it runs; whether it was withdrawn.
    pub fn cancel(&self) -> bool {
        self.cancel.request();
        self.withdraw()
    }

    /// The flight that this one follows.
    #[must_use]
    pub fn leader(&self) -> Option<&Arc<Self>> {
        self.leader.as_ref()
    }

    /// Whether the work has two parts.
    #[must_use]
    pub fn is_staged(&self) -> bool {
        self.is_staged
    }

    /// Count one more who wants the result; `None` once the flight has ended or was cancelled.
    #[must_use]
    pub fn join(self: &Arc<Self>) -> Option<Interest<T>> {
        let mut state = lock(&self.state);
        match state.phase {
            Phase::Ended => return None,
            Phase::Running { can_stop: true, .. } if self.cancel.is_requested() => return None,
            Phase::Waiting(_) | Phase::Running { .. } => {}
        }
        state.interested += 1;
        drop(state);
        Some(Interest::new(Arc::clone(self)))
    }

    /// How the flight ended; `None` while it has not.
    #[must_use]
    pub fn ending(&self) -> Option<&Ending<T>> {
        self.ending.get()
    }

    /// Whether the work runs at this moment.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(lock(&self.state).phase, Phase::Running { .. })
    }

    /// Whether nobody runs or ran the work.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        matches!(lock(&self.state).phase, Phase::Waiting(_))
    }

    /// Have `waker` called when the flight ends; at once, and `None`, if it has ended.
    pub fn watch(&self, waker: Waker) -> Option<WakerId> {
        {
            let mut state = lock(&self.state);
            if !matches!(state.phase, Phase::Ended) {
                return Some(state.wakers.insert(waker));
            }
        }
        waker.wake();
        None
    }

    /// Forget a waker of [`Flight::watch`] and hand it back; `None` if it was called.
    pub fn detach(&self, id: WakerId) -> Option<Waker> {
        lock(&self.state).wakers.remove(id)
    }

    /// Number of threads and wakers that wait.
    #[must_use]
    pub fn waiters(&self) -> usize {
        let state = lock(&self.state);
        state.wakers.len() + state.blocked
    }

    /// Wait for the ending, at most for `timeout`.
    ///
    /// Work that waits for a flight nobody runs yet runs it itself, so a pool never waits on
    /// itself. Other threads only wait.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<&Ending<T>, WaitError> {
        if let Some(ending) = self.ending.get() {
            return Ok(ending);
        }
        let Some(runner) = Runner::current() else {
            return self.block(timeout);
        };
        if self.run() {
            return self.ending.get().ok_or(WaitError::Timeout);
        }
        let Some((by, over)) = self.running_by() else {
            return self.block(timeout);
        };
        let _edge = runner.waits_for(&by, &over)?;
        self.block(timeout)
    }

    /// Who runs the work, and what tells that it no longer does.
    fn running_by(&self) -> Option<(Runner, Arc<AtomicBool>)> {
        let mut state = lock(&self.state);
        let Phase::Running { by: Some(by), .. } = &state.phase else {
            return None;
        };
        let by = by.clone();
        Some((by, Arc::clone(state.over.get_or_insert_default())))
    }

    fn block(&self, timeout: Option<Duration>) -> Result<&Ending<T>, WaitError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = lock(&self.state);
        state.blocked += 1;
        while !matches!(state.phase, Phase::Ended) {
            state = match deadline {
                None => crate::sync::wait(&self.ended, state),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    crate::sync::wait_timeout(&self.ended, state, left)
                }
            };
        }
        state.blocked -= 1;
        drop(state);
        self.ending.get().ok_or(WaitError::Timeout)
    }

    fn claim(&self) -> Option<Stages<T>> {
        let by = Runner::current();
        take_stages(&mut lock(&self.state).phase, by)
    }
}

/// Take the work out of a phase in which nobody runs it, for `by` to run.
fn take_stages<T>(phase: &mut Phase<T>, by: Option<Runner>) -> Option<Stages<T>> {
    let Phase::Waiting(stages) = phase else {
        return None;
    };
    let can_stop = matches!(stages, Stages::Two(_));
    match std::mem::replace(phase, Phase::Running { by, can_stop }) {
        Phase::Waiting(stages) => Some(stages),
        Phase::Running { .. } | Phase::Ended => None,
    }
}

impl<T> Flight<T> {
    /// The first part is done: whether the last one may follow, which then can no longer be stopped.
    fn commit(&self) -> bool {
        let mut state = lock(&self.state);
        let may_go_on = !self.cancel.is_requested();
        // Nobody joins what ends as withdrawn: until then it counts as about to stop.
        if may_go_on && let Phase::Running { can_stop, .. } = &mut state.phase {
            *can_stop = false;
        }
        may_go_on
    }

    /// One who was interested leaves; the last one cancels.
    fn leave(&self) {
        let stages = {
            let mut state = lock(&self.state);
            state.interested -= 1;
            if state.interested > 0 {
                return;
            }
            match &mut state.phase {
                Phase::Ended
                | Phase::Running {
                    can_stop: false, ..
                } => return,
                Phase::Running { can_stop: true, .. } => {
                    self.cancel.request();
                    return;
                }
                phase @ Phase::Waiting(_) => {
                    // Before the lock is released: nobody joins what is about to be withdrawn.
                    self.cancel.request();
                    let stages = take_stages(phase, None);
                    *phase = Phase::Running {
                        by: None,
                        can_stop: true,
                    };
                    stages
                }
            }
        };
        drop(stages);
        self.end(Ending::Withdrawn);
    }

    fn end(&self, ending: Ending<T>) {
        let (wakers, blocked) = {
            let mut state = lock(&self.state);
            // Only the one claimant of the work comes here, and once.
            let _ = self.ending.set(ending);
            if let Some(over) = &state.over {
                over.store(true, Ordering::Release);
            }
            state.phase = Phase::Ended;
            (std::mem::take(&mut state.wakers), state.blocked)
        };
        // Notifying costs a system call, whether or not anybody waits.
        if blocked > 0 {
            self.ended.notify_all();
        }
        for waker in wakers {
            // One waker that panics must not cost the others their call.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}
