//! A megabyte of whatever costs a parser most: an answer or an error, and never a runaway.
//!
//! That each walk ends after [`MAX_STEPS`] steps is what bounds the time; the bench report counts
//! the instructions of these very inputs.

mod media;

use media::{
    chunk, directory, exif, gif, gif_image, hostile_megabytes, iso_box, jpeg, png, segment, tiff,
};
use safelight_core::limits::{MAX_ID_BYTES, MAX_STEPS};
use safelight_core::probe::{Prefix, probe, probe_prefix};
use safelight_core::{ErrorKind, exif as reader};

#[test]
fn every_megabyte_ends_in_an_answer_or_an_error() {
    for (name, bytes) in hostile_megabytes() {
        let whole = probe(&bytes);
        let prefix = probe_prefix(&bytes);
        match (whole, prefix) {
            (Err(_), Err(_) | Ok(Prefix::NeedMoreBytes(_))) => {}
            (Ok(whole), Ok(Prefix::Header(header))) => assert_eq!(whole, header, "{name}"),
            (Ok(_), Ok(Prefix::NeedMoreBytes(_))) => {}
            (whole, prefix) => panic!("{name}: {whole:?} and {prefix:?}"),
        }
    }
}

#[test]
fn segments_without_end_are_refused_at_the_budget() {
    let count = MAX_STEPS as usize;
    let many = jpeg((8, 8), 3, &vec![segment(0xFE, b""); count]);
    assert_eq!(probe(&many).unwrap_err().error.kind(), ErrorKind::Malformed);
    let few = jpeg((8, 8), 3, &vec![segment(0xFE, b""); 1000]);
    assert!(probe(&few).is_ok());
    let many = png((8, 8), 8, 2, &vec![chunk(*b"teSt", b""); count]);
    assert_eq!(probe(&many).unwrap_err().error.kind(), ErrorKind::Malformed);
}

#[test]
fn a_directory_that_points_at_itself_is_read_once() {
    let mut looped = b"II*\0\x08\0\0\0".to_vec();
    looped.extend(directory(&[(0x0112, 3, 1, 6), (0x8769, 4, 1, 8)], 8));
    assert_eq!(reader::parse(&looped).orientation, Some(6));

    let mut pages = tiff((8, 8), &[]);
    let next = pages.len() - 4;
    pages[next] = 8;
    let header = probe(&pages).unwrap();
    assert_eq!(
        (header.frame_count, header.is_animated),
        (Some(1), Some(false))
    );
}

#[test]
fn a_chain_of_pages_without_end_has_no_count() {
    let mut bytes = tiff((8, 8), &[]);
    for page in 0..2000_u32 {
        let at = u32::try_from(bytes.len()).unwrap();
        let end = bytes.len() - 4;
        bytes[end..].copy_from_slice(&at.to_le_bytes());
        bytes.extend(directory(&[(254, 4, 1, page)], 0));
    }
    let header = probe(&bytes).unwrap();
    assert_eq!(header.frame_count, None);
}

#[test]
fn a_first_frame_without_end_leaves_animation_open() {
    let mut image = gif_image((0, 0), (8, 8));
    image.pop();
    image.extend([1, 0].repeat(MAX_STEPS as usize));
    image.truncate(image.len() - 1);
    let header = probe(&gif((8, 8), &[image])).unwrap();
    assert_eq!(header.is_animated, None);
}

#[test]
fn an_endless_id_is_no_id() {
    let block = |length: usize| {
        let mut bytes = b"II*\0\x08\0\0\0".to_vec();
        let count = u32::try_from(length).unwrap();
        bytes.extend(directory(&[(0x800D, 2, count, 26)], 0));
        bytes.extend(vec![b'x'; length]);
        reader::parse(&bytes).image_id.map(|id| id.len())
    };
    assert_eq!(block(MAX_ID_BYTES), Some(MAX_ID_BYTES));
    assert_eq!(block(MAX_ID_BYTES + 1), None);
}

#[test]
fn boxes_of_every_odd_size_end() {
    for kind in [*b"meta", *b"jxlp", *b"jp2h", *b"moov"] {
        for size in [0_u32, 1, 2, 7, 8, 0xFFFF_FFFF] {
            for start in [
                iso_box(*b"ftyp", b"avif\0\0\0\0avif"),
                iso_box(*b"ftyp", b"avis\0\0\0\0avis"),
                b"\0\0\0\x0CJXL \r\n\x87\n".to_vec(),
                b"\0\0\0\x0CjP  \r\n\x87\n".to_vec(),
            ] {
                let mut bytes = start;
                bytes.extend(size.to_be_bytes());
                bytes.extend(kind);
                bytes.extend([0; 16]);
                assert!(probe(&bytes).is_err());
            }
        }
    }
}

#[test]
fn offsets_beyond_any_file_are_no_harm() {
    let mut bytes = b"II\x2B\0\x08\0\0\0".to_vec();
    bytes.extend(u64::MAX.to_le_bytes());
    assert!(probe(&bytes).is_err());
    let mut bytes = b"II*\0".to_vec();
    bytes.extend(u32::MAX.to_le_bytes());
    assert!(probe(&bytes).is_err());
    let cut = &exif(6)[..20];
    assert_eq!(reader::parse(cut).orientation, None);
}
