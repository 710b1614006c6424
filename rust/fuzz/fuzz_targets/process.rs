//! Image processors with hostile settings and sizes: an output of the size that was said, or an
//! error, and never a panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use safelight_core::layout::Geometry;
use safelight_pixels::{
    Cancel, Filter, Form, Normalization, Outcome, Processor, Resize, Rule, Table, View, resize,
};

/// Samples that a case may make, so that many cases are tried.
const MAX_SAMPLES: u64 = 1 << 20;

fuzz_target!(|settings: (u8, [u32; 6], [u16; 2], [f32; 4], [u64; 2])| {
    let (choice, numbers, [width, height], region, areas) = settings;
    let (width, height) = (u32::from(width) + 1, u32::from(height) + 1);
    let geometry = match choice % 3 {
        0 => Geometry::Patches {
            patch: numbers[0] % 70,
            merge: numbers[1] % 9,
            copies: numbers[2] % 5,
            min_pixels: areas[0],
            max_pixels: areas[1],
        },
        1 => Geometry::Crop {
            edge: numbers[0] % 2_000,
            crop: (numbers[1] % 2_000, numbers[2] % 2_000),
        },
        _ => Geometry::Fixed {
            size: (numbers[0] % 2_000, numbers[1] % 2_000),
        },
    };
    let rule = if choice & 4 == 0 {
        Rule::Pillow
    } else {
        Rule::Torch
    };
    let filter = [
        Filter::Nearest,
        Filter::Box,
        Filter::Bilinear,
        Filter::Bicubic,
        Filter::Lanczos,
    ][usize::from(choice / 8 % 5)];
    let cancel = Cancel::default();
    if u64::from(width) * u64::from(height) > MAX_SAMPLES {
        // The header alone.
        let _ = geometry
            .check()
            .and_then(|()| geometry.resized(width, height));
        return;
    }
    let levels = vec![choice; width as usize * height as usize * 3];
    let view = View::new(width, height, 3, &levels).expect("sides and levels agree");
    let size = (numbers[3] % 1_000, numbers[4] % 1_000);
    let request = Resize {
        size,
        filter,
        rule,
        region: (choice & 128 != 0).then_some(region),
    };
    if let Ok(Outcome::Decoded(picture)) = resize(view, &request, &cancel) {
        assert_eq!(picture.pixels.len(), size.0 as usize * size.1 as usize * 3);
    }
    let table = Table::new(rule, &Normalization::default());
    let Ok(processor) = Processor::new(geometry, filter, rule, table) else {
        return;
    };
    let Ok(resized) = geometry.resized(width, height) else {
        return;
    };
    if u64::from(resized.0) * u64::from(resized.1) > MAX_SAMPLES {
        return;
    }
    if let Ok(Outcome::Decoded(picture)) = processor.run(&[view], Form::Single, &cancel) {
        let kept = geometry.kept(resized);
        let samples = kept.0 as usize * kept.1 as usize * 3;
        assert_eq!(picture.pixels.len(), samples);
        assert!(matches!(
            processor.expand(&picture.pixels, true),
            Ok(Outcome::Decoded(_))
        ));
    }
});
