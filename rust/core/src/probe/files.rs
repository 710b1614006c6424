//! Headers of files, of each as many bytes as the answer takes.
//!
//! The only part of the probe that touches the file system, and only at paths that the caller
//! chose: a path must never come out of a payload.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use crate::error::Error;
use crate::limits::MAX_STEPS;
use crate::probe::answer::{Prefix, ProbeError, probe, probe_prefix};
use crate::probe::format::Format;
use crate::probe::header::ImageHeader;

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
pub fn probe_file(
    path: &Path,
    buffer: &mut Vec<u8>,
) -> io::Result<Result<ImageHeader, ProbeError>> {
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
            // The orientation of a PNG may stand behind its pixels.
            Ok(Prefix::Header(header)) if header.format == Format::Png => {
                read_chunks(&mut file, buffer)?;
                return Ok(probe(buffer));
            }
            Ok(Prefix::Header(header)) => return Ok(Ok(header)),
            Err(error) => return Ok(Err(error)),
            Ok(Prefix::NeedMoreBytes(need)) => {
                if wanted >= MAX_BYTES {
                    let message = format!("header does not end within {MAX_BYTES} bytes");
                    return Ok(Err(ProbeError {
                        error: Error::truncated(message),
                        declared: need.declared,
                    }));
                }
                // Doubling keeps the number of attempts small where the need is not known.
                wanted = need.at_least.unwrap_or(0).max(2 * wanted).min(MAX_BYTES);
            }
        }
    }
}

/// Read a PNG whose header is there into `buffer`, with its image data left out.
fn read_chunks(file: &mut File, buffer: &mut Vec<u8>) -> io::Result<()> {
    const SIGNATURE_BYTES: usize = 8;
    const CRC: [u8; 4] = [0; 4];
    buffer.truncate(SIGNATURE_BYTES);
    let mut at = SIGNATURE_BYTES as u64;
    for _ in 0..MAX_STEPS {
        file.seek(SeekFrom::Start(at))?;
        let start = buffer.len();
        if file.take(8).read_to_end(buffer)? < 8 {
            return Ok(());
        }
        let head = &mut buffer[start..];
        let length = u64::from(u32::from_be_bytes([head[0], head[1], head[2], head[3]]));
        let name = [head[4], head[5], head[6], head[7]];
        let rest = length + CRC.len() as u64;
        at += 8 + rest;
        if matches!(&name, b"IDAT" | b"fdAT") {
            head[..4].fill(0);
            buffer.extend(CRC);
        } else if buffer.len() as u64 + rest > MAX_BYTES || name == *b"IEND" {
            return Ok(());
        } else {
            file.take(rest).read_to_end(buffer)?;
        }
    }
    Ok(())
}
