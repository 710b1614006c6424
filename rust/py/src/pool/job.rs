//! `Job`: one callable on its way through a pool, and how threads wait for flights.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use pyo3::{PyTraverseError, PyVisit};
use safelight_core::flight::{Ending, Flight, WaitError};
use safelight_core::pool::{Job, Priority, Site, Task};
use safelight_core::{Error, ErrorKind};

use super::raised::Raised;
use super::worker::{call, detached, work_attached};
use crate::error::BindingError;
use crate::fork::generation;

pyo3::import_exception!(concurrent.futures, CancelledError);

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
        Ending::Withdrawn => return CancelledError::new_err(()),
        Ending::Panicked => "a job panicked",
        Ending::Abandoned | Ending::Returned(_) => "a worker of the pool died",
    };
    BindingError::from(Error::new(ErrorKind::Panicked, message)).into()
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
                    "work waits for itself: what it asks for is, through others, waiting for it",
                ));
            }
            Err(WaitError::Timeout) if left.is_some_and(|left| left <= slice) => {
                return Err(PyTimeoutError::new_err(()));
            }
            Err(WaitError::Timeout) => py.check_signals()?,
        }
    }
}

/// One callable on its way through a pool.
#[pyclass(name = "Job", module = "safelight._safelight", frozen, weakref)]
pub(crate) struct PyJob {
    pub(super) flight: Arc<Flight<Answer>>,
    generation: u32,
    site: Site,
    cost: u64,
}

/// What an image costs besides its pixels, in pixels.
const BASE_COST: u64 = 1 << 12;

/// What costs more lets others pass: an image of more pixels than most cameras make.
const BULK_COST: u64 = 1 << 24;

impl PyJob {
    pub(super) fn new(function: Py<PyAny>, args: Py<PyTuple>, kwargs: Option<Py<PyDict>>) -> Self {
        let flight = Flight::new(Box::new(move |_| {
            work_attached(|py| {
                let kwargs = kwargs.map(|kwargs| kwargs.into_bound(py));
                let answer = call(function.bind(py), args.bind(py), kwargs.as_ref());
                // Before anybody hears of the end: arguments may hold something large.
                drop((function, args, kwargs));
                match answer {
                    Ok(value) => Ok(Object(value.unbind())),
                    Err(error) => Err(Raised::new(py, &error)),
                }
            })
        }));
        Self {
            flight,
            generation: generation(),
            site: Site::Host,
            cost: 0,
        }
    }

    /// A job whose first part needs no interpreter; `cost` is how much work that is, in pixels.
    pub(crate) fn staged(flight: Arc<Flight<Answer>>, cost: u64) -> Self {
        Self {
            flight,
            generation: generation(),
            site: Site::Both,
            cost: cost.saturating_add(BASE_COST),
        }
    }

    pub(super) fn as_job(&self, priority: Priority) -> Job {
        let priority = match priority {
            Priority::Foreground if self.cost > BULK_COST => Priority::Bulk,
            priority => priority,
        };
        Job {
            task: Arc::clone(&self.flight) as Arc<dyn Task>,
            site: self.site,
            priority,
            cost: self.cost,
        }
    }

    /// An error if the job did not end before the fork that made this process.
    pub(super) fn check_process(&self) -> PyResult<()> {
        if self.generation == generation() || self.flight.ending().is_some() {
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

    /// Withdraw the job if it has not begun; whether it is withdrawn. A decode that runs is asked
    /// to stop, and then ends as if it had been withdrawn.
    pub(super) fn cancel(&self) -> bool {
        self.generation == generation() && self.flight.cancel() || self.cancelled()
    }

    /// Whether the job was withdrawn before it began, or stopped midway.
    fn cancelled(&self) -> bool {
        matches!(self.flight.ending(), Some(Ending::Withdrawn))
    }

    /// Whether the job runs at this moment.
    fn running(&self) -> bool {
        self.generation == generation() && self.flight.is_running()
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
