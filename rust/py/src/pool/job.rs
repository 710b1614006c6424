//! `Job`: one callable on its way through a pool, and how threads wait for flights.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use pyo3::{PyTraverseError, PyVisit};
use safelight_core::flight::{Ending, Flight, Interest, WaitError, Waker};
use safelight_core::pool::{Job, Pool, Priority, Site, Task};
use safelight_core::{Error, ErrorKind};

use super::priority;
use super::raised::Raised;
use super::worker::{Context, detached, work_attached};
use crate::error::BindingError;
use crate::fork::RESIDENTS;

/// A wait looks for signals this often.
pub(super) const SIGNAL_SLICE: Duration = Duration::from_millis(50);

/// A Python value owned by the core, which copies it by counting a reference.
pub(crate) struct Object(pub(crate) Py<PyAny>);

impl Clone for Object {
    fn clone(&self) -> Self {
        Python::attach(|py| Self(self.0.clone_ref(py)))
    }
}

/// What a Python callable gives.
pub(crate) type Answer = Result<Object, Raised>;

/// Why a flight has no answer, as an exception.
pub(crate) fn ending_error<T>(ending: &Ending<T>) -> PyErr {
    let message = match ending {
        Ending::Withdrawn => return Python::attach(cancelled_error),
        Ending::Panicked => "a job panicked",
        Ending::Abandoned | Ending::Returned(_) => "a worker of the pool died",
    };
    BindingError::from(Error::new(ErrorKind::Panicked, message)).into()
}

fn cancelled_error(py: Python<'_>) -> PyErr {
    py.import("concurrent.futures")
        .and_then(|futures| futures.getattr("CancelledError")?.call0())
        .map_or_else(|error| error, PyErr::from_value)
}

/// A timeout in seconds as Python gives it; `None` is for ever.
pub(super) fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    match timeout {
        None => Ok(None),
        Some(seconds) if seconds.is_nan() => Err(PyValueError::new_err("timeout is not a number")),
        // What does not fit is longer than anybody waits.
        Some(seconds) => Ok(Duration::try_from_secs_f64(seconds.max(0.0))
            .ok()
            .and_then(|timeout| Instant::now().checked_add(timeout))),
    }
}

/// Wait detached until `flight` ends, looking for signals now and then.
pub(crate) fn wait<'flight, T: Send + Sync + 'static>(
    py: Python<'_>,
    flight: &'flight Flight<T>,
    deadline: Option<Instant>,
) -> PyResult<&'flight Ending<T>> {
    loop {
        if let Some(ending) = flight.ending() {
            return Ok(ending);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let slice = left.map_or(SIGNAL_SLICE, |left| left.min(SIGNAL_SLICE));
        match detached(py, || flight.wait(Some(slice))) {
            Ok(ending) => return Ok(ending),
            Err(WaitError::Cycle) => {
                return Err(PyRuntimeError::new_err(
                    "work waits for itself: it needs its own result, directly or through others",
                ));
            }
            Err(WaitError::Timeout) if left.is_some_and(|left| left <= slice) => {
                return Err(PyTimeoutError::new_err(()));
            }
            Err(WaitError::Timeout) => py.check_signals()?,
        }
    }
}

/// As [`wait`], for whoever can do without: a cycle is no error.
pub(crate) fn wait_unless_cycle<T: Send + Sync + 'static>(
    py: Python<'_>,
    flight: &Flight<T>,
) -> PyResult<()> {
    while let Err(WaitError::Timeout) = detached(py, || flight.wait(Some(SIGNAL_SLICE))) {
        py.check_signals()?;
    }
    Ok(())
}

/// One callable on its way through a pool.
#[pyclass(name = "Job", module = "safelight._safelight", frozen, weakref)]
pub(crate) struct PyJob {
    pub(super) flight: Arc<Flight<Answer>>,
    generation: u32,
    /// Its own place in a queue.
    entry: Job,
    /// Its part in a decode, which the flight's work holds.
    wanted: Weak<Interest<Answer>>,
    /// What has to end first; until the job is queued.
    after: Mutex<Option<Arc<Flight<Answer>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PyJob {
    /// A job that is not queued yet and calls a function, the first of `function`, in `context`.
    pub(crate) fn of_call(
        context: Context,
        function: Py<PyTuple>,
        kwargs: Option<Py<PyDict>>,
    ) -> Self {
        let flight = Flight::new(Box::new(move |_| {
            work_attached(|py| {
                let kwargs = kwargs.map(|kwargs| kwargs.into_bound(py));
                let answer = context.call(function.bind(py), kwargs.as_ref());
                // Before anybody knows of the end: arguments may hold something large.
                drop((context, function, kwargs));
                match answer {
                    Ok(value) => Ok(Object(value.unbind())),
                    Err(error) => Err(Raised::new(py, &error)),
                }
            })
        }));
        let entry = Job {
            site: Site::Host,
            ..Job::new(Arc::clone(&flight) as Arc<dyn Task>)
        };
        Self::of_decode(flight, entry, Weak::new(), None)
    }

    /// What a flight that is under way comes to.
    pub(crate) fn of_flight(flight: Arc<Flight<Answer>>) -> Self {
        let entry = Job::new(Arc::clone(&flight) as Arc<dyn Task>);
        Self::of_decode(flight, entry, Weak::new(), None)
    }

    pub(crate) fn flight(&self) -> &Arc<Flight<Answer>> {
        &self.flight
    }

    /// A job that takes part in a decode: in that of `wanted`, and once `after` has ended.
    pub(crate) fn of_decode(
        flight: Arc<Flight<Answer>>,
        entry: Job,
        wanted: Weak<Interest<Answer>>,
        after: Option<Arc<Flight<Answer>>>,
    ) -> Self {
        Self {
            flight,
            generation: RESIDENTS.generation(),
            entry,
            wanted,
            after: Mutex::new(after),
        }
    }

    /// What is to be queued for the job: what it comes after, if anything, or itself.
    pub(super) fn queued(&self, background: bool) -> Job {
        let entry = self.entry.clone();
        let job = match &*lock(&self.after) {
            None => entry,
            Some(after) => {
                let task = Arc::clone(after) as Arc<dyn Task>;
                if after.is_staged() {
                    Job::decode(task, 0)
                } else {
                    Job { task, ..entry }
                }
            }
        };
        Job {
            priority: match priority(background) {
                Priority::Foreground => job.priority,
                background => background,
            },
            ..job
        }
    }

    pub(super) fn withdraw(&self) {
        self.flight.withdraw();
    }

    /// The job was queued: have it follow what it comes after.
    pub(super) fn was_queued(&self, pool: &Arc<Pool>) {
        let after = lock(&self.after).take();
        if let Some(after) = after {
            let (pool, entry) = (Arc::clone(pool), self.entry.clone());
            after.watch(Waker::One(Box::new(move || {
                // Whether or not there is room: whoever waits for it had to wait already.
                if entry.task.is_waiting() && pool.push(entry.clone()).is_err() {
                    entry.task.withdraw();
                }
            })));
        }
    }

    /// An error if the job did not end before the fork that made this process.
    pub(super) fn check_process(&self) -> PyResult<()> {
        if self.generation == RESIDENTS.generation() || self.flight.ending().is_some() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(
            "the job was submitted before a fork and runs in the parent",
        ))
    }

    fn ending(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<&Ending<Answer>> {
        self.check_process()?;
        wait(py, &self.flight, deadline(timeout)?)
    }
}

#[pymethods]
impl PyJob {
    /// A job that is not queued yet and calls `function`, in a copy of the caller's context.
    #[new]
    pub(super) fn new(py: Python<'_>, function: Py<PyAny>) -> PyResult<Self> {
        let function = (function,).into_pyobject(py)?.unbind();
        Ok(Self::of_call(Context::current(py)?, function, None))
    }

    /// Wait for the job and return what it returned, or raise a copy of what it raised.
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        match self.ending(py, timeout)? {
            Ending::Returned(Ok(Object(value))) => Ok(value.clone_ref(py)),
            Ending::Returned(Err(raised)) => Err(raised.fresh(py)),
            ending => Err(ending_error(ending)),
        }
    }

    /// Wait for the job; the very exception that it raised, or None.
    #[pyo3(signature = (timeout=None))]
    fn exception(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        match self.ending(py, timeout)? {
            Ending::Returned(Ok(_)) => Ok(None),
            Ending::Returned(Err(raised)) => Ok(Some(raised.original().clone_ref(py))),
            ending @ Ending::Withdrawn => Err(ending_error(ending)),
            ending => Ok(Some(ending_error(ending).into_value(py).into_any())),
        }
    }

    /// Withdraw the job if it has not begun; whether it is withdrawn.
    ///
    /// A decode goes on for others who want it. One that runs and that nobody else wants is asked
    /// to stop, and then ends as if it had been withdrawn.
    pub(super) fn cancel(&self) -> bool {
        if self.generation == RESIDENTS.generation() {
            let wanted = self.wanted.upgrade();
            self.flight.withdraw();
            if let Some(wanted) = wanted {
                wanted.leave();
            }
        }
        self.cancelled()
    }

    /// Whether the job was withdrawn before it began, or stopped midway.
    fn cancelled(&self) -> bool {
        matches!(self.flight.ending(), Some(Ending::Withdrawn))
    }

    /// Whether the job runs at this moment.
    fn running(&self) -> bool {
        self.generation == RESIDENTS.generation() && self.flight.is_running()
    }

    /// Whether the job ended, however.
    fn done(&self) -> bool {
        self.flight.ending().is_some()
    }

    #[classmethod]
    fn __class_getitem__(class: &Bound<'_, PyType>, _item: &Bound<'_, PyAny>) -> Py<PyType> {
        class.clone().unbind()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.flight.ending() {
            Some(Ending::Returned(Ok(Object(value)))) => visit.call(value),
            Some(Ending::Returned(Err(raised))) => visit.call(raised.original()),
            _ => Ok(()),
        }
    }
}
