//! `probe`, `probe_prefix` and what they answer.

#![expect(
    clippy::needless_pass_by_value,
    reason = "what is extracted from Python arrives by value"
)]

use std::path::PathBuf;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use safelight_core::probe::{self as headers, Format, ImageHeader, NeedMoreBytes, Prefix};

use crate::error::{BindingError, BindingResult};
use crate::payload::Payload;

/// What a header says of an image.
#[pyclass(name = "ImageHeader", module = "safelight", frozen, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct PyImageHeader(ImageHeader);

#[pymethods]
impl PyImageHeader {
    #[expect(clippy::too_many_arguments, reason = "one keyword a field")]
    #[new]
    #[pyo3(signature = (
        *, format, width, height, mode=None, bits=None, has_alpha=None, is_animated=None,
        frame_count=None, orientation=1, upright_size=None, image_id=None, image_unique_id=None
    ))]
    fn new(
        format: &str,
        width: u32,
        height: u32,
        mode: Option<&str>,
        bits: Option<u8>,
        has_alpha: Option<bool>,
        is_animated: Option<bool>,
        frame_count: Option<u32>,
        orientation: u8,
        upright_size: Option<(u32, u32)>,
        image_id: Option<String>,
        image_unique_id: Option<String>,
    ) -> PyResult<Self> {
        let mode = mode
            .map(|name| headers::mode_by_name(name).ok_or_else(|| unknown("mode")))
            .transpose()?;
        let format = Format::by_name(format).ok_or_else(|| unknown("format"))?;
        let stored = (width, height);
        let turned = (height, width);
        let upright_size = match upright_size {
            Some(size) if size == stored || size == turned => size,
            Some(_) => return Err(unknown("upright_size")),
            None if orientation >= 5 && format != Format::Tiff => turned,
            None => stored,
        };
        if !(1..=8).contains(&orientation) {
            return Err(unknown("orientation"));
        }
        Ok(Self(ImageHeader {
            format,
            width,
            height,
            mode,
            bits,
            has_alpha,
            is_animated,
            frame_count,
            orientation,
            upright_size,
            image_id: image_id.map(Into::into),
            image_unique_id: image_unique_id.map(Into::into),
        }))
    }

    #[getter]
    fn format<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::intern(py, self.0.format.name())
    }

    #[getter]
    fn mime_type<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::intern(py, self.0.format.mime_type())
    }

    #[getter]
    fn width(&self) -> u32 {
        self.0.width
    }

    #[getter]
    fn height(&self) -> u32 {
        self.0.height
    }

    #[getter]
    fn mode<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyString>> {
        self.0.mode.map(|mode| PyString::intern(py, mode))
    }

    #[getter]
    fn bits(&self) -> Option<u8> {
        self.0.bits
    }

    #[getter]
    fn has_alpha(&self) -> Option<bool> {
        self.0.has_alpha
    }

    #[getter]
    fn is_animated(&self) -> Option<bool> {
        self.0.is_animated
    }

    #[getter]
    fn frame_count(&self) -> Option<u32> {
        self.0.frame_count
    }

    #[getter]
    fn upright_size(&self) -> (u32, u32) {
        self.0.upright_size
    }

    #[getter]
    fn orientation(&self) -> u8 {
        self.0.orientation
    }

    #[getter]
    fn image_id(&self) -> Option<&str> {
        self.0.image_id.as_deref()
    }

    #[getter]
    fn image_unique_id(&self) -> Option<&str> {
        self.0.image_unique_id.as_deref()
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let mut fields = Vec::new();
        for name in FIELDS {
            let value = slf.getattr(name)?;
            if !value.is_none() {
                fields.push(format!("{name}={}", value.repr()?));
            }
        }
        Ok(format!("ImageHeader({})", fields.join(", ")))
    }

    /// What pickling hands to the constructor.
    fn __getnewargs_ex__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let fields = PyDict::new(slf.py());
        for name in FIELDS {
            fields.set_item(name, slf.getattr(name)?)?;
        }
        Ok((PyTuple::empty(slf.py()), fields))
    }
}

/// The fields of an `ImageHeader`, in the order of its constructor and its repr.
const FIELDS: [&str; 12] = [
    "format",
    "width",
    "height",
    "mode",
    "bits",
    "has_alpha",
    "is_animated",
    "frame_count",
    "orientation",
    "upright_size",
    "image_id",
    "image_unique_id",
];

/// More of the payload is needed to answer.
#[pyclass(name = "NeedMoreBytes", module = "safelight", frozen, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct PyNeedMoreBytes(NeedMoreBytes);

#[pymethods]
impl PyNeedMoreBytes {
    #[new]
    #[pyo3(signature = (at_least=None, *, format=None, size=None))]
    fn new(
        at_least: Option<u64>,
        format: Option<&str>,
        size: Option<(u32, u32)>,
    ) -> PyResult<Self> {
        let format = format
            .map(|name| Format::by_name(name).ok_or_else(|| unknown("format")))
            .transpose()?;
        Ok(Self(NeedMoreBytes {
            at_least,
            format,
            size,
        }))
    }

    #[getter]
    fn at_least(&self) -> Option<u64> {
        self.0.at_least
    }

    #[getter]
    fn format<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyString>> {
        self.0
            .format
            .map(|format| PyString::intern(py, format.name()))
    }

    #[getter]
    fn size(&self) -> Option<(u32, u32)> {
        self.0.size
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let mut fields = Vec::new();
        for name in ["at_least", "format", "size"] {
            let value = slf.getattr(name)?;
            if !value.is_none() {
                fields.push(format!("{name}={}", value.repr()?));
            }
        }
        Ok(format!("NeedMoreBytes({})", fields.join(", ")))
    }

    /// What pickling hands to the constructor.
    fn __getnewargs_ex__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<((Option<u64>,), Bound<'py, PyDict>)> {
        let fields = PyDict::new(slf.py());
        for name in ["format", "size"] {
            fields.set_item(name, slf.getattr(name)?)?;
        }
        Ok(((slf.get().0.at_least,), fields))
    }
}

fn unknown(name: &str) -> PyErr {
    PyValueError::new_err(format!("{name} is not one that a header can have"))
}

/// The header of the image in `data`.
#[pyfunction]
#[pyo3(signature = (data))]
pub(crate) fn probe(data: Payload) -> BindingResult<PyImageHeader> {
    Ok(PyImageHeader(headers::probe(&data)?))
}

/// The header of the image that begins with `data`, or how much more is needed.
#[pyfunction]
#[pyo3(signature = (data))]
pub(crate) fn probe_prefix(py: Python<'_>, data: Payload) -> PyResult<Py<PyAny>> {
    match headers::probe_prefix(&data).map_err(BindingError::from)? {
        Prefix::Header(header) => Ok(Py::new(py, PyImageHeader(header))?.into_any()),
        Prefix::NeedMoreBytes(need) => Ok(Py::new(py, PyNeedMoreBytes(need))?.into_any()),
    }
}

/// The headers of the files at `paths`, in order; an exception in the place of a header that
/// cannot be had.
#[pyfunction]
#[pyo3(signature = (paths))]
pub(crate) fn probe_files(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Vec<Py<PyAny>>> {
    let answers: Vec<_> = py.detach(|| {
        let mut buffer = Vec::new();
        paths
            .iter()
            .map(|path| headers::probe_file(path, &mut buffer))
            .collect()
    });
    answers
        .into_iter()
        .map(|answer| match answer {
            Ok(Ok(header)) => Ok(Py::new(py, PyImageHeader(header))?.into_any()),
            Ok(Err(error)) => Ok(PyErr::from(BindingError::from(error))
                .into_value(py)
                .into_any()),
            Err(error) => Ok(os_error(py, error)?.into_value(py).into_any()),
        })
        .collect()
}

/// The `OSError` that Python itself would raise, with `errno` and `strerror`.
fn os_error(py: Python<'_>, error: std::io::Error) -> PyResult<PyErr> {
    let Some(code) = error.raw_os_error() else {
        return Ok(error.into());
    };
    let text: String = py
        .import("os")?
        .call_method1("strerror", (code,))?
        .extract()?;
    Ok(PyOSError::new_err((code, text)))
}
