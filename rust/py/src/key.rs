//! `derive_media_key` and its batch form.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use safelight_core::key;

use crate::payload::Payload;
use crate::spec::PyCanonicalSpec;

/// Payloads of this size and above are hashed with the interpreter released. Below it, handing
/// the interpreter over costs more than hashing (`benches/python/test_key.py`).
const DETACH_BYTES: usize = 32 << 10;

/// The cache identity of `data` decoded under `spec`: 32 bytes.
#[pyfunction]
pub(crate) fn derive_media_key<'py>(
    py: Python<'py>,
    data: Payload,
    spec: PyRef<'py, PyCanonicalSpec>,
) -> Bound<'py, PyBytes> {
    let key = if data.len() < DETACH_BYTES {
        key::derive(&data, spec.as_bytes(py))
    } else {
        let canonical = spec.as_bytes(py).to_vec();
        py.detach(|| key::derive(&data, &canonical))
    };
    PyBytes::new(py, &key)
}

/// The keys of `payloads` under one `spec`, in order.
#[pyfunction]
pub(crate) fn derive_media_keys<'py>(
    py: Python<'py>,
    payloads: Vec<Payload>,
    spec: PyRef<'py, PyCanonicalSpec>,
) -> Vec<Bound<'py, PyBytes>> {
    let canonical = spec.as_bytes(py).to_vec();
    let keys: Vec<key::Key> = py.detach(|| {
        payloads
            .iter()
            .map(|payload| key::derive(payload, &canonical))
            .collect()
    });
    keys.iter().map(|key| PyBytes::new(py, key)).collect()
}
