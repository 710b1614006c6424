//! Real files: the probe agrees with what Pillow made of them, and no prefix contradicts.
//!
//! The files lie outside the repository; without their folder the tests pass and say so.
//! Whatever crashed a fuzz target lies in `tests/data/crashes` and is read always.

use std::fs;
use std::path::{Path, PathBuf};

use safelight_core::probe::{Format, ImageHeader, Prefix, probe, probe_prefix};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Prefixes are tried at every length up to this.
const PREFIX_BYTES: usize = 4096;

/// Formats of which mode, orientation and ids are promised, besides the size.
const FULL: &[Format] = &[
    Format::Bmp,
    Format::Dib,
    Format::Gif,
    Format::Jpeg,
    Format::Mpo,
    Format::Png,
    Format::Tiff,
    Format::WebP,
];

/// Formats that Pillow opens and the probe names, but does not read.
const UNSERVED: &[&str] = &[
    "BLP", "DCX", "EPS", "FITS", "FLI", "FTEX", "GBR", "GRIB", "HDF5", "IMT", "MCIDAS", "MSP",
    "SUN", "WMF", "XBM", "XPM", "XVThumb",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[expect(clippy::print_stderr, reason = "a skipped test says why")]
fn corpus() -> Option<PathBuf> {
    let folder = std::env::var_os("SAFELIGHT_CORPUS").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: no corpus of real files; set SAFELIGHT_CORPUS to its folder");
    }
    folder
}

/// What `truth.jsonl` says of each file, and its bytes.
fn truths(corpus: &Path) -> impl Iterator<Item = (String, Value, Vec<u8>)> {
    let lines = fs::read_to_string(corpus.join("truth.jsonl")).unwrap();
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let corpus = corpus.to_owned();
    lines.into_iter().map(move |line| {
        let name = line["file"].as_str().unwrap().to_owned();
        let bytes = fs::read(corpus.join(&name)).unwrap();
        (name, line["pillow"].clone(), bytes)
    })
}

fn assert_agrees(name: &str, header: &ImageHeader, truth: &Value) {
    assert_eq!(header.format.name(), truth["format"], "{name}");
    assert_eq!(
        Value::from(vec![header.width, header.height]),
        truth["size"],
        "{name}"
    );
    if FULL.contains(&header.format) || header.format == Format::Avif {
        let stated = truth["orientation"].as_u64().unwrap_or(1);
        let stated = if (1..=8).contains(&stated) { stated } else { 1 };
        assert_eq!(u64::from(header.orientation), stated, "{name}");
    }
    if let Some(upright) = truth.get("upright_size") {
        let (width, height) = header.upright_size;
        assert_eq!(&Value::from(vec![width, height]), upright, "{name}");
    }
    if let Some(mode) = header.mode.filter(|_| header.format != Format::Icns) {
        assert_eq!(mode, truth["mode"], "{name}");
    }
    if let (Some(count), Some(frames)) = (header.frame_count, truth["n_frames"].as_u64()) {
        assert_eq!(u64::from(count), frames, "{name}");
    }
    if let (Some(is_animated), Some(frames)) = (header.is_animated, truth["n_frames"].as_u64()) {
        assert_eq!(is_animated, frames > 1, "{name}");
    }
    if FULL.contains(&header.format) {
        assert!(header.mode.is_some(), "{name}");
        let id = header.image_unique_id.as_ref().map(|id| {
            let digest = Sha256::digest(id.as_bytes());
            let (head, _) = digest.split_first_chunk::<8>().unwrap();
            let digest = format!("{:016x}", u64::from_be_bytes(*head));
            serde_json::json!({"chars": id.chars().count(), "sha": digest})
        });
        assert_eq!(id.as_ref(), truth.get("unique_id"), "{name}");
    }
}

/// Prefixes never contradict the whole.
fn assert_prefixes_agree(name: &str, bytes: &[u8]) {
    let whole = probe(bytes);
    for length in 0..=bytes.len().min(PREFIX_BYTES) {
        match probe_prefix(&bytes[..length]) {
            // What a PNG states behind its pixels is not in its first bytes.
            Ok(Prefix::Header(header)) if header.format == Format::Png => {
                let whole = whole.as_ref().unwrap();
                let stored = (whole.width, whole.height, whole.mode);
                assert_eq!(stored, (header.width, header.height, header.mode), "{name}");
            }
            Ok(Prefix::Header(header)) => assert_eq!(whole.as_ref(), Ok(&header), "{name}"),
            Ok(Prefix::NeedMoreBytes(need)) => {
                assert!(
                    need.at_least.is_none_or(|least| least > length as u64),
                    "{name} at {length}"
                );
            }
            Err(_) => assert!(whole.is_err(), "{name} refused at {length}"),
        }
    }
}

#[test]
fn every_file_that_pillow_opens_has_its_header() {
    let Some(corpus) = corpus() else { return };
    for (name, truth, bytes) in truths(&corpus) {
        if truth["open"] != Value::Bool(true) {
            continue;
        }
        match probe(&bytes) {
            Ok(header) => assert_agrees(&name, &header, &truth),
            Err(error) => {
                let format = truth["format"].as_str().unwrap();
                assert!(UNSERVED.contains(&format), "{name}: {error}");
            }
        }
    }
}

#[test]
fn no_prefix_of_a_real_file_contradicts_the_whole() {
    let Some(corpus) = corpus() else { return };
    for (name, _, bytes) in truths(&corpus) {
        assert_prefixes_agree(&name, &bytes);
    }
}

#[test]
fn what_crashed_once_crashes_no_more() {
    let Ok(folder) = fs::read_dir(root().join("tests/data/crashes")) else {
        return;
    };
    for entry in folder {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        assert_prefixes_agree(&path.display().to_string(), &bytes);
        let _ = safelight_core::exif::parse(&bytes);
    }
}
