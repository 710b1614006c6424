//! What is inside of this build, as a dict.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use safelight_pixels::{libraries, vector_instructions};

/// What is inside of this build, for reports of faults and for gates on versions known as bad.
///
/// Returns:
///     A new dict: ``"safelight"`` and each native library with its version, which the library
///     itself tells, or None where the build has none; and ``"simd"``, the vector instructions
///     that native code chooses at run time, with whether this machine has them.
#[pyfunction]
pub(crate) fn features(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let features = PyDict::new(py);
    features.set_item("safelight", env!("CARGO_PKG_VERSION"))?;
    for (name, version) in libraries() {
        features.set_item(name, version)?;
    }
    let simd = PyDict::new(py);
    for (name, is_there) in vector_instructions() {
        simd.set_item(name, is_there)?;
    }
    features.set_item("simd", simd)?;
    Ok(features)
}
