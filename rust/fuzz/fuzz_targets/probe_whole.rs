//! Any bytes: an answer or an error, and an answer keeps its promises.

#![no_main]

use libfuzzer_sys::fuzz_target;
use safelight_core::probe::{Format, mode_by_name, probe};

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = probe(bytes) else { return };
    assert!(header.width > 0 && header.height > 0);
    assert!((1..=8).contains(&header.orientation));
    let (width, height) = header.upright_size;
    assert!(
        [(header.width, header.height), (header.height, header.width)].contains(&(width, height))
    );
    assert_eq!(Format::by_name(header.format.name()), Some(header.format));
    assert!(
        header
            .mode
            .is_none_or(|mode| mode_by_name(mode) == Some(mode))
    );
    assert_ne!(header.frame_count, Some(0));
    if let (Some(count), Some(is_animated)) = (header.frame_count, header.is_animated) {
        assert_eq!(count > 1, is_animated);
    }
});
