//! Cache identity: SHA-256 over a payload and its decode spec.
//!
//! Each chunk is preceded by its length, so no chunk can borrow bytes from its neighbor:
//! ("ab", "c") and ("a", "bc") differ. The bytes of a key are a published format and never
//! change. Reads bytes only; must never parse or decode them.

use sha2::{Digest, Sha256};

/// Length of a media key in bytes.
pub const KEY_BYTES: usize = 32;

/// A media key.
pub type Key = [u8; KEY_BYTES];

/// The key of `payload` decoded under the spec whose canonical JSON bytes are `spec`.
///
/// SHA-256 over, for the payload and then for the spec, the length as 8 bytes little-endian
/// followed by the chunk.
///
/// ```
/// let key = safelight_core::key::derive(b"payload", b"{}");
/// assert_eq!(key[..4], [0xb9, 0xd8, 0x63, 0x91]);
/// ```
#[must_use]
pub fn derive(payload: &[u8], spec: &[u8]) -> Key {
    let mut hasher = Sha256::new();
    for chunk in [payload, spec] {
        hasher.update((chunk.len() as u64).to_le_bytes());
        hasher.update(chunk);
    }
    hasher.finalize().into()
}

/// The key of what is made of a keyed item under an extended spec.
///
/// The same framing over the parent's 32 key bytes, so the payload is not hashed again.
#[must_use]
pub fn extend(parent: &Key, spec: &[u8]) -> Key {
    derive(parent, spec)
}
