//! Streaming BLAKE3, the default hash of items that are not refs.
//!
//! Owns the choice of implementation: pure Rust with run-time SIMD, so that nobody needs a package
//! for it. Must never know what it hashes; framing is the caller's.

/// Length of a digest in bytes.
pub const DIGEST_BYTES: usize = 32;

/// A BLAKE3 digest.
pub type Digest = [u8; DIGEST_BYTES];

/// BLAKE3 over everything that [`Blake3::update`] was given.
///
/// ```
/// let mut hasher = safelight_core::digest::Blake3::new();
/// hasher.update(b"a");
/// hasher.update(b"bc");
/// assert_eq!(hasher.digest()[..4], [0x64, 0x37, 0xb3, 0xac]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Blake3 {
    hasher: blake3::Hasher,
}

impl Blake3 {
    /// A hasher that was given nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Append `data`. How the input is cut into calls does not matter.
    pub fn update(&mut self, data: &[u8]) {
        self.hasher.update(data);
    }

    /// The digest of what was given until now; more can follow.
    #[must_use]
    pub fn digest(&self) -> Digest {
        *self.hasher.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::Blake3;

    /// The input of the official test vectors: bytes that count to 250 and start over.
    fn vector_input(len: usize) -> Vec<u8> {
        (0..=250).cycle().take(len).collect()
    }

    #[test]
    fn official_vectors() {
        // From test_vectors.json of the BLAKE3 team, first 4 bytes of each hash: the lengths at
        // which the tree takes another shape.
        let expected: [(usize, [u8; 4]); 3] = [
            (0, [0xaf, 0x13, 0x49, 0xb9]),
            (1, [0x2d, 0x3a, 0xde, 0xdf]),
            (1024, [0x42, 0x21, 0x47, 0x39]),
        ];
        for (len, start) in expected {
            let mut hasher = Blake3::new();
            hasher.update(&vector_input(len));
            assert_eq!(hasher.digest()[..4], start, "{len} bytes");
        }
    }

    #[test]
    fn cuts_do_not_matter() {
        let data = vector_input(5000);
        let mut whole = Blake3::new();
        whole.update(&data);
        for step in [1, 63, 64, 65, 1023, 1024, 1025, 4999] {
            let mut cut = Blake3::new();
            for piece in data.chunks(step) {
                cut.update(piece);
                // A digest on the way does not disturb what follows.
                let _ = cut.digest();
            }
            assert_eq!(cut.digest(), whole.digest(), "pieces of {step}");
        }
    }
}
