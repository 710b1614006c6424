//! Multiplying colors with their alpha before a resize, and dividing after it, as Pillow rounds.

/// Color times alpha over 255, rounded.
pub(super) fn premultiply(pixels: &mut [[u8; 4]]) {
    for [r, g, b, alpha] in pixels {
        let alpha = u32::from(*alpha);
        for color in [r, g, b] {
            let product = u32::from(*color) * alpha + 128;
            *color = u8::try_from(((product >> 8) + product) >> 8).unwrap_or(u8::MAX);
        }
    }
}

/// Color times 255 over alpha, truncated and at most 255. Opaque and clear pixels stay.
pub(super) fn divide(pixels: &mut [[u8; 4]]) {
    for [r, g, b, alpha] in pixels {
        if matches!(alpha, 0 | 255) {
            continue;
        }
        let alpha = u32::from(*alpha);
        for color in [r, g, b] {
            *color = u8::try_from(u32::from(*color) * 255 / alpha).unwrap_or(u8::MAX);
        }
    }
}
