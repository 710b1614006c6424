//! Handle media without decoding it: identity, header probes, cache and pool.
//!
//! Owns every rule that needs no Python. Must never depend on a codec (that the probe never
//! rasterizes is a fact of the dependency graph), on C, or on global state.

#![forbid(unsafe_code)]

pub mod base64;
mod budget;
pub mod cache;
pub mod cancel;
pub mod error;
pub mod exif;
pub mod flight;
pub mod fork;
pub mod key;
pub mod layout;
pub mod limits;
pub mod lru;
pub mod pool;
pub mod probe;
mod reader;
mod sync;
mod xmp;

pub use error::{Bound, Error, ErrorKind, Result};
