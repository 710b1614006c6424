//! PNM, PAM and PFM: a header of words.

use crate::budget::Budget;
use crate::error::Error;
use crate::probe::format::Format;
use crate::probe::header::{Declared, ImageHeader};
use crate::reader::{Parsed, Payload, Stop};

/// Digits of the longest number.
const MAX_WORD_BYTES: usize = 10;

pub(super) fn parse(payload: Payload<'_>, declared: &mut Declared) -> Parsed<ImageHeader> {
    let kind = payload.u8(1)?;
    let mut words = Words {
        payload,
        at: 2,
        budget: Budget::default(),
    };
    if kind == b'7' {
        return words.arbitrary_map(declared);
    }
    let width = words.number()?;
    let height = words.number()?;
    declared.size = Some((width, height));
    let mut header = ImageHeader::new(Format::Pnm, (width, height));
    let (mode, bits) = match kind {
        b'1' | b'4' => ("1", 1),
        b'F' => {
            // Pillow reads one channel only.
            header.bits = Some(32);
            return Ok(header);
        }
        b'f' => ("F", 32),
        _ => match (kind, words.number()?) {
            (_, 0 | 65_536..) => {
                return Err(Error::malformed("PNM maximum is not of 1 to 65535").into());
            }
            (b'3' | b'6', maximum) => ("RGB", depth(maximum)),
            (_, maximum @ 256..) => ("I", depth(maximum)),
            (_, maximum) => ("L", depth(maximum)),
        },
    };
    header.mode = Some(mode);
    header.bits = Some(bits);
    header.has_alpha = Some(false);
    header.set_frames(1);
    Ok(header)
}

/// Bits that hold a sample of up to `maximum`, as it is stored in bytes.
fn depth(maximum: u32) -> u8 {
    if maximum > 255 { 16 } else { 8 }
}

struct Words<'a> {
    payload: Payload<'a>,
    at: usize,
    budget: Budget,
}

impl<'a> Words<'a> {
    /// The next word; comments and white space before it are passed over.
    fn word(&mut self) -> Parsed<&'a [u8]> {
        let is_space = |byte: u8| byte == b' ' || (b'\t'..=b'\r').contains(&byte);
        loop {
            self.budget.spend()?;
            match self.payload.u8(self.at)? {
                b'#' => self.skip_line()?,
                byte if is_space(byte) => self.at += 1,
                _ => break,
            }
        }
        let start = self.at;
        loop {
            match self.payload.u8(self.at) {
                Ok(byte) if is_space(byte) || byte == b'#' => break,
                Ok(_) if self.at - start < 2 * MAX_WORD_BYTES => self.at += 1,
                Ok(_) => return Err(Error::malformed("PNM header has an overlong word").into()),
                Err(Stop::More(_)) if self.payload.is_whole => break,
                Err(stop) => return Err(stop),
            }
        }
        Ok(&self.payload.bytes[start..self.at])
    }

    fn skip_line(&mut self) -> Parsed<()> {
        let rest = self.payload.bytes.get(self.at..).unwrap_or_default();
        match memchr::memchr2(b'\n', b'\r', rest) {
            Some(length) => {
                self.at += length;
                Ok(())
            }
            None => Err(Stop::more(self.payload.bytes.len() + 1)),
        }
    }

    fn number(&mut self) -> Parsed<u32> {
        let word = self.word()?;
        let number = std::str::from_utf8(word)
            .ok()
            .filter(|_| word.len() <= MAX_WORD_BYTES)
            .and_then(|word| word.parse().ok());
        Ok(number.ok_or_else(|| Error::malformed("PNM header has no number where one belongs"))?)
    }

    /// PAM: named fields in any order.
    fn arbitrary_map(&mut self, declared: &mut Declared) -> Parsed<ImageHeader> {
        let (mut width, mut height, mut depth_of, mut maximum) = (0, 0, 0, 0);
        let mut has_alpha = None;
        loop {
            match self.word()? {
                b"WIDTH" => width = self.number()?,
                b"HEIGHT" => height = self.number()?,
                b"DEPTH" => depth_of = self.number()?,
                b"MAXVAL" => maximum = self.number()?,
                b"TUPLTYPE" => has_alpha = Some(self.word()?.ends_with(b"_ALPHA")),
                b"ENDHDR" => break,
                _ => return Err(Error::malformed("PAM header has an unknown field").into()),
            }
            declared.size = Some((width, height));
        }
        let mut header = ImageHeader::new(Format::Pnm, (width, height));
        header.bits = Some(depth(maximum));
        header.has_alpha = has_alpha.or(Some(matches!(depth_of, 2 | 4)));
        header.set_frames(1);
        Ok(header)
    }
}
