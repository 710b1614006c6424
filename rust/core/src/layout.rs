//! What an image processor makes of an image, by width and height alone.
//!
//! Owns the arithmetic of sizes: equal to that of transformers for every width and height, which
//! computes in f64 where it divides and rounds half to even. Must never need a pixel.

#![expect(
    clippy::cast_precision_loss,
    reason = "the references compute sizes and areas in f64 as well"
)]

use crate::{Error, Result};

/// The longest side, in times the shorter one, that the Qwen-VL models take.
const MAX_ASPECT_RATIO: u32 = 200;

/// How an image's pixels are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Geometry {
    /// Qwen-VL: an area within bounds, the aspect ratio kept, sides in multiples of
    /// `patch * merge`; rows of flattened patches.
    Patches {
        /// Pixels on each side of a patch.
        patch: u32,
        /// Patches on each side of the square that becomes one token.
        merge: u32,
        /// How often each patch is repeated, as frames are where there are some.
        copies: u32,
        /// The least area.
        min_pixels: u64,
        /// The largest area, which is kept wherever a side is no single `patch * merge`.
        max_pixels: u64,
    },
    /// CLIP: the shorter side becomes `edge`, and the middle is cropped.
    Crop {
        /// The shorter side.
        edge: u32,
        /// Columns and rows of the crop, neither more than `edge`.
        crop: (u32, u32),
    },
    /// `SigLIP`: one size, whatever the aspect ratio.
    Fixed {
        /// Columns and rows.
        size: (u32, u32),
    },
}

impl Geometry {
    /// Refuse settings that no image can be processed with.
    ///
    /// # Errors
    /// Unsupported where a number is 0, a crop is larger than its image may be, or a patch has so
    /// many samples that a count may overflow.
    pub fn check(&self) -> Result<()> {
        let is_served = match *self {
            Self::Patches {
                patch,
                merge,
                copies,
                min_pixels,
                max_pixels,
            } => {
                (1..=1024).contains(&patch)
                    && (1..=64).contains(&merge)
                    && (1..=64).contains(&copies)
                    && (1..=1 << 40).contains(&min_pixels)
                    && (1..=1 << 40).contains(&max_pixels)
            }
            Self::Crop { edge, crop } => {
                let sides = 1..=edge.min(1 << 15);
                sides.contains(&crop.0) && sides.contains(&crop.1)
            }
            Self::Fixed { size } => {
                let sides = 1..=1 << 15;
                sides.contains(&size.0) && sides.contains(&size.1)
            }
        };
        if is_served {
            Ok(())
        } else {
            Err(Error::unsupported("settings of an image processor"))
        }
    }

    /// Columns and rows that an image is resized to.
    ///
    /// # Errors
    /// A limit error for an aspect ratio that the model refuses, or a side that is 0 or beyond 2^31.
    pub fn resized(&self, width: u32, height: u32) -> Result<(u32, u32)> {
        let (shorter, longer) = (width.min(height), width.max(height));
        if shorter == 0 {
            return Err(Error::limit("image has a side of no pixels", 1, 0));
        }
        match *self {
            Self::Fixed { size } => Ok(size),
            Self::Crop { edge, .. } => {
                let other = f64::from(edge) * f64::from(longer) / f64::from(shorter);
                let other = side(other.trunc())?;
                Ok(if width <= height {
                    (edge, other)
                } else {
                    (other, edge)
                })
            }
            Self::Patches {
                patch,
                merge,
                min_pixels,
                max_pixels,
                ..
            } => {
                if f64::from(longer) / f64::from(shorter) > f64::from(MAX_ASPECT_RATIO) {
                    return Err(Error::limit(
                        format!("image is {width}x{height}, over aspect ratio {MAX_ASPECT_RATIO}"),
                        MAX_ASPECT_RATIO.into(),
                        longer.div_ceil(shorter).into(),
                    ));
                }
                within(
                    (width, height),
                    patch * merge,
                    min_pixels as f64,
                    max_pixels as f64,
                )
            }
        }
    }

    /// Rows and columns of patches of an image that is resized to `size`; `None` where an image
    /// is no grid.
    #[must_use]
    pub fn grid(&self, size: (u32, u32)) -> Option<(u32, u32)> {
        match *self {
            Self::Patches { patch, .. } => Some((size.1 / patch, size.0 / patch)),
            Self::Crop { .. } | Self::Fixed { .. } => None,
        }
    }

    /// Columns and rows of what is kept of an image that is resized to `size`.
    #[must_use]
    pub fn kept(&self, size: (u32, u32)) -> (u32, u32) {
        match *self {
            Self::Crop { crop, .. } => crop,
            Self::Patches { .. } | Self::Fixed { .. } => size,
        }
    }
}

/// The size in multiples of `factor` whose area is within bounds: `smart_resize` of transformers.
fn within(
    (width, height): (u32, u32),
    factor: u32,
    min_pixels: f64,
    max_pixels: f64,
) -> Result<(u32, u32)> {
    let (width, height, factor) = (f64::from(width), f64::from(height), f64::from(factor));
    let nearest = |side: f64| (side / factor).round_ties_even() * factor;
    let (mut across, mut down) = (nearest(width), nearest(height));
    if across * down > max_pixels {
        let shrink = (height * width / max_pixels).sqrt();
        let lower = |side: f64| factor.max((side / shrink / factor).floor() * factor);
        (across, down) = (lower(width), lower(height));
    } else if across * down < min_pixels {
        // Where a side was rounded to nothing too, even if the other one shrinks.
        let grow = (min_pixels / (height * width)).sqrt();
        let upper = |side: f64| (side * grow / factor).ceil() * factor;
        (across, down) = (upper(width), upper(height));
    }
    Ok((side(across)?, side(down)?))
}

/// A whole number of pixels that a picture can have.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "compared before"
)]
fn side(pixels: f64) -> Result<u32> {
    const MAX: u32 = i32::MAX.cast_unsigned();
    if (1.0..=f64::from(MAX)).contains(&pixels) {
        Ok(pixels as u32)
    } else {
        Err(Error::limit(
            "image is of a size that no resize makes",
            MAX.into(),
            pixels.max(0.0) as u64,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::Geometry;
    use crate::ErrorKind;

    fn qwen(patch: u32, min_pixels: u64, max_pixels: u64) -> Geometry {
        Geometry::Patches {
            patch,
            merge: 2,
            copies: 2,
            min_pixels,
            max_pixels,
        }
    }

    #[test]
    fn grids_are_those_of_the_models() {
        let two = qwen(14, 3_136, 12_845_056);
        let three = qwen(16, 65_536, 16_777_216);
        for ((width, height), in_two, in_three) in [
            ((32, 32), (4, 4), (16, 16)),
            ((70, 70), (4, 4), (16, 16)),
            ((640, 480), (34, 46), (30, 40)),
            ((1280, 720), (52, 92), (44, 80)), // 22.5 rounds to even
            ((3840, 2160), (154, 274), (136, 240)),
        ] {
            let grid = |geometry: Geometry| {
                let size = geometry.resized(width, height).unwrap();
                geometry.grid(size).unwrap()
            };
            assert_eq!(
                (grid(two), grid(three)),
                (in_two, in_three),
                "{width}x{height}"
            );
        }
    }

    #[test]
    fn sizes_that_no_model_takes_are_limits() {
        let geometry = qwen(14, 3_136, 12_845_056);
        for (width, height) in [(1, 201), (0, 5), (70_000, 300)] {
            let error = geometry.resized(width, height).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Limit);
        }
        let crop = Geometry::Crop {
            edge: 1 << 15,
            crop: (1, 1),
        };
        assert!(crop.resized(1, 70_000).is_err());
        assert!(qwen(0, 1, 1).check().is_err());
    }
}
