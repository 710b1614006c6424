//! The media pool, as Python sees it.
//!
//! A Python callable runs attached; a native job never is. Whoever waits is detached. Owns the one
//! pool of the process; must never hold a lock of the core while Python can run.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use safelight_core::flight::{WaitGraph, Waker};
use safelight_core::pool::{Job, Options, Pool, Priority, SubmitError};

use crate::fork::RESIDENTS;

mod job;
mod raised;
mod watch;
mod worker;

pub(crate) use job::{Answer, Object, PyJob, ending_error, wait, wait_unless_cycle};
pub(crate) use raised::Raised;
use watch::LoopWaker;
pub(crate) use watch::{PyMailbox, PyWatch};
pub(crate) use worker::{Context, call, detached, work_attached};

/// Between the highest priority there is and the lowest.
const MAX_NICENESS: u8 = 39;

/// More threads than this are a mistake in a setting.
const MAX_THREADS: usize = 1024;

/// Wait graph of all work of the process: jobs of any pool and decodes of any thread.
pub(crate) static GRAPH: LazyLock<Arc<WaitGraph>> = LazyLock::new(|| {
    let graph = Arc::default();
    RESIDENTS.register(&graph);
    graph
});

pub(crate) fn graph() -> &'static Arc<WaitGraph> {
    &GRAPH
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
    pool: Arc<Pool>,
    attached_ns: Arc<AtomicU64>,
}

/// The pool of the process, made on first use; the same object after a fork, with new threads.
pub(crate) fn media_pool(py: Python<'_>) -> PyResult<&'static Py<PyPool>> {
    static MEDIA: OnceLock<Py<PyPool>> = OnceLock::new();
    if let Some(pool) = MEDIA.get() {
        return Ok(pool);
    }
    let class = py
        .import("safelight.pool")?
        .getattr("MediaPool")?
        .cast_into::<PyType>()?;
    let pool = class.call0()?.cast_into::<PyPool>()?.unbind();
    // Made before: initializing the cell stays attached, so that no fork comes in between.
    Ok(MEDIA.get_or_init(|| pool))
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
        &self.pool
    }

    /// Queue all, waiting detached for room; on an error those that have not begun are withdrawn.
    fn queue(&self, py: Python<'_>, jobs: &[&PyJob], background: bool) -> PyResult<()> {
        let mut queue = queued(jobs, background);
        let pool = self.pool();
        // On a worker a full queue makes it run them here, and what they decode never is attached.
        let mut submitted = if is_worker() {
            detached(py, || pool.try_submit(&mut queue))
        } else {
            pool.try_submit(&mut queue)
        };
        let error = loop {
            match submitted {
                Ok(()) => break None,
                Err(SubmitError::Full) => {}
                Err(error) => break Some(submit_error(error)),
            }
            submitted = py.detach(|| pool.submit(&mut queue, Some(job::SIGNAL_SLICE)));
            if submitted == Err(SubmitError::Full)
                && let Err(signal) = py.check_signals()
            {
                break Some(signal);
            }
        };
        for job in &jobs[..jobs.len() - queue.len()] {
            job.was_queued(pool);
        }
        let Some(error) = error else { return Ok(()) };
        for job in jobs {
            job.withdraw();
        }
        Err(error)
    }
}

fn queued(jobs: &[&PyJob], background: bool) -> VecDeque<Job> {
    jobs.iter().map(|job| job.queued(background)).collect()
}

#[pymethods]
impl PyPool {
    #[new]
    #[pyo3(signature = (max_threads, *, max_queue=1024, name="safelight-media", niceness=0))]
    fn new(
        py: Python<'_>,
        max_threads: usize,
        max_queue: usize,
        name: &str,
        niceness: u8,
    ) -> PyResult<Self> {
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
        worker::prepare(py)?;
        let attached_ns = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&attached_ns);
        let pool = Pool::new(Options {
            threads: max_threads,
            queue: max_queue,
            name: name.to_owned(),
            life: Some(Arc::new(move |run| worker::live(niceness, run))),
            host: Some(Arc::new(move |run| worker::host(&counter, run))),
            graph: Arc::clone(graph()),
            ..Options::default()
        });
        let pool = Arc::new(pool);
        RESIDENTS.register(&pool);
        Ok(Self { pool, attached_ns })
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
        let mut call = vec![function.into_bound(py)];
        call.extend(args.bind(py).iter());
        let call = PyTuple::new(py, call)?.unbind();
        let job = PyJob::of_call(Context::current(py)?, call, kwargs);
        self.queue(py, &[&job], false)?;
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
        let jobs = callables
            .try_iter()?
            .map(|callable| match callable?.cast_into_exact::<PyJob>() {
                Ok(job) => Ok(job.unbind()),
                Err(other) => Py::new(py, PyJob::new(py, other.into_inner().unbind())?),
            })
            .collect::<PyResult<Vec<_>>>()?;
        let queued: Vec<&PyJob> = jobs.iter().map(Py::get).collect();
        self.queue(py, &queued, background)?;
        Ok(jobs)
    }

    /// Queue from the front of `jobs`, which are not queued yet, as many as there is room for; how
    /// many. Never waits, nor runs one here.
    fn offer(&self, jobs: Vec<Py<PyJob>>) -> PyResult<usize> {
        let jobs: Vec<&PyJob> = jobs.iter().map(Py::get).collect();
        let mut queue = queued(&jobs, false);
        match self.pool.offer(&mut queue) {
            Ok(()) | Err(SubmitError::Full) => {}
            Err(error) => return Err(submit_error(error)),
        }
        let count = jobs.len() - queue.len();
        for job in &jobs[..count] {
            job.was_queued(&self.pool);
        }
        Ok(count)
    }

    /// Have `future` resolved on its loop once there is room, or the pool takes no more jobs.
    fn notify_room(&self, event_loop: Py<PyAny>, mailbox: Py<PyMailbox>, future: Py<PyAny>) {
        let waker = LoopWaker {
            mailbox,
            event_loop,
            future,
        };
        self.pool.watch_room(Waker::One(Box::new(waker)));
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
