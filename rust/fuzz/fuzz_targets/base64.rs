//! Strict base64 against the plainest decoder that can be written.

#![no_main]

use libfuzzer_sys::fuzz_target;
use safelight_core::base64;

const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fuzz_target!(|text: &[u8]| {
    let decoded = base64::decoded_len(text).ok().and_then(|length| {
        let mut bytes = vec![0_u8; length];
        base64::decode_into(text, &mut bytes).ok()?;
        Some(bytes)
    });
    assert_eq!(decoded, plain(text));
});

fn plain(text: &[u8]) -> Option<Vec<u8>> {
    let data = text
        .strip_suffix(b"==")
        .or(text.strip_suffix(b"="))
        .unwrap_or(text);
    if text.len() % 4 != 0 {
        return None;
    }
    let mut bits = 0_u32;
    let mut held = 0;
    let mut decoded = Vec::new();
    for byte in data {
        let value = ALPHABET.iter().position(|letter| letter == byte)?;
        bits = bits << 6 | u32::try_from(value).ok()?;
        held += 6;
        if held >= 8 {
            held -= 8;
            decoded.push((bits >> held & 0xFF).try_into().ok()?);
            bits &= (1 << held) - 1;
        }
    }
    // RFC 4648, section 3.5: a decoder may let bits that pad the last byte be other than zero.
    Some(decoded)
}
