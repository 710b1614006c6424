//! How many scans a JPEG has, which is how often its pixels are gone over.
//!
//! Each scan of a progressive file may be a hundred bytes and touch every pixel, so a file may ask
//! for any amount of work. Must never look at what a scan codes.

use safelight_core::Error;

/// The most scans of a JPEG that is decoded here or by Pillow; encoders write about ten.
pub(super) const MAX_SCANS: u32 = 500;

/// The refusal of a file with more.
#[must_use]
pub fn too_many_scans() -> Error {
    let most = u64::from(MAX_SCANS);
    Error::limit("image has more than 500 scans", most, most + 1)
}

/// Whether the first picture of a JPEG has more scans than are decoded.
///
/// Takes a time linear in `data`. Of what is no JPEG, or damaged, it says what it can.
#[must_use]
pub fn has_too_many_scans(data: &[u8]) -> bool {
    let mut scans = 0;
    let mut rest = data;
    // From marker to marker: within a scan, those that restart it and stuffed bytes are passed.
    while let Some(at) = rest.iter().position(|&byte| byte == 0xFF) {
        rest = &rest[at + 1..];
        let Some(&marker) = rest.first() else {
            return false;
        };
        match marker {
            // Fill bytes: the marker comes.
            0xFF => continue,
            // Stuffed, temporary, restart, start of the image: nothing follows.
            0x00..=0x01 | 0xD0..=0xD8 => {}
            0xD9 => return false,
            _ => {
                if marker == 0xDA {
                    scans += 1;
                    if scans > MAX_SCANS {
                        return true;
                    }
                }
                let Some(&[high, low]) = rest.get(1..3).and_then(<[u8]>::first_chunk) else {
                    return false;
                };
                let length = usize::from(u16::from_be_bytes([high, low]));
                rest = rest.get(length..).unwrap_or_default();
            }
        }
        rest = rest.get(1..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::{MAX_SCANS, has_too_many_scans};

    /// A file of `count` scans, each with stuffing, a restart and, in its header, an end marker.
    fn file(count: usize) -> Vec<u8> {
        let mut file = b"\xFF\xD8\xFF\xE1\0\x08\xFF\xDA\0\x02\xFF\xD9".to_vec();
        for _ in 0..count {
            file.extend(b"\xFF\xFF\xDA\0\x06\xFF\xD9\xFF\xDA\x11\xFF\0\x22\xFF\xD3\x33");
        }
        file.extend(b"\xFF\xD9");
        file
    }

    #[test]
    fn scans_are_counted_up_to_the_first_end() {
        let most = file(MAX_SCANS as usize);
        assert!(!has_too_many_scans(&most));
        assert!(!has_too_many_scans(&[most.clone(), most].concat()));
        let more = file(MAX_SCANS as usize + 1);
        assert!(has_too_many_scans(&more));
        for end in 0..200 {
            assert!(!has_too_many_scans(&more[..end]));
        }
    }
}
