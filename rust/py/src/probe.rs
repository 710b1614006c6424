//! `probe`, `probe_prefix` and what they answer.

#![expect(
    clippy::needless_pass_by_value,
    reason = "what is extracted from Python arrives by value"
)]

use std::path::PathBuf;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use safelight_core::probe::{self as core, Format, Prefix, ProbeError};

use crate::error::BindingError;
use crate::payload::Payload;

/// What a header says of an image: frozen, picklable, hashable, equal by its fields.
///
/// Attributes:
///     format: By the bytes alone, as Pillow names it: ``"JPEG"``, ``"PNG"``, ``"WEBP"``, …
///     mime_type: The media type of the format; ``"image/jpeg"`` for MPO too.
///     width: Stored width in pixels, before any orientation: Pillow's ``size[0]``.
///     height: Stored height in pixels.
///     mode: Mode of the first frame, as Pillow names it; None where only a decoder can tell.
///     bits: Bits per sample as stored, or None.
///     has_alpha: Whether there is an alpha channel or a transparent color, or None.
///     is_animated: Whether there is more than one frame or page, or None.
///     frame_count: Frames or pages; None where the header does not say, as in GIF.
///     orientation: 1 to 8, as EXIF counts; 1 where none is stated.
///     upright_size: Width and height once the orientation is applied. A TIFF's is in `width`
///         and `height` already, and is not applied again.
///     image_id: EXIF ImageID, or None.
///     image_unique_id: EXIF ImageUniqueID, or None. It is not unique in the wild.
#[pyclass(module = "safelight", frozen, eq, hash, get_all)]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct ImageHeader {
    format: &'static str,
    mime_type: &'static str,
    width: u32,
    height: u32,
    mode: Option<&'static str>,
    bits: Option<u8>,
    has_alpha: Option<bool>,
    is_animated: Option<bool>,
    frame_count: Option<u32>,
    orientation: u8,
    upright_size: (u32, u32),
    image_id: Option<String>,
    image_unique_id: Option<String>,
}

/// The fields of an `ImageHeader` that its constructor takes, in the order of its repr.
const HEADER_FIELDS: &str = "format width height mode bits has_alpha is_animated frame_count \
    orientation upright_size image_id image_unique_id";

impl From<core::ImageHeader> for ImageHeader {
    fn from(header: core::ImageHeader) -> Self {
        Self {
            format: header.format.name(),
            mime_type: header.format.mime_type(),
            width: header.width,
            height: header.height,
            mode: header.mode,
            bits: header.bits,
            has_alpha: header.has_alpha,
            is_animated: header.is_animated,
            frame_count: header.frame_count,
            orientation: header.orientation,
            upright_size: header.upright_size,
            image_id: header.image_id.map(Into::into),
            image_unique_id: header.image_unique_id.map(Into::into),
        }
    }
}

#[pymethods]
impl ImageHeader {
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
        let format = Format::by_name(format).ok_or_else(|| unknown("format"))?;
        let stored = (width, height);
        let turned = (height, width);
        if !(1..=8).contains(&orientation) {
            return Err(unknown("orientation"));
        }
        Ok(Self {
            format: format.name(),
            mime_type: format.mime_type(),
            width,
            height,
            mode: mode
                .map(|name| core::mode_by_name(name).ok_or_else(|| unknown("mode")))
                .transpose()?,
            bits,
            has_alpha,
            is_animated,
            frame_count,
            orientation,
            upright_size: match upright_size {
                Some(size) if size == stored || size == turned => size,
                Some(_) => return Err(unknown("upright_size")),
                None if orientation >= 5 && format != Format::Tiff => turned,
                None => stored,
            },
            image_id,
            image_unique_id,
        })
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        repr(slf, HEADER_FIELDS)
    }

    /// What pickling hands to the constructor.
    fn __getnewargs_ex__<'py>(slf: &Bound<'py, Self>) -> PyResult<Arguments<'py>> {
        arguments(slf, HEADER_FIELDS)
    }
}

/// More of the payload is needed to answer: frozen, picklable, hashable, equal by its fields.
///
/// Attributes:
///     at_least: No prefix of fewer bytes can be answered; None where that is not known.
///     format: The format, once it is known.
///     size: Width and height as declared so far, or None. Enough to refuse an oversize image
///         before its header is complete.
#[pyclass(module = "safelight", frozen, eq, hash, get_all)]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct NeedMoreBytes {
    at_least: Option<u64>,
    format: Option<&'static str>,
    size: Option<(u32, u32)>,
}

const NEED_FIELDS: &str = "at_least format size";

#[pymethods]
impl NeedMoreBytes {
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
        Ok(Self {
            at_least,
            format: format.map(Format::name),
            size,
        })
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        repr(slf, NEED_FIELDS)
    }

    /// What pickling hands to the constructor.
    fn __getnewargs_ex__<'py>(slf: &Bound<'py, Self>) -> PyResult<Arguments<'py>> {
        arguments(slf, NEED_FIELDS)
    }
}

type Arguments<'py> = (Bound<'py, PyTuple>, Bound<'py, PyDict>);

fn arguments<'py>(value: &Bound<'py, PyAny>, fields: &str) -> PyResult<Arguments<'py>> {
    let keywords = PyDict::new(value.py());
    for name in fields.split(' ') {
        keywords.set_item(name, value.getattr(name)?)?;
    }
    Ok((PyTuple::empty(value.py()), keywords))
}

fn repr(value: &Bound<'_, PyAny>, fields: &str) -> PyResult<String> {
    let mut parts = Vec::new();
    for name in fields.split(' ') {
        let field = value.getattr(name)?;
        if !field.is_none() {
            parts.push(format!("{name}={}", field.repr()?));
        }
    }
    Ok(format!(
        "{}({})",
        value.get_type().name()?,
        parts.join(", ")
    ))
}

fn unknown(name: &str) -> PyErr {
    PyValueError::new_err(format!("{name} is not one that a header can have"))
}

/// A refusal as its exception, which carries what was declared before.
fn refusal(py: Python<'_>, ProbeError { error, declared }: ProbeError) -> PyErr {
    let raised = PyErr::from(BindingError::from(error));
    let value = raised.value(py);
    let format = declared.format.map(Format::name);
    let set = value.setattr("format", format);
    set.and_then(|()| value.setattr("size", declared.size))
        .err()
        .unwrap_or(raised)
}

/// Return the header of the image in `data`, a whole payload, without decoding it.
///
/// Takes about a microsecond, and a few milliseconds at most whatever the bytes are.
///
/// Raises:
///     HeaderError: No header that can be read: not an image, cut short, or damaged; its `size`
///         is the one that was declared before the damage.
///     UnsupportedMediaError: A format that is recognized but not served; the message names it.
#[pyfunction]
#[pyo3(signature = (data))]
pub(crate) fn probe(py: Python<'_>, data: Payload) -> PyResult<ImageHeader> {
    let header = core::probe(&data).map_err(|error| refusal(py, error))?;
    Ok(header.into())
}

/// Return the header of the image that begins with `data`, or `NeedMoreBytes`.
///
/// A header is that of the whole payload, but for what a PNG states behind its pixels: `probe`
/// finds its orientation and ids there.
///
/// Raises:
///     HeaderError: As `probe`, as soon as no further bytes can help.
///     UnsupportedMediaError: As `probe`.
#[pyfunction]
#[pyo3(signature = (data))]
pub(crate) fn probe_prefix(py: Python<'_>, data: Payload) -> PyResult<Py<PyAny>> {
    match core::probe_prefix(&data).map_err(|error| refusal(py, error))? {
        Prefix::Header(header) => Ok(Py::new(py, ImageHeader::from(header))?.into_any()),
        Prefix::NeedMoreBytes(core::NeedMoreBytes { at_least, declared }) => {
            let need = NeedMoreBytes {
                at_least,
                format: declared.format.map(Format::name),
                size: declared.size,
            };
            Ok(Py::new(py, need)?.into_any())
        }
    }
}

/// Return the headers of the files at `paths`, in order, of each reading no more than it takes.
///
/// In the place of a header that cannot be had stands the exception: what `probe` raises, or an
/// OSError. Only regular files are opened. The interpreter is released meanwhile.
#[pyfunction]
#[pyo3(signature = (paths))]
pub(crate) fn probe_files(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Vec<Py<PyAny>>> {
    let answers: Vec<_> = py.detach(|| {
        let mut buffer = Vec::new();
        paths
            .iter()
            .map(|path| core::probe_file(path, &mut buffer))
            .collect()
    });
    answers
        .into_iter()
        .map(|answer| match answer {
            Ok(Ok(header)) => Ok(Py::new(py, ImageHeader::from(header))?.into_any()),
            Ok(Err(error)) => Ok(refusal(py, error).into_value(py).into_any()),
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
