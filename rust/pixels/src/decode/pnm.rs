//! PBM, PGM and PPM, plain and raw, with Pillow's scaling of other maxima than 255.

use safelight_core::cancel::Cancel;

use crate::mode::Mode;
use crate::refusal::{Declined, Refusal};

use super::codec::{Codec, Header};

/// A PNM file with its header read.
pub(crate) struct Pnm<'a> {
    header: Header,
    is_plain: bool,
    max: u32,
    body: &'a [u8],
}

impl<'a> Codec<'a> for Pnm<'a> {
    fn open(data: &'a [u8]) -> Result<Self, Refusal> {
        let kind = data.get(1).copied().unwrap_or_default();
        if !data.get(2).is_some_and(|&byte| is_space(byte)) {
            return Err(Declined("magic").into());
        }
        let mut rest = data.get(3..).unwrap_or_default();
        let (width, height) = (number(&mut rest)?, number(&mut rest)?);
        let max = match kind {
            b'1' | b'4' => 1,
            _ => number(&mut rest)?,
        };
        if !(1..65_536).contains(&max) {
            return Err(Declined("maximum").into());
        }
        let mode = match kind {
            b'1' | b'4' => Mode::Bilevel,
            b'2' | b'5' if max > 255 => Mode::I,
            b'2' | b'5' => Mode::L,
            _ => Mode::Rgb,
        };
        Ok(Self {
            header: Header {
                format: "PPM",
                width,
                height,
                mode,
            },
            is_plain: kind < b'4',
            max,
            body: rest,
        })
    }

    fn header(&self) -> Header {
        self.header
    }

    fn decode(&mut self, buffer: &mut Vec<u8>, cancel: &Cancel) -> Result<(), Refusal> {
        let short = Declined("data ends too early");
        let scale = Scale::new(self.max, self.header.mode);
        match (self.header.mode, self.is_plain) {
            (Mode::Bilevel, true) => bits(self.body, buffer)?,
            (Mode::Bilevel, false) => {
                let width = self.header.width as usize;
                let row_bytes = width.div_ceil(8);
                let mut rows = self.body.chunks_exact(row_bytes);
                for line in buffer.chunks_exact_mut(width) {
                    let row = rows.next().ok_or(short)?;
                    for (x, pixel) in line.iter_mut().enumerate() {
                        let is_ink = row[x / 8] >> (7 - x % 8) & 1 == 1;
                        *pixel = if is_ink { 0 } else { 255 };
                    }
                }
            }
            (_, true) => {
                let mut samples = plain(self.body, self.max)?;
                scale.write(buffer, cancel, || samples.next().ok_or(short)?)?;
            }
            (_, false) if self.max == 255 => {
                let body = self.body.get(..buffer.len()).ok_or(short)?;
                buffer.copy_from_slice(body);
            }
            (_, false) if self.max < 256 => {
                let mut samples = self.body.iter();
                scale.write(buffer, cancel, || {
                    samples.next().map(|&sample| sample.into()).ok_or(short)
                })?;
            }
            (_, false) => {
                let (pairs, _) = self.body.as_chunks::<2>();
                let mut samples = pairs.iter();
                scale.write(buffer, cancel, || {
                    let pair = samples.next().ok_or(short)?;
                    Ok(u16::from_be_bytes(*pair).into())
                })?;
            }
        }
        Ok(())
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// A decimal number and the space after it. A comment runs to the end of its line, and may split
/// a number.
fn number(rest: &mut &[u8]) -> Result<u32, Declined> {
    let mut value = 0u32;
    let mut digits = 0;
    loop {
        let (&byte, tail) = rest.split_first().ok_or(Declined("cut short"))?;
        *rest = tail;
        match byte {
            b'0'..=b'9' => {
                digits += 1;
                value = value
                    .checked_mul(10)
                    .and_then(|value| value.checked_add(u32::from(byte - b'0')))
                    .filter(|_| digits <= 10)
                    .ok_or(Declined("number"))?;
            }
            b'#' => {
                let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
                *rest = &rest[end.ok_or(Declined("cut short"))? + 1..];
            }
            byte if is_space(byte) && digits == 0 => {}
            byte if is_space(byte) => return Ok(value),
            _ => return Err(Declined("number")),
        }
    }
}

/// Samples as Pillow scales them: to 255, or for mode I to 65535, ties to even.
struct Scale {
    max: u32,
    top: u32,
    is_wide: bool,
}

impl Scale {
    fn new(max: u32, mode: Mode) -> Self {
        let is_wide = mode == Mode::I;
        let top = if is_wide { 65_535 } else { 255 };
        Self { max, top, is_wide }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast from float saturates, and the value is 0..=top"
    )]
    fn scaled(&self, sample: u32) -> u32 {
        if self.max == self.top {
            return sample;
        }
        let value = f64::from(sample) / f64::from(self.max) * f64::from(self.top);
        (value.round_ties_even() as u32).min(self.top)
    }

    fn write(
        &self,
        buffer: &mut [u8],
        cancel: &Cancel,
        mut next: impl FnMut() -> Result<u32, Declined>,
    ) -> Result<(), Refusal> {
        for part in buffer.chunks_mut(1 << 16) {
            cancel.check()?;
            if self.is_wide {
                for place in part.as_chunks_mut::<4>().0 {
                    *place = self.scaled(next()?).to_le_bytes();
                }
            } else {
                for place in part {
                    *place = u8::try_from(self.scaled(next()?)).unwrap_or(u8::MAX);
                }
            }
        }
        Ok(())
    }
}

/// Pillow reads text in blocks of this size, and a comment or a token may span two.
const TEXT_BLOCK: usize = 1 << 20;

/// Plain text whose comments and tokens need no care.
fn text(body: &[u8]) -> Result<&[u8], Declined> {
    if body.len() >= TEXT_BLOCK || body.contains(&b'#') {
        return Err(Declined("long or commented text"));
    }
    Ok(body)
}

fn bits(body: &[u8], buffer: &mut [u8]) -> Result<(), Declined> {
    let mut count = 0;
    for &byte in text(body)?.iter().filter(|&&byte| !is_space(byte)) {
        if !matches!(byte, b'0' | b'1') {
            return Err(Declined("token"));
        }
        if let Some(pixel) = buffer.get_mut(count) {
            *pixel = if byte == b'0' { 255 } else { 0 };
        }
        count += 1;
    }
    if count < buffer.len() {
        return Err(Declined("data ends too early"));
    }
    Ok(())
}

fn plain(body: &[u8], max: u32) -> Result<impl Iterator<Item = Result<u32, Declined>>, Declined> {
    let tokens = text(body)?.split(|&byte| is_space(byte));
    Ok(tokens.filter(|token| !token.is_empty()).map(move |token| {
        let is_number = token.len() <= 9 && token.iter().all(u8::is_ascii_digit);
        let value = token
            .iter()
            .filter(|_| is_number)
            .fold(0, |value, &digit| value * 10 + u32::from(digit - b'0'));
        if !is_number || value > max {
            return Err(Declined("token"));
        }
        Ok(value)
    }))
}
