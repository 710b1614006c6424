//! What a fork and the interpreter's exit mean for pools and caches.
//!
//! Only the forking thread lives on in the child, so a lock that another thread held stays locked
//! there. Hooks therefore replace what may hold one; nothing checks the process id per call.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How long the interpreter's exit waits for running jobs.
const EXIT_WAIT: Duration = Duration::from_secs(5);

/// Something that threads of this process serve or lock.
pub(crate) trait Resident: Send + Sync {
    /// In a forked child, before anything else runs there.
    fn after_fork(&self);
    /// The interpreter exits: take no more work; does not wait.
    fn close(&self) {}
    /// After [`Resident::close`]: wait for the threads; whether they are gone.
    fn join(&self, _timeout: Duration) -> bool {
        true
    }
}

/// A value that can be replaced for good without a lock, at one atomic load for each read.
///
/// Replaced values stay where they are: they may hold locked locks.
pub(crate) struct Renewable<T> {
    value: T,
    next: OnceLock<Box<Renewable<T>>>,
}

impl<T> Renewable<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value,
            next: OnceLock::new(),
        }
    }

    pub(crate) fn get(&self) -> &T {
        let mut current = self;
        while let Some(next) = current.next.get() {
            current = next;
        }
        &current.value
    }

    pub(crate) fn replace(&self, value: T) {
        let mut node = Box::new(Self::new(value));
        let mut current = self;
        loop {
            match current.next.set(node) {
                Ok(()) => return,
                Err(taken) => node = taken,
            }
            match current.next.get() {
                Some(next) => current = next,
                None => return,
            }
        }
    }
}

/// Locked by attached threads only, and never across Python: a thread that forks is attached, so
/// no other can hold it then.
static RESIDENTS: Mutex<Vec<Weak<dyn Resident>>> = Mutex::new(Vec::new());

/// Have the hooks tell `resident`, for as long as it lives.
pub(crate) fn register<R: Resident + 'static>(resident: &Arc<R>) {
    let resident: Arc<dyn Resident> = Arc::<R>::clone(resident);
    let mut residents = RESIDENTS.lock().unwrap_or_else(PoisonError::into_inner);
    if residents.len() == residents.capacity() {
        residents.retain(|resident| resident.strong_count() > 0);
    }
    residents.push(Arc::downgrade(&resident));
}

/// Number of forks between this process and the first one that loaded the module.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Changes with each fork: what was begun in an earlier generation has no thread here.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

fn residents() -> Vec<Arc<dyn Resident>> {
    let residents = RESIDENTS.lock().unwrap_or_else(PoisonError::into_inner);
    residents.iter().filter_map(Weak::upgrade).collect()
}

#[pyfunction]
fn after_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    crate::pool::renew_graph();
    for resident in residents() {
        resident.after_fork();
    }
}

#[pyfunction]
fn at_exit(py: Python<'_>) {
    let residents = residents();
    for resident in &residents {
        resident.close();
    }
    let deadline = Instant::now() + EXIT_WAIT;
    // Threads that are not gone by then stay parked: they can only attach by asking first.
    py.detach(|| {
        for resident in &residents {
            resident.join(deadline.saturating_duration_since(Instant::now()));
        }
    });
}

/// Register the hooks; called once, when the module is made.
pub(crate) fn install(py: Python<'_>) -> PyResult<()> {
    let os = py.import("os")?;
    if os.hasattr("register_at_fork")? {
        let hook = wrap_pyfunction!(after_fork_in_child, py)?;
        let keywords = pyo3::types::PyDict::new(py);
        keywords.set_item("after_in_child", hook)?;
        os.call_method("register_at_fork", (), Some(&keywords))?;
    }
    let hook = wrap_pyfunction!(at_exit, py)?;
    py.import("atexit")?.call_method1("register", (hook,))?;
    Ok(())
}
