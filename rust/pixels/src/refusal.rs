//! Why there are no pixels: a file is left to Pillow, refused, or no longer wanted.
//!
//! Owns the reasons alone. Who finds one out is a file of its own.

use safelight_core::Error;
use safelight_core::cancel::Cancelled;

use crate::Outcome;

/// Why a file is left to Pillow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Declined(pub &'static str);

/// Why there are no pixels.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Left to Pillow.
    Declined(Declined),
    /// Refused for good.
    Failed(Error),
    /// The decode was asked to stop.
    Cancelled,
}

impl Refusal {
    /// What the public functions answer.
    pub(crate) fn into_outcome(self) -> Result<Outcome, Error> {
        match self {
            Self::Declined(reason) => Ok(Outcome::Declined(reason)),
            Self::Cancelled => Ok(Outcome::Cancelled),
            Self::Failed(error) => Err(error),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Cancelled> for Refusal {
    fn from(Cancelled: Cancelled) -> Self {
        Self::Cancelled
    }
}

impl From<Declined> for Refusal {
    fn from(reason: Declined) -> Self {
        Self::Declined(reason)
    }
}
