//! The queues of a pool, and its threads' lives over them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Around, Job, Options, Priority, Site, SubmitError};
use crate::flight::{Unfinished, Waker};
use crate::sync::{
    Arc, AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, lock, thread, wait,
};

/// So many foreground jobs may pass bulk that waits.
const MAX_PASSED: u32 = 16;

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
    pub(super) queues: [VecDeque<Job>; 3],
    /// Foreground jobs that passed waiting bulk.
    passed: u32,
    pub(super) threads: usize,
    pub(super) started: u64,
    pub(super) idle: usize,
    /// Threads that wait for room: notifying costs a system call even if nobody waits.
    pub(super) blocked: usize,
    pub(super) taken: u64,
    /// Sweeping again pays only once the queue has grown to this.
    pub(super) swept: usize,
    pub(super) closing: bool,
    /// Who is to be woken once there is much room.
    pub(super) room_wakers: Vec<Waker>,
}

impl State {
    pub(super) fn queued(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    pub(super) fn push(&mut self, job: Job) {
        self.queues[job.priority as usize].push_back(job);
    }

    /// The queue that is to be served next.
    fn queue(&self) -> Option<usize> {
        let bulk = Priority::Bulk as usize;
        if self.passed >= MAX_PASSED && !self.queues[bulk].is_empty() {
            return Some(bulk);
        }
        self.queues.iter().position(|queue| !queue.is_empty())
    }

    /// What [`State::pop`] would take.
    fn front(&self) -> Option<&Job> {
        self.queues[self.queue()?].front()
    }

    fn pop(&mut self) -> Option<Job> {
        let job = self.queues[self.queue()?].pop_front()?;
        self.passed = match job.priority {
            Priority::Foreground if !self.queues[Priority::Bulk as usize].is_empty() => {
                self.passed + 1
            }
            _ => 0,
        };
        self.taken += 1;
        Some(job)
    }

    /// Take out the jobs that ended while they waited, so that they hold no room.
    ///
    /// They are handed over: their values are not to be dropped under the lock.
    pub(super) fn sweep(&mut self, swept: &mut Vec<Job>) {
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

/// What a thread does next.
enum Step<'a> {
    /// The job, taken from its queue, on the thread alone.
    Run(Job),
    /// The first part of the job, taken from its queue.
    Begin(Job),
    /// Ask to be let in where hosted jobs run; the first of them still waits.
    Visit(&'a Around),
}

/// Second parts that are to enter the host together.
#[derive(Default)]
struct Batch {
    parts: Vec<Unfinished>,
    cost: u64,
}

impl Shared {
    pub(super) fn new(options: Options) -> Self {
        Self {
            state: Mutex::default(),
            work: Condvar::new(),
            room: Condvar::new(),
            gone: Condvar::new(),
            dead: AtomicBool::new(false),
            inlined: AtomicUsize::new(0),
            options,
        }
    }

    /// Whether those who are woken for room find enough of it.
    pub(super) fn has_much_room(&self, state: &State) -> bool {
        state.queued() <= self.options.queue / 2
    }

    /// Wake whoever waits for anything: the pool closes.
    pub(super) fn wake_all(&self, mut state: MutexGuard<'_, State>) {
        let wakers = std::mem::take(&mut state.room_wakers);
        drop(state);
        self.work.notify_all();
        self.room.notify_all();
        wake(wakers);
    }

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

    /// Queue from the front of `jobs` while fewer than `bound` wait, and wake whom it needs.
    pub(super) fn fill_to(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        jobs: &mut VecDeque<Job>,
        bound: usize,
        swept: &mut Vec<Job>,
    ) -> Result<(), SubmitError> {
        // Where there is no bound, sweeping pays only once the queue has grown.
        if state.queued() + jobs.len() > bound.min(state.swept.max(self.options.queue)) {
            state.sweep(swept);
        }
        let count = bound.saturating_sub(state.queued()).min(jobs.len());
        let queued = state.queued() + count;
        let wanted = queued.saturating_sub(state.idle);
        let can_start = self.options.threads - state.threads;
        let mut started = 0;
        while started < wanted.min(can_start) && self.start(&mut state) {
            started += 1;
        }
        if state.threads == 0 && count > 0 {
            return Err(SubmitError::NoThread);
        }
        for job in jobs.drain(..count) {
            state.push(job);
        }
        let woken = count.min(state.idle);
        drop(state);
        for _ in 0..woken {
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
        let mut batch = Batch::default();
        loop {
            // Not asleep, nor at anything else, while others wait for the batch.
            let step = if batch.parts.is_empty() {
                self.next()
            } else {
                self.next_of_batch(&batch)
            };
            match step {
                Some(Step::Begin(job)) => {
                    // A job that came to nothing takes no room.
                    if let Some(part) = job.task.begin() {
                        batch.parts.push(part);
                        batch.cost = batch.cost.saturating_add(job.cost);
                    }
                }
                _ if !batch.parts.is_empty() => self.finish(std::mem::take(&mut batch)),
                Some(Step::Run(job)) => job.task.run(),
                Some(Step::Visit(host)) => self.visit(host),
                None => return,
            }
        }
    }

    /// The next job, if it may join the batch.
    fn next_of_batch(&self, batch: &Batch) -> Option<Step<'_>> {
        if self.dead.load(Ordering::Acquire) {
            return None;
        }
        let state = lock(&self.state);
        let job = state.front()?;
        let cost = batch.cost.saturating_add(job.cost);
        if job.site == Site::Both && cost <= self.options.max_batch_cost {
            self.pop(state).ok().map(Step::Begin)
        } else {
            None
        }
    }

    /// Finish the batch, inside one call of the host.
    fn finish(&self, batch: Batch) {
        let mut parts = batch.parts.into_iter();
        let mut finish = || parts.by_ref().for_each(|part| part());
        match &self.options.host {
            None => finish(),
            // As in `visit`. What the host did not let in is dropped: its flights are abandoned.
            Some(host) => {
                let _ = catch_unwind(AssertUnwindSafe(|| host(&mut finish)));
            }
        }
    }

    /// Run hosted jobs inside one call of `host`, while they follow each other.
    ///
    /// They are taken inside only: until the host has let this thread in, others may run them, and
    /// whoever submitted them may withdraw them.
    fn visit(&self, host: &Around) {
        let mut is_inside = false;
        // A host that does not come back normally has run what it ran; the flights know.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            host(&mut || {
                is_inside = true;
                while let Some(job) = self.next_hosted() {
                    job.task.run();
                }
            });
        }));
        if !is_inside {
            // The host did not call: the setting is gone, and so is what depends on it.
            if let Some(job) = self.next_hosted() {
                job.task.withdraw();
            }
        }
    }

    fn next_hosted(&self) -> Option<Job> {
        if self.dead.load(Ordering::Acquire) {
            return None;
        }
        let state = lock(&self.state);
        if state.front()?.site == Site::Host {
            self.pop(state).ok()
        } else {
            None
        }
    }

    fn next(&self) -> Option<Step<'_>> {
        if self.dead.load(Ordering::Acquire) {
            return None;
        }
        let mut state = lock(&self.state);
        loop {
            if let Some(host) = &self.options.host
                && state.front().is_some_and(|job| job.site == Site::Host)
            {
                return Some(Step::Visit(host));
            }
            state = match self.pop(state) {
                Ok(job) if job.site == Site::Both => return Some(Step::Begin(job)),
                Ok(job) => return Some(Step::Run(job)),
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
        let wakers = if !state.room_wakers.is_empty() && self.has_much_room(&state) {
            std::mem::take(&mut state.room_wakers)
        } else {
            Vec::new()
        };
        drop(state);
        if blocked > 0 {
            self.room.notify_one();
        }
        wake(wakers);
        Ok(job)
    }
}

fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        // One that panics must not cost the others their call, nor the thread its life.
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}
