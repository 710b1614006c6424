//! `Blake3`: a streaming hasher with the calls of `hashlib`'s.

use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use safelight_core::digest::Blake3;

use crate::payload::Payload;

/// Below this, handing the interpreter over costs more than hashing.
const DETACH_BYTES: usize = 32 << 10;

/// BLAKE3 over everything that `update` was given.
#[pyclass(name = "Blake3", module = "safelight._safelight", frozen)]
pub(crate) struct PyBlake3 {
    hasher: Mutex<Blake3>,
}

impl PyBlake3 {
    // The guard never outlives a stretch in which no Python code runs, and a holder never waits
    // for the interpreter, so waiting for it attached is short and cannot deadlock.
    fn lock(&self) -> MutexGuard<'_, Blake3> {
        self.hasher.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyBlake3 {
    #[new]
    fn new() -> Self {
        Self {
            hasher: Mutex::new(Blake3::new()),
        }
    }

    /// Append `data`: bytes as they are, any other buffer of unsigned bytes by way of a copy.
    fn update(&self, py: Python<'_>, data: Payload) {
        if data.len() < DETACH_BYTES {
            self.lock().update(&data);
        } else {
            py.detach(|| self.lock().update(&data));
        }
    }

    /// The 32 bytes of the digest; more updates can follow.
    fn digest<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.lock().digest())
    }

    /// The digest as 64 hexadecimal digits.
    fn hexdigest(&self) -> String {
        self.lock()
            .digest()
            .iter()
            .fold(String::new(), |mut hex, byte| {
                // Writing to a string does not fail.
                let _ = write!(hex, "{byte:02x}");
                hex
            })
    }
}
