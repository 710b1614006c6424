//! What surrounds Python callables on a pool's threads.
//!
//! A thread keeps one thread state for its whole life, detached, so that attaching is a hand-over
//! of the interpreter and nothing else. Must never attach to an interpreter that finalizes.

use std::cell::Cell;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// A thread's life: detached, but known to the interpreter.
pub(super) fn live(run: &mut (dyn FnMut() + Send)) {
    attached(|py| {
        name_thread(py);
        py.detach(run);
    });
}

/// Python callables, several in a row.
pub(super) fn host(run: &mut (dyn FnMut() + Send)) {
    attached(|py| {
        limit_nested_threads(py);
        run();
    });
}

/// Run `body` attached, unless the interpreter finalizes.
pub(super) fn attached<R>(body: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    Python::try_attach(|py| {
        let stay = StayOnExit;
        let answer = body(py);
        std::mem::forget(stay);
        answer
    })
}

/// Do work attached; where the interpreter finalizes the work ends without an answer.
pub(crate) fn work_attached<R>(body: impl FnOnce(Python<'_>) -> R) -> R {
    attached(body).unwrap_or_else(|| std::panic::resume_unwind(Box::new(())))
}

/// Parks a thread that the interpreter ends from within.
///
/// Up to Python 3.13 a thread that comes back from a blocking call while the interpreter finalizes
/// is ended by `pthread_exit`, which unwinds the stack; at the first `catch_unwind` that aborts the
/// process. This is dropped before it comes so far.
struct StayOnExit;

impl Drop for StayOnExit {
    fn drop(&mut self) {
        // A panic of Rust unwinds too, and goes on.
        while !std::thread::panicking() {
            std::thread::park();
        }
    }
}

/// Give Python's view of the thread its name, for logs and debuggers.
fn name_thread(py: Python<'_>) {
    let name = std::thread::current().name().map(str::to_owned);
    let named = py
        .import(intern!(py, "threading"))
        .and_then(|threading| threading.call_method0(intern!(py, "current_thread")))
        .and_then(|thread| thread.setattr(intern!(py, "name"), name));
    // Without its name the thread works as well.
    drop(named);
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
    static LIMIT: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();
    let limited = LIMIT
        .get_or_try_init(py, || {
            let modules = py.import("sys")?.getattr("modules")?.unbind();
            let limit = py
                .import("safelight.executor")?
                .getattr("limit_nested_threads")?;
            PyResult::Ok((modules, limit.unbind()))
        })
        .and_then(|(modules, limit)| {
            let count = modules.bind(py).len()?;
            if MODULES.replace(count) != count {
                limit.call0(py)?;
            }
            Ok(())
        });
    if let Err(error) = limited {
        error.write_unraisable(py, None);
    }
}
