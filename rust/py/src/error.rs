//! Core errors as the Python exceptions of `safelight.errors`, which are defined there only.

use pyo3::prelude::*;
use pyo3::types::IntoPyDict;
use safelight_core::{Error, ErrorKind};

mod classes {
    pyo3::import_exception!(safelight.errors, DecodeError);
    pyo3::import_exception!(safelight.errors, HeaderError);
    pyo3::import_exception!(safelight.errors, LimitError);
    pyo3::import_exception!(safelight.errors, MediaError);
    pyo3::import_exception!(safelight.errors, SafelightError);
    pyo3::import_exception!(safelight.errors, UnsupportedMediaError);
}

/// Look the classes up while the module is made: later a fork could come in between (`crate::name`).
pub(crate) fn load_classes(py: Python<'_>) {
    py.get_type::<classes::DecodeError>();
    py.get_type::<classes::HeaderError>();
    py.get_type::<classes::LimitError>();
    py.get_type::<classes::MediaError>();
    py.get_type::<classes::SafelightError>();
    py.get_type::<classes::UnsupportedMediaError>();
}

/// A core error on its way to Python; exists because of the orphan rule.
pub(crate) struct BindingError(Error);

/// `Result` whose error becomes a Python exception.
pub(crate) type BindingResult<T> = Result<T, BindingError>;

impl From<Error> for BindingError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<BindingError> for PyErr {
    fn from(BindingError(error): BindingError) -> Self {
        let message = error.message().to_owned();
        match error.kind() {
            ErrorKind::Truncated | ErrorKind::Malformed => classes::HeaderError::new_err(message),
            ErrorKind::Unsupported => classes::UnsupportedMediaError::new_err(message),
            ErrorKind::Panicked => classes::SafelightError::new_err(message),
            ErrorKind::Limit => Python::attach(|py| limit_error(py, &error).unwrap_or_else(|e| e)),
        }
    }
}

fn limit_error(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let bound = error.bound();
    let fields = [
        ("limit", bound.map(|bound| bound.limit)),
        ("actual", bound.map(|bound| bound.actual)),
    ]
    .into_py_dict(py)?;
    let class = py.get_type::<classes::LimitError>();
    Ok(PyErr::from_value(
        class.call((error.message(),), Some(&fields))?,
    ))
}

/// A refusal whose class the core's kinds cannot tell: text that should have become a payload.
pub(crate) fn decode_error(message: impl Into<String>) -> PyErr {
    classes::DecodeError::new_err(message.into())
}

/// Whether `error` is what the bytes are to blame for, whatever the limits of who asks.
pub(crate) fn is_fault_of_media(error: &Bound<'_, PyAny>) -> bool {
    error.is_instance_of::<classes::MediaError>() && !error.is_instance_of::<classes::LimitError>()
}
