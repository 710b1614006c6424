//! Decoded pixels as an object that numpy, torch and Pillow read and write without a copy.
//!
//! With `arrow`, one of the files of the binding with unsafe code: the buffer protocol hands out raw
//! memory. Must never copy pixels.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use safelight_pixels::{Mode, Picture, Transparency};

use crate::arrow;
use crate::pool::detached;

/// The pixels of one image, in memory that this object owns.
///
/// Exports a writable, C-contiguous buffer: height x width, and channels where there are more
/// than one; uint8, except uint16 for ``I;16`` and ``I;16B``, int32 for ``I``, float32 for ``F``.
#[pyclass(name = "Pixels", frozen, module = "safelight._safelight")]
pub(crate) struct PyPixels {
    width: u32,
    height: u32,
    mode: Mode,
    memory: Memory,
    shape: [isize; 3],
    strides: [isize; 3],
    dimensions: c_int,
    palette: Option<Vec<u8>>,
    transparency: Option<Transparency>,
}

/// Bytes that exported buffers may read and write, as Python's own mutable buffers may be.
struct Memory {
    start: *mut u8,
    len: usize,
}

// SAFETY: the memory is owned by this value alone and never moves. Rust code does not touch it
// after the constructor until it is freed, when no exported buffer is left; those who write
// through exported buffers coordinate among themselves, as with a numpy array.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared reference gives out the address, never a Rust reference.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        let start = Box::into_raw(bytes.into_boxed_slice()).cast::<u8>();
        Self { start, len }
    }
}

/// Handing so much back to the system takes long enough for others to have the interpreter.
const DETACH_BYTES: usize = 1 << 20;

impl Drop for Memory {
    fn drop(&mut self) {
        let bytes = ptr::slice_from_raw_parts_mut(self.start, self.len);
        // SAFETY: made by `Box::into_raw` of a slice of this length, and freed once.
        let bytes = unsafe { Box::from_raw(bytes) };
        if bytes.len() >= DETACH_BYTES {
            let mut bytes = Some(bytes);
            // Freed below where the interpreter finalizes.
            Python::try_attach(|py| {
                detached(py, || {
                    if let Some(bytes) = bytes.take() {
                        safelight_pixels::recycle(bytes.into_vec());
                    }
                });
            });
        }
    }
}

impl PyPixels {
    pub(crate) fn new(picture: Picture) -> Self {
        let Picture {
            width,
            height,
            mode,
            pixels,
            palette,
            transparency,
        } = picture;
        let sample = mode.sample_bytes();
        let channels = mode.pixel_bytes() / sample;
        let pixel = mode.pixel_bytes();
        // A picture that was decoded has fewer than `isize::MAX` bytes.
        let signed = |size: usize| size.cast_signed();
        Self {
            width,
            height,
            mode,
            memory: Memory::new(pixels),
            shape: [
                signed(height as usize),
                signed(width as usize),
                signed(channels),
            ],
            strides: [
                signed(width as usize * pixel),
                signed(pixel),
                signed(sample),
            ],
            dimensions: if channels == 1 { 2 } else { 3 },
            palette: palette.map(|palette| palette.rgb()),
            transparency,
        }
    }

    fn format(&self) -> &'static CStr {
        match self.mode {
            Mode::I16 => c"<H",
            Mode::I16Big => c">H",
            Mode::I => c"<i",
            Mode::F => c"<f",
            _ => c"B",
        }
    }
}

#[pymethods]
impl PyPixels {
    /// Columns.
    #[getter]
    fn width(&self) -> u32 {
        self.width
    }

    /// Rows.
    #[getter]
    fn height(&self) -> u32 {
        self.height
    }

    /// Width and height, in Pillow's order.
    #[getter]
    fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    /// Pillow's name of the mode. Mode ``1`` has a byte a pixel here, 0 or 255.
    #[getter]
    fn mode(&self) -> &'static str {
        self.mode.name()
    }

    /// Bytes of the pixels.
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.len
    }

    /// The palette of modes ``P`` and ``PA`` as packed RGB, None for other modes.
    #[getter]
    fn palette<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let palette = self.palette.as_ref()?;
        Some(PyBytes::new(py, palette))
    }

    /// Pillow's ``info["transparency"]``: an int, a tuple of three, bytes, or None.
    #[getter]
    fn transparency<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(Some(match &self.transparency {
            None => return Ok(None),
            Some(Transparency::Index(index)) => index.into_pyobject(py)?.into_any(),
            Some(Transparency::Gray(gray)) => gray.into_pyobject(py)?.into_any(),
            Some(Transparency::Color(color)) => PyTuple::new(py, color)?.into_any(),
            Some(Transparency::Alphas(alphas)) => PyBytes::new(py, alphas).into_any(),
        }))
    }

    fn __len__(&self) -> usize {
        self.height as usize
    }

    fn __repr__(&self) -> String {
        let Self {
            width,
            height,
            mode,
            ..
        } = self;
        format!("<Pixels {width}x{height} {}>", mode.name())
    }

    /// The bytes as an Arrow array of uint8, over the C data interface; no copy is made.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        slf: &Bound<'py, Self>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        // The interface lets a producer disregard the request.
        let _ = requested_schema;
        let memory = &slf.get().memory;
        let owner = slf.clone().into_any().unbind();
        // SAFETY: the object owns the memory, which never moves, and the array keeps the object.
        unsafe { arrow::export(slf.py(), owner, memory.start, memory.len) }
    }

    // SAFETY contract: Python calls this with a valid `view`, and releases it before `slf` dies.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let this = slf.get();
        let wants = |flag: c_int| flags & flag == flag;
        // SAFETY: `view` is a Py_buffer for this call to fill. What it points to is owned by the
        // object, which `obj` keeps alive; shape and strides never change in a frozen class.
        unsafe {
            (*view).buf = this.memory.start.cast::<c_void>();
            (*view).len = this.memory.len.cast_signed();
            (*view).readonly = 0;
            (*view).itemsize = this.mode.sample_bytes().cast_signed();
            (*view).format = if wants(ffi::PyBUF_FORMAT) {
                this.format().as_ptr().cast_mut()
            } else {
                ptr::null_mut()
            };
            (*view).ndim = if wants(ffi::PyBUF_ND) {
                this.dimensions
            } else {
                1
            };
            (*view).shape = if wants(ffi::PyBUF_ND) {
                this.shape.as_ptr().cast_mut()
            } else {
                ptr::null_mut()
            };
            (*view).strides = if wants(ffi::PyBUF_STRIDES) {
                this.strides.as_ptr().cast_mut()
            } else {
                ptr::null_mut()
            };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }
}
