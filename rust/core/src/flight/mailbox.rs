//! What is to be delivered to one event loop, with one call into it however much there is.

use crate::sync::{Mutex, lock};

/// See the module.
pub struct Mailbox<M> {
    posted: Mutex<Vec<M>>,
}

impl<M> Default for Mailbox<M> {
    fn default() -> Self {
        Self {
            posted: Mutex::new(Vec::new()),
        }
    }
}

impl<M> Mailbox<M> {
    /// Leave `mail`; whether the loop is to be called, which whoever was first does.
    pub fn post(&self, mail: M) -> bool {
        let mut posted = lock(&self.posted);
        posted.push(mail);
        posted.len() == 1
    }

    /// Everything that was posted since the last call.
    pub fn take(&self) -> Vec<M> {
        std::mem::take(&mut *lock(&self.posted))
    }
}
