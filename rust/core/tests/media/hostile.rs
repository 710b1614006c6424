//! Inputs that cost a parser most for their length.

use super::{chunk, gif, gif_image, heif, iso_box, jpeg, png, riff, segment, stored, vp8x, webp};

/// A megabyte of each structure that costs a parser most, by name.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn hostile_megabytes() -> Vec<(&'static str, Vec<u8>)> {
    const MEGABYTE: usize = 1 << 20;
    let fill = |start: &[u8], unit: &[u8]| {
        let mut bytes = start.to_vec();
        while bytes.len() < MEGABYTE {
            bytes.extend(unit);
        }
        bytes
    };
    let jpeg_start = &[0xFF, 0xD8, 0xFF, 0xFF][..];
    let png_start = &png((8, 8), 8, 2, &[])[..33];
    let webp_start = &webp(&[vp8x(0x0C, (8, 8))])[..];
    let mut webp_start = webp_start.to_vec();
    webp_start[4..8].copy_from_slice(&[0, 0, 0x20, 0]);
    let gif_start = &gif((8, 8), &[])[..19];
    let mut part = b"Exif\0\0".to_vec();
    part.extend([0; 2]);
    let digits = vec![b'a'; 1 << 19];
    let raw_profile = [b"Raw profile type exif\0\n\n\n", &digits[..]].concat();
    let xmp = [
        b"XML:com.adobe.xmp\0\0\0\0\0",
        &b"tiff:Orientatio ".repeat(1 << 15)[..],
    ]
    .concat();
    let bomb = [
        &b"Raw profile type exif\0\0"[..],
        &stored(&vec![b'\n'; MEGABYTE]),
    ]
    .concat();
    let wide_directory = |start: &[u8], tag: u16| {
        let mut bytes = start.to_vec();
        bytes.extend(u16::MAX.to_le_bytes());
        for index in 0..u16::MAX {
            // Sorted backwards, and out of line: each is compared with all before it.
            bytes.extend((u16::MAX - index).to_le_bytes());
            bytes.extend([1, 0, 8, 0, 0, 0]);
            bytes.extend(u32::from(tag).to_le_bytes());
        }
        bytes
    };
    vec![
        ("JPEG segments", fill(jpeg_start, &segment(0xFE, b""))),
        ("JPEG fill bytes", fill(jpeg_start, &[0xFF])),
        ("JPEG escaped bytes", fill(jpeg_start, &[0xFF, 0])),
        ("JPEG junk", fill(jpeg_start, &[0xFF, 0, 1])),
        ("JPEG restart markers", fill(jpeg_start, &[0xFF, 0xD0])),
        (
            "JPEG EXIF segments",
            fill(jpeg_start, &segment(0xE1, &part)),
        ),
        (
            "JPEG frame headers",
            fill(jpeg_start, &jpeg((8, 8), 1, &[])[2..15]),
        ),
        ("PNG chunks", fill(png_start, &chunk(*b"teSt", b""))),
        (
            "PNG text",
            fill(png_start, &chunk(*b"tEXt", b"Raw profile type exif\0")),
        ),
        (
            "PNG raw profile",
            png((8, 8), 8, 2, &[chunk(*b"tEXt", &raw_profile)]),
        ),
        ("PNG XMP", png((8, 8), 8, 2, &[chunk(*b"iTXt", &xmp)])),
        ("PNG bomb", png((8, 8), 8, 2, &[chunk(*b"zTXt", &bomb)])),
        ("WebP chunks", fill(&webp_start, &riff(*b"TEST", b""))),
        ("WebP frames", fill(&webp_start, &riff(*b"ANMF", b""))),
        (
            "GIF blocks",
            fill(
                &[gif_start, &gif_image((0, 0), (8, 8))[..12]].concat(),
                &[1, 0],
            ),
        ),
        ("GIF extensions", fill(gif_start, &[b'!', 0xF9, 1, 0, 0])),
        ("GIF junk", fill(gif_start, &[0])),
        ("TIFF entries", wide_directory(b"II*\0\x08\0\0\0", 0)),
        (
            "EXIF entries",
            png(
                (8, 8),
                8,
                2,
                &[chunk(*b"eXIf", &wide_directory(b"II*\0\x08\0\0\0", 0))],
            ),
        ),
        (
            "AVIF boxes",
            fill(
                &iso_box(*b"ftyp", b"avif\0\0\0\0avif"),
                &iso_box(*b"free", b""),
            ),
        ),
        (
            "AVIF properties",
            fill(
                &iso_box(*b"ftyp", b"avif\0\0\0\0avif"),
                &heif(*b"avif", (8, 8), &vec![iso_box(*b"free", b""); 200]),
            ),
        ),
        (
            "JXL boxes",
            fill(b"\0\0\0\x0CJXL \r\n\x87\n", &iso_box(*b"free", b"")),
        ),
        ("PPM comments", fill(b"P6 ", b"#\n")),
        ("PPM spaces", fill(b"P6 ", b" ")),
        (
            "ICNS blocks",
            fill(b"icns\0\x20\0\0", &[b'T', b'E', b'S', b'T', 0, 0, 0, 8]),
        ),
        ("XML", fill(b"<?xml?>", b"<a>")),
    ]
}
