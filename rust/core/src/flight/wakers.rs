//! Who is woken by a flight's end.

use crate::sync::Arc;

/// Told once that a flight ended. Called without a lock, by the thread that ended it.
pub trait Wake: Send {
    /// The flight ended.
    fn wake(self: Box<Self>);
}

impl<F: FnOnce() + Send> Wake for F {
    fn wake(self: Box<Self>) {
        self();
    }
}

/// Told that flights ended, each by its number. Called as [`Wake`] is.
pub trait WakeEach: Send + Sync {
    /// The flight that was watched as `number` ended.
    fn wake(&self, number: usize);
}

/// Who is to be woken.
pub enum Waker {
    /// For one flight.
    One(Box<dyn Wake>),
    /// One of many flights that share it, and its number there: costs no allocation.
    Each(Arc<dyn WakeEach>, usize),
}

impl Waker {
    /// Call it.
    pub fn wake(self) {
        match self {
            Self::One(waker) => waker.wake(),
            Self::Each(waker, number) => waker.wake(number),
        }
    }
}

/// Names a waker of one flight until it is called or handed back.
#[derive(Debug, PartialEq, Eq)]
pub struct WakerId(usize);

/// Wakers in reused places, so that any number may come and go at a constant price.
#[derive(Default)]
pub(super) struct Wakers {
    /// Number 0. One alone, the usual case, costs no allocation.
    first: Option<Waker>,
    /// From number 1.
    others: Vec<Option<Waker>>,
    /// Numbers of `others` that are free.
    free: Vec<usize>,
}

impl Wakers {
    pub(super) fn insert(&mut self, waker: Waker) -> WakerId {
        if self.first.is_none() {
            self.first = Some(waker);
            return WakerId(0);
        }
        if let Some(number) = self.free.pop() {
            self.others[number - 1] = Some(waker);
            return WakerId(number);
        }
        self.others.push(Some(waker));
        WakerId(self.others.len())
    }

    pub(super) fn remove(&mut self, WakerId(number): WakerId) -> Option<Waker> {
        // After the end there are none.
        let Some(index) = number.checked_sub(1) else {
            return self.first.take();
        };
        let waker = self.others.get_mut(index)?.take()?;
        self.free.push(number);
        Some(waker)
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len() - self.free.len()
    }
}

impl IntoIterator for Wakers {
    type Item = Waker;
    type IntoIter = std::iter::Flatten<
        std::iter::Chain<std::iter::Once<Option<Waker>>, std::vec::IntoIter<Option<Waker>>>,
    >;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self.first).chain(self.others).flatten()
    }
}
