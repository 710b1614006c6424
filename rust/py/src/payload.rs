//! A payload at the door that outlives the call's arguments.

use std::ops::Deref;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

/// The bytes of any buffer, safe to read while the interpreter is released.
pub(crate) enum Payload {
    /// A `bytes` object, which is immutable and kept alive.
    Shared(PyBackedBytes),
    /// Anything that another thread can write to, copied once.
    Copied(Vec<u8>),
}

impl FromPyObject<'_, '_> for Payload {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self::Shared(bytes.to_owned().into()));
        }
        let buffer = PyBuffer::<u8>::get(&object)?;
        Ok(Self::Copied(buffer.to_vec(object.py())?))
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Shared(bytes) => bytes,
            Self::Copied(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
