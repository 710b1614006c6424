//! How event loops, and threads with many jobs, hear of endings: once a batch, not once a job.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyType;
use safelight_core::flight::{Wake, WakeEach, Waker, WakerId, is_runner};

use super::job::{PyJob, SIGNAL_SLICE, wait};
use super::worker::{attached, call};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes asyncio waiters of one event loop, with one call into the loop however many there are.
#[pyclass(name = "Mailbox", module = "safelight._safelight", frozen, weakref)]
pub(crate) struct PyMailbox {
    ended: Mutex<Vec<Py<PyAny>>>,
}

#[pymethods]
impl PyMailbox {
    #[new]
    fn new() -> Self {
        Self {
            ended: Mutex::new(Vec::new()),
        }
    }

    /// Resolve the futures that were posted; runs on the loop's own thread.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        for future in self.take() {
            let future = future.bind(py);
            if !future.call_method0(intern!(py, "done"))?.is_truthy()? {
                future.call_method1(intern!(py, "set_result"), (py.None(),))?;
            }
        }
        Ok(())
    }
}

impl PyMailbox {
    fn take(&self) -> Vec<Py<PyAny>> {
        std::mem::take(&mut *lock(&self.ended))
    }
}

/// One asyncio waiter.
pub(crate) struct LoopWaker {
    pub(crate) mailbox: Py<PyMailbox>,
    pub(crate) event_loop: Py<PyAny>,
    pub(crate) future: Py<PyAny>,
}

impl Wake for LoopWaker {
    fn wake(self: Box<Self>) {
        // None: the interpreter finalizes, and no loop runs any more.
        attached(|py| self.post(py));
    }
}

impl LoopWaker {
    fn post(self, py: Python<'_>) {
        let Self {
            mailbox,
            event_loop,
            future,
        } = self;
        let is_first = {
            let mut ended = lock(&mailbox.get().ended);
            ended.push(future);
            ended.len() == 1
        };
        if !is_first {
            // Whoever was first has called, or is about to.
            return;
        }
        let called = (|| {
            let drain = mailbox.bind(py).getattr(intern!(py, "drain"))?;
            let soon = event_loop
                .bind(py)
                .getattr(intern!(py, "call_soon_threadsafe"))?;
            call(&soon, &(drain,).into_pyobject(py)?, None)
        })();
        if called.is_err() {
            // The loop is closed: nobody is left to tell.
            drop(mailbox.get().take());
        }
    }
}

/// Watches jobs and tells in which order they end; forgotten, it leaves them running.
#[pyclass(name = "Watch", module = "safelight._safelight", frozen)]
pub(crate) struct PyWatch {
    shared: Arc<Shared>,
    watched: Vec<Py<PyJob>>,
    /// The wakers left with the jobs that had not ended.
    wakers: Mutex<Vec<(usize, WakerId)>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Positions of jobs that ended, in that order.
    ended: Vec<usize>,
    /// How many of `ended` were handed out.
    taken: usize,
    /// Who is to be woken once so many have ended. One waiter at a time.
    waiter: Option<(usize, Box<dyn Wake>)>,
    /// The least that a blocked thread waits for: it is not woken for each job before that.
    wanted: Option<usize>,
}

impl WakeEach for Shared {
    fn wake(&self, position: usize) {
        let (waiter, wanted) = {
            let mut state = lock(&self.state);
            state.ended.push(position);
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

impl Drop for PyWatch {
    fn drop(&mut self) {
        self.leave();
    }
}

#[pymethods]
impl PyWatch {
    #[new]
    fn new(jobs: Vec<Py<PyJob>>) -> PyResult<Self> {
        for job in &jobs {
            job.get().check_process()?;
        }
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut wakers = Vec::with_capacity(jobs.len());
        for (position, job) in jobs.iter().enumerate() {
            let waker = Waker::Each(Arc::<Shared>::clone(&shared), position);
            let waker = job.get().flight.watch(waker);
            wakers.extend(waker.map(|id| (position, id)));
        }
        Ok(Self {
            shared,
            watched: jobs,
            wakers: Mutex::new(wakers),
        })
    }

    /// The jobs that ended since the last call, in that order.
    fn take(&self, py: Python<'_>) -> Vec<Py<PyJob>> {
        let positions = {
            let mut state = lock(&self.shared.state);
            let fresh = state.ended[state.taken..].to_vec();
            state.taken = state.ended.len();
            fresh
        };
        positions
            .into_iter()
            .map(|position| self.watched[position].clone_ref(py))
            .collect()
    }

    /// Wait until `count` jobs, or all, have ended. A job that waits runs those that have not begun.
    fn wait(&self, py: Python<'_>, count: usize) -> PyResult<()> {
        let count = count.min(self.watched.len());
        if is_runner() {
            for job in &self.watched {
                if lock(&self.shared.state).ended.len() >= count {
                    break;
                }
                wait(py, &job.get().flight, None)?;
            }
            return Ok(());
        }
        loop {
            let is_enough = py.detach(|| {
                let state = lock(&self.shared.state);
                let (state, _) = self
                    .shared
                    .changed
                    .wait_timeout_while(state, SIGNAL_SLICE, |state| {
                        let is_short = state.ended.len() < count;
                        if is_short {
                            state.wanted = Some(state.wanted.map_or(count, |w| w.min(count)));
                        }
                        is_short
                    })
                    .unwrap_or_else(PoisonError::into_inner);
                state.ended.len() >= count
            });
            if is_enough {
                return Ok(());
            }
            py.check_signals()?;
        }
    }

    /// Have `future` resolved on its loop once `count` jobs, or all, have ended.
    fn notify(
        &self,
        count: usize,
        event_loop: Py<PyAny>,
        mailbox: Py<PyMailbox>,
        future: Py<PyAny>,
    ) {
        let count = count.min(self.watched.len());
        let waker: Box<dyn Wake> = Box::new(LoopWaker {
            mailbox,
            event_loop,
            future,
        });
        let (now, before) = {
            let mut state = lock(&self.shared.state);
            if state.ended.len() >= count {
                (Some(waker), state.waiter.take())
            } else {
                (None, state.waiter.replace((count, waker)))
            }
        };
        drop(before);
        if let Some(waker) = now {
            waker.wake();
        }
    }

    #[classmethod]
    fn __class_getitem__(class: &Bound<'_, PyType>, _item: &Bound<'_, PyAny>) -> Py<PyType> {
        class.clone().unbind()
    }

    /// Forget the jobs; they go on.
    fn leave(&self) {
        let waiter = lock(&self.shared.state).waiter.take();
        drop(waiter);
        let wakers = std::mem::take(&mut *lock(&self.wakers));
        for (position, id) in wakers {
            drop(self.watched[position].get().flight.detach(id));
        }
    }
}
