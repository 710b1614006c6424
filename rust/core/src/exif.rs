//! EXIF: the orientation and the two ids, out of a TIFF structure in a bounded number of steps.
//!
//! Owns directories and their entries, for EXIF blocks, TIFF files and MPF indexes alike. Reads
//! the three tags a server needs and nothing else: no thumbnail, no maker note, no GPS.

use std::borrow::Cow;
use std::cell::Cell;

use crate::budget::Budget;
use crate::limits::{MAX_EXIF_SEGMENTS, MAX_ID_BYTES};
use crate::reader::{Endian, index};

const ORIENTATION: u16 = 0x0112;
const IMAGE_ID: u16 = 0x800D;
const EXIF_DIRECTORY: u16 = 0x8769;
const IMAGE_UNIQUE_ID: u16 = 0xA420;

/// What EXIF says of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExifFacts {
    /// `Some` where the tag is there at all, which is what keeps XMP from being asked; 1 where
    /// its value is none of 1 to 8.
    pub orientation: Option<u8>,
    /// `ImageID` of the main directory, if it is text.
    pub image_id: Option<Box<str>>,
    /// `ImageUniqueID` of the EXIF directory, if it is text.
    pub image_unique_id: Option<Box<str>>,
}

/// Read an EXIF block, with or without its `Exif\0\0` prefix.
///
/// What cannot be read is absent: EXIF is never a reason to refuse an image.
#[must_use]
pub fn parse(bytes: &[u8]) -> ExifFacts {
    parse_block(&Block::new(bytes), &mut Budget::default())
}

pub(crate) fn parse_block(block: &Block<'_>, budget: &mut Budget) -> ExifFacts {
    try_parse_block(block, budget).unwrap_or_else(|facts| facts)
}

/// As [`parse_block`]; an error where bytes are missing that the block has.
pub(crate) fn try_parse_block(
    block: &Block<'_>,
    budget: &mut Budget,
) -> Result<ExifFacts, ExifFacts> {
    let block = block.without_prefix();
    let Some((directory, first)) = Directory::open(&block) else {
        return Ok(ExifFacts {
            // Pillow gives such a block up for good, XMP included. An empty one is no block.
            orientation: (block.len() > 0).then_some(1),
            ..ExifFacts::default()
        });
    };
    let mut collector = Collector::default();
    directory.visit(first, budget, |entry| collector.take(&directory, entry));
    collector.visit_exif(&directory, budget);
    if block.is_missed.get() {
        Err(collector.facts)
    } else {
        Ok(collector.facts)
    }
}

/// Bytes that may lie in several segments of a file, or be known in part only, as one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block<'a> {
    first: &'a [u8],
    rest: Vec<&'a [u8]>,
    /// Bytes behind the first segment.
    rest_bytes: usize,
    /// Whether bytes were asked for that the block has, but that are not known.
    is_missed: Cell<bool>,
}

impl<'a> Block<'a> {
    pub(crate) fn new(first: &'a [u8]) -> Self {
        Self {
            first,
            ..Self::default()
        }
    }

    /// A block of `len` bytes of which the beginning is known.
    pub(crate) fn beginning(known: &'a [u8], len: usize) -> Self {
        Self {
            first: known,
            rest_bytes: len.saturating_sub(known.len()),
            ..Self::default()
        }
    }

    /// Append a segment, up to a bound on their number.
    pub(crate) fn push(&mut self, segment: &'a [u8]) {
        if self.rest.len() < MAX_EXIF_SEGMENTS {
            self.rest.push(segment);
            self.rest_bytes += segment.len();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.first.len().saturating_add(self.rest_bytes)
    }

    /// The block after up to two `Exif\0\0` prefixes: some writers leave one too many.
    fn without_prefix(&self) -> Self {
        let mut first = self.first;
        for _ in 0..2 {
            first = first.strip_prefix(b"Exif\0\0").unwrap_or(first);
        }
        Self {
            first,
            ..self.clone()
        }
    }

    /// The `N` bytes from `at`, if they are there.
    #[inline]
    pub(crate) fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        if let Some(bytes) = self
            .first
            .get(at..)
            .and_then(|rest| rest.first_chunk::<N>())
        {
            return Some(*bytes);
        }
        self.array_apart(at)
    }

    #[cold]
    fn array_apart<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        for (offset, byte) in bytes.iter_mut().enumerate() {
            *byte = self.byte(at.checked_add(offset)?)?;
        }
        Some(bytes)
    }

    fn byte(&self, mut at: usize) -> Option<u8> {
        if let Some(byte) = self.first.get(at) {
            return Some(*byte);
        }
        at -= self.first.len();
        for part in &self.rest {
            match part.get(at) {
                Some(byte) => return Some(*byte),
                None => at -= part.len(),
            }
        }
        let known: usize = self.rest.iter().map(|part| part.len()).sum();
        self.is_missed
            .set(self.is_missed.get() || at < self.rest_bytes - known);
        None
    }
}

/// One entry of a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) tag: u16,
    pub(crate) kind: u16,
    pub(crate) count: u64,
    /// Where the values lie in the block, inline or not.
    pub(crate) at: usize,
    /// Bytes that the values take.
    pub(crate) bytes: usize,
}

impl Entry {
    /// The entry that begins with value `index` of this one.
    pub(crate) fn at_value(self, index: usize) -> Option<Self> {
        let unit = usize::try_from(unit_bytes(self.kind)?).ok()?;
        Some(Self {
            at: self.at.checked_add(unit.checked_mul(index)?)?,
            ..self
        })
    }
}

/// How a visit of a directory ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// At its end; the offset of the directory after it, 0 for none.
    Next(u64),
    /// The bytes ended before it; at least this many are needed to go on.
    Short(usize),
    /// The budget did.
    Exhausted,
}

/// A TIFF structure whose header has been read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Directory<'a, 'b> {
    block: &'b Block<'a>,
    pub(crate) endian: Endian,
    is_big: bool,
    /// Whether the block is all there is of the file.
    is_whole: bool,
}

impl<'a, 'b> Directory<'a, 'b> {
    /// The structure that begins with a classic TIFF header, and the offset of its first
    /// directory. The two headers with swapped version bytes occur in the wild.
    pub(crate) fn open(block: &'b Block<'a>) -> Option<(Self, u64)> {
        let [m0, m1, m2, m3, offset @ ..] = block.array::<8>(0)?;
        let endian = match &[m0, m1, m2, m3] {
            b"MM\0\x2a" | b"MM\x2a\0" => Endian::Big,
            b"II\x2a\0" | b"II\0\x2a" => Endian::Little,
            _ => return None,
        };
        let directory = Self {
            block,
            endian,
            is_big: false,
            is_whole: true,
        };
        Some((directory, u64::from(endian.u32(offset))))
    }

    /// As [`open`](Self::open), for a file, which may also be BigTIFF, and a prefix of one.
    pub(crate) fn open_file(block: &'b Block<'a>, is_whole: bool) -> Option<(Self, u64)> {
        let endian = match &block.array::<4>(0)? {
            b"MM\0\x2b" => Endian::Big,
            b"II\x2b\0" => Endian::Little,
            _ => {
                let (directory, first) = Self::open(block)?;
                return Some((
                    Self {
                        is_whole,
                        ..directory
                    },
                    first,
                ));
            }
        };
        let directory = Self {
            block,
            endian,
            is_big: true,
            is_whole,
        };
        Some((directory, endian.u64(block.array(8)?)))
    }

    /// Call `each` with the entries at `at`, in file order.
    ///
    /// Entries of unknown type are passed over, an entry whose values are cut off ends the
    /// visit: so does Pillow, and what it does not see must not be seen here either.
    pub(crate) fn visit(&self, at: u64, budget: &mut Budget, mut each: impl FnMut(Entry)) -> End {
        let at = index(at);
        let (count, mut at) = if self.is_big {
            match self.block.array(at) {
                Some(bytes) => (self.endian.u64(bytes), at.saturating_add(8)),
                None => return End::Short(at.saturating_add(8)),
            }
        } else {
            match self.block.array(at) {
                Some(bytes) => (u64::from(self.endian.u16(bytes)), at.saturating_add(2)),
                None => return End::Short(at.saturating_add(2)),
            }
        };
        let start = at;
        let mut highest = None;
        let mut total: usize = 0;
        for position in 0..count {
            if !budget.try_spend() {
                return End::Exhausted;
            }
            let next = at.saturating_add(self.entry_bytes());
            let Some(mut entry) = self.entry(at) else {
                return End::Short(next);
            };
            at = next;
            let Some(unit) = unit_bytes(entry.kind) else {
                continue;
            };
            entry.bytes = index(entry.count.saturating_mul(unit));
            if entry.bytes == 0 {
                continue;
            }
            // Entries are sorted in sound files; only where they are not can one be a repeat.
            let is_sorted = highest < Some(entry.tag);
            highest = highest.max(Some(entry.tag));
            if entry.bytes > self.inline_bytes() {
                if !is_sorted {
                    match self.is_repeat(start, position, entry.tag, budget) {
                        Some(true) => continue,
                        Some(false) => {}
                        None => return End::Exhausted,
                    }
                }
                // Values that take more than the file has are not what they claim to be.
                total = total.saturating_add(entry.bytes);
                if total > self.block.len() {
                    if self.is_whole {
                        continue;
                    }
                    return End::Short(total);
                }
                entry.at = index(self.offset(entry.at));
                let end = entry.at.saturating_add(entry.bytes);
                if end > self.block.len() {
                    return End::Short(end);
                }
            }
            each(entry);
        }
        self.next(at)
    }

    /// Whether one of the first `count` entries from `at` has that tag; `None` where the budget
    /// does not reach.
    fn is_repeat(&self, mut at: usize, count: u64, tag: u16, budget: &mut Budget) -> Option<bool> {
        for _ in 0..count {
            budget.try_spend().then_some(())?;
            let entry = self.entry(at)?;
            if entry.tag == tag && entry.count > 0 && unit_bytes(entry.kind).is_some() {
                return Some(true);
            }
            at = at.saturating_add(self.entry_bytes());
        }
        Some(false)
    }

    fn entry_bytes(&self) -> usize {
        if self.is_big { 20 } else { 12 }
    }

    /// Bytes of values that are stored in place of their offset.
    fn inline_bytes(&self) -> usize {
        if self.is_big { 8 } else { 4 }
    }

    fn next(&self, at: usize) -> End {
        let next = if self.is_big {
            self.block.array(at).map(|bytes| self.endian.u64(bytes))
        } else {
            let offset = self.block.array(at);
            offset.map(|bytes| u64::from(self.endian.u32(bytes)))
        };
        let width = if self.is_big { 8 } else { 4 };
        next.map_or(End::Short(at.saturating_add(width)), End::Next)
    }

    #[inline]
    fn entry(&self, at: usize) -> Option<Entry> {
        if self.is_big {
            let bytes = self.block.array::<12>(at)?;
            self.block.array::<8>(at.checked_add(12)?)?;
            let [t0, t1, k0, k1, count @ ..] = bytes;
            return Some(Entry {
                tag: self.endian.u16([t0, t1]),
                kind: self.endian.u16([k0, k1]),
                count: self.endian.u64(count),
                at: at + 12,
                bytes: 0,
            });
        }
        let [t0, t1, k0, k1, c0, c1, c2, c3, _, _, _, _] = self.block.array::<12>(at)?;
        Some(Entry {
            tag: self.endian.u16([t0, t1]),
            kind: self.endian.u16([k0, k1]),
            count: u64::from(self.endian.u32([c0, c1, c2, c3])),
            at: at + 8,
            bytes: 0,
        })
    }

    fn offset(&self, at: usize) -> u64 {
        if self.is_big {
            self.block
                .array(at)
                .map_or(u64::MAX, |b| self.endian.u64(b))
        } else {
            let offset = self.block.array(at);
            offset.map_or(u64::MAX, |b| u64::from(self.endian.u32(b)))
        }
    }

    /// The first value of an entry as an unsigned integer, if it is one.
    pub(crate) fn unsigned(&self, entry: Entry) -> Option<u64> {
        let at = entry.at;
        match entry.kind {
            3 => Some(u64::from(self.endian.u16(self.block.array(at)?))),
            4 | 13 => Some(u64::from(self.endian.u32(self.block.array(at)?))),
            16 => Some(self.endian.u64(self.block.array(at)?)),
            6 => u64::try_from(i8::from_le_bytes(self.block.array(at)?)).ok(),
            8 => u64::try_from(self.endian.u16(self.block.array(at)?).cast_signed()).ok(),
            9 => u64::try_from(self.endian.u32(self.block.array(at)?).cast_signed()).ok(),
            _ => None,
        }
    }

    /// The orientation an entry holds: a number of any numeric type, but not bytes or text.
    pub(crate) fn orientation(&self, entry: Entry) -> u8 {
        let at = entry.at;
        let value = match entry.kind {
            5 | 10 => self.ratio(at),
            11 => self
                .block
                .array(at)
                .and_then(|bytes| natural(f64::from(f32::from_bits(self.endian.u32(bytes))))),
            12 => self
                .block
                .array(at)
                .and_then(|bytes| natural(f64::from_bits(self.endian.u64(bytes)))),
            _ => self.unsigned(entry),
        };
        value
            .and_then(|value| u8::try_from(value).ok())
            .filter(|value| (1..=8).contains(value))
            .unwrap_or(1)
    }

    fn ratio(&self, at: usize) -> Option<u64> {
        let over = u64::from(self.endian.u32(self.block.array(at)?));
        let under = u64::from(self.endian.u32(self.block.array(at.checked_add(4)?)?));
        (under != 0 && over % under == 0).then(|| over / under)
    }

    /// The text of an entry: Latin-1, without the NUL that ends it.
    fn text(&self, entry: Entry) -> Option<Box<str>> {
        if entry.kind != 2 || entry.bytes > MAX_ID_BYTES {
            return None;
        }
        let end = entry.at.checked_add(entry.bytes)?;
        let bytes = match self.block.first.get(entry.at..end) {
            Some(bytes) => Cow::Borrowed(bytes),
            None => (entry.at..end)
                .map(|at| self.block.byte(at))
                .collect::<Option<_>>()?,
        };
        let text = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
        Some(match str::from_utf8(text) {
            Ok(text) if text.is_ascii() => text.into(),
            _ => text.iter().copied().map(char::from).collect(),
        })
    }
}

/// Gathers what a main directory and its EXIF directory say.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    pub(crate) facts: ExifFacts,
    exif_at: Option<u64>,
}

impl Collector {
    /// Take an entry of the main directory. The first of several of one tag counts.
    #[inline]
    pub(crate) fn take(&mut self, directory: &Directory<'_, '_>, entry: Entry) {
        match entry.tag {
            ORIENTATION if self.facts.orientation.is_none() => {
                self.facts.orientation = Some(directory.orientation(entry));
            }
            IMAGE_ID if self.facts.image_id.is_none() => {
                self.facts.image_id = directory.text(entry);
            }
            EXIF_DIRECTORY if self.exif_at.is_none() => {
                self.exif_at = directory.unsigned(entry);
            }
            _ => {}
        }
    }

    /// Read the EXIF directory that the main one points to.
    pub(crate) fn visit_exif(&mut self, directory: &Directory<'_, '_>, budget: &mut Budget) -> End {
        let Some(at) = self.exif_at else {
            return End::Next(0);
        };
        directory.visit(at, budget, |entry| {
            if entry.tag == IMAGE_UNIQUE_ID && self.facts.image_unique_id.is_none() {
                self.facts.image_unique_id = directory.text(entry);
            }
        })
    }
}

/// A small natural number that is stored as a floating-point one.
fn natural(value: f64) -> Option<u64> {
    (1..=8u8)
        .find(|&whole| f64::from(whole).to_bits() == value.to_bits())
        .map(u64::from)
}

/// Bytes of one value of a type; `None` for types that TIFF readers pass over.
#[inline]
fn unit_bytes(kind: u16) -> Option<u64> {
    match kind {
        1 | 2 | 6 | 7 => Some(1),
        3 | 8 => Some(2),
        4 | 9 | 11 | 13 => Some(4),
        5 | 10 | 12 | 16 => Some(8),
        _ => None,
    }
}
