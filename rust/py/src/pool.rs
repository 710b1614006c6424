//! The media pool and its jobs, as Python sees them.
//!
//! A Python callable runs attached; a native job never is. Whoever waits is detached. Owns the one
//! pool of the process; must never hold a lock of the core while Python can run.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyTuple, PyType};
use safelight_core::flight::{Ending, Flight, WaitError, WaitGraph, Waker};
use safelight_core::pool::{Job, Options, Pool, Priority, SubmitError, Task};
use safelight_core::{Error, ErrorKind};

use crate::error::BindingError;
use crate::fork::{Renewable, Resident, register};

pyo3::import_exception!(concurrent.futures, CancelledError);

/// A wait looks for signals this often.
const SIGNAL_SLICE: Duration = Duration::from_millis(50);

/// Beyond this many threads decodes compete for memory bandwidth, not for cores.
const DEFAULT_MAX_THREADS: usize = 8;

/// A Python value owned by the core, which copies it by counting a reference.
pub(crate) struct Object(pub(crate) Py<PyAny>);

impl Clone for Object {
    fn clone(&self) -> Self {
        Python::attach(|py| Self(self.0.clone_ref(py)))
    }
}

/// An exception that work raised; each waiter raises its own copy.
pub(crate) struct Raised(Py<PyAny>);

impl Raised {
    pub(crate) fn new(py: Python<'_>, error: &PyErr) -> Self {
        Self(error.value(py).clone().into_any().unbind())
    }

    /// A fresh exception of the same class, with the original as its cause.
    pub(crate) fn fresh(&self, py: Python<'_>) -> PyErr {
        let original = self.0.bind(py);
        let fresh = copy_of(original).unwrap_or_else(|_| original.clone());
        let error = PyErr::from_value(fresh.clone());
        if !fresh.is(original) {
            error.set_cause(py, Some(PyErr::from_value(original.clone())));
        }
        error
    }
}

/// What a Python job of the core returns.
pub(crate) type Answer = Result<Object, Raised>;

fn copy_of<'py>(original: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = original.py();
    let class = original.get_type();
    let copied = py
        .import(intern!(py, "copy"))?
        .call_method1(intern!(py, "copy"), (original,));
    let fresh = match copied {
        Ok(fresh) if fresh.get_type().is(&class) && !fresh.is(original) => fresh,
        // Classes whose constructor wants something else than `args`: `__new__` alone sets those.
        _ => {
            let arguments = original.getattr(intern!(py, "args"))?;
            let mut call = vec![class.clone().into_any()];
            call.extend(arguments.cast::<PyTuple>()?.iter());
            let fresh = class.call_method1(intern!(py, "__new__"), PyTuple::new(py, call)?)?;
            if !fresh.get_type().is(&class) {
                return Err(PyRuntimeError::new_err("the class makes something else"));
            }
            let state = original.getattr(intern!(py, "__dict__"))?;
            fresh
                .getattr(intern!(py, "__dict__"))?
                .call_method1(intern!(py, "update"), (state,))?;
            fresh
        }
    };
    // A note added to one copy must not show up on the others.
    if let Ok(notes) = fresh.getattr(intern!(py, "__notes__")) {
        let notes = notes.call_method0(intern!(py, "copy"))?;
        fresh.setattr(intern!(py, "__notes__"), notes)?;
    }
    Ok(fresh)
}

pub(crate) fn submit_error(error: SubmitError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// Why a flight has no answer, as an exception.
pub(crate) fn ending_error<T>(ending: &Ending<T>) -> PyErr {
    match ending {
        Ending::Withdrawn => CancelledError::new_err(()),
        Ending::Panicked => {
            BindingError::from(Error::new(ErrorKind::Panicked, "a job panicked")).into()
        }
        Ending::Abandoned | Ending::Returned(_) => {
            BindingError::from(Error::new(ErrorKind::Panicked, "a worker of the pool died")).into()
        }
    }
}

/// Wait detached until `flight` ends, looking for signals now and then.
pub(crate) fn wait<'flight, T: Send + Sync + 'static>(
    py: Python<'_>,
    flight: &'flight Flight<T>,
    timeout: Option<f64>,
) -> PyResult<&'flight Ending<T>> {
    let timeout = match timeout {
        None => None,
        Some(seconds) if seconds.is_nan() => {
            return Err(PyValueError::new_err("timeout is not a number"));
        }
        // What does not fit is longer than anybody waits.
        Some(seconds) => Duration::try_from_secs_f64(seconds.max(0.0)).ok(),
    };
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        if let Some(ending) = flight.ending() {
            return Ok(ending);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let slice = left.map_or(SIGNAL_SLICE, |left| left.min(SIGNAL_SLICE));
        match py.detach(|| flight.wait(Some(slice))) {
            Ok(ending) => return Ok(ending),
            Err(WaitError::Cycle) => {
                return Err(PyRuntimeError::new_err(
                    "work waits for itself: its key or job is, through others, what it asks for",
                ));
            }
            Err(WaitError::Timeout) if left.is_some_and(|left| left <= slice) => {
                return Err(PyTimeoutError::new_err(()));
            }
            Err(WaitError::Timeout) => py.check_signals()?,
        }
    }
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
        std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One asyncio waiter.
pub(crate) struct LoopWaker {
    pub(crate) mailbox: Py<PyMailbox>,
    pub(crate) event_loop: Py<PyAny>,
    pub(crate) future: Py<PyAny>,
}

impl Waker for LoopWaker {
    fn wake(self: Box<Self>) {
        // None: the interpreter exits, and with it every loop.
        let _ = Python::try_attach(|py| self.post(py));
    }
}

impl LoopWaker {
    fn post(self: Box<Self>, py: Python<'_>) {
        let Self {
            mailbox,
            event_loop,
            future,
        } = *self;
        let is_first = {
            let mut ended = mailbox
                .get()
                .ended
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            ended.push(future);
            ended.len() == 1
        };
        if !is_first {
            return;
        }
        let called = mailbox.getattr(py, intern!(py, "drain")).and_then(|drain| {
            event_loop.call_method1(py, intern!(py, "call_soon_threadsafe"), (drain,))
        });
        if called.is_err() {
            // The loop is closed: nobody is left to tell.
            drop(mailbox.get().take());
        }
    }
}

/// The pool behind a `PyPool`, replaced in a forked child.
pub(crate) struct PoolSlot(Renewable<Arc<Pool>>);

impl Resident for PoolSlot {
    fn after_fork(&self) {
        let old = self.0.get();
        old.mark_dead();
        self.0.replace(Arc::new(Pool::new(old.options().clone())));
    }

    fn close(&self) {
        self.0.get().close();
    }

    fn join(&self, timeout: Duration) -> bool {
        self.0.get().join(Some(timeout))
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
}

impl PyPool {
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        self.slot.0.get()
    }
}

/// The pool of the process, made on first use; the same object after a fork, with new threads.
pub(crate) fn media_pool(py: Python<'_>) -> PyResult<&'static Py<PyPool>> {
    static MEDIA: PyOnceLock<Py<PyPool>> = PyOnceLock::new();
    MEDIA.get_or_try_init(py, || {
        let class = py
            .import("safelight.executor")?
            .getattr("MediaPool")?
            .cast_into::<PyType>()?;
        let pool = class.call0()?.cast_into::<PyPool>()?;
        Ok(pool.unbind())
    })
}

/// Wait graph of every pool of the process: their jobs may wait for each other's.
fn graph() -> Arc<WaitGraph> {
    static GRAPH: std::sync::OnceLock<Arc<WaitGraph>> = std::sync::OnceLock::new();
    Arc::clone(GRAPH.get_or_init(Arc::default))
}

/// The number of threads where nobody says: what the process may use, by affinity and cgroup.
fn default_threads(py: Python<'_>) -> PyResult<usize> {
    if let Ok(setting) = std::env::var("SAFELIGHT_MEDIA_THREADS") {
        return setting
            .trim()
            .parse()
            .ok()
            .filter(|&threads| (1..=1024).contains(&threads))
            .ok_or_else(|| {
                PyValueError::new_err("SAFELIGHT_MEDIA_THREADS must be a number from 1 to 1024")
            });
    }
    let os = py.import("os")?;
    let python = match os.getattr("process_cpu_count") {
        Ok(count) => count.call0()?.extract::<Option<usize>>()?,
        Err(_) => None,
    };
    let machine = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    Ok(python
        .map_or(machine, |count| count.min(machine))
        .clamp(1, DEFAULT_MAX_THREADS))
}

#[pymethods]
impl PyPool {
    #[new]
    #[pyo3(signature = (max_threads=None, *, max_queue=1024, name="safelight-media"))]
    fn new(
        py: Python<'_>,
        max_threads: Option<usize>,
        max_queue: usize,
        name: &str,
    ) -> PyResult<Self> {
        let threads = match max_threads {
            None => default_threads(py)?,
            Some(0) => return Err(PyValueError::new_err("max_threads must be at least 1")),
            Some(threads) => threads,
        };
        if max_queue == 0 {
            return Err(PyValueError::new_err("max_queue must be at least 1"));
        }
        let pool = Pool::new(Options {
            threads,
            queue: max_queue,
            name: name.to_owned(),
            // A thread state for the thread's whole life: attaching a job is then a hand-over of
            // the interpreter and nothing else.
            life: Some(Arc::new(|run| {
                let _ = Python::try_attach(|py| py.detach(run));
            })),
            host: Some(Arc::new(|run| {
                let _ = Python::try_attach(|_| run());
            })),
            graph: graph(),
        });
        let slot = Arc::new(PoolSlot(Renewable::new(Arc::new(pool))));
        register(&slot);
        Ok(Self { slot })
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
        self.queue(py, VecDeque::from([job.as_job(Priority::Foreground)]))?;
        Ok(job)
    }

    /// Queue callables without arguments in one call; their jobs, in order.
    #[pyo3(signature = (callables, *, background=false))]
    fn submit_batch(
        &self,
        py: Python<'_>,
        callables: &Bound<'_, PyAny>,
        background: bool,
    ) -> PyResult<Vec<PyJob>> {
        let priority = priority(background);
        let no_args = PyTuple::empty(py).unbind();
        let jobs = callables
            .try_iter()?
            .map(|callable| Ok(PyJob::new(callable?.unbind(), no_args.clone_ref(py), None)))
            .collect::<PyResult<Vec<_>>>()?;
        let queue = jobs.iter().map(|job| job.as_job(priority)).collect();
        self.queue(py, queue)?;
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
        while wait && !py.detach(|| pool.join(Some(SIGNAL_SLICE))) {
            py.check_signals()?;
        }
        Ok(())
    }

    /// Counters, at one moment.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.pool().stats();
        let fields = PyDict::new(py);
        fields.set_item("threads", stats.threads)?;
        fields.set_item("idle", stats.idle)?;
        fields.set_item("queued", stats.queued)?;
        fields.set_item("taken", stats.taken)?;
        fields.set_item("inlined", stats.inlined)?;
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

pub(crate) fn priority(background: bool) -> Priority {
    if background {
        Priority::Background
    } else {
        Priority::Foreground
    }
}

impl PyPool {
    /// Queue all, waiting detached for room; on an error what was queued is withdrawn.
    fn queue(&self, py: Python<'_>, mut jobs: VecDeque<Job>) -> PyResult<()> {
        let all: Vec<Arc<dyn Task>> = jobs.iter().map(|job| Arc::clone(&job.task)).collect();
        let pool = self.pool();
        let mut result = pool.try_submit(&mut jobs).map_err(submit_error_or_full);
        while let Err(None) = result {
            result = py
                .detach(|| pool.submit(&mut jobs, Some(SIGNAL_SLICE)))
                .map_err(submit_error_or_full);
            if let Err(signal) = py.check_signals() {
                result = Err(Some(signal));
            }
        }
        result.map_err(|error| {
            all.iter().for_each(|task| task.withdraw());
            error.unwrap_or_else(|| submit_error(SubmitError::Full))
        })
    }
}

fn submit_error_or_full(error: SubmitError) -> Option<PyErr> {
    (error != SubmitError::Full).then(|| submit_error(error))
}

/// One callable on its way through a pool.
#[pyclass(name = "Job", module = "safelight._safelight", frozen, weakref)]
pub(crate) struct PyJob {
    flight: Arc<Flight<Answer>>,
}

impl PyJob {
    fn new(callable: Py<PyAny>, args: Py<PyTuple>, kwargs: Option<Py<PyDict>>) -> Self {
        let flight = Flight::new(Box::new(move |_| {
            attached(|py| {
                let kwargs = kwargs.as_ref().map(|kwargs| kwargs.bind(py));
                let answer = callable.bind(py).call(args.bind(py), kwargs);
                // Dropped here, attached: arguments may be the last of something large.
                drop((callable, args));
                match answer {
                    Ok(value) => Ok(Object(value.unbind())),
                    Err(error) => Err(Raised::new(py, &error)),
                }
            })
        }));
        Self { flight }
    }

    fn as_job(&self, priority: Priority) -> Job {
        Job {
            task: Arc::clone(&self.flight) as Arc<dyn Task>,
            hosted: true,
            priority,
        }
    }
}

/// Run `body` attached; where the interpreter exits the work ends without an answer.
pub(crate) fn attached<R>(body: impl FnOnce(Python<'_>) -> R) -> R {
    Python::try_attach(body).unwrap_or_else(|| std::panic::resume_unwind(Box::new(())))
}

#[pymethods]
impl PyJob {
    /// Wait for the job and return what it returned, or raise a copy of what it raised.
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        match wait(py, &self.flight, timeout)? {
            Ending::Returned(Ok(Object(value))) => Ok(value.clone_ref(py)),
            Ending::Returned(Err(raised)) => Err(raised.fresh(py)),
            ending => Err(ending_error(ending)),
        }
    }

    /// Wait for the job; the very exception that it raised, or None.
    #[pyo3(signature = (timeout=None))]
    fn exception(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        match wait(py, &self.flight, timeout)? {
            Ending::Returned(Ok(_)) => Ok(None),
            Ending::Returned(Err(Raised(error))) => Ok(Some(error.clone_ref(py))),
            Ending::Withdrawn => Err(ending_error(&Ending::<()>::Withdrawn)),
            ending => Ok(Some(ending_error(ending).into_value(py).into_any())),
        }
    }

    /// Withdraw the job if it has not begun; whether it is withdrawn.
    fn cancel(&self) -> bool {
        self.flight.cancel() || self.cancelled()
    }

    /// Whether the job was withdrawn before it began.
    fn cancelled(&self) -> bool {
        matches!(self.flight.ending(), Some(Ending::Withdrawn))
    }

    /// Whether the job runs at this moment.
    fn running(&self) -> bool {
        self.flight.is_running()
    }

    /// Whether the job ended, however.
    fn done(&self) -> bool {
        self.flight.ending().is_some()
    }

    #[classmethod]
    fn __class_getitem__(class: &Bound<'_, PyType>, _item: &Bound<'_, PyAny>) -> Py<PyType> {
        class.clone().unbind()
    }
}

/// Waits of one event loop for jobs; forgotten jobs go on.
#[pyclass(name = "Watch", module = "safelight._safelight", frozen)]
pub(crate) struct PyWatch {
    watched: Vec<(Arc<Flight<Answer>>, Option<u64>)>,
}

#[pymethods]
impl PyWatch {
    /// Have `future` resolved on its loop once every job has ended.
    #[new]
    fn new(
        py: Python<'_>,
        jobs: Vec<Bound<'_, PyJob>>,
        event_loop: Py<PyAny>,
        mailbox: Py<PyMailbox>,
        future: Py<PyAny>,
    ) -> Self {
        let waker: Box<dyn Waker> = Box::new(LoopWaker {
            mailbox,
            event_loop,
            future,
        });
        // One more than there are jobs: none of them can be the last before all are watched.
        let countdown = Arc::new(Countdown {
            left: std::sync::atomic::AtomicUsize::new(jobs.len() + 1),
            waker: Mutex::new(Some(waker)),
        });
        let watched = jobs
            .iter()
            .map(|job| {
                let flight = Arc::clone(&job.get().flight);
                let countdown = Arc::clone(&countdown);
                let id = flight.watch(Box::new(move || countdown.count()));
                (flight, id)
            })
            .collect();
        let _ = py;
        countdown.count();
        Self { watched }
    }

    /// Forget the jobs.
    fn leave(&self) {
        for (flight, id) in &self.watched {
            drop(id.and_then(|id| flight.detach(id)));
        }
    }
}

struct Countdown {
    left: std::sync::atomic::AtomicUsize,
    waker: Mutex<Option<Box<dyn Waker>>>,
}

impl Countdown {
    fn count(&self) {
        if self.left.fetch_sub(1, std::sync::atomic::Ordering::AcqRel) == 1 {
            let waker = self
                .waker
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// The pool of the process.
#[pyfunction(name = "media_pool")]
pub(crate) fn py_media_pool(py: Python<'_>) -> PyResult<Py<PyPool>> {
    media_pool(py).map(|pool| pool.clone_ref(py))
}

/// Whether the current thread runs a job: it must not block an event loop's turn on others.
#[pyfunction]
pub(crate) fn is_worker<'py>(py: Python<'py>) -> Bound<'py, PyBool> {
    PyBool::new(py, safelight_core::flight::is_runner()).to_owned()
}
