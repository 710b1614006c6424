//! AVIF and HEIF: the primary item's properties, or the first picture track.
//!
//! Reports the stored size and the orientation: that which `irot` and `imir` make, or else XMP's.

use crate::budget::Budget;
use crate::error::Error;
use crate::probe::format::Format;
use crate::probe::header::{Declared, ImageHeader};
use crate::probe::{av1, heif_items, isobmff};
use crate::reader::{Endian, Parsed, Payload, index};

pub(super) fn parse(
    payload: Payload<'_>,
    format: Format,
    declared: &mut Declared,
) -> Parsed<ImageHeader> {
    let mut budget = Budget::default();
    let major = payload.array::<4>(8)?;
    // A sequence brand asks for the track even where there is a still picture too.
    let is_sequence = matches!(&major, b"avis" | b"msf1" | b"hevc" | b"hevx");
    let movie = if is_sequence {
        match isobmff::find(payload, 0, *b"moov", format, &mut budget) {
            Err(_) if payload.is_whole => None,
            place => Some(place?),
        }
    } else {
        None
    };
    let place = match movie {
        Some(place) => place,
        None => isobmff::find(payload, 0, *b"meta", format, &mut budget)?,
    };
    let mut parse = |body| {
        let mut source = Source {
            payload,
            format,
            budget: &mut budget,
            declared,
        };
        if place.kind == *b"moov" {
            source.track(body)
        } else {
            source.primary_item(body)
        }
    };
    match place.read(payload) {
        Ok(body) => parse(body),
        Err(stop) => {
            // The size may be declared long before a box ends.
            let _ = parse(payload.bytes.get(place.body..).unwrap_or_default());
            Err(stop)
        }
    }
}

/// A stream of so many pixels may be larger than the image that it is in.
const MAX_SPARE_PIXELS: u64 = 1 << 20;

/// A payload, and what a parse of it has used up and found.
struct Source<'a, 'b> {
    payload: Payload<'a>,
    format: Format,
    budget: &'b mut Budget,
    declared: &'b mut Declared,
}

impl Source<'_, '_> {
    /// The header of the primary item of a meta box.
    fn primary_item(&mut self, meta: &[u8]) -> Parsed<ImageHeader> {
        let format = self.format;
        let malformed = || Error::malformed(format!("{format} has no readable primary item"));
        let (_, meta) = full_box(meta).ok_or_else(malformed)?;
        let mut primary = None;
        let mut properties = None;
        let mut references = None;
        for (kind, body) in isobmff::children(meta) {
            self.budget.spend()?;
            match &kind {
                b"pitm" => {
                    primary = full_box(body)
                        .and_then(|(version, rest)| number(rest, version > 0))
                        .map(|(id, _)| id);
                }
                b"iprp" => properties = Some(body),
                b"iref" => references = Some(body),
                _ => {}
            }
        }
        let primary = primary.ok_or_else(malformed)?;
        let item_properties = properties.ok_or_else(malformed)?;
        let store = Store::new(item_properties, self.budget)?;
        let mut properties = Properties::default();
        store.each_of(primary, self.budget, |kind, body| {
            properties.take(kind, body);
        })?;
        let has_alpha = match references {
            Some(references) if format == Format::Avif => {
                has_alpha_item(references, primary, &store, self.budget)?
            }
            _ => false,
        };
        let mut header = self.header(properties, has_alpha, Some((meta, Some(primary))))?;
        header.set_frames(1);
        if format == Format::Avif && self.payload.is_whole {
            let stream = heif_items::stream_size(self.payload, meta, self.budget)?;
            self.check_stream(&header, stream)?;
        }
        Ok(header)
    }

    /// Refuse a stream that takes more to decode than the image around it says.
    fn check_stream(&mut self, header: &ImageHeader, stream: (u32, u32)) -> Parsed<()> {
        let pixels = |(width, height): (u32, u32)| u64::from(width) * u64::from(height);
        let stated = pixels((header.width, header.height));
        // The tiles of a grid may go beyond the picture.
        if pixels(stream) <= stated.max(MAX_SPARE_PIXELS) {
            return Ok(());
        }
        self.declared.size = Some(stream);
        Err(Error::malformed("AVIF stream is larger than its image").into())
    }

    /// A header of these properties; `metadata` is a meta box and the item that is described.
    fn header(
        &mut self,
        properties: Properties,
        has_alpha: bool,
        metadata: Option<(&[u8], Option<u32>)>,
    ) -> Parsed<ImageHeader> {
        let format = self.format;
        let size = properties
            .size
            .ok_or_else(|| Error::malformed(format!("{format} image has no size")))?;
        self.declared.size = Some(size);
        let mut header = ImageHeader::new(format, size);
        let mut orientation = properties.orientation();
        if let (1, Some((meta, item))) = (orientation, metadata) {
            let stated = heif_items::orientation(self.payload, meta, item, self.budget)?;
            orientation = stated.unwrap_or(1);
        }
        header.set_orientation(orientation);
        if format == Format::Avif {
            header.mode = Some(if has_alpha { "RGBA" } else { "RGB" });
            header.has_alpha = Some(has_alpha);
        }
        Ok(header)
    }

    /// The header of the first picture track of a movie box.
    fn track(&mut self, movie: &[u8]) -> Parsed<ImageHeader> {
        let format = self.format;
        let mut picture = None;
        let mut has_alpha = false;
        for (kind, track) in isobmff::children(movie) {
            self.budget.spend()?;
            if kind != *b"trak" {
                continue;
            }
            let mut track_header = None;
            let mut metadata = None;
            let mut handler = None;
            let mut samples = None;
            for (kind, body) in isobmff::children(track) {
                self.budget.spend()?;
                match &kind {
                    b"tkhd" => track_header = Some(body),
                    b"meta" => metadata = full_box(body).map(|(_, meta)| (meta, None)),
                    b"mdia" => {
                        handler =
                            child(body, *b"hdlr", self.budget)?.and_then(|body| body.get(8..12));
                        samples = child(body, *b"minf", self.budget)?;
                    }
                    _ => {}
                }
            }
            match handler {
                Some(b"pict" | b"vide") if picture.is_none() => {
                    picture = track_header
                        .zip(samples)
                        .map(|(header, samples)| (header, samples, metadata));
                }
                Some(b"auxv") => has_alpha = true,
                _ => {}
            }
        }
        let (track_header, information, metadata) =
            picture.ok_or_else(|| Error::malformed(format!("{format} has no picture track")))?;
        let mut properties = Properties {
            size: track_size(track_header),
            ..Properties::default()
        };
        let table = child(information, *b"stbl", self.budget)?.unwrap_or_default();
        if let Some(entry) = child(table, *b"stsd", self.budget)?.and_then(sample_entry) {
            for (kind, body) in isobmff::children(entry) {
                self.budget.spend()?;
                if kind != *b"ispe" {
                    properties.take(kind, body);
                }
            }
        }
        let mut header = self.header(properties, has_alpha, metadata)?;
        if format == Format::Avif && self.payload.is_whole {
            let offsets = child(table, *b"stco", self.budget)?
                .and_then(|body| body.get(8..12)?.try_into().ok())
                .map(|offset| u64::from(Endian::Big.u32(offset)));
            let wide = child(table, *b"co64", self.budget)?
                .and_then(|body| body.get(8..16)?.try_into().ok())
                .map(u64::from_be_bytes);
            if let Some(start) = offsets.or(wide) {
                let bytes = self.payload.bytes.get(index(start)..).unwrap_or_default();
                let window = &bytes[..bytes.len().min(av1::WINDOW)];
                let stream = av1::size(window).ok_or_else(|| {
                    Error::malformed("AVIF stream begins with no sequence header")
                })?;
                self.check_stream(&header, stream)?;
            }
        }
        let sizes = child(table, *b"stsz", self.budget)?;
        let count = sizes.and_then(|body| body.get(8..12)?.try_into().ok());
        if let Some(count) = count
            .map(|count| Endian::Big.u32(count))
            .filter(|&count| count > 0)
        {
            header.set_frames(count);
        }
        Ok(header)
    }
}

/// The item properties that tell size and orientation.
#[derive(Clone, Copy, Default)]
struct Properties {
    size: Option<(u32, u32)>,
    /// Quarter turns against the clock.
    turns: u8,
    /// Axis of a mirror: 0 swaps top and bottom, 1 left and right.
    mirror: Option<u8>,
}

impl Properties {
    fn take(&mut self, kind: [u8; 4], body: &[u8]) {
        match (&kind, body) {
            (b"ispe", &[_, _, _, _, w0, w1, w2, w3, h0, h1, h2, h3, ..]) => {
                self.size = Some((
                    u32::from_be_bytes([w0, w1, w2, w3]),
                    u32::from_be_bytes([h0, h1, h2, h3]),
                ));
            }
            (b"irot", &[turns, ..]) => self.turns = turns & 3,
            (b"imir", &[axis, ..]) => self.mirror = Some(axis & 1),
            _ => {}
        }
    }

    /// Turn first, then mirror, as one of the eight EXIF orientations.
    fn orientation(self) -> u8 {
        match (self.turns, self.mirror) {
            (0, None) => 1,
            (1, None) => 8,
            (2, None) => 3,
            (_, None) => 6,
            (0, Some(0)) | (2, Some(1)) => 4,
            (0 | 2, Some(_)) => 2,
            (1, Some(0)) | (3, Some(1)) => 5,
            (_, Some(_)) => 7,
        }
    }
}

/// A box with a version and flags in front.
fn full_box(body: &[u8]) -> Option<(u8, &[u8])> {
    let ([version, _, _, _], rest) = body.split_first_chunk::<4>()?;
    Some((*version, rest))
}

/// The number of two or four bytes at the front, and what is behind it.
fn number(bytes: &[u8], is_wide: bool) -> Option<(u32, &[u8])> {
    if is_wide {
        let (number, rest) = bytes.split_first_chunk::<4>()?;
        Some((u32::from_be_bytes(*number), rest))
    } else {
        let (number, rest) = bytes.split_first_chunk::<2>()?;
        Some((u32::from(u16::from_be_bytes(*number)), rest))
    }
}

/// The properties of all items and who has which.
struct Store<'a> {
    container: &'a [u8],
    associations: Option<&'a [u8]>,
}

impl<'a> Store<'a> {
    fn new(item_properties: &'a [u8], budget: &mut Budget) -> Parsed<Self> {
        let mut store = Self {
            container: &[],
            associations: None,
        };
        for (kind, body) in isobmff::children(item_properties) {
            budget.spend()?;
            match &kind {
                b"ipco" => store.container = body,
                b"ipma" if store.associations.is_none() => store.associations = Some(body),
                _ => {}
            }
        }
        Ok(store)
    }

    /// Call `each` with the properties of `item`.
    fn each_of(
        &self,
        item: u32,
        budget: &mut Budget,
        mut each: impl FnMut([u8; 4], &[u8]),
    ) -> Parsed<()> {
        let Some(indexes) = self.indexes_of(item, budget)? else {
            return Ok(());
        };
        for (position, (kind, body)) in isobmff::children(self.container).enumerate() {
            budget.spend()?;
            if indexes.contains(position + 1) {
                each(kind, body);
            }
        }
        Ok(())
    }

    /// The positions, from 1, of the properties of `item`.
    fn indexes_of(&self, item: u32, budget: &mut Budget) -> Parsed<Option<Positions>> {
        let Some(associations) = self.associations else {
            return Ok(None);
        };
        let Some(([version, _, _, flags], rest)) = associations.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let is_wide = flags & 1 != 0;
        let Some((count, mut rest)) = number(rest, true) else {
            return Ok(None);
        };
        for _ in 0..count {
            budget.spend()?;
            let Some((id, after)) = number(rest, *version > 0) else {
                break;
            };
            let Some((&length, after)) = after.split_first() else {
                break;
            };
            let bytes = usize::from(length) * if is_wide { 2 } else { 1 };
            let Some((indexes, after)) = after.split_at_checked(bytes) else {
                break;
            };
            if id == item {
                return Ok(Some(Positions::read(indexes, is_wide)));
            }
            rest = after;
        }
        Ok(None)
    }
}

/// A set of positions below 256; no picture has that many properties.
#[derive(Default)]
struct Positions([u64; 4]);

impl Positions {
    fn read(bytes: &[u8], is_wide: bool) -> Self {
        let mut positions = Self::default();
        let mut insert = |position: u16| {
            if let Some(word) = positions.0.get_mut(usize::from(position / 64)) {
                *word |= 1 << (position % 64);
            }
        };
        // The highest bit says that the property is essential.
        if is_wide {
            for pair in bytes.chunks_exact(2) {
                insert(u16::from_be_bytes([pair[0], pair[1]]) & 0x7FFF);
            }
        } else {
            for byte in bytes {
                insert(u16::from(byte & 0x7F));
            }
        }
        positions
    }

    fn contains(&self, position: usize) -> bool {
        self.0
            .get(position / 64)
            .is_some_and(|word| word >> (position % 64) & 1 != 0)
    }
}

/// Whether an item that says it holds alpha refers to the primary one.
fn has_alpha_item(
    references: &[u8],
    primary: u32,
    store: &Store<'_>,
    budget: &mut Budget,
) -> Parsed<bool> {
    let Some((version, references)) = full_box(references) else {
        return Ok(false);
    };
    let is_wide = version > 0;
    for (kind, body) in isobmff::children(references) {
        budget.spend()?;
        let Some((from, rest)) = number(body, is_wide).filter(|_| kind == *b"auxl") else {
            continue;
        };
        let Some((count, mut rest)) = number(rest, false) else {
            continue;
        };
        for _ in 0..count {
            budget.spend()?;
            let Some((to, after)) = number(rest, is_wide) else {
                break;
            };
            rest = after;
            let mut is_alpha = false;
            if to == primary {
                store.each_of(from, budget, |kind, body| {
                    is_alpha |= kind == *b"auxC" && is_alpha_type(body);
                })?;
            }
            if is_alpha {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn is_alpha_type(auxiliary: &[u8]) -> bool {
    let name = auxiliary.get(4..).unwrap_or_default();
    name.starts_with(b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha\0")
        || name.starts_with(b"urn:mpeg:hevc:2015:auxid:1\0")
}

/// The first child of that kind.
fn child<'a>(body: &'a [u8], kind: [u8; 4], budget: &mut Budget) -> Parsed<Option<&'a [u8]>> {
    for (found, body) in isobmff::children(body) {
        budget.spend()?;
        if found == kind {
            return Ok(Some(body));
        }
    }
    Ok(None)
}

/// Width and height of a track, whole parts of fixed-point numbers at its end.
fn track_size(header: &[u8]) -> Option<(u32, u32)> {
    let &[.., w0, w1, _, _, h0, h1, _, _] = header else {
        return None;
    };
    Some((
        u32::from(u16::from_be_bytes([w0, w1])),
        u32::from(u16::from_be_bytes([h0, h1])),
    ))
}

/// The boxes of the first visual sample entry.
fn sample_entry(description: &[u8]) -> Option<&[u8]> {
    const FULL_BOX_AND_COUNT_BYTES: usize = 8;
    const VISUAL_ENTRY_BYTES: usize = 78;
    let (_, entry) = isobmff::children(description.get(FULL_BOX_AND_COUNT_BYTES..)?).next()?;
    entry.get(VISUAL_ENTRY_BYTES..)
}
