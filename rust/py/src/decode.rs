//! Image decodes in the caller's place, and the form of their requests.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use safelight_pixels::{Cancel, Outcome, Request, Target};

use crate::error::{BindingError, BindingResult};
use crate::pixels::PyPixels;
use crate::pool::detached;

/// What to decode an image to; frozen.
///
/// `mode` is ``"RGB"``, ``"RGBX"``, ``"RGBA"``, ``"L"``, or None for the image's own; `background`
/// what a transparent image is pasted over, None to convert without; `max_pixels` the most that are
/// decoded, 0 for no limit; `orientation` that of Exif; a JPEG is decoded to 1/`scale` of its size.
#[pyclass(name = "DecodeRequest", module = "safelight._safelight", frozen)]
pub(crate) struct PyDecodeRequest(pub(crate) Request);

#[pymethods]
impl PyDecodeRequest {
    #[new]
    #[pyo3(signature = (mode = Some("RGB"), background = Some((255, 255, 255)), max_pixels = 178_956_970, orientation = 1, scale = 1))]
    fn new(
        mode: Option<&str>,
        background: Option<(u8, u8, u8)>,
        max_pixels: u64,
        orientation: u8,
        scale: u8,
    ) -> PyResult<Self> {
        let target = match mode {
            None => None,
            Some("RGB") => Some(Target::Rgb),
            Some("RGBX") => Some(Target::Rgbx),
            Some("RGBA") => Some(Target::Rgba),
            Some("L") => Some(Target::L),
            Some(_) => {
                return Err(PyValueError::new_err(
                    "mode must be RGB, RGBX, RGBA, L or None",
                ));
            }
        };
        if !(1..=8).contains(&orientation) {
            return Err(PyValueError::new_err("orientation must be 1 to 8"));
        }
        if !matches!(scale, 1 | 2 | 4 | 8) {
            return Err(PyValueError::new_err("scale must be 1, 2, 4 or 8"));
        }
        Ok(Self(Request {
            target,
            background: background.map(|(red, green, blue)| [red, green, blue]),
            max_pixels,
            orientation,
            scale,
        }))
    }
}

/// Decode an image as Pillow would, its first picture turned upright and in the request's mode.
///
/// The interpreter is detached for the whole decode. None means that Pillow has to be asked: the
/// format or this kind of it is not served, or the file is damaged.
#[pyfunction]
pub(crate) fn decode_image(
    py: Python<'_>,
    data: PyBackedBytes,
    request: &Bound<'_, PyDecodeRequest>,
) -> PyResult<Option<PyPixels>> {
    let request = &request.get().0;
    let outcome: BindingResult<Outcome> = detached(py, || {
        safelight_pixels::decode(&data, request, &Cancel::default()).map_err(Into::into)
    });
    Ok(match outcome? {
        Outcome::Decoded(picture) => Some(PyPixels::new(picture)),
        Outcome::Declined(_) | Outcome::Cancelled => None,
    })
}

/// Refuse a JPEG with more scans than are decoded, each of which may touch every pixel.
#[pyfunction]
pub(crate) fn check_jpeg_scans(py: Python<'_>, data: PyBackedBytes) -> PyResult<()> {
    if detached(py, || safelight_pixels::has_too_many_scans(&data)) {
        return Err(BindingError::from(safelight_pixels::too_many_scans()).into());
    }
    Ok(())
}
