//! The weights of one axis: which samples make each output sample, and how much each counts.
//!
//! Owns the arithmetic of Pillow's `Resample.c` and of torch's `UpSampleKernel.cpp`, which differ in
//! where they multiply and where they divide. Every operation is one of f64 in the order written;
//! another order gives other bits.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "sides are below 2^31 and weights below 2^23 in size; a conversion truncates on purpose"
)]

use std::f64::consts::PI;

use super::{Filter, Rule};
use crate::buffer::try_filled;
use crate::refusal::Refusal;

/// The samples of the input that make one sample of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) start: usize,
    pub(super) count: usize,
}

/// Bits of a wide weight's lower part.
pub(super) const LOW_BITS: i32 = 11;

/// The weights of one axis, in fixed point.
#[derive(Debug)]
pub(super) struct Axis {
    pub(super) windows: Vec<Window>,
    /// `stride` weights for each window, of which the first `count` are used.
    weights: Vec<i32>,
    stride: usize,
    /// The same weights as multiply-adds of vectors take them; see [`Axis::pairs`].
    pairs: Vec<[i32; 2]>,
    /// Bits behind the point of a weight.
    pub(super) precision: u32,
}

impl Axis {
    /// The weights that map `edges` of `from` samples to `to` samples.
    pub(super) fn new(
        filter: Filter,
        rule: Rule,
        from: u32,
        edges: [f32; 2],
        to: u32,
    ) -> Result<Self, Refusal> {
        let scale = match rule {
            Rule::Pillow => f64::from(edges[1] - edges[0]) / f64::from(to),
            Rule::Torch => f64::from(from) / f64::from(to),
        };
        let widening = scale.max(1.0);
        let support = filter.support() * widening;
        let inverse = 1.0 / widening;
        let stride = 2 * support.ceil() as usize + 1;
        let outputs = to as usize;
        let mut windows = try_filled(outputs, Window::default())?;
        let mut exact = try_filled(outputs.saturating_mul(stride), 0.0_f64)?;
        for (x, (window, exact)) in windows.iter_mut().zip(exact.chunks_mut(stride)).enumerate() {
            let middle = x as f64 + 0.5;
            let center = match rule {
                Rule::Pillow => f64::from(edges[0]) + middle * scale,
                Rule::Torch => scale * middle,
            };
            // A conversion of f64 truncates, and a negative number becomes 0.
            let start = (center - support + 0.5) as usize;
            let end = ((center + support + 0.5) as usize).min(from as usize);
            let count = end.saturating_sub(start).min(stride);
            let mut sum = 0.0;
            for (tap, weight) in exact[..count].iter_mut().enumerate() {
                *weight = filter.weigh(((tap + start) as f64 - center + 0.5) * inverse);
                sum += *weight;
            }
            if sum != 0.0 {
                for weight in &mut exact[..count] {
                    *weight /= sum;
                }
            }
            *window = Window { start, count };
        }
        let precision = match rule {
            Rule::Pillow => 22,
            Rule::Torch => precision_of_i16(exact.iter().copied().fold(0.0, f64::max)),
        };
        let one = f64::from(1_u32 << precision);
        let mut weights = try_filled(exact.len(), 0)?;
        for (weight, exact) in weights.iter_mut().zip(&exact) {
            // Half away from zero.
            let half = if *exact < 0.0 { -0.5 } else { 0.5 };
            *weight = (exact * one + half) as i32;
        }
        let mut pairs = try_filled(outputs.saturating_mul(stride.div_ceil(2)), [0; 2])?;
        let places = pairs.chunks_mut(stride.div_ceil(2));
        for (weights, places) in weights.chunks(stride).zip(places) {
            for (pair, place) in weights.chunks(2).zip(places) {
                let pair = [pair[0], pair.get(1).copied().unwrap_or(0)];
                *place = if is_wide(precision) {
                    let low = pair.map(|weight| weight & ((1 << LOW_BITS) - 1));
                    [word(pair.map(|weight| weight >> LOW_BITS)), word(low)]
                } else {
                    [0, word(pair)]
                };
            }
        }
        Ok(Self {
            windows,
            weights,
            stride,
            pairs,
            precision,
        })
    }

    /// The weights of one output sample by twos, each of sixteen bits, the first one lower.
    ///
    /// A weight `w` that may be wider goes as `w = high * 2^LOW_BITS + low`: a word of high parts
    /// and one of low parts. Others have all in the second word.
    pub(super) fn pairs(&self, index: usize) -> &[[i32; 2]] {
        let first = index * self.stride.div_ceil(2);
        &self.pairs[first..first + self.windows[index].count.div_ceil(2)]
    }

    /// Whether a weight may not fit sixteen bits.
    pub(super) fn is_wide(&self) -> bool {
        is_wide(self.precision)
    }

    /// The weights of one output sample.
    pub(super) fn weights(&self, index: usize) -> &[i32] {
        let first = index * self.stride;
        &self.weights[first..first + self.windows[index].count]
    }

    /// The samples of the input that outputs `first..end` need.
    pub(super) fn span(&self, first: usize, end: usize) -> Window {
        let (start, end) = (self.windows[first], self.windows[end - 1]);
        Window {
            start: start.start,
            count: (end.start + end.count).saturating_sub(start.start),
        }
    }
}

/// Pillow's precision. Torch's is 22 only where no weight is larger than 2^-7, and then two parts
/// are right as well.
fn is_wide(precision: u32) -> bool {
    precision == 22
}

/// Two numbers of sixteen bits, the first one lower.
fn word(pair: [i32; 2]) -> i32 {
    (pair[1] << 16) | (pair[0] & 0xFFFF)
}

/// The most bits behind the point with which `largest` fits sixteen bits.
fn precision_of_i16(largest: f64) -> u32 {
    (1..=22)
        .rev()
        .find(|&bits| ((0.5 + largest * f64::from(1_u32 << bits)) as i64) < 1 << 15)
        .unwrap_or(1)
}

impl Filter {
    /// How far the filter reaches at scale 1.
    fn support(self) -> f64 {
        match self {
            Self::Nearest | Self::Box => 0.5,
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn weigh(self, x: f64) -> f64 {
        const A: f64 = -0.5;
        let far = x.abs();
        match self {
            Self::Nearest | Self::Box => f64::from(u8::from(x > -0.5 && x <= 0.5)),
            Self::Bilinear if far < 1.0 => 1.0 - far,
            Self::Bicubic if far < 1.0 => ((A + 2.0) * far - (A + 3.0)) * far * far + 1.0,
            Self::Bicubic if far < 2.0 => (((far - 5.0) * far + 8.0) * far - 4.0) * A,
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let angle = x * PI;
    angle.sin() / angle
}
