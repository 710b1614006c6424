//! Keys as the LRU keeps them and as it is asked for them.
//!
//! Media keys are digests of 32 bytes: those live in the node itself, which saves an allocation for
//! each entry and a jump for each look-up. Keys of other lengths are as good, and slower.

use std::hash::{BuildHasher, Hasher};

use hashbrown::DefaultHashBuilder;

/// A digest of 32 bytes: SHA-256's, BLAKE3's.
type Digest = [u8; 32];

/// A key that is asked for.
pub(super) enum Query<'a> {
    Digest(&'a Digest),
    Other(&'a [u8]),
}

/// What a node keeps of its key.
pub(super) struct Key {
    /// The key, or, if it is no digest, its hash and nothing else: its bytes are in [`Others`].
    bytes: Digest,
    is_digest: bool,
}

/// The keys that are no digests, by the index of their node.
#[derive(Default)]
pub(super) struct Others(Vec<Box<[u8]>>);

impl<'a> Query<'a> {
    #[inline]
    pub(super) fn new(key: &'a [u8]) -> Self {
        key.try_into().map_or(Self::Other(key), Self::Digest)
    }

    #[inline]
    pub(super) fn hash(&self, hasher: &KeyHasher) -> u64 {
        match self {
            Self::Digest(digest) => hasher.digest(digest),
            Self::Other(bytes) => hasher.0.hash_one(bytes),
        }
    }
}

impl Key {
    /// The key of a node that holds no entry: it is in no table.
    pub(super) const NONE: Self = Self {
        bytes: [0; 32],
        is_digest: true,
    };

    #[inline]
    pub(super) fn hash(&self, hasher: &KeyHasher) -> u64 {
        if self.is_digest {
            hasher.digest(&self.bytes)
        } else {
            let (words, _) = self.bytes.as_chunks();
            u64::from_ne_bytes(words[0])
        }
    }
}

impl Others {
    /// Make `query`, whose hash is `hash`, the key of the node at `index`.
    #[inline]
    pub(super) fn keep(&mut self, index: u32, query: &Query<'_>, hash: u64, key: &mut Key) {
        // In place: a whole key would be made elsewhere and copied here.
        match query {
            Query::Digest(digest) => {
                key.bytes = **digest;
                key.is_digest = true;
            }
            Query::Other(bytes) => {
                key.bytes[..8].copy_from_slice(&hash.to_ne_bytes());
                key.is_digest = false;
                self.keep_bytes(index, bytes);
            }
        }
    }

    #[inline(never)]
    fn keep_bytes(&mut self, index: u32, bytes: &[u8]) {
        let index = index as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, Box::default);
        }
        self.0[index] = bytes.into();
    }

    /// Forget what is kept of `key`, which the node at `index` had.
    #[inline]
    pub(super) fn forget(&mut self, index: u32, key: &Key) {
        if !key.is_digest {
            self.0[index as usize] = Box::default();
        }
    }

    /// Whether `query` asks for the node at `index`, whose key is `key`.
    #[inline]
    pub(super) fn is(&self, index: u32, key: &Key, query: &Query<'_>) -> bool {
        match query {
            Query::Digest(digest) => key.is_digest && key.bytes == **digest,
            Query::Other(bytes) => !key.is_digest && self.is_bytes(index, bytes),
        }
    }

    #[inline(never)]
    fn is_bytes(&self, index: u32, bytes: &[u8]) -> bool {
        *self.0[index as usize] == *bytes
    }

    /// The key of the node at `index`.
    pub(super) fn to_bytes(&self, index: u32, key: &Key) -> Box<[u8]> {
        if key.is_digest {
            key.bytes.into()
        } else {
            self.0[index as usize].clone()
        }
    }
}

/// Hashes keys with secrets of its own, so that nobody can choose keys that collide.
#[derive(Default)]
pub(super) struct KeyHasher(DefaultHashBuilder);

impl KeyHasher {
    /// By words: as a slice of bytes a digest would take the way of those of any length.
    #[inline]
    fn digest(&self, digest: &Digest) -> u64 {
        let mut hasher = self.0.build_hasher();
        for word in digest.as_chunks().0 {
            hasher.write_u64(u64::from_ne_bytes(*word));
        }
        hasher.finish()
    }
}
