//! Image decodes: in the caller's place, or as jobs of a pool that need the interpreter at their
//! end only.
//!
//! Owns the request's form at the border and who may decode a ref. Must never decode attached.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::PyTuple;
use safelight_core::Error;
use safelight_core::flight::Flight;
use safelight_pixels::{Cancel, Outcome, Picture, Request, Target};

use crate::error::{BindingError, BindingResult};
use crate::fork::generation;
use crate::pixels::PyPixels;
use crate::pool::{Answer, Object, PyJob, Raised, call, detached, work_attached};

/// The right to decode one ref, which one thread has at a time, until one of them has done it.
#[pyclass(name = "Claim", module = "safelight._safelight", frozen)]
pub(crate) struct PyClaim(Arc<AtomicU64>);

/// Nobody decodes.
const FREE: u64 = 0;

/// The media is there; nobody may decode it again.
const DONE: u64 = u64::MAX;

const MIN_PAUSE: Duration = Duration::from_micros(50);
const MAX_PAUSE: Duration = Duration::from_millis(2);

/// The state in which a thread of this process decodes: one that a fork left behind does not count.
fn busy() -> u64 {
    u64::from(generation()) << 1 | 1
}

#[pymethods]
impl PyClaim {
    #[new]
    fn new() -> Self {
        Self(Arc::default())
    }

    /// Call `decode` with the claim as soon as it is free; do nothing if it is done by then.
    ///
    /// If `decode` raises, others may try. One call does it all, so that no signal comes between
    /// taking the claim and giving it back. Who decodes tells nobody when it is done, so that no
    /// lock is held over a fork: this looks again and again, which costs little, because it is rare.
    fn run(&self, py: Python<'_>, decode: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut pause = MIN_PAUSE;
        let mut held = loop {
            if let Some(held) = Held::take(Arc::clone(&self.0)) {
                break held;
            }
            if self.0.load(Ordering::Acquire) == DONE {
                return Ok(());
            }
            detached(py, || std::thread::sleep(pause));
            py.check_signals()?;
            pause = MAX_PAUSE.min(pause * 2);
        };
        call(decode, &PyTuple::empty(py), None)?;
        held.is_done = true;
        Ok(())
    }
}

/// A claim that is taken: given back when this is dropped, or done.
struct Held {
    claim: Arc<AtomicU64>,
    is_done: bool,
}

impl Held {
    fn take(claim: Arc<AtomicU64>) -> Option<Self> {
        let busy = busy();
        claim
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |now| {
                (now != DONE && now != busy).then_some(busy)
            })
            .ok()?;
        let is_done = false;
        Some(Self { claim, is_done })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let after = if self.is_done { DONE } else { FREE };
        self.claim.store(after, Ordering::Release);
    }
}

/// What to decode to; `None` for a mode that is not served here.
fn request(
    mode: Option<&str>,
    background: Option<(u8, u8, u8)>,
    max_pixels: u64,
    orientation: u8,
    scale: u8,
) -> PyResult<Option<Request>> {
    let target = match mode {
        None => None,
        Some("RGB") => Some(Target::Rgb),
        Some("RGBX") => Some(Target::Rgbx),
        Some("RGBA") => Some(Target::Rgba),
        Some("L") => Some(Target::L),
        Some(_) => return Ok(None),
    };
    if !(1..=8).contains(&orientation) {
        return Err(PyValueError::new_err("orientation must be 1 to 8"));
    }
    if !matches!(scale, 1 | 2 | 4 | 8) {
        return Err(PyValueError::new_err("scale must be 1, 2, 4 or 8"));
    }
    Ok(Some(Request {
        target,
        background: background.map(|(red, green, blue)| [red, green, blue]),
        max_pixels,
        orientation,
        scale,
    }))
}

/// Decode an image as Pillow would, its first picture turned upright and in `mode`; a JPEG to
/// 1/`scale` of its size.
///
/// The interpreter is detached for the whole decode. None means that Pillow has to be asked: the
/// format or this kind of it is not served, or the file is damaged.
#[pyfunction]
#[pyo3(signature = (data, mode = Some("RGB"), background = Some((255, 255, 255)), max_pixels = 178_956_970, orientation = 1, scale = 1))]
pub(crate) fn decode_image(
    py: Python<'_>,
    data: PyBackedBytes,
    mode: Option<&str>,
    background: Option<(u8, u8, u8)>,
    max_pixels: u64,
    orientation: u8,
    scale: u8,
) -> PyResult<Option<PyPixels>> {
    let Some(request) = request(mode, background, max_pixels, orientation, scale)? else {
        return Ok(None);
    };
    let outcome: BindingResult<Outcome> = detached(py, || {
        safelight_pixels::decode(&data, &request, &Cancel::default()).map_err(Into::into)
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

/// The arguments of `decode_image` from `mode` on.
type Form = (Option<PyBackedStr>, Option<(u8, u8, u8)>, u64, u8, u8);

/// A job that decodes an image as `decode_image` does, and is queued by `Pool.submit_batch`.
///
/// Its result is that of ``finish(pixels, is_ours)``, called attached when the decode has ended:
/// with the claim held and pixels, or None where Pillow has to be asked; without the claim and
/// None where another thread had it. A cancelled job stops within rows.
#[pyfunction]
pub(crate) fn decode_job(
    data: PyBackedBytes,
    form: Form,
    claim: &Bound<'_, PyClaim>,
    finish: Py<PyAny>,
) -> PyResult<Option<PyJob>> {
    let (mode, background, max_pixels, orientation, scale) = form;
    let mode = mode.as_deref();
    let Some(request) = request(mode, background, max_pixels, orientation, scale)? else {
        return Ok(None);
    };
    let claim = Arc::clone(&claim.get().0);
    let flight = Flight::staged(Box::new(move |cancel| {
        let decoded = match Held::take(claim) {
            None => None,
            Some(held) => match safelight_pixels::decode(&data, &request, cancel) {
                Ok(Outcome::Cancelled) => return None,
                Ok(Outcome::Decoded(picture)) => Some((held, Ok(Some(picture)))),
                Ok(Outcome::Declined(_)) => Some((held, Ok(None))),
                Err(error) => Some((held, Err(error))),
            },
        };
        Some(Box::new(move || {
            work_attached(|py| {
                // The payload's reference is let go of here, where that can be done at once.
                drop(data);
                answer(py, decoded, finish)
            })
        }))
    }));
    Ok(Some(PyJob::staged(flight, max_pixels)))
}

/// What `finish` makes of a decode: of the claim, if it was taken, and the picture, if there is one.
fn answer(
    py: Python<'_>,
    decoded: Option<(Held, Result<Option<Picture>, Error>)>,
    finish: Py<PyAny>,
) -> Answer {
    let (held, pixels) = match decoded {
        None => (None, None),
        Some((held, Ok(picture))) => (Some(held), picture.map(PyPixels::new)),
        Some((_, Err(error))) => return Err(Raised::new(py, &BindingError::from(error).into())),
    };
    let media = (pixels, held.is_some())
        .into_pyobject(py)
        .and_then(|arguments| call(finish.bind(py), &arguments, None));
    drop(finish);
    match media {
        Ok(media) => {
            if let Some(mut held) = held {
                held.is_done = true;
            }
            Ok(Object(media.unbind()))
        }
        Err(error) => Err(Raised::new(py, &error)),
    }
}
