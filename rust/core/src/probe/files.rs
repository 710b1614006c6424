//! Headers of files, of each as many bytes as the answer takes.
//!
//! The only part of the probe that touches the file system, and only at paths that the caller
//! chose: a path must never come out of a payload.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::error::{Error, Result};
use crate::probe::{ImageHeader, Prefix, probe, probe_prefix};

/// Most headers lie within their first page.
const FIRST_BYTES: u64 = 4096;

/// A header that lies further on than this is given up.
const MAX_BYTES: u64 = 1 << 30;

/// The header of the image in a file.
///
/// Reads the beginning, and more as the header asks for it. Opens regular files only: a pipe or
/// a device could keep the caller waiting for ever.
///
/// # Errors
/// The outer result is the file system's, the inner one that of [`probe`].
pub fn probe_file(path: &Path, buffer: &mut Vec<u8>) -> io::Result<Result<ImageHeader>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    let mut file = File::open(path)?;
    let mut wanted = FIRST_BYTES;
    buffer.clear();
    loop {
        let missing = wanted.saturating_sub(buffer.len() as u64);
        let read = (&mut file).take(missing).read_to_end(buffer)?;
        if (read as u64) < missing {
            return Ok(probe(buffer));
        }
        match probe_prefix(buffer) {
            Ok(Prefix::Header(header)) => return Ok(Ok(header)),
            Err(error) => return Ok(Err(error)),
            Ok(Prefix::NeedMoreBytes(need)) => {
                if wanted >= MAX_BYTES {
                    return Ok(Err(Error::truncated(format!(
                        "header does not end within {MAX_BYTES} bytes"
                    ))));
                }
                // Doubling keeps the number of attempts small where the need is not known.
                wanted = need.at_least.unwrap_or(0).max(2 * wanted).min(MAX_BYTES);
            }
        }
    }
}
