//! Writes the seed corpus: one sound file of each format, a hostile one of each kind, EXIF blocks.
//!
//! `cargo run --example seeds`, from this folder; cargo-fuzz finds them under `corpus/`.

#[path = "../../core/tests/media/mod.rs"]
mod media;

use std::fs;
use std::path::Path;

/// Longer inputs slow the fuzzer down without showing it anything new.
const SEED_BYTES: usize = 4096;

fn main() -> std::io::Result<()> {
    let mut files: Vec<Vec<u8>> = Vec::new();
    files.extend(media::every_format().into_iter().map(|(_, bytes)| bytes));
    files.extend(
        media::hostile_megabytes()
            .into_iter()
            .map(|(_, bytes)| bytes),
    );
    for bytes in &mut files {
        bytes.truncate(SEED_BYTES);
    }
    write("probe_whole", &files)?;
    // The last two bytes of an input are the cut.
    let cut = files.iter().map(|bytes| [&bytes[..], &[16, 0]].concat());
    write("probe_prefix", &cut.collect::<Vec<_>>())?;
    let blocks = (1..=8)
        .map(media::exif)
        .chain([[&b"Exif\0\0"[..], &media::exif(6)].concat()]);
    write("exif", &blocks.collect::<Vec<_>>())
}

fn write(target: &str, seeds: &[Vec<u8>]) -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    fs::create_dir_all(&folder)?;
    for (number, seed) in seeds.iter().enumerate() {
        fs::write(folder.join(format!("seed-{number:03}")), seed)?;
    }
    Ok(())
}
