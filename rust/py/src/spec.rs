//! The canonical bytes of a decode spec, kept where Rust reads them without a call into Python.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Holds the canonical JSON bytes of a `DecodeSpec`, which is its only subclass.
#[pyclass(
    name = "CanonicalSpec",
    module = "safelight._safelight",
    frozen,
    subclass
)]
pub(crate) struct PyCanonicalSpec {
    canonical: Py<PyBytes>,
}

impl PyCanonicalSpec {
    pub(crate) fn as_bytes<'py>(&'py self, py: Python<'py>) -> &'py [u8] {
        self.canonical.as_bytes(py)
    }
}

#[pymethods]
impl PyCanonicalSpec {
    #[new]
    fn new(canonical: Py<PyBytes>) -> Self {
        Self { canonical }
    }

    /// The canonical JSON bytes, as they enter a key.
    fn canonical_bytes(&self, py: Python<'_>) -> Py<PyBytes> {
        self.canonical.clone_ref(py)
    }

    fn __hash__(&self, py: Python<'_>) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.as_bytes(py).hash(&mut hasher);
        hasher.finish()
    }

    fn __eq__(&self, py: Python<'_>, other: &Self) -> bool {
        self.as_bytes(py) == other.as_bytes(py)
    }
}
