//! What the probe answers for media made by code, whole and cut at every byte.

mod media;

use media::{
    chunk, directory, every_format, exif, gif, gif_image, heif, iso_box, jpeg, png, raw_profile,
    riff, segment, stored, tiff, vp8l, vp8x, webp,
};
use proptest::prelude::*;
use safelight_core::probe::{
    Declared, Format, ImageHeader, Prefix, probe, probe_file, probe_prefix,
};
use safelight_core::{ErrorKind, exif};

/// The answer for every prefix follows from the answer for the whole.
fn assert_prefixes_agree(bytes: &[u8], lengths: impl Iterator<Item = usize>) {
    let whole = probe(bytes);
    let mut answered = None;
    for length in lengths {
        match probe_prefix(&bytes[..length]) {
            Ok(Prefix::Header(header)) => {
                assert_eq!(
                    whole.as_ref(),
                    Ok(&header),
                    "at {length} of {}",
                    bytes.len()
                );
                answered = Some(length);
            }
            Ok(Prefix::NeedMoreBytes(need)) => {
                assert_eq!(answered, None, "an answer was taken back at {length}");
                assert!(need.at_least.is_none_or(|least| least > length as u64));
            }
            Err(_) => assert!(
                whole.is_err(),
                "refused at {length}, but the whole is sound"
            ),
        }
    }
}

fn header(bytes: &[u8]) -> ImageHeader {
    probe(bytes).unwrap()
}

#[test]
fn every_format_tells_its_name_and_size() {
    for (name, bytes) in every_format() {
        let header = probe(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(header.format.name(), name);
        assert_eq!((header.width, header.height), (24, 16), "{name}");
    }
}

#[test]
fn every_prefix_of_every_format_agrees_with_the_whole() {
    for (_, bytes) in every_format() {
        assert_prefixes_agree(&bytes, 0..=bytes.len());
        let last = probe_prefix(&bytes).unwrap();
        let is_answered = matches!(last, Prefix::Header(_));
        // Only a file whose end is told by its end alone leaves the question open.
        assert!(is_answered || probe(&bytes).unwrap().format == Format::Tga);
    }
}

#[test]
fn names_are_unique_and_lead_back() {
    for &format in Format::ALL {
        assert_eq!(Format::by_name(format.name()), Some(format));
    }
    assert_eq!(Format::Mpo.mime_type(), "image/jpeg");
}

#[test]
fn exif_facts_are_read_in_every_container() {
    let mut body = b"Exif\0\0".to_vec();
    body.extend(exif(6));
    for bytes in [
        jpeg((24, 16), 3, &[segment(0xE1, &body)]),
        png((24, 16), 8, 2, &[chunk(*b"eXIf", &exif(6))]),
        png((24, 16), 8, 2, &[chunk(*b"eXIf", &body)]),
        webp(&[
            vp8x(0x08, (24, 16)),
            vp8l((24, 16), false),
            riff(*b"EXIF", &exif(6)),
        ]),
    ] {
        let header = header(&bytes);
        assert_eq!(header.orientation, 6, "{}", header.format);
        assert_eq!(header.upright_size, (16, 24));
        let id = header.image_id.as_deref();
        assert_eq!(id, Some("0b9c1f6e-7a3f-4c55-9a86-3f5f0d1c2b3a"));
        assert_eq!(header.image_unique_id.as_deref(), Some("0123456789abcdef"));
    }
}

#[test]
fn a_turned_tiff_is_not_turned_again() {
    let header = header(&tiff((24, 16), &[(0x0112, 3, 1, 6)]));
    assert_eq!((header.width, header.height), (16, 24));
    assert_eq!(header.upright_size, (16, 24));
    assert_eq!(header.orientation, 6);
}

#[test]
fn an_orientation_counts_in_any_numeric_type() {
    let entry = |kind, value| {
        let mut bytes = b"II*\0\x08\0\0\0".to_vec();
        bytes.extend(directory(&[(0x0112, kind, 1, value)], 0));
        exif::parse(&bytes).orientation
    };
    for kind in [3, 4, 6, 8, 9, 13] {
        assert_eq!(entry(kind, 6), Some(6), "type {kind}");
    }
    assert_eq!(entry(11, 6.0_f32.to_bits()), Some(6));
    // Bytes and text do not count, but they keep XMP from being asked.
    for kind in [1, 2, 7] {
        assert_eq!(entry(kind, 6), Some(1), "type {kind}");
    }
    assert_eq!(entry(3, 9), Some(1));
    assert_eq!(entry(99, 6), None);
}

#[test]
fn values_may_lie_in_the_second_exif_segment() {
    let block = exif(6);
    for cut in 1..block.len() {
        let (first, second) = block.split_at(cut);
        let part = |part: &[u8]| segment(0xE1, &[b"Exif\0\0", part].concat());
        let header = header(&jpeg((24, 16), 3, &[part(first), part(second)]));
        assert_eq!(header.orientation, 6, "cut at {cut}");
        assert!(header.image_id.is_some() && header.image_unique_id.is_some());
    }
}

#[test]
fn compressed_text_is_read_within_a_bound() {
    let orientation =
        |text: &[u8]| header(&png((1, 1), 8, 0, &[chunk(*b"zTXt", text)])).orientation;
    assert_eq!(orientation(&raw_profile(6)), 6);
    let bomb = stored(&vec![b'0'; 1 << 20]);
    assert_eq!(
        orientation(&[b"Raw profile type exif\0\0", &bomb[..]].concat()),
        1
    );
}

#[test]
fn what_is_promised_by_the_flags_is_waited_for() {
    let bytes = webp(&[
        vp8x(0x08, (300, 200)),
        vp8l((300, 200), false),
        riff(*b"EXIF", &exif(6)),
    ]);
    let Ok(Prefix::NeedMoreBytes(need)) = probe_prefix(&bytes[..64]) else {
        panic!("the EXIF chunk has not arrived");
    };
    let Declared { format, size } = need.declared;
    assert_eq!((format, size), (Some(Format::WebP), Some((300, 200))));
}

#[test]
fn a_canvas_grows_to_hold_the_first_frame() {
    let header = header(&gif((2, 1), &[gif_image((1, 0), (3, 1))]));
    assert_eq!((header.width, header.height), (4, 1));
    assert_eq!(
        (header.is_animated, header.frame_count),
        (Some(false), None)
    );
}

#[test]
fn turns_and_mirrors_become_orientations() {
    let orientation =
        |properties: &[Vec<u8>]| header(&heif(*b"avif", (2, 1), properties)).orientation;
    let turn = |turns| iso_box(*b"irot", &[turns]);
    let mirror = |axis| iso_box(*b"imir", &[axis]);
    assert_eq!(orientation(&[]), 1);
    assert_eq!(
        [1, 2, 3].map(|turns| orientation(&[turn(turns)])),
        [8, 3, 6]
    );
    assert_eq!([0, 1].map(|axis| orientation(&[mirror(axis)])), [4, 2]);
    assert_eq!(
        [0, 1].map(|axis| orientation(&[turn(1), mirror(axis)])),
        [5, 7]
    );
    assert_eq!(
        [0, 1].map(|axis| orientation(&[turn(2), mirror(axis)])),
        [2, 4]
    );
    assert_eq!(
        [0, 1].map(|axis| orientation(&[turn(3), mirror(axis)])),
        [7, 5]
    );
}

#[test]
fn a_refusal_says_what_it_was() {
    for (name, bytes) in [
        ("EPS", &b"%!PS-Adobe-3.0 EPSF-3.0\n"[..]),
        ("PDF", b"%PDF-1.7\n"),
        ("MP4", b"\0\0\0\x18ftypisom\0\0\0\0isommp41"),
        ("QuickTime", b"\0\0\0\x14ftypqt  \0\0\0\0qt  "),
        (
            "WebM",
            b"\x1A\x45\xDF\xA3\x9F\x42\x86\x81\x01\x42\x82\x84webm",
        ),
        (
            "Matroska",
            b"\x1A\x45\xDF\xA3\x9F\x42\x86\x81\x01\x42\x82\x88matroska",
        ),
        (
            "SVG",
            b"\xEF\xBB\xBF<?xml version='1.0'?>\n<svg xmlns='http://www.w3.org/2000/svg'/>",
        ),
        ("HTML", b"  <!DOCTYPE html><title>404</title>"),
        ("WAV", b"RIFF\0\0\0\0WAVEfmt "),
        ("gzip", b"\x1F\x8B\x08\0"),
    ] {
        let error = probe(bytes).unwrap_err().error;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
        assert!(error.message().starts_with(name), "{error}");
        assert_prefixes_agree(bytes, 0..=bytes.len());
    }
}

#[test]
fn nothing_and_noise_are_no_images() {
    for bytes in [
        &b""[..],
        b"h",
        b"hello, world, this is a line of plain text and no image",
    ] {
        let error = probe(bytes).unwrap_err().error;
        assert!(matches!(
            error.kind(),
            ErrorKind::Truncated | ErrorKind::Malformed
        ));
    }
    assert!(matches!(probe_prefix(b""), Ok(Prefix::NeedMoreBytes(_))));
}

#[test]
fn a_whole_png_is_read_behind_its_pixels() {
    let still = |behind: &[Vec<u8>]| {
        let whole = png((24, 16), 8, 2, &[]);
        let (front, end) = whole.split_at(whole.len() - 12);
        [front, &behind.concat(), end].concat()
    };
    let late = still(&[chunk(*b"IDAT", b"x"), chunk(*b"eXIf", &exif(6))]);
    assert_eq!(header(&late).orientation, 6);
    assert_eq!(header(&late).upright_size, (16, 24));
    let Ok(Prefix::Header(early)) = probe_prefix(&late) else {
        panic!("the header is there before the pixels");
    };
    assert_eq!((early.upright_size, early.orientation), ((24, 16), 1));

    let path = std::env::temp_dir().join(format!("safelight-late-{}.png", std::process::id()));
    let long = still(&[chunk(*b"IDAT", &[7; 9000]), chunk(*b"eXIf", &exif(8))]);
    std::fs::write(&path, &long).unwrap();
    let found = probe_file(&path, &mut Vec::new()).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(found, Ok(header(&long)));
    assert_eq!(found.unwrap().orientation, 8);
}

#[test]
fn what_is_declared_before_the_damage_is_told() {
    let size = (24, 16);
    let broken_png = [&png(size, 8, 2, &[])[..33], &b"\0\0\0\x01\0\0\0\0xxxxx"[..]].concat();
    let broken_webp = webp(&[vp8x(0x10, size), riff(*b"VP8L", b"damage")]);
    let mut twelve_bit = jpeg((24, 16), 3, &[]);
    let frame = twelve_bit
        .windows(2)
        .position(|pair| pair == [0xFF, 0xC0])
        .unwrap();
    twelve_bit[frame + 4] = 12;
    for (name, bytes) in [
        ("PNG", &broken_png),
        ("WEBP", &broken_webp),
        ("JPEG", &twelve_bit),
    ] {
        for error in [probe(bytes).unwrap_err(), probe_prefix(bytes).unwrap_err()] {
            assert_eq!(error.declared.size, Some(size), "{name}: {error}");
            assert_eq!(error.declared.format.unwrap().name(), name);
        }
    }
}

#[test]
fn a_size_is_told_long_before_its_header_ends() {
    let long = vec![0; 1 << 16];
    let comment = [&b"P6 24 16 #"[..], &long].concat();
    let ihdr = [
        &b"\0\0\0\x10\0\0\0\x18\0\x03\x08\0\0\0"[..],
        &iso_box(*b"colr", &long),
    ]
    .concat();
    let signature = b"\0\0\0\x0cjP  \r\n\x87\n";
    let jp2_header = [&22_u32.to_be_bytes()[..], b"ihdr", &ihdr].concat();
    let jp2 = [&signature[..], &iso_box(*b"jp2h", &jp2_header)[..]].concat();
    // A longer image header than there is: its size is the first in it.
    let mut long_png = png((24, 16), 8, 2, &[]);
    long_png.splice(8..12, [0, 1, 0, 0]);
    let screen = [&gif((24, 16), &[])[..13], &b"!\xfe"[..], &[1; 4096]].concat();
    for (name, bytes) in [
        ("PPM", comment),
        ("JPEG2000", jp2),
        ("PNG", long_png),
        ("GIF", screen),
    ] {
        let Ok(Prefix::NeedMoreBytes(need)) = probe_prefix(&bytes[..bytes.len().min(4000)]) else {
            panic!("{name} is not complete");
        };
        assert_eq!(need.declared.size, Some((24, 16)), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn damaged_files_never_panic_and_prefixes_still_agree(
        which in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..16),
    ) {
        let mut files = every_format();
        let (_, mut bytes) = files.swap_remove(which.index(files.len()));
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        assert_prefixes_agree(&bytes, cuts.into_iter());
    }

    #[test]
    fn any_bytes_are_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        assert_prefixes_agree(&bytes, [bytes.len() / 2, bytes.len()].into_iter());
        let _ = exif::parse(&bytes);
    }
}
