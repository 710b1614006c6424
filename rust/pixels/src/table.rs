//! Rescaling and normalizing as a table: 256 values a channel, of float32.
//!
//! Owns the arithmetic of both backends of transformers, whose last bits differ. A table holds
//! every value that an image can come to, so that uint8 pixels and it are the image.

#![expect(
    clippy::cast_possible_truncation,
    reason = "the references compute in float32 after they have rounded to it"
)]

use crate::Rule;

/// Numbers of a channel.
pub type Channels = [f64; 3];

/// What to do with a level, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Normalization {
    /// Multiply by it.
    pub rescale_factor: Option<f64>,
    /// Take away the mean, and divide by the standard deviation.
    pub mean_and_std: Option<(Channels, Channels)>,
}

/// The value of every level, by channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Table([[f32; 256]; 3]);

impl Table {
    /// The values that a backend of transformers computes: that on Pillow and numpy, or torchvision's.
    #[must_use]
    pub fn new(rule: Rule, normalization: &Normalization) -> Self {
        let mut values = [[0.0; 256]; 3];
        for (channel, values) in values.iter_mut().enumerate() {
            for (level, value) in (0..=u8::MAX).zip(values) {
                *value = normalization.value(rule, channel, level);
            }
        }
        Self(values)
    }

    /// Write the values of `levels`, in rows of three channels of `run` levels each, every channel
    /// `copies` times.
    pub(crate) fn expand(&self, levels: &[u8], run: usize, copies: usize, out: &mut [u8]) {
        let channels = levels
            .chunks_exact(run)
            .zip(out.chunks_exact_mut(run * copies * size_of::<f32>()));
        for ((levels, out), values) in channels.zip(self.0.iter().cycle()) {
            let (first, others) = out.split_at_mut(run * size_of::<f32>());
            for (level, place) in levels.iter().zip(first.as_chunks_mut().0) {
                *place = values[usize::from(*level)].to_ne_bytes();
            }
            for other in others.chunks_exact_mut(first.len()) {
                other.copy_from_slice(first);
            }
        }
    }
}

impl Normalization {
    fn value(&self, rule: Rule, channel: usize, level: u8) -> f32 {
        let plain = f32::from(level);
        let in_f32 = |numbers: Channels| numbers[channel] as f32;
        match (rule, self.rescale_factor, self.mean_and_std) {
            (_, None, None) => plain,
            (_, None, Some((mean, std))) => (plain - in_f32(mean)) / in_f32(std),
            (Rule::Pillow, Some(factor), normalize) => {
                let rescaled = (f64::from(level) * factor) as f32;
                match normalize {
                    None => rescaled,
                    Some((mean, std)) => (rescaled - in_f32(mean)) / in_f32(std),
                }
            }
            (Rule::Torch, Some(factor), None) => plain * factor as f32,
            (Rule::Torch, Some(factor), Some((mean, std))) => {
                let inverse = (1.0 / factor) as f32;
                (plain - in_f32(mean) * inverse) / (in_f32(std) * inverse)
            }
        }
    }
}
