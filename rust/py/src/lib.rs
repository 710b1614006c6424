//! `safelight._safelight`: exports only. Extract, detach, call, wrap; no logic, no policy.

// PyO3 hands extracted arguments over by value.
#![expect(clippy::needless_pass_by_value)]
// Doc comments of what Python sees are its docstrings.
#![expect(clippy::doc_markdown)]

use pyo3::prelude::*;
use pyo3::types::PyString;

mod arrow;
mod base64;
mod cache;
mod decode;
mod deferred;
mod error;
mod features;
mod fork;
mod key;
mod payload;
mod pixels;
mod pool;
mod probe;
mod process;
mod spec;

/// The interned text `name`.
///
/// Not kept in a cell that is initialized on first use: its initialization hands the interpreter
/// over, and a fork in the midst of that would leave the cell locked in the child for ever.
pub(crate) fn name<'py>(py: Python<'py>, name: &str) -> Bound<'py, PyString> {
    PyString::intern(py, name)
}

/// The compiled part of safelight.
#[pymodule(gil_used = false)]
mod _safelight {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::base64::decode_base64;
    #[pymodule_export]
    use crate::cache::PyCache;
    #[pymodule_export]
    use crate::decode::{PyDecodeRequest, check_jpeg_scans, decode_image};
    #[pymodule_export]
    use crate::deferred::PyDeferred;
    #[pymodule_export]
    use crate::features::features;
    #[pymodule_export]
    use crate::key::{derive_media_key, derive_media_keys};
    #[pymodule_export]
    use crate::pixels::PyPixels;
    #[pymodule_export]
    use crate::pool::{
        PyJob, PyMailbox, PyPool, PyWatch, available_cores, is_worker, py_media_pool,
    };
    #[pymodule_export]
    use crate::probe::{ImageHeader, NeedMoreBytes, probe, probe_files, probe_prefix};
    #[pymodule_export]
    use crate::process::{PyImageProcessor, py_resize};
    #[pymodule_export]
    use crate::spec::PyCanonicalSpec;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        // What would be made on first use is made here, where no fork can come in between.
        crate::error::load_classes(module.py());
        std::sync::LazyLock::force(&crate::pool::GRAPH);
        std::sync::LazyLock::force(&crate::deferred::EQUALS);
        crate::fork::install(module.py())
    }
}
