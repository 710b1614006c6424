//! Items of AVIF and HEIF: the orientation that metadata states, and how large AV1 streams are.
//!
//! `irot` and `imir` rule, so this is read only where they leave the picture as it is. EXIF then
//! states nothing by itself, but its orientation tag keeps XMP from being asked, as in Pillow.

use std::borrow::Cow;

use crate::budget::Budget;
use crate::error::Error;
use crate::exif::{self, Block};
use crate::probe::{av1, isobmff};
use crate::reader::{Parsed, Payload, Stop, index};
use crate::xmp;

const XMP_TYPE: &[u8] = b"application/rdf+xml\0";

/// The orientation of the item `described`, or of all of a track where that is `None`.
///
/// `meta` are the boxes of a meta box. What is damaged is absent.
pub(super) fn orientation(
    payload: Payload<'_>,
    meta: &[u8],
    described: Option<u32>,
    budget: &mut Budget,
) -> Parsed<Option<u8>> {
    let boxes = Boxes::new(meta, budget)?;
    let (exif, xmp) = boxes.metadata(described, budget)?;
    if let Some(item) = exif
        && let Some(bytes) = boxes.read(payload, item, budget)?
    {
        // The offset of the TIFF header stands in front.
        let block = Block::new(bytes.get(4..).unwrap_or_default());
        if exif::parse_block(&block, budget).orientation.is_some() {
            return Ok(Some(1));
        }
    }
    Ok(match xmp {
        Some(item) => boxes
            .read(payload, item, budget)?
            .and_then(|packet| xmp::orientation(&packet)),
        None => None,
    })
}

/// The largest width and height that the AV1 streams among the items declare.
///
/// # Errors
///
/// A stream begins with something else, so that nothing tells what decoding it takes.
pub(super) fn stream_size(
    payload: Payload<'_>,
    meta: &[u8],
    budget: &mut Budget,
) -> Parsed<(u32, u32)> {
    let boxes = Boxes::new(meta, budget)?;
    let mut largest = (0, 0);
    let mut list = Fields(boxes.information);
    let Some(version) = list.full_box() else {
        return Ok(largest);
    };
    list.number(if version == 0 { 2 } else { 4 });
    for (kind, body) in isobmff::children(list.0) {
        budget.spend()?;
        let Some((id, kind, _)) = Fields(body).item().filter(|_| kind == *b"infe") else {
            continue;
        };
        if kind != *b"av01" {
            continue;
        }
        if let Some(start) = boxes.start_of(payload, id, av1::WINDOW, budget)? {
            let (width, height) = av1::size(&start)
                .ok_or_else(|| Error::malformed("AVIF stream begins with no sequence header"))?;
            largest = (largest.0.max(width), largest.1.max(height));
        }
    }
    Ok(largest)
}

/// The bodies of the boxes that tell what the items are and where they lie.
#[derive(Default)]
struct Boxes<'a> {
    information: &'a [u8],
    locations: &'a [u8],
    references: &'a [u8],
    data: &'a [u8],
}

impl<'a> Boxes<'a> {
    fn new(meta: &'a [u8], budget: &mut Budget) -> Parsed<Self> {
        let mut boxes = Self::default();
        for (kind, body) in isobmff::children(meta) {
            budget.spend()?;
            match &kind {
                b"iinf" => boxes.information = body,
                b"iloc" => boxes.locations = body,
                b"iref" => boxes.references = body,
                b"idat" => boxes.data = body,
                _ => {}
            }
        }
        Ok(boxes)
    }

    /// The items that hold EXIF and XMP of the one that is described.
    fn metadata(
        &self,
        described: Option<u32>,
        budget: &mut Budget,
    ) -> Parsed<(Option<u32>, Option<u32>)> {
        let (mut exif, mut xmp) = (None, None);
        let mut list = Fields(self.information);
        let Some(version) = list.full_box() else {
            return Ok((exif, xmp));
        };
        list.number(if version == 0 { 2 } else { 4 });
        for (kind, body) in isobmff::children(list.0) {
            budget.spend()?;
            if kind != *b"infe" {
                continue;
            }
            let Some((id, kind, rest)) = Fields(body).item() else {
                continue;
            };
            let slot = match &kind {
                b"Exif" => &mut exif,
                b"mime" if is_xmp(rest) => &mut xmp,
                _ => continue,
            };
            if described.is_none() || self.described_by(id, budget)? == described {
                *slot = Some(id);
            }
        }
        Ok((exif, xmp))
    }

    /// The item that `id` describes.
    fn described_by(&self, id: u32, budget: &mut Budget) -> Parsed<Option<u32>> {
        let mut list = Fields(self.references);
        let mut described = None;
        let Some(version) = list.full_box() else {
            return Ok(None);
        };
        let width = if version == 0 { 2 } else { 4 };
        for (kind, body) in isobmff::children(list.0) {
            budget.spend()?;
            let mut fields = Fields(body);
            if kind == *b"cdsc" && fields.id(width) == Some(id) && fields.number(2) > Some(0) {
                described = fields.id(width);
            }
        }
        Ok(described)
    }

    /// The bytes of an item, `None` where they are not there; no more than the payload has.
    fn read(
        &self,
        payload: Payload<'a>,
        item: u32,
        budget: &mut Budget,
    ) -> Parsed<Option<Cow<'a, [u8]>>> {
        self.start_of(payload, item, usize::MAX, budget)
    }

    /// As [`Boxes::read`], the first `limit` bytes of the item.
    fn start_of(
        &self,
        payload: Payload<'a>,
        item: u32,
        limit: usize,
        budget: &mut Budget,
    ) -> Parsed<Option<Cow<'a, [u8]>>> {
        let Some((is_inside, extents)) = self.extents(item, budget)? else {
            return Ok(None);
        };
        let source = if is_inside {
            Payload {
                bytes: self.data,
                is_whole: true,
            }
        } else {
            payload
        };
        let mut found = Cow::Borrowed(&[][..]);
        for (at, length) in extents {
            let wanted = index(length).min(limit - found.len());
            if wanted == 0 {
                continue;
            }
            let part = match source.get(index(at), wanted) {
                Err(Stop::More(_)) if source.is_whole => return Ok(None),
                part => part?,
            };
            if found.is_empty() {
                found = Cow::Borrowed(part);
            } else if found.len() + part.len() <= payload.bytes.len() {
                found.to_mut().extend_from_slice(part);
            } else {
                return Ok(None);
            }
        }
        Ok(Some(found))
    }

    /// Offsets and lengths of the parts of an item, and whether they lie in the `idat` box.
    fn extents(&self, item: u32, budget: &mut Budget) -> Parsed<Option<Extents>> {
        let mut list = Fields(self.locations);
        let (Some(version), Some(sizes)) = (list.full_box(), list.number(2)) else {
            return Ok(None);
        };
        let nibble = |shift: u32| index(sizes >> shift & 0xF);
        let (offset_width, length_width, base_width) = (nibble(12), nibble(8), nibble(4));
        let index_width = if version == 0 { 0 } else { nibble(0) };
        let id_width = if version < 2 { 2 } else { 4 };
        for _ in 0..list.number(id_width).unwrap_or(0) {
            budget.spend()?;
            let id = list.id(id_width);
            let method = if version == 0 {
                Some(0)
            } else {
                list.number(2)
            };
            list.number(2);
            let base = list.number(base_width);
            let (Some(method), Some(base), Some(count)) = (method, base, list.number(2)) else {
                break;
            };
            let mut extents = Vec::new();
            for _ in 0..count {
                budget.spend()?;
                list.number(index_width);
                let offset = list.number(offset_width);
                let Some((offset, length)) = offset.zip(list.number(length_width)) else {
                    return Ok(None);
                };
                if id == Some(item) {
                    extents.push((base.saturating_add(offset), length));
                }
            }
            if id == Some(item) {
                return Ok((method & 0xF <= 1).then_some((method & 0xF == 1, extents)));
            }
        }
        Ok(None)
    }
}

type Extents = (bool, Vec<(u64, u64)>);

/// Whether the rest of an item entry, its name and its content type, is that of XMP.
fn is_xmp(rest: &[u8]) -> bool {
    memchr::memchr(0, rest).is_some_and(|name| rest[name + 1..].starts_with(XMP_TYPE))
}

/// Big-endian numbers from the front of a box.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of up to eight bytes.
    fn number(&mut self, bytes: usize) -> Option<u64> {
        let taken = self.take(bytes).filter(|taken| taken.len() <= 8)?;
        Some(
            taken
                .iter()
                .fold(0, |number, &byte| number << 8 | u64::from(byte)),
        )
    }

    fn id(&mut self, bytes: usize) -> Option<u32> {
        u32::try_from(self.number(bytes)?).ok()
    }

    /// The version in front of a box that has one.
    fn full_box(&mut self) -> Option<u8> {
        self.take(4).map(|head| head[0])
    }

    /// Id and type of an item entry, and what stands behind them.
    fn item(mut self) -> Option<(u32, [u8; 4], &'a [u8])> {
        let version = self.full_box().filter(|version| *version >= 2)?;
        let id = self.id(if version == 2 { 2 } else { 4 })?;
        self.number(2)?;
        let kind = self.take(4)?.try_into().ok()?;
        Some((id, kind, self.0))
    }
}
