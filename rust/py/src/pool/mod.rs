//! The media pool, as Python sees it.
//!
//! A Python callable runs attached; a native job never is. Whoever waits is detached. Owns the one
//! pool of the process; must never hold a lock of the core while Python can run.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use safelight_core::flight::WaitGraph;
use safelight_core::pool::{Job, Options, Pool, Priority, SubmitError};

use crate::fork::{Renewable, Resident, register};

mod job;
mod raised;
mod watch;
mod worker;

pub(crate) use job::{Answer, Object, PyJob, ending_error, wait};
pub(crate) use raised::Raised;
pub(crate) use watch::{LoopWaker, PyMailbox, PyWatch};
pub(crate) use worker::{call, detached, work_attached};

/// Decodes of so many pixels in all are handed over together: few enough that none waits long.
const MAX_RIDE: u64 = 1 << 18;

/// Between the highest priority there is and the lowest.
const MAX_NICENESS: u8 = 39;

/// More threads than this are a mistake in a setting.
const MAX_THREADS: usize = 1024;

/// The pool behind a `PyPool`, replaced in a forked child.
struct PoolSlot(Renewable<Arc<Pool>>);

impl Resident for PoolSlot {
    fn after_fork(&self) {
        let old = self.0.get();
        old.mark_dead();
        self.0.replace(Arc::new(Pool::new(Options {
            graph: graph(),
            ..old.options().clone()
        })));
    }

    fn close(&self) {
        self.0.get().close();
    }

    fn join(&self, timeout: Duration) -> bool {
        self.0.get().join(Some(timeout))
    }
}

/// Wait graph of every pool of the process: their jobs may wait for each other's.
static GRAPH: OnceLock<Renewable<Arc<WaitGraph>>> = OnceLock::new();

fn graph() -> Arc<WaitGraph> {
    let graph = GRAPH.get_or_init(|| Renewable::new(Arc::default()));
    Arc::clone(graph.get())
}

/// In a forked child: a worker of the parent may have held the graph's lock.
pub(crate) fn renew_graph() {
    if let Some(graph) = GRAPH.get() {
        graph.replace(Arc::default());
    }
}

/// Threads that run Python callables and native jobs.
#[pyclass(
    name = "Pool",
    module = "safelight._safelight",
    frozen,
    subclass,
    weakref
)]
pub(crate) struct PyPool {
    slot: Arc<PoolSlot>,
    attached_ns: Arc<AtomicU64>,
}

/// The pool of the process, made on first use; the same object after a fork, with new threads.
pub(crate) fn media_pool(py: Python<'_>) -> PyResult<&'static Py<PyPool>> {
    static MEDIA: PyOnceLock<Py<PyPool>> = PyOnceLock::new();
    if let Some(pool) = MEDIA.get(py) {
        return Ok(pool);
    }
    let class = py
        .import("safelight.pool")?
        .getattr("MediaPool")?
        .cast_into::<PyType>()?;
    let pool = class.call0()?.cast_into::<PyPool>()?.unbind();
    // Made before, not while the cell is initialized: a fork then would leave it locked.
    Ok(MEDIA.get_or_init(py, || pool))
}

/// Cores that this process may use, by affinity and cgroup.
#[pyfunction]
pub(crate) fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

pub(crate) fn submit_error(error: SubmitError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

pub(crate) fn priority(background: bool) -> Priority {
    if background {
        Priority::Background
    } else {
        Priority::Foreground
    }
}

impl PyPool {
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        self.slot.0.get()
    }

    /// Queue all, waiting detached for room; on an error those that have not begun are withdrawn.
    fn queue(&self, py: Python<'_>, jobs: &[&PyJob], priority: Priority) -> PyResult<()> {
        let mut queue: VecDeque<Job> = jobs.iter().map(|job| job.as_job(priority)).collect();
        let pool = self.pool();
        // On a worker a full queue makes it run them here, and what they decode never is attached.
        let mut submitted = if is_worker() {
            detached(py, || pool.try_submit(&mut queue))
        } else {
            pool.try_submit(&mut queue)
        };
        let error = loop {
            match submitted {
                Ok(()) => return Ok(()),
                Err(SubmitError::Full) => {}
                Err(error) => break submit_error(error),
            }
            submitted = py.detach(|| pool.submit(&mut queue, Some(job::SIGNAL_SLICE)));
            if submitted == Err(SubmitError::Full)
                && let Err(signal) = py.check_signals()
            {
                break signal;
            }
        };
        for job in jobs {
            job.cancel();
        }
        Err(error)
    }
}

#[pymethods]
impl PyPool {
    #[new]
    #[pyo3(signature = (max_threads, *, max_queue=1024, name="safelight-media", niceness=0))]
    fn new(max_threads: usize, max_queue: usize, name: &str, niceness: u8) -> PyResult<Self> {
        if !(1..=MAX_THREADS).contains(&max_threads) {
            return Err(PyValueError::new_err(format!(
                "max_threads must be from 1 to {MAX_THREADS}"
            )));
        }
        if max_queue == 0 {
            return Err(PyValueError::new_err("max_queue must be at least 1"));
        }
        if niceness > MAX_NICENESS {
            return Err(PyValueError::new_err(format!(
                "niceness must be from 0 to {MAX_NICENESS}"
            )));
        }
        if name.contains('\0') {
            return Err(PyValueError::new_err("a thread's name cannot hold NUL"));
        }
        let attached_ns = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&attached_ns);
        let pool = Pool::new(Options {
            threads: max_threads,
            queue: max_queue,
            name: name.to_owned(),
            life: Some(Arc::new(move |run| worker::live(niceness, run))),
            host: Some(Arc::new(move |run| worker::host(&counter, run))),
            max_ride: MAX_RIDE,
            graph: graph(),
        });
        let slot = Arc::new(PoolSlot(Renewable::new(Arc::new(pool))));
        register(&slot);
        Ok(Self { slot, attached_ns })
    }

    /// Queue ``function(*args, **kwargs)``; its job. With a full queue the caller waits.
    #[pyo3(signature = (function, /, *args, **kwargs))]
    fn submit(
        &self,
        py: Python<'_>,
        function: Py<PyAny>,
        args: Py<PyTuple>,
        kwargs: Option<Py<PyDict>>,
    ) -> PyResult<PyJob> {
        let job = PyJob::new(function, args, kwargs);
        self.queue(py, &[&job], Priority::Foreground)?;
        Ok(job)
    }

    /// Queue callables without arguments, or jobs that are not queued yet, in one call; the jobs,
    /// in order.
    #[pyo3(signature = (callables, *, background=false))]
    fn submit_batch(
        &self,
        py: Python<'_>,
        callables: &Bound<'_, PyAny>,
        background: bool,
    ) -> PyResult<Vec<Py<PyJob>>> {
        let no_args = PyTuple::empty(py).unbind();
        let jobs = callables
            .try_iter()?
            .map(|callable| match callable?.cast_into_exact::<PyJob>() {
                Ok(job) => Ok(job.unbind()),
                Err(other) => {
                    let callable = other.into_inner().unbind();
                    Py::new(py, PyJob::new(callable, no_args.clone_ref(py), None))
                }
            })
            .collect::<PyResult<Vec<_>>>()?;
        let queued: Vec<&PyJob> = jobs.iter().map(Py::get).collect();
        self.queue(py, &queued, priority(background))?;
        Ok(jobs)
    }

    /// Take no more jobs; withdraw the queued ones if asked, wait for the others if asked.
    #[pyo3(signature = (wait=true, *, cancel_futures=false))]
    fn shutdown(&self, py: Python<'_>, wait: bool, cancel_futures: bool) -> PyResult<()> {
        let pool = self.pool();
        if cancel_futures {
            pool.close();
        } else {
            pool.finish();
        }
        // A worker of the pool that waited would wait for itself.
        let wait = wait && !is_worker();
        while wait && !py.detach(|| pool.join(Some(job::SIGNAL_SLICE))) {
            py.check_signals()?;
        }
        Ok(())
    }

    #[pyo3(name = "_stats")]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.pool().stats();
        let fields = PyDict::new(py);
        fields.set_item("threads", stats.threads)?;
        fields.set_item("idle", stats.idle)?;
        fields.set_item("queued", stats.queued)?;
        fields.set_item("taken", stats.taken)?;
        fields.set_item("inlined", stats.inlined)?;
        fields.set_item("attached_ns", self.attached_ns.load(Ordering::Relaxed))?;
        Ok(fields)
    }

    /// Most threads.
    #[getter]
    fn max_threads(&self) -> usize {
        self.pool().options().threads
    }

    /// Jobs that may wait.
    #[getter]
    fn max_queue(&self) -> usize {
        self.pool().options().queue
    }
}

/// The pool of the process.
#[pyfunction(name = "media_pool")]
pub(crate) fn py_media_pool(py: Python<'_>) -> PyResult<Py<PyPool>> {
    media_pool(py).map(|pool| pool.clone_ref(py))
}

/// Whether the current thread runs a job.
#[pyfunction]
pub(crate) fn is_worker() -> bool {
    safelight_core::flight::is_runner()
}
