//! The first directory of a TIFF: tags to numbers.
//!
//! Any tag that Pillow would warn of, or that makes it read more than pixels, declines the file.

use crate::decode::reader::Reader;
use crate::refusal::Declined;

/// Entries that a directory may have before the file is left to Pillow.
const MAX_ENTRIES: u16 = 256;

/// Numbers that a tag may have: a strip for each row of the tallest picture.
const MAX_NUMBERS: usize = 1 << 16;

/// Tags that make Pillow read or turn more: XMP, Exif, GPS, interoperability, HD Photo.
const DECLINED_TAGS: [u16; 5] = [700, 34_665, 34_853, 40_965, 0xBC01];

/// A directory, its entries as they are stored.
pub(super) struct Directory<'a> {
    is_big: bool,
    entries: Vec<Entry<'a>>,
}

struct Entry<'a> {
    tag: u16,
    kind: u16,
    count: usize,
    value: &'a [u8],
}

impl<'a> Directory<'a> {
    pub(super) fn read(data: &'a [u8]) -> Result<Self, Declined> {
        let is_big = data.first() == Some(&b'M');
        let start = long(&mut Reader::at(data, 4), is_big)?;
        let mut reader = Reader::at(data, start as usize);
        let count = short(&mut reader, is_big)?;
        if start < 8 || count > MAX_ENTRIES {
            return Err(Declined("directory"));
        }
        let mut entries: Vec<Entry<'a>> = Vec::new();
        for _ in 0..count {
            let tag = short(&mut reader, is_big)?;
            let kind = short(&mut reader, is_big)?;
            let count = long(&mut reader, is_big)? as usize;
            let inline = reader.take(4)?;
            let unit = match kind {
                1 | 2 | 6 | 7 => 1,
                3 | 8 => 2,
                4 | 9 | 11 => 4,
                5 | 10 | 12 => 8,
                _ => return Err(Declined("type of a tag")),
            };
            let bytes = count.checked_mul(unit).ok_or(Declined("tag"))?;
            let value = if bytes <= 4 {
                &inline[..bytes]
            } else {
                let offset = long(&mut Reader::new(inline), is_big)? as usize;
                Reader::at(data, offset).take(bytes)?
            };
            let is_known = entries.iter().any(|entry| entry.tag == tag);
            if is_known || count == 0 || DECLINED_TAGS.contains(&tag) {
                return Err(Declined("tag"));
            }
            entries.push(Entry {
                tag,
                kind,
                count,
                value,
            });
        }
        // The offset of the next directory has to be there, wherever it leads.
        reader.take(4)?;
        Ok(Self { is_big, entries })
    }

    pub(super) fn is_big(&self) -> bool {
        self.is_big
    }

    /// The numbers of a tag; `None` where it is absent.
    pub(super) fn all(&self, tag: u16) -> Result<Option<Vec<u32>>, Declined> {
        let Some(entry) = self.entries.iter().find(|entry| entry.tag == tag) else {
            return Ok(None);
        };
        if entry.count > MAX_NUMBERS {
            return Err(Declined("too many numbers"));
        }
        let mut reader = Reader::new(entry.value);
        let number = |_| match entry.kind {
            3 => short(&mut reader, self.is_big).map(u32::from),
            4 => long(&mut reader, self.is_big),
            _ => Err(Declined("type of a number")),
        };
        (0..entry.count)
            .map(number)
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// The one number of a tag; `None` where it is absent.
    pub(super) fn one(&self, tag: u16) -> Result<Option<u32>, Declined> {
        match self.all(tag)?.as_deref() {
            None => Ok(None),
            Some(&[number]) => Ok(Some(number)),
            Some(_) => Err(Declined("more than one number")),
        }
    }
}

fn short(reader: &mut Reader<'_>, is_big: bool) -> Result<u16, Declined> {
    if is_big {
        reader.u16_be()
    } else {
        reader.u16_le()
    }
}

fn long(reader: &mut Reader<'_>, is_big: bool) -> Result<u32, Declined> {
    if is_big {
        reader.u32_be()
    } else {
        reader.u32_le()
    }
}
