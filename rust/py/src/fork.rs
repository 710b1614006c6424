//! The hooks by which the interpreter tells of a fork, and of its exit.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use safelight_core::fork::Residents;

/// How long the interpreter's exit waits for running jobs.
const EXIT_WAIT: Duration = Duration::from_secs(5);

/// Locked by attached threads only, and never across Python: a thread that forks is attached, so
/// no other can hold the lock then.
pub(crate) static RESIDENTS: Residents = Residents::new();

#[pyfunction]
fn after_fork_in_child() {
    RESIDENTS.after_fork();
}

#[pyfunction]
fn at_exit(py: Python<'_>) {
    // Threads that are not gone in time stay parked: they can only attach by asking first.
    py.detach(RESIDENTS.close(EXIT_WAIT));
}

/// Register the hooks; called once, by the one interpreter that may load the module.
pub(crate) fn install(py: Python<'_>) -> PyResult<()> {
    let os = py.import("os")?;
    if os.hasattr("register_at_fork")? {
        let hook = wrap_pyfunction!(after_fork_in_child, py)?;
        let keywords = PyDict::new(py);
        keywords.set_item("after_in_child", hook)?;
        os.call_method("register_at_fork", (), Some(&keywords))?;
    }
    let hook = wrap_pyfunction!(at_exit, py)?;
    py.import("atexit")?.call_method1("register", (hook,))?;
    Ok(())
}
