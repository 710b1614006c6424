//! Who waits for whom among the threads that run work: what finds a cycle before it is closed.

use std::collections::HashMap;

use super::WaitError;
use crate::fork::{Renewable, Resident};
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock, thread_local};

/// Identity of a thread that runs work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct RunnerId(u64);

/// Who waits for whom among the threads that run work: what finds a cycle before it is closed.
///
/// Pools whose work may wait for each other's share one.
pub struct WaitGraph {
    next: AtomicU64,
    /// A running thread waits for at most one other at a time. Renewed in a forked child, where a
    /// thread of the parent may have held the lock.
    waits: Renewable<Mutex<HashMap<RunnerId, Wait>>>,
}

impl Default for WaitGraph {
    fn default() -> Self {
        Self {
            next: AtomicU64::new(0),
            waits: Renewable::new(Mutex::default()),
        }
    }
}

impl Resident for WaitGraph {
    fn after_fork(&self) {
        self.waits.replace(Mutex::default());
    }
}

struct Wait {
    target: RunnerId,
    /// Whether the flight waited for has ended: then the wait only looks like one.
    over: Arc<AtomicBool>,
}

/// The current thread in its role of running work.
#[derive(Clone)]
pub(super) struct Runner {
    id: RunnerId,
    graph: Arc<WaitGraph>,
}

thread_local! {
    static RUNNER: std::cell::RefCell<Option<Runner>> = const { std::cell::RefCell::new(None) };
}

/// A wait in force.
pub(super) struct Edge<'a> {
    graph: &'a WaitGraph,
    from: RunnerId,
}

impl Drop for Edge<'_> {
    fn drop(&mut self) {
        lock(self.graph.waits.get()).remove(&self.from);
    }
}

impl Runner {
    pub(super) fn current() -> Option<Self> {
        RUNNER.with(|runner| runner.borrow().clone())
    }

    /// Note that this thread waits for `target` to end a flight; `None` if graphs differ.
    pub(super) fn waits_for(
        &self,
        target: &Self,
        over: &Arc<AtomicBool>,
    ) -> Result<Option<Edge<'_>>, WaitError> {
        if !Arc::ptr_eq(&self.graph, &target.graph) {
            return Ok(None);
        }
        let mut waits = lock(self.graph.waits.get());
        let mut next = (target.id, over);
        // Ends: the waits in force form a forest, which this check keeps.
        while !next.1.load(Ordering::Acquire) {
            if next.0 == self.id {
                return Err(WaitError::Cycle);
            }
            match waits.get(&next.0) {
                Some(wait) => next = (wait.target, &wait.over),
                None => break,
            }
        }
        let wait = Wait {
            target: target.id,
            over: Arc::clone(over),
        };
        waits.insert(self.id, wait);
        drop(waits);
        Ok(Some(Edge {
            graph: &self.graph,
            from: self.id,
        }))
    }
}

impl WaitGraph {
    /// Mark the current thread as one that runs work, unless it does already, while `body` runs.
    pub fn as_runner<R>(self: &Arc<Self>, body: impl FnOnce() -> R) -> R {
        struct Restore;
        impl Drop for Restore {
            fn drop(&mut self) {
                RUNNER.with(|runner| runner.replace(None));
            }
        }
        if is_runner() {
            return body();
        }
        let runner = Runner {
            id: RunnerId(self.next.fetch_add(1, Ordering::Relaxed)),
            graph: Arc::clone(self),
        };
        let _restore = Restore;
        RUNNER.with(|current| current.replace(Some(runner)));
        body()
    }

    /// Number of threads that run work and wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        lock(self.waits.get()).len()
    }
}

/// Whether the current thread runs work: it must not wait for room, and runs what it needs.
#[must_use]
pub fn is_runner() -> bool {
    RUNNER.with(|runner| runner.borrow().is_some())
}
