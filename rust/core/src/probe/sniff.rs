//! The format of a payload, by its first bytes and nothing else: neither names nor media types
//! that came with it count.
//!
//! A prefix is told only when no longer payload with the same beginning would be told otherwise.

use crate::error::Error;
use crate::probe::format::Format;
use crate::probe::isobmff;
use crate::probe::unserved::{self, LONGEST_MAGIC};
use crate::reader::{Endian, Parsed, Payload, Stop};

/// How far an XML document is searched for its root element.
const XML_BYTES: usize = 4096;

pub(super) fn sniff(payload: Payload<'_>) -> Parsed<Format> {
    match payload.bytes {
        [0xFF, 0xD8, 0xFF, ..] => Ok(Format::Jpeg),
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => Ok(Format::Png),
        [
            b'R',
            b'I',
            b'F',
            b'F',
            _,
            _,
            _,
            _,
            b'W',
            b'E',
            b'B',
            b'P',
            ..,
        ] => Ok(Format::WebP),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Ok(Format::Gif),
        [b'B', b'M', ..] => Ok(Format::Bmp),
        [b'I', b'I', 0x2A | 0x2B, 0, ..]
        | [b'M', b'M', 0, 0x2A | 0x2B, ..]
        | [b'I', b'I', 0, 0x2A, ..]
        | [b'M', b'M', 0x2A, 0, ..] => Ok(Format::Tiff),
        [_, _, _, _, b'f', b't', b'y', b'p', _, _, _, _, ..] => brand(payload),
        _ => rare(payload),
    }
}

/// The formats that are met less often.
fn rare(payload: Payload<'_>) -> Parsed<Format> {
    let bytes = payload.bytes;
    match bytes {
        [0xFF, 0x0A, ..]
        | [
            0,
            0,
            0,
            12,
            b'J',
            b'X',
            b'L',
            b' ',
            b'\r',
            b'\n',
            0x87,
            b'\n',
            ..,
        ] => {
            return Ok(Format::JpegXl);
        }
        [0xFF, 0x4F, 0xFF, 0x51, ..]
        | [
            0,
            0,
            0,
            12,
            b'j',
            b'P',
            b' ',
            b' ',
            b'\r',
            b'\n',
            0x87,
            b'\n',
            ..,
        ] => {
            return Ok(Format::Jpeg2000);
        }
        [b'q', b'o', b'i', b'f', ..] => return Ok(Format::Qoi),
        [b'8', b'B', b'P', b'S', ..] => return Ok(Format::Psd),
        [b'D', b'D', b'S', b' ', ..] => return Ok(Format::Dds),
        [b'i', b'c', b'n', b's', ..] => return Ok(Format::Icns),
        [b'P', b'1'..=b'6' | b'F' | b'f', b' ' | b'\t'..=b'\r', ..] | [b'P', b'7', b'\n', ..] => {
            return Ok(Format::Pnm);
        }
        [0x01, 0xDA, ..] => return Ok(Format::Sgi),
        [0x0A, 0 | 2 | 3 | 5, 0 | 1, ..] => return Ok(Format::Pcx),
        [0, 0, 1, 0, ..] => return Ok(Format::Ico),
        // A Targa file may begin like a cursor file that holds no cursor.
        [0, 0, 2, 0, c0, c1, ..] if [*c0, *c1] != [0, 0] => return Ok(Format::Cur),
        [12 | 40 | 52 | 56 | 64 | 108 | 124, 0, 0, 0, ..] => return Ok(Format::Dib),
        _ => {}
    }
    if !payload.is_whole && bytes.len() < LONGEST_MAGIC {
        return Err(Stop::more(bytes.len() + 1));
    }
    if let Some(name) = unserved::name(bytes) {
        return Err(Error::unsupported(format!("{name} is not served")).into());
    }
    if is_targa(bytes) {
        return Ok(Format::Tga);
    }
    if let [0x0A, 0 | 2 | 3 | 5, ..] = bytes {
        return Ok(Format::Pcx);
    }
    if let Some(rest) = markup(bytes) {
        return match root(rest) {
            Some(name) => Err(Error::unsupported(format!("{name} is not served")).into()),
            None if !payload.is_whole && rest.len() < XML_BYTES => Err(Stop::more(bytes.len() + 1)),
            None => Err(Error::unsupported("XML is not served").into()),
        };
    }
    if bytes.is_empty() {
        return Err(Error::truncated("payload is empty").into());
    }
    Err(Error::malformed("payload is not an image of a known format").into())
}

/// HEIF and its kin, by their brands.
fn brand(payload: Payload<'_>) -> Parsed<Format> {
    let major = payload.array::<4>(8)?;
    let name = match &major {
        b"avif" | b"avis" => return Ok(Format::Avif),
        b"heic" | b"heix" | b"heim" | b"heis" | b"hevc" | b"hevx" | b"hevm" | b"hevs" => {
            return Ok(Format::Heif);
        }
        b"mif1" | b"msf1" | b"mif2" | b"miaf" => {
            let mut brands = isobmff::compatible_brands(payload)?;
            let is_avif = brands.any(|brand| matches!(&brand, b"avif" | b"avis"));
            return Ok(if is_avif { Format::Avif } else { Format::Heif });
        }
        b"qt  " => "QuickTime",
        b"M4A " | b"M4B " | b"M4P " => "M4A",
        b"crx " => "CR3",
        [b'3', b'g', ..] => "3GP",
        _ => "MP4",
    };
    Err(Error::unsupported(format!("{name} is not served")).into())
}

/// Targa has no magic: a header whose every field is one that a Targa file may have.
fn is_targa(bytes: &[u8]) -> bool {
    let Some(
        &[
            _,
            map,
            kind,
            _,
            _,
            _,
            _,
            map_bits,
            _,
            _,
            _,
            _,
            w0,
            w1,
            h0,
            h1,
            bits,
            _,
        ],
    ) = bytes.first_chunk::<18>()
    else {
        return false;
    };
    let has_size = Endian::Little.u16([w0, w1]) > 0 && Endian::Little.u16([h0, h1]) > 0;
    let is_mapped = matches!(map_bits, 15 | 16 | 24 | 32);
    has_size
        && matches!(bits, 1 | 8 | 16 | 24 | 32)
        && match (map, kind) {
            (0, 1..=3 | 9..=11) => true,
            (1, 1..=3 | 9..=11) => is_mapped,
            _ => false,
        }
}

/// The payload without its byte order mark and white space, if it is markup.
fn markup(bytes: &[u8]) -> Option<&[u8]> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    let bytes = bytes.trim_ascii_start();
    bytes.starts_with(b"<").then_some(bytes)
}

/// The kind of a document by its root element, if that is told within a bound.
fn root(markup: &[u8]) -> Option<&'static str> {
    let beginning = &markup[..markup.len().min(XML_BYTES)];
    let mut found = memchr::memchr_iter(b'<', beginning).filter_map(|at| {
        let name = &beginning[at + 1..];
        let is = |word: &[u8]| {
            name.get(..word.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(word))
        };
        match () {
            () if is(b"svg") => Some("SVG"),
            () if is(b"html") || is(b"!doctype html") || is(b"head") || is(b"body") => Some("HTML"),
            () => None,
        }
    });
    found.next()
}
