//! Strict base64 (RFC 4648 section 4): the standard alphabet, padded, nothing else.
//!
//! Owns the verdict on every malformed text, so that whoever sent it can mend it. Must never
//! repeat the text: an error names the fault and its position only.

use std::mem::MaybeUninit;

use base64_simd::{Out, STANDARD};

use crate::error::{Error, Result};

/// The exact number of bytes that well-formed `text` decodes to, from its length and padding.
///
/// Says nothing about the characters in between, so [`decode_into`] can still refuse them.
pub fn decoded_len(text: &[u8]) -> Result<usize> {
    if !text.len().is_multiple_of(4) {
        return Err(fault(text));
    }
    let padding = match text {
        [.., b'=', b'='] => 2,
        [.., b'='] => 1,
        _ => 0,
    };
    Ok(text.len() / 4 * 3 - padding)
}

/// Decode `text` into `out`, which has the length that [`decoded_len`] gives, and return it filled.
///
/// Nothing of `out` may be read after an error.
pub fn decode_into<'out>(text: &[u8], out: &'out mut [MaybeUninit<u8>]) -> Result<&'out mut [u8]> {
    STANDARD
        .decode(text, Out::from_uninit_slice(out))
        .map_err(|_| fault(text))
}

/// Decode `text` into a vector.
pub fn decode(text: &[u8]) -> Result<Vec<u8>> {
    let length = decoded_len(text)?;
    let mut decoded = Vec::new();
    decoded
        .try_reserve_exact(length)
        .map_err(|_| Error::malformed("base64 is longer than memory"))?;
    STANDARD
        .decode_append(text, &mut decoded)
        .map_err(|_| fault(text))?;
    Ok(decoded)
}

/// What is wrong with `text`, which did not decode.
#[cold]
fn fault(text: &[u8]) -> Error {
    Error::malformed(
        match text.iter().position(|&byte| !is_data(byte) && byte != b'=') {
            Some(position) => {
                let what = match text[position] {
                    b'\n' | b'\r' => "a line break",
                    b' ' => "a space (a '+' that was lost?)",
                    b'\t' => "a tab",
                    b'-' | b'_' => "a character of the url-safe alphabet",
                    b'%' => "percent-encoding",
                    _ => "a stray character",
                };
                format!("base64 has {what} at position {position}")
            }
            None => padding_fault(text),
        },
    )
}

/// What is wrong with `text` of nothing but the alphabet and `=`.
fn padding_fault(text: &[u8]) -> String {
    let data = text.iter().take_while(|&&byte| is_data(byte)).count();
    let padding = text[data..]
        .iter()
        .take_while(|&&byte| byte == b'=')
        .count();
    if data + padding < text.len() {
        return format!(
            "base64 has data after padding at position {}",
            data + padding
        );
    }
    let wanted = match data % 4 {
        0 => 0,
        1 => return "base64 is cut short: its last group has one character".to_owned(),
        group => 4 - group,
    };
    match padding.cmp(&wanted) {
        std::cmp::Ordering::Less => "base64 has missing padding".to_owned(),
        std::cmp::Ordering::Greater => {
            format!("base64 has too much padding at position {}", data + wanted)
        }
        std::cmp::Ordering::Equal => "base64 has unused bits that are not zero".to_owned(),
    }
}

fn is_data(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/'
}
