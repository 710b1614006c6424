//! The bounds that hold on any bytes: how much work a header may cause before it is given up.
//!
//! Owns the numbers. Must never be widened by what a file says about itself.

/// Segments, chunks, blocks, boxes, directory entries and directories that one probe may visit.
///
/// Real headers need a few dozen. At a few nanoseconds a step the walk ends well within a
/// millisecond.
pub const MAX_STEPS: u32 = 1 << 15;

/// Longest id that is reported; a longer one is no id.
pub const MAX_ID_BYTES: usize = 1024;

/// Pages of a TIFF that are counted; a longer chain has no count.
pub const MAX_PAGES: usize = 256;

/// EXIF segments of one file that are joined; what lies in later ones is not found.
pub const MAX_EXIF_SEGMENTS: usize = 256;

/// Bytes that one text chunk is inflated to, and digits of a raw profile that are read; what
/// lies beyond is not found.
pub const MAX_INFLATED_BYTES: usize = 64 << 10;
