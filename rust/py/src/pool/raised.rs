//! Exceptions that work raised: each waiter raises its own copy, with the original as its cause.
//!
//! One object raised by several threads would collect all their tracebacks and contexts.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// The original.
pub(crate) struct Raised(Py<PyAny>);

impl Raised {
    pub(crate) fn new(py: Python<'_>, error: &PyErr) -> Self {
        Self(error.value(py).clone().into_any().unbind())
    }

    pub(crate) fn original(&self) -> &Py<PyAny> {
        &self.0
    }

    pub(crate) fn bind<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.0.bind(py)
    }

    /// The original, for the one who ran the work.
    pub(crate) fn original_error(&self, py: Python<'_>) -> PyErr {
        PyErr::from_value(self.0.bind(py).clone())
    }

    /// A fresh exception of the same class, with the original as its cause.
    ///
    /// Where the class lets itself be copied by no means, the original itself.
    pub(crate) fn fresh(&self, py: Python<'_>) -> PyErr {
        let original = self.0.bind(py);
        let Ok(fresh) = copy_of(original) else {
            return PyErr::from_value(original.clone());
        };
        let error = PyErr::from_value(fresh);
        error.set_cause(py, Some(PyErr::from_value(original.clone())));
        error
    }
}

fn copy_of<'py>(original: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = original.py();
    let class = original.get_type();
    let copied = py
        .import(crate::name(py, "copy"))?
        .call_method1(crate::name(py, "copy"), (original,));
    let fresh = match copied {
        Ok(fresh) if fresh.get_type().is(&class) && !fresh.is(original) => fresh,
        _ => bare_copy_of(original)?,
    };
    // A note added to one copy must not show up on the others.
    if let Ok(notes) = fresh.getattr(crate::name(py, "__notes__")) {
        let notes = py.get_type::<pyo3::types::PyList>().call1((notes,))?;
        fresh.setattr(crate::name(py, "__notes__"), notes)?;
    }
    Ok(fresh)
}

/// For classes whose constructor wants something else than `args`: `__new__` alone sets those.
fn bare_copy_of<'py>(original: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = original.py();
    let class = original.get_type();
    let args = original.getattr(crate::name(py, "args"))?;
    let mut call = vec![class.clone().into_any()];
    call.extend(args.cast::<PyTuple>()?.iter());
    let fresh = class.call_method1(crate::name(py, "__new__"), PyTuple::new(py, call)?)?;
    if !fresh.get_type().is(&class) || fresh.is(original) {
        return Err(PyRuntimeError::new_err("the class makes something else"));
    }
    let state = original.getattr(crate::name(py, "__dict__"))?;
    fresh
        .getattr(crate::name(py, "__dict__"))?
        .call_method1(crate::name(py, "update"), (state,))?;
    Ok(fresh)
}
