//! The first frame of a GIF, on Pillow's canvas.
//!
//! The canvas grows to hold the frame; what the frame leaves uncovered has the transparent index,
//! else 0. A frame whose palette is gray `i` for each index `i` is mode L, any other mode P.

use safelight_core::cancel::Cancel;

use crate::buffer::zeroed;
use crate::mode::Mode;
use crate::picture::{Palette, Transparency};
use crate::refusal::{Declined, Refusal};

use super::codec::{Codec, Header};
use super::reader::Reader;

/// A GIF file, read up to the pixels of its first frame.
pub(crate) struct Gif<'a> {
    header: Header,
    frame: Frame,
    palette: Option<&'a [u8]>,
    transparent: Option<u8>,
    /// From the minimum code size on.
    stream: &'a [u8],
}

#[derive(Clone, Copy)]
struct Frame {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
    is_interlaced: bool,
}

impl<'a> Codec<'a> for Gif<'a> {
    fn open(data: &'a [u8]) -> Result<Self, Refusal> {
        let mut reader = Reader::at(data, 6);
        let (screen_width, screen_height) = (reader.u16_le()?, reader.u16_le()?);
        let [flags, _background, _aspect] = reader.array()?;
        let mut palette = colors(&mut reader, flags)?.filter(|colors| is_needed(colors));
        let mut transparent = None;
        loop {
            match reader.u8()? {
                b'!' => extension(&mut reader, &mut transparent)?,
                b',' => break,
                _ => return Err(Declined("block").into()),
            }
        }
        let (left, top) = (reader.u16_le()?, reader.u16_le()?);
        let (width, height) = (reader.u16_le()?, reader.u16_le()?);
        let flags = reader.u8()?;
        if let Some(local) = colors(&mut reader, flags)? {
            if !is_needed(local) && palette.is_some() {
                return Err(Declined("gray frame in a picture with colors").into());
            }
            palette = is_needed(local).then_some(local);
        }
        if width == 0 || height == 0 {
            return Err(Declined("empty frame").into());
        }
        let reach = |start: u16, length: u16, screen: u16| {
            (u32::from(start) + u32::from(length)).max(screen.into())
        };
        Ok(Self {
            header: Header {
                format: "GIF",
                width: reach(left, width, screen_width),
                height: reach(top, height, screen_height),
                mode: if palette.is_some() { Mode::P } else { Mode::L },
            },
            frame: Frame {
                left: left.into(),
                top: top.into(),
                width: width.into(),
                height: height.into(),
                is_interlaced: flags & 64 != 0,
            },
            palette,
            transparent,
            stream: reader.rest(),
        })
    }

    fn header(&self) -> Header {
        self.header
    }

    fn decode(&mut self, buffer: &mut Vec<u8>, cancel: &Cancel) -> Result<(), Refusal> {
        let Frame {
            left,
            top,
            width,
            height,
            is_interlaced,
        } = self.frame;
        let canvas_width = self.header.width as usize;
        if width == canvas_width && height == self.header.height as usize && !is_interlaced {
            return lzw(self.stream, buffer, cancel);
        }
        let mut indices = zeroed(width * height)?;
        lzw(self.stream, &mut indices, cancel)?;
        buffer.fill(self.transparent.unwrap_or(0));
        for (row, y) in indices
            .chunks_exact(width)
            .zip(lines(height, is_interlaced))
        {
            let start = (top + y) * canvas_width + left;
            buffer[start..start + width].copy_from_slice(row);
        }
        Ok(())
    }

    fn colors(&mut self) -> (Option<Palette>, Option<Transparency>) {
        let palette = self.palette.map(Palette::from_rgb);
        let transparency = self.transparent.map(|index| match palette {
            Some(_) => Transparency::Index(index),
            None => Transparency::Gray(index.into()),
        });
        (palette, transparency)
    }
}

/// The rows of a frame in the order in which they are stored.
fn lines(height: usize, is_interlaced: bool) -> impl Iterator<Item = usize> {
    let passes: &[(usize, usize)] = if is_interlaced {
        &[(0, 8), (4, 8), (2, 4), (1, 2)]
    } else {
        &[(0, 1)]
    };
    passes
        .iter()
        .flat_map(move |&(start, step)| (start..height).step_by(step))
}

fn colors<'a>(reader: &mut Reader<'a>, flags: u8) -> Result<Option<&'a [u8]>, Declined> {
    if flags & 128 == 0 {
        return Ok(None);
    }
    reader.take(3 << ((flags & 7) + 1)).map(Some)
}

/// Whether a palette is anything but gray `i` for each index `i`.
fn is_needed(colors: &[u8]) -> bool {
    let (entries, _) = colors.as_chunks::<3>();
    (0..=255u8)
        .zip(entries)
        .any(|(index, entry)| *entry != [index; 3])
}

fn extension(reader: &mut Reader<'_>, transparent: &mut Option<u8>) -> Result<(), Declined> {
    let label = reader.u8()?;
    let mut is_first = true;
    loop {
        let length = reader.u8()?;
        if length == 0 {
            return Ok(());
        }
        let block = reader.take(length.into())?;
        if label == 0xF9 && is_first {
            let &[flags, _, _, index, ..] = block else {
                return Err(Declined("graphic control"));
            };
            if flags & 1 != 0 {
                *transparent = Some(index);
            }
        }
        is_first = false;
    }
}

/// Codes are at most twelve bits long.
const TABLE: usize = 4096;

/// A string of the table: where it was first written, and how long it is.
#[derive(Clone, Copy, Default)]
struct Entry {
    start: usize,
    length: usize,
}

/// Expand a stream, from its minimum code size on, until `out` is full.
///
/// Each string of the table is a part of the output that went before: the string of the code
/// before, and the sample that followed it. So a code is a copy within `out`.
fn lzw(stream: &[u8], out: &mut [u8], cancel: &Cancel) -> Result<(), Refusal> {
    let (&code_bits, blocks) = stream.split_first().ok_or(Declined("no pixels"))?;
    if !(1..=8).contains(&code_bits) {
        return Err(Declined("code size").into());
    }
    let data = joined(blocks)?;
    let mut bytes = data.iter();
    let clear = 1usize << code_bits;
    let end = clear + 1;
    let mut table = vec![Entry::default(); TABLE];
    let mut next = clear + 2;
    let mut size = u32::from(code_bits) + 1;
    let mut last: Option<Entry> = None;
    let (mut bits, mut held) = (0u32, 0u32);
    let mut position = 0;
    let mut since_check = 0;
    loop {
        while held < size {
            let byte = *bytes.next().ok_or(Declined("data ends too early"))?;
            bits |= u32::from(byte) << held;
            held += 8;
        }
        let code = (bits & ((1 << size) - 1)) as usize;
        bits >>= size;
        held -= size;
        if code == clear {
            next = clear + 2;
            size = u32::from(code_bits) + 1;
            last = None;
            continue;
        }
        if code == end {
            return Err(Declined("end code before the last pixel").into());
        }
        let current = match last {
            _ if code < clear => {
                // Roots are samples: below 256, as the clear code is at most that.
                out[position] = u8::try_from(code).unwrap_or_default();
                Entry {
                    start: position,
                    length: 1,
                }
            }
            None => return Err(Declined("first code").into()),
            Some(last) => {
                let source = match code.cmp(&next) {
                    std::cmp::Ordering::Less => table[code],
                    std::cmp::Ordering::Equal => Entry {
                        start: last.start,
                        length: last.length + 1,
                    },
                    std::cmp::Ordering::Greater => return Err(Declined("code").into()),
                };
                copy(out, source, position);
                Entry {
                    start: position,
                    length: source.length,
                }
            }
        };
        if let Some(last) = last
            && next < TABLE
        {
            table[next] = Entry {
                start: last.start,
                length: last.length + 1,
            };
            next += 1;
            if next == 1 << size && size < 12 {
                size += 1;
            }
        }
        last = Some(current);
        position += current.length;
        if position >= out.len() {
            return Ok(());
        }
        since_check += 1;
        if since_check == 1 << 16 {
            since_check = 0;
            cancel.check()?;
        }
    }
}

/// Copy a string that lies before `position` to it; the string may run into its own copy.
fn copy(out: &mut [u8], Entry { start, length }: Entry, position: usize) {
    let end = (position + length).min(out.len());
    if start + length <= position && length > 8 {
        out.copy_within(start..start + (end - position), position);
        return;
    }
    let distance = position - start;
    for index in position..end {
        out[index] = out[index - distance];
    }
}

/// The bytes of all whole blocks up to the terminator or the end. Pillow starts no block that is
/// not there in full.
fn joined(blocks: &[u8]) -> Result<Vec<u8>, Declined> {
    let mut data = Vec::new();
    let mut rest = blocks;
    while let Some((&length, tail)) = rest.split_first() {
        if length == 0 {
            break;
        }
        let Some((block, tail)) = tail.split_at_checked(length.into()) else {
            break;
        };
        data.try_reserve(block.len())
            .map_err(|_| Declined("out of memory"))?;
        data.extend_from_slice(block);
        rest = tail;
    }
    Ok(data)
}
