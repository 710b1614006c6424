//! The size that an AV1 stream declares, which a file around it may state otherwise.
//!
//! A decoder allocates by its sequence header (AV1 specification, section 5.5.1). Reads no more of
//! a stream than stands before its first frame.

/// What may stand before the first frame of a stream: some bytes, and metadata.
pub(super) const WINDOW: usize = 16 << 10;

const SEQUENCE_HEADER: u8 = 1;
const FRAME_HEADER: u8 = 3;
const FRAME: u8 = 6;

/// The largest size of the sequence headers before the first frame of a stream.
///
/// `None` where there is none, or where no frame follows in `bytes`: then nothing is known.
pub(super) fn size(mut bytes: &[u8]) -> Option<(u32, u32)> {
    let mut largest: Option<(u32, u32)> = None;
    // Ends: each unit takes a byte at least.
    loop {
        let (&head, mut rest) = bytes.split_first()?;
        if head & 0b100 != 0 {
            rest = rest.get(1..)?;
        }
        let kind = head >> 3 & 0xF;
        if matches!(kind, FRAME_HEADER | FRAME) {
            return largest;
        }
        let length = if head & 0b10 == 0 {
            rest.len()
        } else {
            leb128(&mut rest)?
        };
        if kind == SEQUENCE_HEADER {
            let unit = rest.get(..length.min(rest.len()))?;
            let (width, height) = sequence(&mut Bits { bytes: unit, at: 0 })?;
            let (before_width, before_height) = largest.unwrap_or_default();
            largest = Some((width.max(before_width), height.max(before_height)));
        }
        bytes = rest.get(length..)?;
    }
}

/// A number of seven bits a byte, the lowest first.
fn leb128(rest: &mut &[u8]) -> Option<usize> {
    let mut number = 0_u64;
    for shift in 0..8 {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7F) << (7 * shift);
        if byte & 0x80 == 0 {
            return usize::try_from(number).ok();
        }
    }
    None
}

/// `max_frame_width` and `max_frame_height` of a sequence header.
fn sequence(bits: &mut Bits<'_>) -> Option<(u32, u32)> {
    bits.take(4)?; // seq_profile, still_picture
    if bits.flag()? {
        bits.take(5)?; // reduced: seq_level_idx alone
    } else {
        operating_points(bits)?;
    }
    let width_bits = bits.take(4)? + 1;
    let height_bits = bits.take(4)? + 1;
    Some((bits.take(width_bits)? + 1, bits.take(height_bits)? + 1))
}

fn operating_points(bits: &mut Bits<'_>) -> Option<()> {
    let mut delay_bits = None;
    if bits.flag()? {
        bits.take(32)?; // num_units_in_display_tick
        bits.take(32)?; // time_scale
        if bits.flag()? {
            bits.variable()?; // num_ticks_per_picture_minus_1
        }
        if bits.flag()? {
            delay_bits = Some(bits.take(5)? + 1);
            bits.take(32)?; // num_units_in_decoding_tick
            bits.take(10)?; // lengths of two times
        }
    }
    let has_initial_delay = bits.flag()?;
    for _ in 0..=bits.take(5)? {
        bits.take(12)?; // operating_point_idc
        if bits.take(5)? > 7 {
            bits.take(1)?; // seq_tier
        }
        if let Some(delay_bits) = delay_bits
            && bits.flag()?
        {
            bits.take(delay_bits)?;
            bits.take(delay_bits)?;
            bits.take(1)?; // low_delay_mode_flag
        }
        if has_initial_delay && bits.flag()? {
            bits.take(4)?;
        }
    }
    Some(())
}

/// Bits from the highest of each byte on.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    /// A number of at most 32 bits.
    fn take(&mut self, count: u32) -> Option<u32> {
        let mut number = 0_u32;
        for _ in 0..count {
            let byte = self.bytes.get(self.at / 8)?;
            number = number << 1 | u32::from(byte >> (7 - self.at % 8) & 1);
            self.at += 1;
        }
        Some(number)
    }

    fn flag(&mut self) -> Option<bool> {
        self.take(1).map(|bit| bit == 1)
    }

    /// A number that says its own length (section 4.10.3).
    fn variable(&mut self) -> Option<u32> {
        let mut zeros = 0;
        while !self.flag()? {
            zeros += 1;
        }
        self.take(if zeros < 32 { zeros } else { 0 })
    }
}
