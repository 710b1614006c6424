//! Tiny media, made by code: what tests, fuzz seeds and benches share.

#![allow(
    dead_code,
    unused_imports,
    reason = "each user takes some of the makers"
)]

mod hostile;

pub(crate) use hostile::hostile_megabytes;

/// A JPEG of baseline frame header, scan and end, with `segments` in front.
pub(crate) fn jpeg(size: (u16, u16), components: u8, segments: &[Vec<u8>]) -> Vec<u8> {
    let mut frame = vec![8];
    frame.extend(size.1.to_be_bytes());
    frame.extend(size.0.to_be_bytes());
    frame.push(components);
    for id in 1..=components {
        frame.extend([id, 0x11, 0]);
    }
    let mut scan = vec![components];
    for id in 1..=components {
        scan.extend([id, 0]);
    }
    scan.extend([0, 63, 0]);
    let mut bytes = vec![0xFF, 0xD8];
    bytes.extend(segments.concat());
    bytes.extend(segment(0xC0, &frame));
    bytes.extend(segment(0xDA, &scan));
    bytes.extend([0x55, 0xFF, 0xD9]);
    bytes
}

/// A JPEG segment.
pub(crate) fn segment(marker: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len() + 2).unwrap();
    let mut bytes = vec![0xFF, marker];
    bytes.extend(length.to_be_bytes());
    bytes.extend(body);
    bytes
}

/// A PNG with `chunks` between header and image data.
pub(crate) fn png(size: (u32, u32), bits: u8, color: u8, chunks: &[Vec<u8>]) -> Vec<u8> {
    let mut header = Vec::new();
    header.extend(size.0.to_be_bytes());
    header.extend(size.1.to_be_bytes());
    header.extend([bits, color, 0, 0, 0]);
    let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
    bytes.extend(chunk(*b"IHDR", &header));
    bytes.extend(chunks.concat());
    bytes.extend(chunk(*b"IDAT", &[0x78, 0x9C, 3, 0, 0, 0, 0, 1]));
    bytes.extend(chunk(*b"IEND", &[]));
    bytes
}

/// A PNG chunk. Its checksum is left at zero: a header probe reads none.
pub(crate) fn chunk(name: [u8; 4], body: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(name);
    bytes.extend(body);
    bytes.extend([0; 4]);
    bytes
}

/// A zlib stream of stored blocks.
pub(crate) fn stored(body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x78, 0x01];
    let mut blocks = body.chunks(0xFFFF).peekable();
    while let Some(block) = blocks.next() {
        let length = u16::try_from(block.len()).unwrap();
        bytes.push(u8::from(blocks.peek().is_none()));
        bytes.extend(length.to_le_bytes());
        bytes.extend((!length).to_le_bytes());
        bytes.extend(block);
    }
    let (low, high) = body.iter().fold((1_u32, 0_u32), |(low, high), &byte| {
        let low = (low + u32::from(byte)) % 65_521;
        (low, (high + low) % 65_521)
    });
    bytes.extend(((high << 16) | low).to_be_bytes());
    bytes
}

/// An EXIF block (without its prefix) of an orientation and both ids, little-endian.
pub(crate) fn exif(orientation: u16) -> Vec<u8> {
    let id = b"0b9c1f6e-7a3f-4c55-9a86-3f5f0d1c2b3a\0";
    let unique_id = b"0123456789abcdef\0";
    let id_at = 8 + 2 + 3 * 12 + 4;
    let exif_at = id_at + u32::try_from(id.len()).unwrap();
    let unique_at = exif_at + 2 + 12 + 4;
    let mut bytes = b"II*\0\x08\0\0\0".to_vec();
    bytes.extend(directory(
        &[
            (0x0112, 3, 1, u32::from(orientation)),
            (0x800D, 2, u32::try_from(id.len()).unwrap(), id_at),
            (0x8769, 4, 1, exif_at),
        ],
        0,
    ));
    bytes.extend(id);
    let length = u32::try_from(unique_id.len()).unwrap();
    bytes.extend(directory(&[(0xA420, 2, length, unique_at)], 0));
    bytes.extend(unique_id);
    bytes
}

/// A little-endian directory: tag, type, count, value or offset; then the next one's offset.
pub(crate) fn directory(entries: &[(u16, u16, u32, u32)], next: u32) -> Vec<u8> {
    let mut bytes = u16::try_from(entries.len()).unwrap().to_le_bytes().to_vec();
    for (tag, kind, count, value) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend(next.to_le_bytes());
    bytes
}

/// A grey TIFF of one strip; `entries` go between those for the strip and the end.
pub(crate) fn tiff(size: (u32, u32), entries: &[(u16, u16, u32, u32)]) -> Vec<u8> {
    let mut all = vec![
        (256, 4, 1, size.0),
        (257, 4, 1, size.1),
        (258, 3, 1, 8),
        (262, 3, 1, 1),
        (273, 4, 1, 8),
    ];
    all.extend(entries);
    all.sort_unstable();
    let mut bytes = b"II*\0\x08\0\0\0".to_vec();
    bytes.extend(directory(&all, 0));
    bytes
}

/// A BigTIFF of the same kind in either byte order.
pub(crate) fn big_tiff(size: (u64, u64), is_big_endian: bool) -> Vec<u8> {
    let number = |value: u64, bytes: usize| {
        if is_big_endian {
            value.to_be_bytes()[8 - bytes..].to_vec()
        } else {
            value.to_le_bytes()[..bytes].to_vec()
        }
    };
    let mut bytes = if is_big_endian { b"MM" } else { b"II" }.to_vec();
    for (value, width) in [(43, 2), (8, 2), (0, 2), (16, 8), (5, 8)] {
        bytes.extend(number(value, width));
    }
    for (tag, value) in [(256, size.0), (257, size.1), (258, 8), (262, 1), (273, 16)] {
        for (value, width) in [(tag, 2), (16, 2), (1, 8), (value, 8)] {
            bytes.extend(number(value, width));
        }
    }
    bytes.extend([0; 8]);
    bytes
}

/// A WebP container around `chunks`.
pub(crate) fn webp(chunks: &[Vec<u8>]) -> Vec<u8> {
    let body = chunks.concat();
    let mut bytes = b"RIFF".to_vec();
    bytes.extend(u32::try_from(body.len() + 4).unwrap().to_le_bytes());
    bytes.extend(b"WEBP");
    bytes.extend(body);
    bytes
}

/// A RIFF chunk.
pub(crate) fn riff(name: [u8; 4], body: &[u8]) -> Vec<u8> {
    let mut bytes = name.to_vec();
    bytes.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
    bytes.extend(body);
    if body.len() % 2 == 1 {
        bytes.push(0);
    }
    bytes
}

/// The extended header of a WebP.
pub(crate) fn vp8x(flags: u8, size: (u32, u32)) -> Vec<u8> {
    let mut body = vec![flags, 0, 0, 0];
    body.extend(&(size.0 - 1).to_le_bytes()[..3]);
    body.extend(&(size.1 - 1).to_le_bytes()[..3]);
    riff(*b"VP8X", &body)
}

/// Lossless image data, the header of it.
pub(crate) fn vp8l(size: (u32, u32), has_alpha: bool) -> Vec<u8> {
    let bits = (size.0 - 1) | ((size.1 - 1) << 14) | (u32::from(has_alpha) << 28);
    let mut body = vec![0x2F];
    body.extend(bits.to_le_bytes());
    riff(*b"VP8L", &body)
}

/// Lossy image data, the header of it.
pub(crate) fn vp8(size: (u16, u16)) -> Vec<u8> {
    let mut body = vec![0x10, 0, 0, 0x9D, 0x01, 0x2A];
    body.extend(size.0.to_le_bytes());
    body.extend(size.1.to_le_bytes());
    riff(*b"VP8 ", &body)
}

/// A GIF with a color table of two and `blocks` behind it.
pub(crate) fn gif(size: (u16, u16), blocks: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = b"GIF89a".to_vec();
    bytes.extend(size.0.to_le_bytes());
    bytes.extend(size.1.to_le_bytes());
    bytes.extend([0x80, 0, 0, 255, 0, 0, 0, 255, 0]);
    bytes.extend(blocks.concat());
    bytes.push(b';');
    bytes
}

/// A GIF image of one data block.
pub(crate) fn gif_image(place: (u16, u16), size: (u16, u16)) -> Vec<u8> {
    let mut bytes = vec![b','];
    for number in [place.0, place.1, size.0, size.1] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend([0, 2, 2, 0x44, 0x01, 0]);
    bytes
}

/// A bitmap with its file header; the palette, if any, is grey.
pub(crate) fn bmp(size: (u32, u32), bits: u16) -> Vec<u8> {
    let colors = if bits <= 8 { 1_u32 << bits } else { 0 };
    let mut bytes = b"BM".to_vec();
    for number in [0, 0, 54 + 4 * colors, 40, size.0, size.1] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend([1, 0]);
    bytes.extend(bits.to_le_bytes());
    bytes.extend([0; 24]);
    for level in 0..colors {
        let level = if colors == 2 { 255 * level } else { level };
        let level = u8::try_from(level).unwrap();
        bytes.extend([level, level, level, 0]);
    }
    bytes.extend([0; 4]);
    bytes
}

/// An ISO base media box.
pub(crate) fn iso_box(kind: [u8; 4], body: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(body.len() + 8)
        .unwrap()
        .to_be_bytes()
        .to_vec();
    bytes.extend(kind);
    bytes.extend(body);
    bytes
}

/// A HEIF file whose primary item has that size and those further properties.
pub(crate) fn heif(brand: [u8; 4], size: (u32, u32), properties: &[Vec<u8>]) -> Vec<u8> {
    let mut extent = vec![0; 4];
    extent.extend(size.0.to_be_bytes());
    extent.extend(size.1.to_be_bytes());
    let mut container = iso_box(*b"ispe", &extent);
    container.extend(properties.concat());
    let count = u8::try_from(properties.len() + 1).unwrap();
    let mut associations = vec![0, 0, 0, 0, 0, 0, 0, 1, 0, 1, count];
    associations.extend(1..=count);
    let mut item_properties = iso_box(*b"ipco", &container);
    item_properties.extend(iso_box(*b"ipma", &associations));
    let mut meta = vec![0; 4];
    meta.extend(iso_box(*b"pitm", &[0, 0, 0, 0, 0, 1]));
    meta.extend(iso_box(*b"iprp", &item_properties));
    let mut file_type = brand.to_vec();
    file_type.extend([0; 4]);
    file_type.extend(brand);
    let mut bytes = iso_box(*b"ftyp", &file_type);
    bytes.extend(iso_box(*b"meta", &meta));
    bytes
}

/// An XMP segment that states an orientation.
const XMP: &[u8] = b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta tiff:Orientation=\"8\"/>";

/// The index of a JPEG with further pictures behind it.
pub(crate) fn picture_index(count: u32) -> Vec<u8> {
    let mut bytes = b"MPF\0II*\0\x08\0\0\0".to_vec();
    bytes.extend(directory(
        &[(0xB001, 4, 1, count), (0xB002, 7, 16 * count, 38)],
        0,
    ));
    bytes.resize(bytes.len() + 16 * count as usize, 0);
    bytes
}

/// A compressed text that spells out an EXIF block.
pub(crate) fn raw_profile(orientation: u16) -> Vec<u8> {
    let block = exif(orientation);
    let nibbles = block.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let digits: String = nibbles
        .filter_map(|nibble| char::from_digit(nibble.into(), 16))
        .collect();
    let profile = format!("\nexif\n{:8}\n{digits}\n", block.len());
    [
        b"Raw profile type exif\0\0",
        &stored(profile.as_bytes())[..],
    ]
    .concat()
}

/// One sound file of every format, with its name.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn every_format() -> Vec<(&'static str, Vec<u8>)> {
    let oriented = |orientation| {
        let mut body = b"Exif\0\0".to_vec();
        body.extend(exif(orientation));
        segment(0xE1, &body)
    };
    let number = |value: u32| value.to_be_bytes().to_vec();
    let little = |value: u32| value.to_le_bytes().to_vec();
    vec![
        ("JPEG", jpeg((24, 16), 3, &[oriented(6)])),
        ("PNG", png((24, 16), 8, 6, &[chunk(*b"eXIf", &exif(3))])),
        (
            "PNG",
            png((24, 16), 8, 0, &[chunk(*b"zTXt", &raw_profile(6))]),
        ),
        ("JPEG", jpeg((24, 16), 1, &[segment(0xE1, XMP)])),
        (
            "MPO",
            jpeg((24, 16), 3, &[segment(0xE2, &picture_index(2))]),
        ),
        (
            "WEBP",
            webp(&[
                vp8x(0x18, (24, 16)),
                vp8l((24, 16), true),
                riff(*b"EXIF", &exif(8)),
            ]),
        ),
        ("WEBP", webp(&[vp8((24, 16))])),
        ("WEBP", webp(&[vp8l((24, 16), false)])),
        (
            "GIF",
            gif(
                (24, 16),
                &[gif_image((0, 0), (24, 16)), gif_image((0, 0), (24, 16))],
            ),
        ),
        ("BMP", bmp((24, 16), 8)),
        ("BMP", bmp((24, 16), 24)),
        ("DIB", bmp((24, 16), 24)[14..].to_vec()),
        ("TIFF", tiff((24, 16), &[(0x0112, 3, 1, 3)])),
        ("TIFF", big_tiff((24, 16), false)),
        ("TIFF", big_tiff((24, 16), true)),
        ("AVIF", heif(*b"avif", (24, 16), &[iso_box(*b"irot", &[1])])),
        ("HEIF", heif(*b"heic", (24, 16), &[])),
        (
            "JXL",
            // In eighths, 16 high, 3:2 wide, no metadata.
            [
                0xFF,
                0x0A,
                0b0000_0011,
                0b0000_0011,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
            ]
            .to_vec(),
        ),
        (
            "JPEG2000",
            [
                iso_box(*b"jP  ", b"\r\n\x87\n"),
                iso_box(*b"ftyp", b"jp2 \0\0\0\0jp2 "),
                iso_box(
                    *b"jp2h",
                    &iso_box(
                        *b"ihdr",
                        &[number(16), number(24), vec![0, 3, 7, 7, 0, 0]].concat(),
                    ),
                ),
            ]
            .concat(),
        ),
        ("PPM", b"P6 # made by code\n24 16\n255\n......".to_vec()),
        (
            "PPM",
            b"P7\nWIDTH 24\nHEIGHT 16\nDEPTH 4\nMAXVAL 255\nTUPLTYPE RGB_ALPHA\nENDHDR\n".to_vec(),
        ),
        (
            "QOI",
            [b"qoif".to_vec(), number(24), number(16), vec![4, 0]].concat(),
        ),
        (
            "PSD",
            [
                b"8BPS\0\x01\0\0\0\0\0\0\0\x03".to_vec(),
                number(16),
                number(24),
                vec![0, 8, 0, 3],
            ]
            .concat(),
        ),
        (
            "DDS",
            [
                b"DDS ".to_vec(),
                little(124),
                little(0),
                little(16),
                little(24),
                vec![0; 108],
            ]
            .concat(),
        ),
        (
            "ICO",
            [
                vec![
                    0, 0, 1, 0, 1, 0, 24, 16, 0, 0, 1, 0, 24, 0, 0, 0, 0, 0, 22, 0, 0, 0,
                ],
                bmp((24, 32), 24)[14..].to_vec(),
            ]
            .concat(),
        ),
        (
            "CUR",
            [
                vec![
                    0, 0, 2, 0, 1, 0, 24, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 22, 0, 0, 0,
                ],
                bmp((24, 32), 24)[14..].to_vec(),
            ]
            .concat(),
        ),
        (
            "PCX",
            [
                vec![10, 5, 1, 8, 0, 0, 0, 0, 23, 0, 15, 0],
                vec![0; 53],
                vec![3, 24, 0],
            ]
            .concat(),
        ),
        ("SGI", vec![1, 0xDA, 0, 1, 0, 3, 0, 24, 0, 16, 0, 3]),
        (
            "TGA",
            vec![0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 24, 0, 16, 0, 24, 0],
        ),
    ]
}
