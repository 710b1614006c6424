//! Pixels over the Arrow C data interface, by which Pillow takes memory without copying it.
//!
//! Owns the two C structures and their release. See
//! <https://arrow.apache.org/docs/format/CDataInterface.html>. Must never know what the bytes mean.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

/// `struct ArrowSchema`.
#[repr(C)]
struct Schema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut Schema,
    dictionary: *mut Schema,
    release: Option<unsafe extern "C" fn(*mut Schema)>,
    private_data: *mut c_void,
}

/// `struct ArrowArray`.
#[repr(C)]
struct Array {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut Array,
    dictionary: *mut Array,
    release: Option<unsafe extern "C" fn(*mut Array)>,
    private_data: *mut c_void,
}

/// What an exported array keeps alive: the owner of the bytes, and the list that names them.
struct Exported {
    buffers: [*const c_void; 2],
    _owner: Py<PyAny>,
}

/// Of unsigned bytes.
const FORMAT: &CStr = c"C";

/// Export `len` bytes at `start` as an Arrow array of uint8: a capsule of its schema and one of it.
///
/// # Safety
/// `owner` keeps the bytes where they are for as long as it lives.
pub(crate) unsafe fn export(
    py: Python<'_>,
    owner: Py<PyAny>,
    start: *const u8,
    len: usize,
) -> PyResult<(Bound<'_, PyAny>, Bound<'_, PyAny>)> {
    let schema = Schema {
        format: FORMAT.as_ptr(),
        name: ptr::null(),
        metadata: ptr::null(),
        flags: 0,
        n_children: 0,
        children: ptr::null_mut(),
        dictionary: ptr::null_mut(),
        release: Some(release_schema),
        private_data: ptr::null_mut(),
    };
    let exported = Box::into_raw(Box::new(Exported {
        // The first buffer would say which values are null: none are.
        buffers: [ptr::null(), start.cast()],
        _owner: owner,
    }));
    let array = Array {
        length: len.cast_signed() as i64,
        null_count: 0,
        offset: 0,
        n_buffers: 2,
        n_children: 0,
        // SAFETY: just made; the array owns it until it is released.
        buffers: unsafe { (*exported).buffers.as_mut_ptr() },
        children: ptr::null_mut(),
        dictionary: ptr::null_mut(),
        release: Some(release_array),
        private_data: exported.cast(),
    };
    let schema = capsule(py, schema, c"arrow_schema", drop_schema)?;
    let array = capsule(py, array, c"arrow_array", drop_array)?;
    Ok((schema, array))
}

fn capsule<'py, T>(
    py: Python<'py>,
    value: T,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    let value = Box::into_raw(Box::new(value));
    // SAFETY: the value is heap memory of its own, which the destructor of this capsule frees.
    unsafe {
        let capsule = ffi::PyCapsule_New(value.cast(), name.as_ptr(), Some(destructor));
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

unsafe extern "C" fn release_schema(schema: *mut Schema) {
    // SAFETY: the interface hands over a valid structure; ours owns nothing.
    unsafe { (*schema).release = None };
}

unsafe extern "C" fn release_array(array: *mut Array) {
    // SAFETY: the interface hands over a valid structure that `export` filled, and calls this once:
    // a released structure has no `release`.
    let exported = unsafe {
        (*array).release = None;
        Box::from_raw((*array).private_data.cast::<Exported>())
    };
    let mut exported = Some(exported);
    // Without it the pixels would live until some thread next comes by, which is seldom the one
    // that should pay for their release. Any thread may call this, attached or not.
    Python::try_attach(|_| drop(exported.take()));
    // The interpreter finalizes: nothing may be freed any more.
    std::mem::forget(exported);
}

unsafe extern "C" fn drop_schema(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this once, with a capsule that `capsule` made of a boxed schema.
    unsafe {
        let schema = ffi::PyCapsule_GetPointer(capsule, c"arrow_schema".as_ptr()).cast::<Schema>();
        if let Some(release) = (*schema).release {
            release(schema);
        }
        drop(Box::from_raw(schema));
    }
}

unsafe extern "C" fn drop_array(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this once, with a capsule that `capsule` made of a boxed array. A
    // consumer that has moved the array has taken `release` out of it.
    unsafe {
        let array = ffi::PyCapsule_GetPointer(capsule, c"arrow_array".as_ptr()).cast::<Array>();
        if let Some(release) = (*array).release {
            release(array);
        }
        drop(Box::from_raw(array));
    }
}
