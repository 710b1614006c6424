//! The queues of a pool, and its threads' lives over them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Around, Job, Options, SubmitError};
use crate::sync::{
    Arc, AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, lock, thread, wait,
};

/// What a pool and its threads share.
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    pub(super) work: Condvar,
    pub(super) room: Condvar,
    pub(super) gone: Condvar,
    /// Set in a forked child: the threads are not there and the lock may be held for ever.
    pub(super) dead: AtomicBool,
    pub(super) inlined: AtomicUsize,
    pub(super) options: Options,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) queues: [VecDeque<Job>; 2],
    pub(super) threads: usize,
    pub(super) started: u64,
    pub(super) idle: usize,
    /// Threads that wait for room: notifying costs a system call even if nobody hears it.
    pub(super) blocked: usize,
    pub(super) taken: u64,
    /// Sweeping again pays only once the queue has grown to this.
    pub(super) swept: usize,
    pub(super) closing: bool,
}

impl State {
    pub(super) fn queued(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    pub(super) fn push(&mut self, job: Job) {
        self.queues[job.priority as usize].push_back(job);
    }

    fn pop(&mut self) -> Option<Job> {
        let job = self.queues.iter_mut().find_map(VecDeque::pop_front)?;
        self.taken += 1;
        Some(job)
    }

    /// Take out the jobs that ended while they waited, so that they hold no room.
    ///
    /// They are handed over: their values are not to be dropped under the lock.
    fn sweep(&mut self, swept: &mut Vec<Job>) {
        for queue in &mut self.queues {
            for job in std::mem::take(queue) {
                if job.task.is_waiting() {
                    queue.push_back(job);
                } else {
                    swept.push(job);
                }
            }
        }
        self.swept = self.queued() * 2;
    }
}

impl Shared {
    pub(super) fn open(&self) -> Result<MutexGuard<'_, State>, SubmitError> {
        if self.dead.load(Ordering::Acquire) {
            return Err(SubmitError::ShutDown);
        }
        let state = lock(&self.state);
        if state.closing {
            return Err(SubmitError::ShutDown);
        }
        Ok(state)
    }

    pub(super) fn fill_to(
        self: &Arc<Self>,
        state: &mut MutexGuard<'_, State>,
        jobs: &mut VecDeque<Job>,
        bound: usize,
        swept: &mut Vec<Job>,
    ) -> Result<(), SubmitError> {
        // Where there is no bound, sweeping pays only once the queue has grown.
        if state.queued() + jobs.len() > bound.min(state.swept.max(self.options.queue)) {
            state.sweep(swept);
        }
        let room = bound.saturating_sub(state.queued());
        let taken: Vec<Job> = jobs.drain(..room.min(jobs.len())).collect();
        let count = taken.len();
        let queued = state.queued() + count;
        let wanted = queued.saturating_sub(state.idle);
        let can_start = self.options.threads - state.threads;
        let mut started = 0;
        while started < wanted.min(can_start) && self.start(state) {
            started += 1;
        }
        if state.threads == 0 && count > 0 {
            for job in taken.into_iter().rev() {
                jobs.push_front(job);
            }
            return Err(SubmitError::NoThread);
        }
        for job in taken {
            state.push(job);
        }
        for _ in 0..count.min(state.idle) {
            self.work.notify_one();
        }
        if jobs.is_empty() {
            Ok(())
        } else {
            Err(SubmitError::Full)
        }
    }

    fn start(self: &Arc<Self>, state: &mut MutexGuard<'_, State>) -> bool {
        let name = format!("{}-{}", self.options.name, state.started);
        let shared = Arc::clone(self);
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || shared.live());
        if thread.is_err() {
            return false;
        }
        state.started += 1;
        state.threads += 1;
        true
    }

    /// A thread's whole life.
    fn live(self: Arc<Self>) {
        struct Gone(Arc<Shared>);
        impl Drop for Gone {
            fn drop(&mut self) {
                if self.0.dead.load(Ordering::Acquire) {
                    return;
                }
                lock(&self.0.state).threads -= 1;
                self.0.gone.notify_all();
            }
        }
        let gone = Gone(Arc::clone(&self));
        let graph = Arc::clone(&self.options.graph);
        let mut work = || graph.as_runner(|| self.work());
        match &self.options.life {
            None => work(),
            Some(life) => {
                let _ = catch_unwind(AssertUnwindSafe(|| life(&mut work)));
            }
        }
        drop(gone);
    }

    fn work(&self) {
        let mut job = self.next();
        while let Some(taken) = job {
            job = if let Some(host) = self.options.host.as_ref().filter(|_| taken.hosted) {
                self.run_hosted(host, taken)
            } else {
                taken.task.run();
                drop(taken);
                self.next()
            };
        }
    }

    /// Run hosted jobs inside one call of `host` while they follow each other; the job after them.
    fn run_hosted(&self, host: &Around, first: Job) -> Option<Job> {
        let mut job = Some(first);
        // A host that does not come back normally has run what it ran; the flights know.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            host(&mut || {
                while let Some(taken) = job.take_if(|job| job.hosted) {
                    taken.task.run();
                    drop(taken);
                    job = self.next_now();
                }
            });
        }));
        match job {
            // The host did not call: the setting is gone, and so is what depends on it.
            Some(left) if left.hosted => {
                left.task.withdraw();
                self.next()
            }
            Some(left) => Some(left),
            None => self.next(),
        }
    }

    fn next_now(&self) -> Option<Job> {
        if self.dead.load(Ordering::Acquire) {
            return None;
        }
        self.pop(lock(&self.state)).ok()
    }

    fn next(&self) -> Option<Job> {
        if self.dead.load(Ordering::Acquire) {
            return None;
        }
        let mut state = lock(&self.state);
        loop {
            state = match self.pop(state) {
                Ok(job) => return Some(job),
                Err(state) => state,
            };
            if state.closing {
                return None;
            }
            state.idle += 1;
            state = wait(&self.work, state);
            state.idle -= 1;
        }
    }

    /// Take a job and release the lock, or hand it back.
    fn pop<'a>(&self, mut state: MutexGuard<'a, State>) -> Result<Job, MutexGuard<'a, State>> {
        let Some(job) = state.pop() else {
            return Err(state);
        };
        let blocked = state.blocked;
        drop(state);
        if blocked > 0 {
            self.room.notify_one();
        }
        Ok(job)
    }
}
