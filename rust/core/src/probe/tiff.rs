//! TIFF and BigTIFF: the first directory, and the chain of those after it.
//!
//! The stored size of a TIFF with an orientation of 5 to 8 is reported turned, because that is
//! how it is decoded; it must never be turned again.

use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::exif::{Block, Collector, Directory, End, Entry};
use crate::limits::MAX_PAGES;
use crate::probe::format::Format;
use crate::probe::header::{Declared, ImageHeader};
use crate::reader::{Endian, Parsed, Payload, Stop};
use crate::xmp;

const WIDTH: u16 = 256;
const HEIGHT: u16 = 257;
const BITS_PER_SAMPLE: u16 = 258;
const COMPRESSION: u16 = 259;
const PHOTOMETRIC: u16 = 262;
const FILL_ORDER: u16 = 266;
const STRIP_OFFSETS: u16 = 273;
const SAMPLES_PER_PIXEL: u16 = 277;
const PLANAR_CONFIGURATION: u16 = 284;
const COLOR_MAP: u16 = 320;
const TILE_OFFSETS: u16 = 324;
const EXTRA_SAMPLES: u16 = 338;
const SAMPLE_FORMAT: u16 = 339;
const XMP: u16 = 700;

const RAW: u64 = 1;
const OLD_JPEG: u64 = 6;

const RGB: u64 = 2;
const PALETTE: u64 = 3;
const CMYK: u64 = 5;
const YCBCR: u64 = 6;
const LAB: u64 = 8;

/// More samples a pixel than any served layout has.
const MAX_SAMPLES: usize = 6;

/// The values of a tag that has one for each sample.
#[derive(Clone, Copy, Default)]
struct Samples {
    values: [u64; MAX_SAMPLES],
    /// As the file says; may be more than are kept.
    count: usize,
}

/// The tags of a directory that tell the size and the mode.
#[derive(Default)]
struct Tags {
    width: Option<u64>,
    height: Option<u64>,
    bits: Option<Samples>,
    compression: Option<u64>,
    photometric: Option<u64>,
    fill_order: Option<u64>,
    samples_per_pixel: Option<u64>,
    planar: Option<u64>,
    extra: Option<Samples>,
    sample_format: Option<Samples>,
    has_data: bool,
    has_color_map: bool,
    xmp: Option<Entry>,
}

pub(super) fn parse(payload: Payload<'_>, declared: &mut Declared) -> Parsed<ImageHeader> {
    let mut budget = Budget::default();
    let block = Block::new(payload.bytes);
    payload.get(0, 8)?;
    if matches!(payload.bytes, [_, _, 0x2B, 0, ..] | [_, _, 0, 0x2B, ..]) {
        payload.get(0, 16)?;
    }
    let (directory, first) = Directory::open_file(&block, payload.is_whole)
        .ok_or_else(|| Error::malformed("TIFF header is damaged"))?;

    let mut tags = Tags::default();
    let mut collector = Collector::default();
    let end = directory.visit(first, &mut budget, |entry| {
        collector.take(&directory, entry);
        tags.take(&directory, entry);
        declared.size = tags.size().ok();
    });
    arrived(payload, end)?;
    let end_of_ids = collector.visit_exif(&directory, &mut budget);
    arrived(payload, end_of_ids)?;

    let turned = collector.facts.orientation;
    let (width, height) = tags.size()?;
    let is_turned = turned.is_some_and(|orientation| orientation >= 5);
    let size = if is_turned {
        (height, width)
    } else {
        (width, height)
    };
    let mode = tags.mode(directory.endian == Endian::Big)?;
    let mut header = ImageHeader::new(Format::Tiff, size);
    header.mode = Some(mode);
    header.bits = u8::try_from(tags.bits.map_or(1, |bits| bits.values[0])).ok();
    header.has_alpha = Some(matches!(mode, "RGBA" | "LA" | "La" | "PA"));
    header.frame_count = pages(payload, &directory, first, end, &mut budget)?;
    header.is_animated = header.frame_count.map(|count| count > 1);
    let xmp = tags
        .xmp
        .and_then(|entry| payload.bytes.get(entry.at..)?.get(..entry.bytes));
    header.set_facts(collector.facts, || xmp.and_then(xmp::orientation));
    // Only an orientation that the directory did not state is still to be applied.
    if turned.is_some() {
        header.upright_size = size;
    }
    Ok(header)
}

/// Whether a visit saw all that the payload will ever show of a directory.
fn arrived(payload: Payload<'_>, end: End) -> Parsed<()> {
    match end {
        End::Short(needed) if !payload.is_whole => Err(Stop::more(needed)),
        End::Exhausted => Err(Error::malformed("TIFF directory is too long").into()),
        _ => Ok(()),
    }
}

/// The number of directories in the chain; `None` where it is too long to follow.
fn pages(
    payload: Payload<'_>,
    directory: &Directory<'_, '_>,
    first: u64,
    mut end: End,
    budget: &mut Budget,
) -> Parsed<Option<u32>> {
    let mut visited = [0; MAX_PAGES];
    let mut count = 0;
    let mut at = first;
    loop {
        visited[count] = at;
        count += 1;
        at = match end {
            End::Next(next) if next != 0 && !visited[..count].contains(&next) => next,
            // A directory that cannot be read to its end is the last.
            End::Next(_) | End::Short(_) => return Ok(u32::try_from(count).ok()),
            End::Exhausted => return Ok(None),
        };
        if count == MAX_PAGES {
            return Ok(None);
        }
        end = directory.visit(at, budget, |_| ());
        match end {
            End::Short(needed) if !payload.is_whole => {
                return Err(Stop::more(needed));
            }
            _ => {}
        }
    }
}

impl Tags {
    fn take(&mut self, directory: &Directory<'_, '_>, entry: Entry) {
        let first = |slot: &mut Option<u64>| {
            if slot.is_none() {
                *slot = directory.unsigned(entry);
            }
        };
        let samples = |slot: &mut Option<Samples>| {
            if slot.is_none() {
                *slot = Samples::read(directory, entry);
            }
        };
        match entry.tag {
            WIDTH => first(&mut self.width),
            HEIGHT => first(&mut self.height),
            BITS_PER_SAMPLE => samples(&mut self.bits),
            COMPRESSION => first(&mut self.compression),
            // With several values it counts for none, to Pillow.
            PHOTOMETRIC if entry.count == 1 => first(&mut self.photometric),
            FILL_ORDER => first(&mut self.fill_order),
            STRIP_OFFSETS | TILE_OFFSETS => self.has_data = true,
            SAMPLES_PER_PIXEL => first(&mut self.samples_per_pixel),
            PLANAR_CONFIGURATION => first(&mut self.planar),
            COLOR_MAP => self.has_color_map = true,
            EXTRA_SAMPLES => samples(&mut self.extra),
            SAMPLE_FORMAT => samples(&mut self.sample_format),
            XMP if self.xmp.is_none() => self.xmp = Some(entry),
            _ => {}
        }
    }

    fn size(&self) -> Result<(u32, u32)> {
        let side = |value: Option<u64>| value.and_then(|value| u32::try_from(value).ok());
        side(self.width)
            .zip(side(self.height))
            .ok_or_else(|| Error::malformed("TIFF has no dimensions"))
    }

    /// The mode by Pillow's rules: byte order, photometric interpretation, sample format, fill
    /// order, bits and extra samples together name a layout.
    fn mode(&self, is_big_endian: bool) -> Result<&'static str> {
        let unserved = || Error::unsupported("TIFF pixel layout is not served");
        let compression = self.compression.unwrap_or(RAW);
        let photometric = match compression {
            OLD_JPEG => YCBCR,
            _ => self.photometric.unwrap_or(0),
        };
        let default_samples = match (compression, photometric) {
            (OLD_JPEG, RGB | YCBCR) => 3,
            _ => 1,
        };
        let mut samples = usize::try_from(self.samples_per_pixel.unwrap_or(default_samples))
            .map_err(|_| unserved())?;
        let mut bits = self.bits.unwrap_or(Samples::one(1));
        let mut extra = self.extra.unwrap_or_default();
        if self.planar == Some(2) && extra.count > 0 && extra.is_all(0) {
            // Unspecified extra planes at the end are passed over.
            bits.count = bits.count.saturating_sub(extra.count);
            samples = samples.saturating_sub(extra.count);
            extra = Samples::default();
        }
        if samples > MAX_SAMPLES || extra.count > MAX_SAMPLES {
            return Err(unserved());
        }
        if bits.count == 1 && samples > 1 {
            bits.values = [bits.values[0]; MAX_SAMPLES];
            bits.count = samples;
        }
        bits.count = bits.count.min(samples);
        let format = self.sample_format.unwrap_or(Samples::one(1));
        if bits.count != samples || format.count > 1 && !format.is_all(format.values[0]) {
            return Err(unserved());
        }
        let layout = Layout {
            is_big_endian,
            photometric,
            sample_format: format.values[0],
            is_reversed: match self.fill_order.unwrap_or(1) {
                1 => false,
                2 => true,
                _ => return Err(unserved()),
            },
            bits: &bits.values[..bits.count],
            extra: &extra.values[..extra.count],
        };
        let mut mode = layout.mode().ok_or_else(unserved)?;
        if compression != RAW {
            // libtiff turns the bits and the colors by itself.
            if layout.is_reversed {
                let layout = Layout {
                    is_reversed: false,
                    ..layout
                };
                mode = layout.mode().ok_or_else(unserved)?;
            }
            if photometric == YCBCR {
                mode = "RGB";
            }
        } else if !self.has_data {
            return Err(Error::malformed("TIFF has no image data"));
        }
        if matches!(mode, "P" | "PA") && !self.has_color_map {
            return Err(Error::malformed("TIFF has no color map"));
        }
        Ok(mode)
    }
}

impl Samples {
    fn one(value: u64) -> Self {
        Self {
            values: [value, 0, 0, 0, 0, 0],
            count: 1,
        }
    }

    fn read(directory: &Directory<'_, '_>, entry: Entry) -> Option<Self> {
        let mut samples = Self {
            count: usize::try_from(entry.count).unwrap_or(usize::MAX),
            ..Self::default()
        };
        for (index, value) in samples.values.iter_mut().enumerate().take(samples.count) {
            *value = directory.unsigned(entry.at_value(index)?)?;
        }
        Some(samples)
    }

    fn is_all(&self, value: u64) -> bool {
        self.values
            .iter()
            .take(self.count)
            .all(|&sample| sample == value)
    }
}

/// What names a pixel layout.
struct Layout<'a> {
    is_big_endian: bool,
    photometric: u64,
    sample_format: u64,
    is_reversed: bool,
    bits: &'a [u64],
    extra: &'a [u64],
}

impl Layout<'_> {
    /// The mode of a served layout.
    fn mode(&self) -> Option<&'static str> {
        let is_plain = !self.is_reversed && self.sample_format == 1;
        match (self.photometric, self.bits, self.extra) {
            (0 | 1, [_], []) => self.grey_mode(),
            (1, [8, 8], [0]) if is_plain => Some("L"),
            (1, [8, 8], [1]) if is_plain => Some("La"),
            (1, [8, 8], [2]) if is_plain => Some("LA"),
            (RGB, [8, 8, 8], []) if self.sample_format == 1 => Some("RGB"),
            (RGB, [16, 16, 16], [])
            | (RGB, [8, 8, 8, 8] | [16, 16, 16, 16], [0])
            | (RGB, [8, 8, 8, 8, 8], [0, 0])
            | (RGB, [8, 8, 8, 8, 8, 8], [0, 0, 0])
                if is_plain =>
            {
                Some("RGB")
            }
            (RGB, [8, 8, 8, 8] | [16, 16, 16, 16], [] | [1 | 2])
            | (RGB, [8, 8, 8, 8], [999])
            | (RGB, [8, 8, 8, 8, 8], [1 | 2, 0])
            | (RGB, [8, 8, 8, 8, 8, 8], [1 | 2, 0, 0])
                if is_plain =>
            {
                Some("RGBA")
            }
            (PALETTE, [1 | 2 | 4 | 8], []) if self.sample_format == 1 => Some("P"),
            (PALETTE, [8, 8], [0]) if is_plain => Some("P"),
            (PALETTE, [8, 8], [2]) if is_plain => Some("PA"),
            (CMYK, [8, 8, 8, 8] | [16, 16, 16, 16], [])
            | (CMYK, [8, 8, 8, 8, 8], [0])
            | (CMYK, [8, 8, 8, 8, 8, 8], [0, 0])
                if is_plain =>
            {
                Some("CMYK")
            }
            (YCBCR, [8], []) if is_plain => Some("L"),
            (YCBCR, [8, 8, 8], []) if is_plain => Some("YCbCr"),
            (LAB, [8, 8, 8], []) if is_plain => Some("LAB"),
            _ => None,
        }
    }

    /// One grey sample: not every combination is served in both byte orders and polarities.
    fn grey_mode(&self) -> Option<&'static str> {
        let is_white_zero = self.photometric == 0;
        match (self.bits[0], self.sample_format, self.is_reversed) {
            (1, 1, _) => Some("1"),
            (2 | 4 | 8, 1, _) => Some("L"),
            (8, 2, false) if !is_white_zero => Some("L"),
            (12, 1, false) if !is_white_zero && !self.is_big_endian => Some("I;16"),
            (16, 1, false) if !self.is_big_endian => Some("I;16"),
            (16, 1, false) if !is_white_zero => Some("I;16B"),
            (16, 1, true) if !is_white_zero && !self.is_big_endian => Some("I;16"),
            (16 | 32, 2, false) if !is_white_zero => Some("I"),
            (32, 1, false) if !is_white_zero && !self.is_big_endian => Some("I"),
            (32, 3, false) => Some("F"),
            _ => None,
        }
    }
}
