//! The media cache, as Python sees it.
//!
//! Look-ups are built-ins that take the core's lock for the time of one reference count. Work runs
//! on a pool and settles there. Every call here is attached, so no thread that forks can meet the
//! lock held.

use std::sync::Arc;

use pyo3::PyTraverseError;
use pyo3::PyVisit;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use safelight_core::cache::{Begin, Cache, CacheFlight, Computed, Request};
use safelight_core::flight::Ending;
use safelight_core::lru::Left;
use safelight_core::pool::Site;

use crate::fork::RESIDENTS;
use crate::pool::{
    Context, Object, PyJob, PyPool, Raised, ending_error, media_pool, priority, submit_error, wait,
    work_attached,
};

type Entries = Cache<Object, Raised>;

/// Byte-bounded LRU with one flight per key.
#[pyclass(
    name = "Cache",
    module = "safelight._safelight",
    frozen,
    subclass,
    weakref
)]
pub(crate) struct PyCache {
    entries: Arc<Entries>,
    pool: Option<Py<PyPool>>,
}

impl PyCache {
    fn pool<'py>(&'py self, py: Python<'py>) -> PyResult<&'py Py<PyPool>> {
        match &self.pool {
            Some(pool) => Ok(pool),
            None => media_pool(py),
        }
    }

    fn begin(
        &self,
        py: Python<'_>,
        key: &[u8],
        compute: &Py<PyAny>,
        predicted: u64,
        background: bool,
    ) -> PyResult<Begin<Object, Raised, Py<PyAny>>> {
        let request = Request {
            predicted,
            site: Site::Host,
            priority: priority(background),
        };
        let (context, compute) = (Context::current(py)?, compute.clone_ref(py));
        let pool = self.pool(py)?.get().pool();
        self.entries
            .begin(
                pool,
                key,
                request,
                |value| value.0.clone_ref(py),
                move |_| work_attached(|py| computed(py, &context, compute)),
            )
            .map_err(submit_error)
    }

    fn leave(&self, py: Python<'_>, flight: &CacheFlight<Object, Raised>) {
        if let Ok(pool) = self.pool(py) {
            self.entries.leave(pool.get().pool(), flight);
        }
    }
}

/// Call `compute` and take its answer apart.
fn computed(py: Python<'_>, context: &Context, compute: Py<PyAny>) -> Computed<Object, Raised> {
    let answer = (compute,)
        .into_pyobject(py)
        .and_then(|compute| context.call(&compute, None));
    let answer = answer.and_then(|answer| {
        let pair = answer
            .cast::<PyTuple>()
            .ok()
            .filter(|pair| pair.len() == 2)
            .ok_or_else(|| PyTypeError::new_err("compute must return (value, nbytes)"))?;
        Ok((pair.get_item(0)?.unbind(), weight(&pair.get_item(1)?)?))
    });
    match answer {
        Ok((value, weight)) => Ok((Object(value), weight)),
        Err(error) => Err(Raised::new(py, &error)),
    }
}

fn weight(nbytes: &Bound<'_, PyAny>) -> PyResult<u64> {
    nbytes.extract::<u64>().map_err(|error| {
        if error.is_instance_of::<PyTypeError>(nbytes.py()) {
            PyTypeError::new_err("nbytes must be an int")
        } else {
            PyValueError::new_err("nbytes must be from 0 to 2**64 - 1")
        }
    })
}

/// The answer of an ended flight; None if it was withdrawn and is to be asked for again.
fn answer(py: Python<'_>, ending: &Ending<Result<Object, Raised>>) -> PyResult<Option<Py<PyAny>>> {
    match ending {
        Ending::Returned(Ok(Object(value))) => Ok(Some(value.clone_ref(py))),
        Ending::Returned(Err(raised)) => Err(raised.fresh(py)),
        Ending::Withdrawn => Ok(None),
        ending => Err(ending_error(ending)),
    }
}

#[pymethods]
impl PyCache {
    #[new]
    #[pyo3(signature = (max_bytes, *, max_in_flight_bytes=None, pool=None))]
    fn new(
        max_bytes: &Bound<'_, PyAny>,
        max_in_flight_bytes: Option<u64>,
        pool: Option<Py<PyPool>>,
    ) -> PyResult<Self> {
        let max_bytes = max_bytes.extract::<u64>().map_err(|error| {
            if error.is_instance_of::<PyTypeError>(max_bytes.py()) {
                PyTypeError::new_err("max_bytes must be an int")
            } else {
                PyValueError::new_err("max_bytes must be from 0 to 2**64 - 1")
            }
        })?;
        let max_in_flight_bytes = max_in_flight_bytes.unwrap_or(u64::MAX);
        let entries = Arc::new(Cache::new(max_bytes, max_in_flight_bytes));
        RESIDENTS.register(&entries);
        Ok(Self { entries, pool })
    }

    /// The value of `key`, which becomes the most recently used, or `default`.
    #[pyo3(signature = (key, default=None, /))]
    fn get(&self, py: Python<'_>, key: &[u8], default: Option<Py<PyAny>>) -> Option<Py<PyAny>> {
        self.entries
            .get(key, |value| value.0.clone_ref(py))
            .or(default)
    }

    /// Store `value`; whether it fitted.
    fn put(
        &self,
        py: Python<'_>,
        key: &[u8],
        value: Py<PyAny>,
        nbytes: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let weight = weight(nbytes)?;
        let mut left = Left::new();
        let stored = self.entries.put(key, Object(value), weight, &mut left);
        for Object(value) in left {
            value.drop_ref(py);
        }
        Ok(stored)
    }

    /// The value of `key`; if there is none, what `compute` makes of it on the pool.
    #[pyo3(signature = (key, compute, *, predicted_nbytes=0, background=false))]
    fn get_or_compute(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyBytes>,
        compute: Py<PyAny>,
        predicted_nbytes: u64,
        background: bool,
    ) -> PyResult<Py<PyAny>> {
        let key = key.as_bytes();
        if let Some(value) = self.entries.hit(key, |value| value.0.clone_ref(py)) {
            return Ok(value);
        }
        loop {
            match self.begin(py, key, &compute, predicted_nbytes, background)? {
                Begin::Hit(value) => return Ok(value),
                Begin::Flight(flight, _) => {
                    let ending =
                        wait(py, &flight, None).inspect_err(|_| self.leave(py, &flight))?;
                    if let Some(value) = answer(py, ending)? {
                        return Ok(value);
                    }
                }
            }
        }
    }

    /// The value of `key`, counted as a hit, or `default`, not counted.
    #[pyo3(name = "_hit")]
    fn hit(&self, py: Python<'_>, key: &[u8], default: Py<PyAny>) -> Py<PyAny> {
        self.entries
            .hit(key, |value| value.0.clone_ref(py))
            .unwrap_or(default)
    }

    /// As `get_or_compute`, but instead of waiting: no job and the value, or the job that makes it.
    #[pyo3(name = "_begin")]
    fn begin_async(
        &self,
        py: Python<'_>,
        key: &[u8],
        compute: Py<PyAny>,
        predicted_nbytes: u64,
        background: bool,
    ) -> PyResult<(Option<PyJob>, Option<Py<PyAny>>)> {
        Ok(
            match self.begin(py, key, &compute, predicted_nbytes, background)? {
                Begin::Hit(value) => (None, Some(value)),
                Begin::Flight(flight, _) => (Some(PyJob::of_flight(flight)), None),
            },
        )
    }

    /// A waiter was cancelled. The work goes on.
    #[pyo3(name = "_leave")]
    fn leave_job(&self, py: Python<'_>, job: &Bound<'_, PyJob>) {
        self.leave(py, job.get().flight());
    }

    /// Make `key` the most recently used; false if it is not there. Not counted.
    fn touch(&self, key: &[u8]) -> bool {
        self.entries.touch(key)
    }

    /// Keep `key` from eviction until it is unpinned as often; false if it is not there.
    fn pin(&self, key: &[u8]) -> bool {
        self.entries.pin(key)
    }

    /// Take back one pin; false if `key` is not there or not pinned.
    fn unpin(&self, key: &[u8]) -> bool {
        self.entries.unpin(key)
    }

    /// Forget `key`; whether it was there.
    fn invalidate(&self, key: &[u8]) -> bool {
        self.entries.invalidate(key)
    }

    /// Forget everything.
    fn clear(&self) {
        self.entries.clear();
    }

    #[pyo3(name = "_stats")]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.entries.stats();
        let fields = PyDict::new(py);
        for (name, count) in [
            ("hits", stats.hits),
            ("joins", stats.joins),
            ("misses", stats.misses),
            ("failures", stats.failures),
            ("oversize", stats.oversize),
            ("evictions", stats.evictions),
            ("cancelled", stats.cancelled),
            ("entries", stats.entries as u64),
            ("nbytes", stats.bytes),
            ("pinned_nbytes", stats.pinned_bytes),
            ("max_bytes", stats.max_bytes),
            ("in_flight", stats.in_flight as u64),
            ("in_flight_nbytes", stats.in_flight_bytes),
        ] {
            fields.set_item(name, count)?;
        }
        Ok(fields)
    }

    /// Exact sum of the bytes of all entries.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.entries.stats().bytes
    }

    /// The bound.
    #[getter]
    fn max_bytes(&self) -> u64 {
        self.entries.stats().max_bytes
    }

    fn __len__(&self) -> usize {
        self.entries.stats().entries
    }

    fn __contains__(&self, key: &[u8]) -> bool {
        self.entries.peek(key, |_| ()).is_some()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let mut result = Ok(());
        // Where the lock is held, what is inside looks referenced: kept until the next collection.
        self.entries.try_visit(|value| {
            if result.is_ok() {
                result = visit.call(&value.0);
            }
        });
        result?;
        visit.call(&self.pool)
    }

    fn __clear__(&self) {
        self.entries.clear();
    }
}
