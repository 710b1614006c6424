//! PNG and the first frame of APNG: whole-buffer inflate, then the filters undone in place.
//!
//! Serves files whose every byte is in order: chunk checksums, one zlib stream of exactly the
//! right length. Anything else is declined, because what Pillow makes of damage depends on its
//! streaming. Text and profiles are never inflated beyond Pillow's own bound.

mod chunks;
mod filter;
mod unpack;

use std::borrow::Cow;

use safelight_core::cancel::Cancel;

use crate::buffer::{area, reserved, zeroed};
use crate::mode::Mode;
use crate::picture::{Palette, Transparency};
use crate::refusal::{Declined, Refusal};
use crate::spare::recycle;

use super::codec::{Codec, Header, Plan};
use super::inflate;
use chunks::Chunks;
use unpack::Layout;

/// A PNG file with its chunks read.
pub(crate) struct Png<'a> {
    chunks: Chunks<'a>,
    layout: Layout,
    passes: Vec<Pass>,
}

/// One pass of an interlaced picture, or the whole of one that is not.
#[derive(Clone, Copy, Debug)]
struct Pass {
    width: usize,
    height: usize,
    /// First column and row, and the steps to the next.
    left: usize,
    top: usize,
    across: usize,
    down: usize,
}

/// Adam7: left, top, across, down.
const ADAM7: [[usize; 4]; 7] = [
    [0, 0, 8, 8],
    [4, 0, 8, 8],
    [0, 4, 4, 8],
    [2, 0, 4, 4],
    [0, 2, 2, 4],
    [1, 0, 2, 2],
    [0, 1, 1, 2],
];

impl Png<'_> {
    fn row_bytes(&self, width: usize) -> usize {
        (width * self.layout.pixel_bits()).div_ceil(8)
    }

    /// Bytes that the zlib stream must give: each row with its filter byte.
    fn filtered_bytes(&self) -> usize {
        let rows = |pass: &Pass| pass.height * (1 + self.row_bytes(pass.width));
        self.passes.iter().map(rows).sum()
    }

    /// Whether filtered rows and pixels share the caller's buffer.
    fn is_in_place(&self) -> bool {
        self.passes.len() == 1 && self.layout.is_narrowing()
    }
}

impl<'a> Codec<'a> for Png<'a> {
    fn open(data: &'a [u8]) -> Result<Self, Refusal> {
        let chunks = chunks::read(data)?;
        let layout = Layout::new(chunks.bits, chunks.color_type)?;
        let (width, height) = (chunks.width as usize, chunks.height as usize);
        // Eight bytes a pixel and one a row: checked here once for all that follows.
        area(chunks.width, chunks.height.saturating_add(1), 9)?;
        let mut passes = Vec::new();
        if chunks.is_interlaced {
            for [left, top, across, down] in ADAM7 {
                let pass = Pass {
                    width: width.saturating_sub(left).div_ceil(across),
                    height: height.saturating_sub(top).div_ceil(down),
                    left,
                    top,
                    across,
                    down,
                };
                if pass.width > 0 && pass.height > 0 {
                    passes.push(pass);
                }
            }
        } else {
            passes.push(Pass {
                width,
                height,
                left: 0,
                top: 0,
                across: 1,
                down: 1,
            });
        }
        Ok(Self {
            chunks,
            layout,
            passes,
        })
    }

    fn header(&self) -> Header {
        Header {
            format: "PNG",
            width: self.chunks.width,
            height: self.chunks.height,
            mode: self.layout.mode(),
        }
    }

    fn plan(&self) -> Result<Plan, Refusal> {
        let filtered = self.filtered_bytes();
        // Deflate cannot grow its input further; what claims more is short of rows.
        if filtered / 1032 > self.chunks.compressed_bytes() {
            return Err(Declined("short of rows").into());
        }
        let pixel_bytes = area(
            self.chunks.width,
            self.chunks.height,
            self.layout.mode().pixel_bytes(),
        )?;
        // Otherwise the filtered rows have memory of their own.
        let buffer_bytes = if self.is_in_place() { filtered } else { 0 };
        Ok(Plan {
            buffer_bytes,
            pixel_bytes,
        })
    }

    fn is_filling(&self) -> bool {
        true
    }

    fn decode(&mut self, buffer: &mut Vec<u8>, cancel: &Cancel) -> Result<(), Refusal> {
        let filtered = self.filtered_bytes();
        let stream: Cow<'_, [u8]> = self.chunks.stream();
        let unit = self.layout.pixel_bits().div_ceil(8);
        if self.is_in_place() {
            inflate::zlib(&stream, buffer, filtered)?;
            let rows = buffer.as_mut_slice();
            let pass = self.passes[0];
            let row_bytes = self.row_bytes(pass.width);
            filter::undo(rows, row_bytes, unit, cancel)?;
            self.layout.narrow(&mut rows[..row_bytes * pass.height]);
            return Ok(());
        }
        let mut scratch = reserved(filtered)?;
        inflate::zlib(&stream, &mut scratch, filtered)?;
        let pixel_bytes = self.layout.mode().pixel_bytes();
        *buffer = zeroed(area(self.chunks.width, self.chunks.height, pixel_bytes)?)?;
        let mut rows = scratch.as_mut_slice();
        let canvas_width = self.chunks.width as usize;
        for pass in &self.passes {
            let row_bytes = self.row_bytes(pass.width);
            let (current, rest) = rows.split_at_mut(pass.height * (1 + row_bytes));
            rows = rest;
            filter::undo(current, row_bytes, unit, cancel)?;
            for (index, row) in current
                .chunks_exact(row_bytes)
                .take(pass.height)
                .enumerate()
            {
                let start = (pass.top + index * pass.down) * canvas_width;
                let line = &mut buffer[start * pixel_bytes..];
                self.layout
                    .unpack(row, line, pass.width, (pass.left, pass.across));
            }
        }
        recycle(scratch);
        Ok(())
    }

    fn colors(&mut self) -> (Option<Palette>, Option<Transparency>) {
        let palette = (self.layout.mode() == Mode::P)
            .then(|| self.chunks.palette.map(Palette::from_rgb))
            .flatten();
        (palette, self.chunks.transparency.take())
    }
}
