//! The crate's one error: a kind by whose fault it is, and a message that echoes no payload.

use std::borrow::Cow;
use std::fmt;

/// What went wrong, by whose fault it is.
///
/// Deliberately not `non_exhaustive`: the one `match` in the binding must fail to build when a
/// kind is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The bytes end before the answer; more of the same file could give one.
    Truncated,
    /// The bytes contradict their own format.
    Malformed,
    /// A well-formed file of a kind that is not served.
    Unsupported,
    /// A limit of the caller is exceeded; see [`Error::bound`].
    Limit,
    /// A job panicked. A fault of ours, never of the bytes.
    Panicked,
}

/// The limit that was set and the value that exceeded it, in the unit that the message names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The largest value allowed.
    pub limit: u64,
    /// The value that was met.
    pub actual: u64,
}

/// An error of this crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: Cow<'static, str>,
    bound: Option<Bound>,
}

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `kind` that reads `message` (lower case, no trailing period, no payload bytes).
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            bound: None,
        }
    }

    /// The bytes end too early.
    pub fn truncated(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Truncated, message)
    }

    /// The bytes contradict their format.
    pub fn malformed(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Malformed, message)
    }

    /// A format that is not served.
    pub fn unsupported(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// `actual` is over `limit`.
    pub fn limit(message: impl Into<Cow<'static, str>>, limit: u64, actual: u64) -> Self {
        Self {
            kind: ErrorKind::Limit,
            message: message.into(),
            bound: Some(Bound { limit, actual }),
        }
    }

    /// The kind, by whose fault it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message alone.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The limit and the value that exceeded it; `Some` exactly for [`ErrorKind::Limit`] errors
    /// made by [`Error::limit`].
    #[must_use]
    pub fn bound(&self) -> Option<Bound> {
        self.bound
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
