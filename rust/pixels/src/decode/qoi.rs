//! QOI, with Pillow's table of seen pixels: a run adds nothing to it.

use safelight_core::cancel::Cancel;

use crate::mode::Mode;
use crate::refusal::{Declined, Refusal};

use super::codec::{Codec, Header};
use super::reader::Reader;

/// A QOI file with its header read.
pub(crate) struct Qoi<'a> {
    header: Header,
    reader: Reader<'a>,
}

impl<'a> Codec<'a> for Qoi<'a> {
    fn open(data: &'a [u8]) -> Result<Self, Refusal> {
        let mut reader = Reader::at(data, 4);
        let (width, height) = (reader.u32_be()?, reader.u32_be()?);
        let [channels, _space] = reader.array()?;
        Ok(Self {
            header: Header {
                format: "QOI",
                width,
                height,
                mode: if channels == 3 { Mode::Rgb } else { Mode::Rgba },
            },
            reader,
        })
    }

    fn header(&self) -> Header {
        self.header
    }

    fn decode(&mut self, buffer: &mut Vec<u8>, cancel: &Cancel) -> Result<(), Refusal> {
        let mut pixels = Pixels {
            reader: self.reader,
            seen: [[0; 4]; 64],
            last: [0, 0, 0, 255],
            run: 0,
        };
        if self.header.mode == Mode::Rgb {
            fill(buffer, cancel, || {
                pixels.next().map(|[r, g, b, _]| [r, g, b])
            })
        } else {
            fill(buffer, cancel, || pixels.next())
        }
    }
}

fn fill<const N: usize>(
    buffer: &mut [u8],
    cancel: &Cancel,
    mut next: impl FnMut() -> Result<[u8; N], Declined>,
) -> Result<(), Refusal> {
    for part in buffer.as_chunks_mut::<N>().0.chunks_mut(1 << 16) {
        cancel.check()?;
        for place in part {
            *place = next()?;
        }
    }
    Ok(())
}

struct Pixels<'a> {
    reader: Reader<'a>,
    seen: [[u8; 4]; 64],
    last: [u8; 4],
    run: u8,
}

impl Pixels<'_> {
    #[inline]
    fn next(&mut self) -> Result<[u8; 4], Declined> {
        if self.run > 0 {
            self.run -= 1;
            return Ok(self.last);
        }
        let [r, g, b, alpha] = self.last;
        let byte = self.reader.u8()?;
        let pixel = match byte {
            0xFE => {
                let [r, g, b] = self.reader.array()?;
                [r, g, b, alpha]
            }
            0xFF => self.reader.array()?,
            0..0x40 => self.seen[usize::from(byte)],
            0x40..0x80 => {
                let step = |shift: u8| (byte >> shift & 3).wrapping_sub(2);
                [
                    r.wrapping_add(step(4)),
                    g.wrapping_add(step(2)),
                    b.wrapping_add(step(0)),
                    alpha,
                ]
            }
            0x80..0xC0 => {
                let second = self.reader.u8()?;
                let green = (byte & 63).wrapping_sub(32);
                let step = |nibble: u8| green.wrapping_add(nibble).wrapping_sub(8);
                [
                    r.wrapping_add(step(second >> 4)),
                    g.wrapping_add(green),
                    b.wrapping_add(step(second & 15)),
                    alpha,
                ]
            }
            0xC0..0xFE => {
                self.run = byte & 63;
                return Ok(self.last);
            }
        };
        let weights = pixel.into_iter().zip([3u32, 5, 7, 11]);
        let hash: u32 = weights
            .map(|(sample, weight)| u32::from(sample) * weight)
            .sum();
        self.seen[(hash % 64) as usize] = pixel;
        self.last = pixel;
        Ok(pixel)
    }
}
