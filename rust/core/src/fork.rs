//! What a fork means for what threads serve or lock, and the exit for their threads.
//!
//! Only the forking thread lives on in the child, so a lock that another thread held stays locked
//! there. Residents therefore replace what may hold one; nothing checks the process id per call.

use std::sync::{OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::sync::{Arc, AtomicU32, Mutex, Ordering, lock};

/// Something that threads of this process serve or lock.
pub trait Resident: Send + Sync {
    /// In a forked child, before anything else runs there.
    fn after_fork(&self);
    /// The process exits: take no more work; does not wait.
    fn close(&self) {}
    /// After [`Resident::close`]: wait for the threads; whether they are gone.
    fn join(&self, _timeout: Duration) -> bool {
        true
    }
}

/// The residents of a process, and the generation of that process.
///
/// Locked by threads that no fork can interrupt: the caller sees to that.
pub struct Residents {
    all: Mutex<Vec<Weak<dyn Resident>>>,
    generation: AtomicU32,
}

impl Residents {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            all: Mutex::new(Vec::new()),
            generation: AtomicU32::new(0),
        }
    }

    /// Have `resident` told, for as long as it lives.
    pub fn register<R: Resident + 'static>(&self, resident: &Arc<R>) {
        let resident: Arc<dyn Resident> = Arc::<R>::clone(resident);
        let mut all = lock(&self.all);
        if all.len() == all.capacity() {
            all.retain(|resident| resident.strong_count() > 0);
        }
        all.push(Arc::downgrade(&resident));
    }

    /// Number of forks between this process and the first: what started in an earlier generation
    /// has no thread here.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// In a forked child: a generation starts.
    pub fn after_fork(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        for resident in self.alive() {
            resident.after_fork();
        }
    }

    /// Close all; what is returned waits for their threads, at most for `timeout` in all.
    pub fn close(&self, timeout: Duration) -> impl FnOnce() + Send {
        let residents = self.alive();
        for resident in &residents {
            resident.close();
        }
        let deadline = Instant::now() + timeout;
        move || {
            for resident in residents {
                resident.join(deadline.saturating_duration_since(Instant::now()));
            }
        }
    }

    fn alive(&self) -> Vec<Arc<dyn Resident>> {
        lock(&self.all).iter().filter_map(Weak::upgrade).collect()
    }
}

impl Default for Residents {
    fn default() -> Self {
        Self::new()
    }
}

/// A value that can be replaced for good without a lock, at one atomic load for each read.
///
/// Replaced values stay where they are: they may hold locked locks.
pub struct Renewable<T> {
    value: T,
    next: OnceLock<Box<Renewable<T>>>,
}

impl<T> Renewable<T> {
    /// Holds `value`.
    pub const fn new(value: T) -> Self {
        Self {
            value,
            next: OnceLock::new(),
        }
    }

    /// The value that was put last.
    pub fn get(&self) -> &T {
        let mut current = self;
        while let Some(next) = current.next.get() {
            current = next;
        }
        &current.value
    }

    /// Put `value` in the place of what is there.
    pub fn replace(&self, value: T) {
        let mut node = Box::new(Self::new(value));
        let mut current = self;
        while let Err(back) = current.next.set(node) {
            node = back;
            match current.next.get() {
                Some(next) => current = next,
                None => return,
            }
        }
    }
}
