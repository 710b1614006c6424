//! Any bytes have an answer, and the answer for a prefix is the answer for the whole.

#![no_main]

use libfuzzer_sys::fuzz_target;
use safelight_core::probe::{Prefix, probe, probe_prefix};

fuzz_target!(|input: (u16, &[u8])| {
    let (cut, bytes) = input;
    let whole = probe(bytes);
    let prefix = &bytes[..bytes.len().min(cut.into())];
    match probe_prefix(prefix) {
        Ok(Prefix::Header(header)) => assert_eq!(whole.ok(), Some(header)),
        Ok(Prefix::NeedMoreBytes(more)) => {
            let length = prefix.len() as u64;
            assert!(more.at_least.is_none_or(|at_least| at_least > length));
        }
        Err(_) => assert!(
            whole.is_err(),
            "a refused prefix of an image that is served"
        ),
    }
});
