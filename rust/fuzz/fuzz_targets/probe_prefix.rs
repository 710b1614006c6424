//! Any bytes, cut anywhere: an answer for a prefix is the answer for the whole, and no longer
//! prefix takes it back.

#![no_main]

use libfuzzer_sys::fuzz_target;
use safelight_core::probe::{Format, Prefix, probe, probe_prefix};

fuzz_target!(|input: (u16, &[u8])| {
    let (cut, bytes) = input;
    let cut = usize::from(cut).min(bytes.len());
    let whole = probe(bytes);
    let mut is_answered = false;
    for length in [cut, usize::midpoint(cut, bytes.len()), bytes.len()] {
        match probe_prefix(&bytes[..length]) {
            Ok(Prefix::Header(header)) => {
                let whole = whole.as_ref().expect("a prefix of it has a header");
                if header.format == Format::Png {
                    // What it states behind its pixels is not in its first bytes.
                    let stored = (whole.width, whole.height, whole.mode);
                    assert_eq!(stored, (header.width, header.height, header.mode));
                } else {
                    assert_eq!(whole, &header);
                }
                is_answered = true;
            }
            Ok(Prefix::NeedMoreBytes(need)) => {
                assert!(!is_answered, "an answer was taken back");
                assert!(need.at_least.is_none_or(|least| least > length as u64));
            }
            Err(_) => assert!(
                whole.is_err(),
                "a refused prefix of an image that is served"
            ),
        }
    }
});
