//! Strict base64 (RFC 4648 section 4): the standard alphabet, padded, nothing else.
//!
//! Owns the verdict on every malformed text, so that whoever sent it can mend it. Must never
//! repeat the text: an error names the fault and its position only.

use std::borrow::Cow;
use std::mem::MaybeUninit;

use base64_simd::{Out, STANDARD};

use crate::error::{Error, Result};

#[cfg(target_arch = "x86_64")]
mod avx2;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

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

/// Memory for one decoded byte: written already, or not yet.
pub trait Slot: Copy {
    /// The slot that holds `byte`.
    fn of(byte: u8) -> Self;

    /// `slots` as the decoder takes them.
    fn out(slots: &mut [Self]) -> Out<'_, [u8]>;
}

impl Slot for u8 {
    fn of(byte: u8) -> Self {
        byte
    }

    fn out(slots: &mut [Self]) -> Out<'_, [u8]> {
        Out::from_slice(slots)
    }
}

impl Slot for MaybeUninit<u8> {
    fn of(byte: u8) -> Self {
        Self::new(byte)
    }

    fn out(slots: &mut [Self]) -> Out<'_, [u8]> {
        Out::from_uninit_slice(slots)
    }
}

/// Decode `text` into `out`, which has the length that [`decoded_len`] gives.
///
/// After `Ok` all of `out` is written; after an error some of it may be. Bits that the padding
/// leaves unused are ignored, as other decoders in use do.
pub fn decode_into<S: Slot>(text: &[u8], out: &mut [S]) -> Result<()> {
    let done = decode_rounds(text, out).ok_or_else(|| fault(text))?;
    let rest = without_unused_bits(&text[done..]);
    let slots = &mut out[done / 4 * 3..];
    let wanted = slots.len();
    match STANDARD.decode(&rest, S::out(slots)) {
        Ok(decoded) if decoded.len() == wanted => Ok(()),
        _ => Err(fault(text)),
    }
}

#[cfg(target_arch = "x86_64")]
use avx2::decode_rounds;

/// Where there is no kernel of our own, nothing is decoded ahead of the crate.
#[cfg(not(target_arch = "x86_64"))]
fn decode_rounds<S: Slot>(_text: &[u8], _out: &mut [S]) -> Option<usize> {
    Some(0)
}

/// `text` with zeros for the bits that its padding leaves unused, which the decoder demands.
fn without_unused_bits(text: &[u8]) -> Cow<'_, [u8]> {
    let (position, unused) = match text {
        [.., _, b'=', b'='] => (text.len() - 3, 0b1111),
        [.., _, b'='] => (text.len() - 2, 0b11),
        _ => return Cow::Borrowed(text),
    };
    match ALPHABET.iter().position(|&data| data == text[position]) {
        Some(value) if value & unused != 0 => {
            let mut text = text.to_vec();
            text[position] = ALPHABET[value & !unused];
            Cow::Owned(text)
        }
        _ => Cow::Borrowed(text),
    }
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
    if padding < wanted {
        return "base64 has missing padding".to_owned();
    }
    format!("base64 has too much padding at position {}", data + wanted)
}

fn is_data(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/'
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 4648 section 4, one group at a time.
    fn encode(data: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        for group in data.chunks(3) {
            let mut bits = 0_usize;
            for index in 0..3 {
                bits = bits << 8 | usize::from(*group.get(index).unwrap_or(&0));
            }
            for index in 0..4 {
                text.push(if index <= group.len() {
                    ALPHABET[bits >> (18 - 6 * index) & 63]
                } else {
                    b'='
                });
            }
        }
        text
    }

    fn decoded(text: &[u8]) -> Result<Vec<u8>> {
        let mut out = vec![0xAA; decoded_len(text)?];
        decode_into(text, &mut out)?;
        Ok(out)
    }

    fn message(text: &[u8]) -> String {
        decoded(text).expect_err("malformed").message().to_owned()
    }

    #[test]
    fn every_length_comes_back() {
        let data: Vec<u8> = (0..5_000_u32)
            .map(|index| ((index * 31) >> 3).to_le_bytes()[0])
            .collect();
        for length in (0..600).chain(4_900..5_000) {
            let text = encode(&data[..length]);
            assert_eq!(decoded_len(&text), Ok(length));
            assert_eq!(decoded(&text).as_deref(), Ok(&data[..length]), "{length}");
        }
    }

    #[test]
    fn every_byte_outside_the_alphabet_is_found_at_every_place() {
        let text = encode(&[0x5A; 450]);
        for position in (0..140)
            .chain(250..260)
            .chain(380..400)
            .chain([511, 512, 596, 599])
        {
            for byte in (0..=255).filter(|&byte| !is_data(byte) && byte != b'=') {
                let mut broken = text.clone();
                broken[position] = byte;
                let found = message(&broken);
                assert!(
                    found.ends_with(&format!("at position {position}")),
                    "{byte}: {found}"
                );
            }
        }
    }

    #[test]
    fn the_fault_has_a_name() {
        for (text, what) in [
            (&b"YWJj\nZGVm"[..], "base64 has a line break at position 4"),
            (b"YWJj\r\n", "base64 has a line break at position 4"),
            (
                b"YW c",
                "base64 has a space (a '+' that was lost?) at position 2",
            ),
            (b"YW\tc", "base64 has a tab at position 2"),
            (
                b"-_A=",
                "base64 has a character of the url-safe alphabet at position 0",
            ),
            (b"YWI%3D", "base64 has percent-encoding at position 3"),
            (b"*YWJ", "base64 has a stray character at position 0"),
            (b"\xff\xfeYW", "base64 has a stray character at position 0"),
            (b"YWI", "base64 has missing padding"),
            (b"YQ=", "base64 has missing padding"),
            (
                b"YWJjY",
                "base64 is cut short: its last group has one character",
            ),
            (
                b"Y===",
                "base64 is cut short: its last group has one character",
            ),
            (b"YWI==", "base64 has too much padding at position 4"),
            (b"====", "base64 has too much padding at position 0"),
            (b"YQ==YQ==", "base64 has data after padding at position 4"),
            (b"YWI=YWJj", "base64 has data after padding at position 4"),
        ] {
            assert_eq!(message(text), what);
        }
    }

    #[test]
    fn unused_bits_are_ignored() {
        for text in [&b"YQ=="[..], b"YR==", b"Yf=="] {
            assert_eq!(decoded(text).as_deref(), Ok(&b"a"[..]));
        }
        assert_eq!(decoded(b"YWJjYWL=").as_deref(), Ok(&b"abcab"[..]));
    }

    proptest! {
        #[test]
        fn what_was_encoded_comes_back(data in proptest::collection::vec(any::<u8>(), 0..600)) {
            prop_assert_eq!(decoded(&encode(&data)), Ok(data));
        }

        #[test]
        fn any_text_either_encodes_back_or_is_refused(
            text in proptest::collection::vec(prop_oneof![
                9 => proptest::sample::select(&ALPHABET[..]), 1 => any::<u8>(), 1 => Just(b'='),
            ], 0..80)
        ) {
            if let Ok(data) = decoded(&text) {
                // The last group may differ in its unused bits only.
                let again = encode(&data);
                prop_assert_eq!(again.len(), text.len());
                let kept = text.len().saturating_sub(4);
                prop_assert_eq!(&again[..kept], &text[..kept]);
            }
        }
    }
}
