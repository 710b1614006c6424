//! Resizing packed uint8 pixels to the very bytes of Pillow 13, or of torch's antialiased kernel.
//!
//! Owns which passes run, in which order, and over which rows. Weights, the two passes and alpha
//! are files of their own; the passes have a plain form and one with AVX2, which agree in every
//! byte. Besides input and output a resize holds the rows that 32 rows of output read (a whole
//! intermediate picture where Pillow resizes down first), 32 rows of columns, and the weights, about
//! ten numbers for each sample of the longer side.

mod alpha;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod nearest;
mod plain;
mod weights;

use safelight_core::Error;

#[cfg(target_arch = "x86_64")]
use avx2::{horizontal, vertical};
#[cfg(not(target_arch = "x86_64"))]
use plain::{horizontal, vertical};

use crate::buffer::{area, zeroed};
use crate::refusal::Refusal;
use crate::{Cancel, Mode, Outcome, Picture};
use weights::Axis;

/// How samples are weighed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Filter {
    /// The nearest sample alone.
    Nearest,
    /// The mean of what a sample covers.
    Box,
    /// A triangle.
    Bilinear,
    /// Cubic convolution with a = -0.5.
    Bicubic,
    /// A sinc windowed by a sinc, three samples to each side.
    Lanczos,
}

/// Whose bytes are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// `Image.resize` of Pillow 13. Four channels are RGBA, and colors are weighed with alpha.
    Pillow,
    /// `interpolate(antialias=True)` of torch on uint8, whose channels are independent and whose
    /// filters are bilinear, bicubic and Lanczos.
    Torch,
}

/// A resize.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resize {
    /// Columns and rows of the result.
    pub size: (u32, u32),
    /// How samples are weighed.
    pub filter: Filter,
    /// Whose bytes are made.
    pub rule: Rule,
    /// Left, top, right and bottom of what is resized; `None` is all. Pillow's alone.
    pub region: Option<[f32; 4]>,
}

/// Packed pixels of uint8, row after row, that somebody else owns.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    width: u32,
    height: u32,
    channels: usize,
    pixels: &'a [u8],
}

impl<'a> View<'a> {
    /// The pixels of a picture of one, three or four channels.
    ///
    /// # Errors
    /// Malformed where a side is 0, or `pixels` has another length than sides and channels say.
    pub fn new(width: u32, height: u32, channels: usize, pixels: &'a [u8]) -> Result<Self, Error> {
        let bytes = area(width, height, channels).ok();
        if bytes != Some(pixels.len()) || pixels.is_empty() || !matches!(channels, 1 | 3 | 4) {
            return Err(Error::malformed("pixels are not width x height x channels"));
        }
        Ok(Self {
            width,
            height,
            channels,
            pixels,
        })
    }

    /// Columns and rows.
    #[must_use]
    pub fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    /// Whether a pixel is red, green and blue.
    pub(crate) fn is_rgb(&self) -> bool {
        self.channels == 3
    }

    /// The pixels.
    #[must_use]
    pub fn pixels(&self) -> &'a [u8] {
        self.pixels
    }
}

/// Resize `view`: the result is a picture of mode `L`, `RGB` or `RGBA`.
///
/// # Errors
/// Malformed where a side of the result is 0 or the region is empty or outside; unsupported where
/// torch has no such filter or region. It declines for want of memory alone.
pub fn resize(view: View<'_>, resize: &Resize, cancel: &Cancel) -> Result<Outcome, Error> {
    match resize.run(view, cancel) {
        Ok(pixels) => Ok(Outcome::Decoded(Picture {
            width: resize.size.0,
            height: resize.size.1,
            mode: match view.channels {
                1 => Mode::L,
                3 => Mode::Rgb,
                _ => Mode::Rgba,
            },
            pixels,
            palette: None,
            transparency: None,
        })),
        Err(refusal) => refusal.into_outcome(),
    }
}

/// Output rows of a band, and rows of the strips in which a band is resized across.
const BAND: usize = 32;

/// One axis: samples of the input, the edges of what is resized, samples of the output.
#[derive(Clone, Copy)]
struct Side {
    from: u32,
    edges: [f32; 2],
    to: u32,
}

impl Side {
    #[expect(
        clippy::float_cmp,
        clippy::cast_precision_loss,
        reason = "Pillow compares an edge with a side in float32, and so decides what it skips"
    )]
    fn is_needed(self) -> bool {
        self.to != self.from || self.edges != [0.0, self.to as f32]
    }

    #[expect(clippy::cast_precision_loss, reason = "as in `is_needed`")]
    fn new(from: u32, to: u32, edges: Option<[f32; 2]>) -> Result<Self, Error> {
        let edges = edges.unwrap_or([0.0, from as f32]);
        let is_inside = edges[0] >= 0.0 && edges[0] < edges[1] && edges[1] <= from as f32;
        if to == 0 || !is_inside {
            return Err(Error::malformed(
                "nothing to resize, or nothing to resize to",
            ));
        }
        Ok(Self { from, edges, to })
    }
}

impl Resize {
    /// The pixels of the result.
    pub(crate) fn run(&self, view: View<'_>, cancel: &Cancel) -> Result<Vec<u8>, Refusal> {
        let is_pillows = matches!(self.filter, Filter::Nearest | Filter::Box);
        if self.rule == Rule::Torch && (is_pillows || self.region.is_some()) {
            return Err(Error::unsupported("a filter or region that is Pillow's alone").into());
        }
        let edges = |low, high| self.region.map(|region| [region[low], region[high]]);
        let across = Side::new(view.width, self.size.0, edges(0, 2))?;
        let down = Side::new(view.height, self.size.1, edges(1, 3))?;
        if !across.is_needed() && !down.is_needed() {
            let mut copy = zeroed(view.pixels.len())?;
            copy.copy_from_slice(view.pixels);
            return Ok(copy);
        }
        if self.filter == Filter::Nearest {
            return nearest(view, across, down);
        }
        if self.rule == Rule::Pillow && view.channels == 4 {
            let mut pixels = zeroed(view.pixels.len())?;
            pixels.copy_from_slice(view.pixels);
            alpha::premultiply(pixels.as_chunks_mut().0);
            let view = View {
                pixels: &pixels,
                ..view
            };
            let mut resized = self.filtered(view, across, down, cancel)?;
            alpha::divide(resized.as_chunks_mut().0);
            return Ok(resized);
        }
        self.filtered(view, across, down, cancel)
    }

    fn filtered(
        &self,
        view: View<'_>,
        across: Side,
        down: Side,
        cancel: &Cancel,
    ) -> Result<Vec<u8>, Refusal> {
        let channels = view.channels;
        let from = view.width as usize;
        if !down.is_needed() {
            let axis = self.axis(across)?;
            let mut out = zeroed(area(across.to, down.to, channels)?)?;
            horizontal(view.pixels, from, channels, &axis, &mut out, cancel)?;
            return Ok(out);
        }
        let rows = self.axis(down)?;
        if !across.is_needed() {
            let mut out = zeroed(area(across.to, down.to, channels)?)?;
            vertical(
                view.pixels,
                from * channels,
                &rows,
                (0, 0),
                &mut out,
                cancel,
            )?;
            return Ok(out);
        }
        let columns = self.axis(across)?;
        let mut out = zeroed(area(across.to, down.to, channels)?)?;
        if self.is_vertical_first(across, down) {
            let mut middle = zeroed(area(across.from, down.to, channels)?)?;
            vertical(
                view.pixels,
                from * channels,
                &rows,
                (0, 0),
                &mut middle,
                cancel,
            )?;
            horizontal(&middle, from, channels, &columns, &mut out, cancel)?;
        } else {
            banded(view, &columns, &rows, &mut out, cancel)?;
        }
        Ok(out)
    }

    /// Pillow 13 shrinks first what shrinks much more, by the sizes of the whole picture.
    fn is_vertical_first(&self, across: Side, down: Side) -> bool {
        let less = |side: Side| i64::from(side.from) - i64::from(side.to);
        self.rule == Rule::Pillow && less(down) > 0 && less(down) > 2 * less(across)
    }

    fn axis(&self, side: Side) -> Result<Axis, Refusal> {
        Axis::new(self.filter, self.rule, side.from, side.edges, side.to)
    }
}

/// Resize across and then down, a band of output rows at a time.
///
/// Only the rows that a band reads are there between the passes, so that they stay in the cache,
/// and rows that the second pass never reads are not made.
fn banded(
    view: View<'_>,
    columns: &Axis,
    rows: &Axis,
    out: &mut [u8],
    cancel: &Cancel,
) -> Result<(), Refusal> {
    let from = view.width as usize;
    let input_bytes = from * view.channels;
    let row_bytes = columns.windows.len() * view.channels;
    let count = rows.windows.len();
    let bands = || (0..count).step_by(BAND).map(|y| y..count.min(y + BAND));
    let spans = bands().map(|band| rows.span(band.start, band.end).count);
    // Whole strips are resized ahead, as far as there are rows.
    let room = spans.max().unwrap_or(0) + BAND;
    let mut middle = zeroed(room * row_bytes)?;
    // The rows of the input that `middle` holds.
    let (mut first, mut end) = (0, 0);
    for band in bands() {
        let span = rows.span(band.start, band.end);
        let kept = span.start.clamp(first, end);
        middle.copy_within((kept - first) * row_bytes..(end - first) * row_bytes, 0);
        first = kept;
        if first == end {
            (first, end) = (span.start, span.start);
        }
        let missing = (span.start + span.count).saturating_sub(end);
        let more = missing
            .next_multiple_of(BAND)
            .min(view.height as usize - end);
        let input = &view.pixels[end * input_bytes..][..more * input_bytes];
        let place = &mut middle[(end - first) * row_bytes..][..more * row_bytes];
        horizontal(input, from, view.channels, columns, place, cancel)?;
        end += more;
        let out = &mut out[band.start * row_bytes..band.end * row_bytes];
        vertical(&middle, row_bytes, rows, (band.start, first), out, cancel)?;
    }
    Ok(())
}

/// Copy the nearest samples.
fn nearest(view: View<'_>, across: Side, down: Side) -> Result<Vec<u8>, Refusal> {
    let indices = |side: Side| nearest::indices(side.from, side.edges, side.to);
    let (columns, rows) = (indices(across)?, indices(down)?);
    let channels = view.channels;
    let row_bytes = view.width as usize * channels;
    let mut out = zeroed(area(across.to, down.to, channels)?)?;
    for (row, out) in rows
        .iter()
        .zip(out.chunks_exact_mut(columns.len() * channels))
    {
        let row = &view.pixels[row * row_bytes..][..row_bytes];
        for (column, out) in columns.iter().zip(out.chunks_exact_mut(channels)) {
            out.copy_from_slice(&row[column * channels..][..channels]);
        }
    }
    Ok(out)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::{Filter, Rule, avx2, plain};
    use crate::Cancel;
    use crate::resize::weights::Axis;

    /// The high bits of a multiplicative generator.
    fn noise(len: usize) -> Vec<u8> {
        let mut state = 0x9E37_79B9_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn vectors_agree_with_plain_code() {
        assert!(avx2::is_available(), "nothing to compare");
        let cancel = Cancel::default();
        let filters = [
            Filter::Box,
            Filter::Bilinear,
            Filter::Bicubic,
            Filter::Lanczos,
        ];
        for (from, to, others) in [(97, 61, 33), (40, 133, 7), (1_000, 17, 64), (3, 1, 90)] {
            for (channels, filter) in [1, 3, 4].into_iter().flat_map(|n| filters.map(|f| (n, f))) {
                for rule in [Rule::Pillow, Rule::Torch] {
                    #[expect(clippy::cast_precision_loss, reason = "small")]
                    let axis = Axis::new(filter, rule, from, [0.0, from as f32], to).unwrap();
                    let (from, to) = (from as usize, to as usize);
                    let pixels = noise(from * others * channels);
                    let mut expected = vec![0; to * others * channels];
                    let mut made = expected.clone();
                    plain::horizontal(&pixels, from, channels, &axis, &mut expected, &cancel)
                        .unwrap();
                    avx2::horizontal(&pixels, from, channels, &axis, &mut made, &cancel).unwrap();
                    assert!(
                        made == expected,
                        "{from} to {to}, {channels}, {filter:?} {rule:?}"
                    );
                    let row = others * channels;
                    plain::vertical(&pixels, row, &axis, (0, 0), &mut expected, &cancel).unwrap();
                    avx2::vertical(&pixels, row, &axis, (0, 0), &mut made, &cancel).unwrap();
                    assert!(
                        made == expected,
                        "{from} to {to}, {channels}, {filter:?} {rule:?}"
                    );
                }
            }
        }
    }
}
