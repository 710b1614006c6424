//! Own worker threads over one bounded queue with priorities.
//!
//! Threads start when work arrives. A job that panics or is abandoned ends its own flight and
//! nothing else. The pool never waits on itself: work that meets a full queue runs its job inline.
//! Must never know what a job does, nor run one under its lock.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use crate::flight::{Flight, Unfinished, WaitGraph, Waker, is_runner};
use crate::fork::{Renewable, Resident};
use crate::sync::{Arc, Ordering, lock, wait, wait_timeout};
use shared::Shared;

mod shared;

/// Something that can be queued.
pub trait Task: Send + Sync {
    /// Run it, unless it runs or ran; never unwinds.
    fn run(&self);
    /// Run its first part, unless it runs or ran, and hand back the rest; never unwinds.
    fn begin(self: Arc<Self>) -> Option<Unfinished>;
    /// End it if it has not begun.
    fn withdraw(&self);
    /// Whether it has not begun.
    fn is_waiting(&self) -> bool;
}

impl<T: Send + Sync + 'static> Task for Flight<T> {
    fn run(&self) {
        Flight::run(self);
    }

    fn begin(self: Arc<Self>) -> Option<Unfinished> {
        Flight::begin(self)
    }

    fn withdraw(&self) {
        Flight::withdraw(self);
    }

    fn is_waiting(&self) -> bool {
        Flight::is_waiting(self)
    }
}

/// Calls its argument once, in a setting of its own making (or not at all, if there is none left).
pub type Around = Arc<dyn Fn(&mut (dyn FnMut() + Send)) + Send + Sync>;

/// Decodes of so many pixels in all enter the host together: few enough that none waits long.
const MAX_BATCH_COST: u64 = 1 << 18;

/// What a decode costs besides its pixels, in pixels.
const BASE_COST: u64 = 1 << 12;

/// What costs more lets others pass: an image of more pixels than most cameras make.
const BULK_COST: u64 = 1 << 24;

/// How a pool is made.
#[derive(Clone)]
pub struct Options {
    /// Most threads, at least 1.
    pub threads: usize,
    /// Jobs that may wait; at least 1.
    pub queue: usize,
    /// Threads are named so, with a number behind it.
    pub name: String,
    /// Called around a thread's whole life.
    pub life: Option<Around>,
    /// Called around hosted work, several jobs in a row where they follow each other.
    pub host: Option<Around>,
    /// Staged jobs enter the host together, up to this sum of their costs.
    pub max_batch_cost: u64,
    /// Who waits for whom; shared by pools whose jobs may wait for each other's.
    pub graph: Arc<WaitGraph>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: 1,
            queue: 1024,
            name: "safelight".to_owned(),
            life: None,
            host: None,
            max_batch_cost: MAX_BATCH_COST,
            graph: Arc::default(),
        }
    }
}

/// Which of the queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// Somebody waits for it.
    #[default]
    Foreground,
    /// Somebody waits for it, and for long: it lets others pass, though not for ever.
    Bulk,
    /// Runs only while nothing waits that somebody waits for.
    Background,
}

/// Where a job runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Site {
    /// On the thread alone.
    #[default]
    Thread,
    /// Inside [`Options::host`].
    Host,
    /// The first part of it on the thread alone, the second inside [`Options::host`].
    Both,
}

/// A job as it is submitted.
#[derive(Clone)]
pub struct Job {
    /// What runs.
    pub task: Arc<dyn Task>,
    /// Where.
    pub site: Site,
    /// Its queue.
    pub priority: Priority,
    /// How much work its first part is, for [`Options::max_batch_cost`].
    pub cost: u64,
}

impl Job {
    /// A job on the thread alone, that somebody waits for.
    pub fn new(task: Arc<dyn Task>) -> Self {
        Self {
            task,
            site: Site::default(),
            priority: Priority::default(),
            cost: 0,
        }
    }

    /// A job of which the first part is to decode `pixels`; so many let others pass.
    pub fn decode(task: Arc<dyn Task>, pixels: u64) -> Self {
        let cost = pixels.saturating_add(BASE_COST);
        Self {
            site: Site::Both,
            priority: if cost > BULK_COST {
                Priority::Bulk
            } else {
                Priority::Foreground
            },
            cost,
            ..Self::new(task)
        }
    }
}

/// Why a job was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// The queue stayed full.
    Full,
    /// The pool was shut down.
    ShutDown,
    /// No thread could be started.
    NoThread,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the pool's queue is full",
            Self::ShutDown => "the pool is shut down",
            Self::NoThread => "the pool cannot start a thread",
        })
    }
}

impl std::error::Error for SubmitError {}

/// Counters, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Threads alive.
    pub threads: usize,
    /// Threads that wait for work.
    pub idle: usize,
    /// Jobs in the queues that nobody runs or ran.
    pub queued: usize,
    /// Jobs taken from the queues since the start.
    pub taken: u64,
    /// Jobs that ran on the thread that submitted them, because the queue was full.
    pub inlined: u64,
}

/// See the module. Dropped, it lets its threads go once the queued jobs are done.
pub struct Pool {
    shared: Renewable<Arc<Shared>>,
}

impl Pool {
    /// A pool without a thread: they start when work arrives.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            shared: Renewable::new(Arc::new(Shared::new(Options {
                threads: options.threads.max(1),
                queue: options.queue.max(1),
                ..options
            }))),
        }
    }

    fn shared(&self) -> &Arc<Shared> {
        self.shared.get()
    }

    /// How the pool was made.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.shared().options
    }

    /// Queue the jobs from the front of `jobs`, as many as there is room for, with one wake-up.
    ///
    /// What found no room stays in `jobs`, with [`SubmitError::Full`].
    pub fn offer(&self, jobs: &mut VecDeque<Job>) -> Result<(), SubmitError> {
        // Dropped once the lock is released.
        let mut swept = Vec::new();
        let shared = self.shared();
        let state = shared.open()?;
        shared.fill_to(state, jobs, shared.options.queue, &mut swept)
    }

    /// As [`Pool::offer`], but on work's own thread a full queue makes it run the rest inline.
    pub fn try_submit(&self, jobs: &mut VecDeque<Job>) -> Result<(), SubmitError> {
        match self.offer(jobs) {
            Err(SubmitError::Full) if is_runner() => {
                for job in jobs.drain(..) {
                    self.shared().inlined.fetch_add(1, Ordering::Relaxed);
                    job.task.run();
                }
                Ok(())
            }
            result => result,
        }
    }

    /// Have `waker` called, once, when there is room for half a queue, or the pool closes.
    ///
    /// For half a queue, so that many who wait are not woken for each job that leaves.
    pub fn watch_room(&self, waker: Waker) {
        let mut swept = Vec::new();
        // Of a closed pool whoever waits finds out by submitting.
        if let Ok(mut state) = self.shared().open() {
            state.sweep(&mut swept);
            if !self.shared().has_much_room(&state) {
                state.room_wakers.push(waker);
                return;
            }
        }
        waker.wake();
    }

    /// As [`Pool::try_submit`], and wait for room, at most for `timeout`.
    pub fn submit(
        &self,
        jobs: &mut VecDeque<Job>,
        timeout: Option<Duration>,
    ) -> Result<(), SubmitError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            match self.try_submit(jobs) {
                Err(SubmitError::Full) => {}
                result => return result,
            }
            let mut state = self.shared().open()?;
            if state.queued() < self.shared().options.queue {
                continue;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(SubmitError::Full);
            }
            state.blocked += 1;
            state = match left {
                None => wait(&self.shared().room, state),
                Some(left) => wait_timeout(&self.shared().room, state, left),
            };
            state.blocked -= 1;
        }
    }

    /// Queue `job` whether or not there is room, for a caller that itself waits for it.
    pub fn push(&self, job: Job) -> Result<(), SubmitError> {
        // Dropped once the lock is released.
        let mut swept = Vec::new();
        let mut jobs = VecDeque::from([job]);
        let state = self.shared().open()?;
        self.shared()
            .fill_to(state, &mut jobs, usize::MAX, &mut swept)
    }

    /// Whether the queue has no room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.shared()
            .open()
            .is_ok_and(|state| state.queued() >= self.shared().options.queue)
    }

    /// Move `task` to the foreground if it waits in the background.
    pub fn promote(&self, task: &Arc<dyn Task>) {
        let Ok(mut state) = self.shared().open() else {
            return;
        };
        let queue = &mut state.queues[Priority::Background as usize];
        let place = queue.iter().position(|job| Arc::ptr_eq(&job.task, task));
        if let Some(mut job) = place.and_then(|place| queue.remove(place)) {
            job.priority = Priority::Foreground;
            state.push(job);
        }
    }

    /// Counters, at one moment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        // Dropped once the lock is released.
        let mut swept = Vec::new();
        let mut state = lock(&self.shared().state);
        state.sweep(&mut swept);
        Stats {
            threads: state.threads,
            idle: state.idle,
            queued: state.queued(),
            taken: state.taken,
            inlined: self.shared().inlined.load(Ordering::Relaxed) as u64,
        }
    }

    /// Refuse new jobs, withdraw the queued ones, and let the threads go; does not wait.
    pub fn close(&self) {
        let Ok(mut state) = self.shared().open() else {
            return;
        };
        state.closing = true;
        let queues = std::mem::take(&mut state.queues);
        self.shared().wake_all(state);
        for job in queues.into_iter().flatten() {
            job.task.withdraw();
        }
    }

    /// Refuse new jobs and let the threads go once the queued ones are done; does not wait.
    pub fn finish(&self) {
        let Ok(mut state) = self.shared().open() else {
            return;
        };
        state.closing = true;
        self.shared().wake_all(state);
    }

    /// After [`Pool::close`] or [`Pool::finish`]: wait until every thread is gone; whether they are.
    #[must_use]
    pub fn join(&self, timeout: Option<Duration>) -> bool {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = lock(&self.shared().state);
        while state.threads > 0 {
            state = match deadline {
                None => wait(&self.shared().gone, state),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    wait_timeout(&self.shared().gone, state, left)
                }
            };
        }
        true
    }
}

impl Resident for Pool {
    /// The threads are not there, and nothing of the parent's may be locked again.
    fn after_fork(&self) {
        let old = self.shared();
        old.dead.store(true, Ordering::Release);
        self.shared
            .replace(Arc::new(Shared::new(old.options.clone())));
    }

    fn close(&self) {
        Self::close(self);
    }

    fn join(&self, timeout: Duration) -> bool {
        Self::join(self, Some(timeout))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.finish();
    }
}
