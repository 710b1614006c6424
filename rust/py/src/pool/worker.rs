//! What surrounds Python callables on a pool's threads.
//!
//! A thread keeps one thread state for its whole life, detached, so that attaching is a hand-over
//! of the interpreter and nothing else. Must never attach to an interpreter that finalizes, nor let it
//! end a thread by unwinding.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use safelight_core::flight::is_runner;

/// A thread's life: detached, but known to the interpreter; `niceness` is added to the process's.
pub(super) fn live(niceness: u8, run: &mut (dyn FnMut() + Send)) {
    attached(|py| {
        // Without its name and at the common priority a thread works as well.
        drop(name_thread(py));
        drop(lower_priority(py, niceness));
        py.detach(run);
    });
}

/// Where jobs meet Python, several in a row; `attached_ns` grows by the time spent there attached.
pub(super) fn host(attached_ns: &AtomicU64, run: &mut (dyn FnMut() + Send)) {
    attached(|py| {
        limit_nested_threads(py);
        AWAY.set(Duration::ZERO);
        let begun = Instant::now();
        run();
        let spent = begun.elapsed().saturating_sub(AWAY.get());
        let spent = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        attached_ns.fetch_add(spent, Ordering::Relaxed);
    });
}

thread_local! {
    /// Time of this visit to the host that was spent detached.
    static AWAY: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// As `Python::detach`, and not counted as time attached.
pub(crate) fn detached<R: Send>(py: Python<'_>, work: impl FnOnce() -> R + Send) -> R {
    if !is_runner() {
        return py.detach(work);
    }
    let begun = Instant::now();
    let result = py.detach(work);
    AWAY.set(AWAY.get() + begun.elapsed());
    result
}

/// Run `body` attached, unless the interpreter finalizes.
pub(super) fn attached<R>(body: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    Python::try_attach(body)
}

/// Do work attached; where the interpreter finalizes the work ends without an answer.
pub(crate) fn work_attached<R>(body: impl FnOnce(Python<'_>) -> R) -> R {
    attached(body).unwrap_or_else(|| std::panic::resume_unwind(Box::new(())))
}

/// `PyObject_Call`, as a function that may unwind; `pyo3::ffi` has it as one that never does.
type ObjectCall = unsafe extern "C-unwind" fn(
    *mut ffi::PyObject,
    *mut ffi::PyObject,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;

/// Parks a thread that the interpreter ends from within.
///
/// Up to Python 3.13 a thread that comes back from a blocking call while the interpreter finalizes
/// is ended by `pthread_exit`, which unwinds the stack, and Rust aborts the process where that is
/// not expected. So it must go no further than the frame that called into Python.
struct StayOnExit;

impl Drop for StayOnExit {
    fn drop(&mut self) {
        loop {
            std::thread::park();
        }
    }
}

/// ``callable(*args, **kwargs)`` on a thread of a pool: every call into Python code goes through
/// here, because any may still run when the interpreter exits.
pub(crate) fn call<'py>(
    callable: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let kwargs = kwargs.map_or(std::ptr::null_mut(), Bound::as_ptr);
    // SAFETY: the two types differ in whether the function may unwind and in nothing else.
    let object_call: ObjectCall = unsafe {
        std::mem::transmute::<
            unsafe extern "C" fn(
                *mut ffi::PyObject,
                *mut ffi::PyObject,
                *mut ffi::PyObject,
            ) -> *mut ffi::PyObject,
            ObjectCall,
        >(ffi::PyObject_Call)
    };
    // Hidden, or the optimizer sees through the pointer to a function that never unwinds.
    let object_call = std::hint::black_box(object_call);
    let stay = StayOnExit;
    // SAFETY: the thread is attached, which `'py` witnesses; the arguments are borrowed from live
    // references of the types that the function asks for; it returns a new reference, or null with
    // an exception set, which is what `from_owned_ptr_or_err` takes.
    unsafe {
        let answer = object_call(callable.as_ptr(), args.as_ptr(), kwargs);
        // Before the exception is looked at: that of a panic goes on as one.
        std::mem::forget(stay);
        Bound::from_owned_ptr_or_err(callable.py(), answer)
    }
}

/// Give Python's view of the thread its name, for logs and debuggers.
fn name_thread(py: Python<'_>) -> PyResult<()> {
    let name = std::thread::current().name().map(str::to_owned);
    py.import(crate::name(py, "threading"))?
        .call_method0(crate::name(py, "current_thread"))?
        .setattr(crate::name(py, "name"), name)
}

/// Let the scheduler prefer the threads that wait for events to this one, which computes.
///
/// On Linux a thread has a niceness of its own; elsewhere its number would name a process.
fn lower_priority(py: Python<'_>, niceness: u8) -> PyResult<()> {
    if niceness == 0 || !cfg!(target_os = "linux") {
        return Ok(());
    }
    let os = py.import(crate::name(py, "os"))?;
    let kind = os.getattr(crate::name(py, "PRIO_PROCESS"))?;
    let process = os.call_method0(crate::name(py, "getpid"))?;
    let thread = py
        .import(crate::name(py, "threading"))?
        .call_method0(crate::name(py, "get_native_id"))?;
    // Not this thread's own, which is that of the thread that started it: perhaps one of a pool.
    let common: i32 = os
        .call_method1(crate::name(py, "getpriority"), (&kind, process))?
        .extract()?;
    let lowered = common.saturating_add(niceness.into());
    os.call_method1(crate::name(py, "setpriority"), (kind, thread, lowered))?;
    Ok(())
}

thread_local! {
    /// Number of modules that were loaded when this thread last limited its libraries.
    static MODULES: Cell<usize> = const { Cell::new(0) };
}

/// Keep libraries that decodes call from starting threads of their own on every worker.
///
/// A limit holds for the calling thread alone, and only in what is loaded: so on every worker, and
/// again whenever a module was imported.
fn limit_nested_threads(py: Python<'_>) {
    let Some(prepared) = PREPARED.get() else {
        return;
    };
    let limited = prepared.modules.bind(py).len().and_then(|count| {
        if MODULES.replace(count) != count {
            call(prepared.limit.bind(py), &PyTuple::empty(py), None)?;
        }
        Ok(())
    });
    if let Err(error) = limited {
        error.write_unraisable(py, None);
    }
}

/// What workers need of Python.
pub(super) struct Prepared {
    modules: Py<PyAny>,
    limit: Py<PyAny>,
    copy_context: Py<PyAny>,
}

static PREPARED: OnceLock<Prepared> = OnceLock::new();

/// Import what workers need, on the thread that makes a pool.
///
/// A worker that imported it could be in the midst of that at a fork, and the child would wait for
/// ever for an import, or a cell, that no thread of its own completes.
pub(super) fn prepare(py: Python<'_>) -> PyResult<&'static Prepared> {
    if let Some(prepared) = PREPARED.get() {
        return Ok(prepared);
    }
    let attribute = |module: &str, name: &str| -> PyResult<Py<PyAny>> {
        Ok(py.import(module)?.getattr(name)?.unbind())
    };
    // For copies of exceptions.
    py.import("copy")?;
    let prepared = Prepared {
        modules: attribute("sys", "modules")?,
        limit: attribute("safelight.openmp", "limit_nested_threads")?,
        copy_context: attribute("contextvars", "copy_context")?,
    };
    // Made before: initializing the cell stays attached, so that no fork comes in between.
    Ok(PREPARED.get_or_init(|| prepared))
}

/// A copy of the context variables of whoever submitted work.
pub(crate) struct Context(Py<PyAny>);

impl Context {
    pub(crate) fn current(py: Python<'_>) -> PyResult<Self> {
        let copy_context = prepare(py)?.copy_context.bind(py);
        Ok(Self(copy_context.call0()?.unbind()))
    }

    /// Another copy: one can be entered once at a time.
    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        let copy = self.0.call_method0(py, crate::name(py, "copy"));
        Self(copy.unwrap_or_else(|_| self.0.clone_ref(py)))
    }

    /// ``function(*args, **kwargs)`` in this context, of which `function` holds the first two.
    pub(crate) fn call<'py>(
        &self,
        function: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = function.py();
        call(
            &self.0.bind(py).getattr(crate::name(py, "run"))?,
            function,
            kwargs,
        )
    }
}
