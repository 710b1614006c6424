//! `derive_media_key` and its batch form.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use safelight_core::key;

use crate::payload::Payload;
use crate::pool::media_pool;
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
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let total: usize = payloads.iter().map(|payload| payload.len()).sum();
    let keys = if total < DETACH_BYTES {
        key::derive_all(&payloads, spec.as_bytes(py))
    } else {
        let canonical = spec.as_bytes(py).to_vec();
        if total < key::SPREAD_BYTES {
            py.detach(|| key::derive_all(&payloads, &canonical))
        } else {
            let pool = Arc::clone(media_pool(py)?.get().pool());
            py.detach(|| key::derive_spread(&pool, payloads, &canonical))
        }
    };
    Ok(keys.iter().map(|key| PyBytes::new(py, key)).collect())
}
