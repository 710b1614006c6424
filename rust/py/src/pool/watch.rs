//! How event loops, and threads with many jobs, wait: woken once a batch, not once a job.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyType;
use safelight_core::flight::{Mailbox, Wake, Waker, WakerId, Watch, is_runner};

use super::job::{PyJob, SIGNAL_SLICE, wait};
use super::worker::{attached, call};

/// Wakes asyncio waiters of one event loop, with one call into the loop however many there are.
#[pyclass(name = "Mailbox", module = "safelight._safelight", frozen, weakref)]
pub(crate) struct PyMailbox(Mailbox<Py<PyAny>>);

#[pymethods]
impl PyMailbox {
    #[new]
    fn new() -> Self {
        Self(Mailbox::default())
    }

    /// Resolve the futures that were posted; runs on the loop's own thread.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        for future in self.0.take() {
            let future = future.bind(py);
            if !future.call_method0(crate::name(py, "done"))?.is_truthy()? {
                future.call_method1(crate::name(py, "set_result"), (py.None(),))?;
            }
        }
        Ok(())
    }
}

/// One asyncio waiter.
pub(super) struct LoopWaker {
    pub(super) mailbox: Py<PyMailbox>,
    pub(super) event_loop: Py<PyAny>,
    pub(super) future: Py<PyAny>,
}

impl Wake for LoopWaker {
    fn wake(self: Box<Self>) {
        // None: the interpreter finalizes, and no loop runs any more.
        attached(|py| {
            let Self {
                mailbox,
                event_loop,
                future,
            } = *self;
            // Whoever was first has called, or is about to.
            if !mailbox.get().0.post(future) {
                return;
            }
            let called = (|| {
                let drain = mailbox.bind(py).getattr(crate::name(py, "drain"))?;
                let soon = event_loop
                    .bind(py)
                    .getattr(crate::name(py, "call_soon_threadsafe"))?;
                call(&soon, &(drain,).into_pyobject(py)?, None)
            })();
            if called.is_err() {
                // The loop is closed: nobody is left to tell.
                drop(mailbox.get().0.take());
            }
        });
    }
}

/// Watches jobs and tells in which order they end; forgotten, it leaves them running.
#[pyclass(name = "Watch", module = "safelight._safelight", frozen)]
pub(crate) struct PyWatch {
    watch: Arc<Watch>,
    jobs: Vec<Py<PyJob>>,
    /// The wakers left with the jobs that had not ended.
    wakers: Mutex<Vec<(usize, WakerId)>>,
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
        let watch = Watch::new();
        let numbered = jobs.iter().enumerate();
        let wakers = numbered
            .filter_map(|(number, job)| Some((number, watch.add(number, &job.get().flight)?)))
            .collect();
        Ok(Self {
            watch,
            jobs,
            wakers: Mutex::new(wakers),
        })
    }

    /// The jobs that ended since the last call, in that order.
    fn take(&self, py: Python<'_>) -> Vec<Py<PyJob>> {
        let numbers = self.watch.take().into_iter();
        numbers
            .map(|number| self.jobs[number].clone_ref(py))
            .collect()
    }

    /// Wait until `count` jobs, or all, have ended. A job that waits runs those that have not begun.
    fn wait(&self, py: Python<'_>, count: usize) -> PyResult<()> {
        let count = count.min(self.jobs.len());
        if is_runner() {
            for job in &self.jobs {
                if self.watch.ended() >= count {
                    break;
                }
                wait(py, &job.get().flight, None)?;
            }
            return Ok(());
        }
        while !py.detach(|| self.watch.wait(count, Some(SIGNAL_SLICE))) {
            py.check_signals()?;
        }
        Ok(())
    }

    /// Have `future` resolved on its loop once `count` jobs, or all, have ended.
    fn notify(
        &self,
        count: usize,
        event_loop: Py<PyAny>,
        mailbox: Py<PyMailbox>,
        future: Py<PyAny>,
    ) {
        let waker = LoopWaker {
            mailbox,
            event_loop,
            future,
        };
        let count = count.min(self.jobs.len());
        self.watch.notify(count, Waker::One(Box::new(waker)));
    }

    #[classmethod]
    fn __class_getitem__(class: &Bound<'_, PyType>, _item: &Bound<'_, PyAny>) -> Py<PyType> {
        class.clone().unbind()
    }

    /// Forget the jobs; they go on.
    fn leave(&self) {
        self.watch.forget();
        let wakers =
            std::mem::take(&mut *self.wakers.lock().unwrap_or_else(PoisonError::into_inner));
        for (number, id) in wakers {
            drop(self.jobs[number].get().flight.detach(id));
        }
    }
}
