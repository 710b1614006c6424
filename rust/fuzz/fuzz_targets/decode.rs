//! Any bytes to the decoder they ask for, in every mode: an answer, and pixels as promised.

#![no_main]

use libfuzzer_sys::fuzz_target;
use safelight_pixels::{Cancel, Mode, Outcome, Picture, Request, Target, decode, header};

/// Larger pictures only take time.
const MAX_PIXELS: u64 = 1 << 14;

fuzz_target!(|bytes: &[u8]| {
    let Some(own) = picture(bytes, None, None, 1, 1) else {
        // What is no picture in its own mode is none in another.
        assert!(picture(bytes, Some(Target::Rgba), None, 1, 1).is_none());
        return;
    };
    let header = header(bytes).expect("decoded without a header");
    assert_eq!(
        (own.width, own.height, own.mode),
        (header.width, header.height, header.mode)
    );
    let paper = Some([10, 200, 77]);
    let as_mode = |target, orientation| {
        picture(bytes, Some(target), paper, orientation, 1).expect("not in every mode")
    };
    // Decoded smaller or not, by their format; either way as large as they say.
    let _ = picture(bytes, None, None, 1, 1 << (bytes.len() % 4));
    let gray = as_mode(Target::L, 3);
    assert_eq!((gray.mode, gray.width), (Mode::L, own.width));
    let turned = as_mode(Target::Rgba, 6);
    assert_eq!((turned.width, turned.height), (own.height, own.width));
    let color = as_mode(Target::Rgb, 1);
    let padded = as_mode(Target::Rgbx, 1);
    let (packed, _) = color.pixels.as_chunks::<3>();
    let (whole, _) = padded.pixels.as_chunks::<4>();
    assert!(
        packed
            .iter()
            .zip(whole)
            .all(|(three, four)| three == &four[..3])
    );
});

/// The pixels, if the file is served, after a look at how many there are.
fn picture(
    bytes: &[u8],
    target: Option<Target>,
    background: Option<[u8; 3]>,
    orientation: u8,
    scale: u8,
) -> Option<Picture> {
    let request = Request {
        target,
        background,
        max_pixels: MAX_PIXELS,
        orientation,
        scale,
    };
    let Ok(Outcome::Decoded(picture)) = decode(bytes, &request, &Cancel::default()) else {
        return None;
    };
    let Picture { width, height, .. } = picture;
    let count = u64::from(width) * u64::from(height);
    assert!(0 < count && count <= MAX_PIXELS);
    assert_eq!(
        picture.pixels.len() as u64,
        count * picture.mode.pixel_bytes() as u64
    );
    let expected = match target {
        None => picture.mode,
        Some(Target::L) => Mode::L,
        Some(Target::Rgb) => Mode::Rgb,
        Some(Target::Rgbx) => Mode::Rgbx,
        Some(Target::Rgba) => Mode::Rgba,
    };
    assert_eq!(picture.mode, expected);
    Some(picture)
}
