//! Image processors: pixels in, what a model reads out, detached throughout.
//!
//! Owns the settings' form at the border, and one of the binding's unsafe blocks: it reads arrays
//! in place. Must never touch a pixel attached.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyValueError};
use pyo3::prelude::*;
use safelight_core::Result;
use safelight_core::layout::Geometry;
use safelight_pixels::{
    Cancel, Channels, Filter, Form, Normalization, Outcome, Processor, Resize, Rule, Table, View,
    resize,
};

use crate::error::BindingError;
use crate::pixels::PyPixels;
use crate::pool::detached;

/// Levels of uint8 in memory that is somebody else's.
pub(crate) struct Levels(PyBuffer<u8>);

impl FromPyObject<'_, '_> for Levels {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::get(&object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("pixels must be C-contiguous"));
        }
        Ok(Self(buffer))
    }
}

impl Levels {
    /// The levels, while the interpreter may be released.
    ///
    /// Nobody may write to an array while it is processed, as with every function of numpy and
    /// torch that releases the interpreter.
    fn as_slice(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous, of so many bytes, and held by `self`. That nobody
        // writes meanwhile is the caller's promise, as above.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<u8>(), self.0.len_bytes()) }
    }
}

/// How an image is placed: a mapping with the keys of one of these.
#[derive(FromPyObject)]
enum Place {
    #[pyo3(from_item_all)]
    Patches {
        patch: u32,
        merge: u32,
        copies: u32,
        min_pixels: u64,
        max_pixels: u64,
    },
    #[pyo3(from_item_all)]
    Crop { edge: u32, crop: (u32, u32) },
    #[pyo3(from_item_all)]
    Fixed { size: (u32, u32) },
}

impl From<Place> for Geometry {
    fn from(place: Place) -> Self {
        match place {
            Place::Patches {
                patch,
                merge,
                copies,
                min_pixels,
                max_pixels,
            } => Self::Patches {
                patch,
                merge,
                copies,
                min_pixels,
                max_pixels,
            },
            Place::Crop { edge, crop } => Self::Crop { edge, crop },
            Place::Fixed { size } => Self::Fixed { size },
        }
    }
}

/// An image processor with all of its settings, of one of transformers' backends.
#[pyclass(name = "ImageProcessor", frozen, module = "safelight._safelight")]
pub(crate) struct PyImageProcessor(Processor);

#[pymethods]
impl PyImageProcessor {
    #[new]
    #[pyo3(signature = (geometry, filter, backend, rescale_factor, mean_and_std))]
    fn new(
        geometry: Place,
        filter: &str,
        backend: &str,
        rescale_factor: Option<f64>,
        mean_and_std: Option<(Channels, Channels)>,
    ) -> PyResult<Self> {
        let normalization = Normalization {
            rescale_factor,
            mean_and_std,
        };
        let rule = rule(backend)?;
        let table = Table::new(rule, &normalization);
        let processor = Processor::new(geometry.into(), named(filter)?, rule, table);
        Ok(Self(processor.map_err(BindingError::from)?))
    }

    /// Columns and rows of an image after its resize, those that are kept, and its grid of rows
    /// and columns of patches, if it is one.
    #[expect(clippy::type_complexity, reason = "two sizes and a grid")]
    fn layout(
        &self,
        width: u32,
        height: u32,
    ) -> PyResult<((u32, u32), (u32, u32), Option<(u32, u32)>)> {
        let geometry = self.0.geometry();
        let size = geometry.resized(width, height);
        let size = size.map_err(BindingError::from)?;
        Ok((size, geometry.kept(size), geometry.grid(size)))
    }

    /// Process RGB images, each with its width and height, into one buffer.
    ///
    /// `form` is ``"float"``, ``"uint8"``, or ``"single"`` for uint8 without copies of patches.
    fn process(
        &self,
        py: Python<'_>,
        images: Vec<(Levels, u32, u32)>,
        form: &str,
    ) -> PyResult<PyPixels> {
        let form = match form {
            "float" => Form::Float,
            "uint8" => Form::Uint8,
            "single" => Form::Single,
            _ => return Err(PyValueError::new_err("form is float, uint8 or single")),
        };
        let views: Result<Vec<_>> = images
            .iter()
            .map(|(levels, width, height)| View::new(*width, *height, 3, levels.as_slice()))
            .collect();
        let views = views.map_err(BindingError::from)?;
        pixels(detached(py, || {
            self.0.run(&views, form, &Cancel::default())
        }))
    }

    /// The floats of uint8 outputs; those of a single form are repeated as its geometry says.
    fn expand(&self, py: Python<'_>, levels: Levels, is_single: bool) -> PyResult<PyPixels> {
        let levels = levels.as_slice();
        pixels(detached(py, || self.0.expand(levels, is_single)))
    }
}

/// Resize packed uint8 pixels of `shape` (rows, columns, channels) as Pillow or torch does.
#[pyfunction(name = "resize")]
#[pyo3(signature = (levels, shape, size, filter, backend, region = None))]
pub(crate) fn py_resize(
    py: Python<'_>,
    levels: Levels,
    shape: (u32, u32, usize),
    size: (u32, u32),
    filter: &str,
    backend: &str,
    region: Option<[f32; 4]>,
) -> PyResult<PyPixels> {
    let (height, width, channels) = shape;
    let request = Resize {
        size,
        filter: named(filter)?,
        rule: rule(backend)?,
        region,
    };
    let view = View::new(width, height, channels, levels.as_slice());
    let view = view.map_err(BindingError::from)?;
    pixels(detached(py, || resize(view, &request, &Cancel::default())))
}

fn named(filter: &str) -> PyResult<Filter> {
    Ok(match filter {
        "nearest" => Filter::Nearest,
        "box" => Filter::Box,
        "bilinear" => Filter::Bilinear,
        "bicubic" => Filter::Bicubic,
        "lanczos" => Filter::Lanczos,
        _ => return Err(PyValueError::new_err("no such filter")),
    })
}

fn rule(backend: &str) -> PyResult<Rule> {
    match backend {
        "pil" => Ok(Rule::Pillow),
        "torchvision" => Ok(Rule::Torch),
        _ => Err(PyValueError::new_err("backend is pil or torchvision")),
    }
}

fn pixels(outcome: Result<Outcome>) -> PyResult<PyPixels> {
    match outcome.map_err(BindingError::from)? {
        Outcome::Decoded(picture) => Ok(PyPixels::new(picture)),
        Outcome::Declined(_) | Outcome::Cancelled => Err(PyMemoryError::new_err(())),
    }
}
