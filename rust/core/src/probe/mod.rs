//! Every header, no pixels: what an image is, from its first bytes.
//!
//! The face of the probe: `answer` asks, each format is a file of its own, and `header` is
//! what they say. Works on slices, allocates nothing that a file's own numbers size, spends a
//! budget (see [`limits`](crate::limits)) on every walk, and must never decode a pixel.

mod answer;
mod av1;
mod bmp;
mod dds;
mod files;
mod format;
mod gif;
mod header;
mod heif;
mod heif_items;
mod icns;
mod ico;
mod inflate;
mod isobmff;
mod jpeg;
mod jpeg2000;
mod jxl;
mod pcx;
mod png;
mod png_text;
mod pnm;
mod psd;
mod qoi;
mod sgi;
mod sniff;
mod tga;
mod tiff;
mod unserved;
mod webp;

pub use answer::{NeedMoreBytes, Prefix, ProbeError, probe, probe_prefix};
pub use files::probe_file;
pub use format::Format;
pub use header::{Declared, ImageHeader, mode_by_name};
