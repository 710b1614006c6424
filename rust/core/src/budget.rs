//! The steps that every walk over untrusted structure spends.

use crate::error::Error;
use crate::limits::MAX_STEPS;
use crate::reader::{Parsed, Stop};

/// The steps left to a probe.
#[derive(Debug)]
pub(crate) struct Budget {
    steps: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Self { steps: MAX_STEPS }
    }
}

impl Budget {
    /// Take one step; malformed when none is left.
    #[inline]
    pub(crate) fn spend(&mut self) -> Parsed<()> {
        if self.try_spend() {
            Ok(())
        } else {
            Err(exhausted())
        }
    }

    /// Take one step; false when none is left, for walks whose answer is optional.
    #[inline]
    pub(crate) fn try_spend(&mut self) -> bool {
        match self.steps.checked_sub(1) {
            Some(left) => {
                self.steps = left;
                true
            }
            None => false,
        }
    }
}

#[cold]
fn exhausted() -> Stop {
    Error::malformed(format!("header has more than {MAX_STEPS} parts")).into()
}
