//! Packed RGB as three lines, without vector instructions.

/// Write the reds, then the greens, then the blues of `row`.
pub(super) fn planes(row: &[u8], lines: &mut [u8]) {
    let pixels = row.as_chunks::<3>().0;
    let (red, others) = lines.split_at_mut(pixels.len());
    let (green, blue) = others.split_at_mut(pixels.len());
    for ((([r, g, b], red), green), blue) in pixels.iter().zip(red).zip(green).zip(blue) {
        (*red, *green, *blue) = (*r, *g, *b);
    }
}
