//! `decode_base64`: straight from the buffer of a str or bytes into a new bytes object.

use std::mem::MaybeUninit;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyString};
use safelight_core::base64;

use crate::error::decode_error;

/// Texts of this size and above are decoded with the interpreter released. A smaller one holds it
/// for less than a tenth of a millisecond, and handing it over would cost the caller its turn
/// (`benches/python/test_base64.py`).
const DETACH_BYTES: usize = 1 << 20;

/// Decode strict base64 (RFC 4648 section 4: padded, no whitespace) from `data[start:]`.
///
/// Neither the rest of `data` nor the text is copied; `start` counts characters, so the payload
/// of a data URL is decoded where it stands. Positions in errors count from `start`.
#[pyfunction]
#[pyo3(signature = (data, start = 0))]
pub(crate) fn decode_base64<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    start: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    if let Ok(text) = data.cast::<PyString>() {
        // A lone surrogate is a stray character like any other; its error would quote it.
        let Ok(text) = PyBackedStr::try_from(text.clone()) else {
            return Err(decode_error("base64 has a stray character"));
        };
        let offset = byte_offset(&text, start).ok_or_else(past_the_end)?;
        decode(py, &text.as_bytes()[offset..])
    } else {
        let data: PyBackedBytes = data.extract()?;
        decode(py, data.get(start..).ok_or_else(past_the_end)?)
    }
}

fn past_the_end() -> PyErr {
    PyValueError::new_err("start is past the end of data")
}

/// Where character `start` of `text` begins, in bytes.
fn byte_offset(text: &str, start: usize) -> Option<usize> {
    // No character is shorter than a byte.
    let prefix = text.as_bytes().get(..start)?;
    if prefix.is_ascii() {
        return Some(start);
    }
    let starts = text.char_indices().map(|(offset, _)| offset);
    starts.chain([text.len()]).nth(start)
}

fn decode<'py>(py: Python<'py>, text: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let length = base64::decoded_len(text).map_err(refused)?;
    let decoded = uninit_bytes(py, length)?;
    let pointer = decoded.as_bytes().as_ptr().cast_mut();
    // SAFETY: `decoded` has `length` bytes, nobody else has a reference to it before it is
    // returned, and only `MaybeUninit` is read from it until it is filled.
    let out = unsafe { std::slice::from_raw_parts_mut(pointer.cast::<MaybeUninit<u8>>(), length) };
    if text.len() < DETACH_BYTES {
        base64::decode_into(text, out)
    } else {
        py.detach(|| base64::decode_into(text, out))
    }
    .map_err(refused)?;
    Ok(decoded)
}

/// A bytes object of `length` bytes that are not written yet: a fresh large one touches no page
/// before the interpreter is released.
fn uninit_bytes(py: Python<'_>, length: usize) -> PyResult<Bound<'_, PyBytes>> {
    let length = ffi::Py_ssize_t::try_from(length)?;
    // SAFETY: a null pointer asks for uninitialized content; the result is a new reference to a
    // bytes object, or null with an exception set.
    unsafe {
        let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), length);
        Ok(Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked())
    }
}

fn refused(error: safelight_core::Error) -> PyErr {
    decode_error(error.message().to_owned())
}
