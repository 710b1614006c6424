//! Any bytes as an EXIF block.

#![no_main]

use libfuzzer_sys::fuzz_target;
use safelight_core::exif;
use safelight_core::limits::MAX_ID_BYTES;

fuzz_target!(|bytes: &[u8]| {
    let facts = exif::parse(bytes);
    assert!(facts.orientation.is_none_or(|turn| (1..=8).contains(&turn)));
    for id in [facts.image_id, facts.image_unique_id]
        .into_iter()
        .flatten()
    {
        // Latin-1 takes up to two bytes a character.
        assert!(id.len() <= 2 * MAX_ID_BYTES);
    }
});
