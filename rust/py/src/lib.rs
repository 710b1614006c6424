//! `safelight._safelight`: exports only. Extract, detach, call, wrap; no logic, no policy.

use pyo3::prelude::*;

mod error;
mod key;
mod probe;
mod spec;

/// The compiled part of safelight.
#[pymodule(gil_used = false)]
mod _safelight {
    #[pymodule_export]
    use crate::key::{derive_media_key, derive_media_keys};
    #[pymodule_export]
    use crate::probe::{PyImageHeader, PyNeedMoreBytes, probe, probe_files, probe_prefix};
    #[pymodule_export]
    use crate::spec::PyCanonicalSpec;
}
