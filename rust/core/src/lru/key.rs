//! Keys as the LRU keeps them and as it is asked for them.
//!
//! Media keys are digests of 32 bytes: those live in the node itself, as words, which saves an
//! allocation for each entry and a jump for each look-up. Other keys are as good, and slower.

use std::hash::{BuildHasher, Hasher};

use hashbrown::DefaultHashBuilder;

/// A digest of 32 bytes: SHA-256's, BLAKE3's.
type Digest = [u64; 4];

/// A key that is kept.
pub(super) enum Key {
    Digest(Digest),
    Other(Box<[u8]>),
}

/// A key that is asked for.
pub(super) enum Query<'a> {
    Digest(Digest),
    Other(&'a [u8]),
}

impl Default for Key {
    fn default() -> Self {
        Self::Other(Box::default())
    }
}

impl<'a> Query<'a> {
    pub(super) fn new(key: &'a [u8]) -> Self {
        match key.as_chunks::<8>() {
            (&[a, b, c, d], []) => Self::Digest([a, b, c, d].map(u64::from_ne_bytes)),
            _ => Self::Other(key),
        }
    }

    pub(super) fn to_key(&self) -> Key {
        match *self {
            Self::Digest(words) => Key::Digest(words),
            Self::Other(bytes) => Key::Other(bytes.into()),
        }
    }

    pub(super) fn hash(&self, hasher: &DefaultHashBuilder) -> u64 {
        match self {
            Self::Digest(words) => hash_digest(hasher, words),
            Self::Other(bytes) => hasher.hash_one(bytes),
        }
    }
}

impl Key {
    pub(super) fn is(&self, query: &Query<'_>) -> bool {
        match (self, query) {
            (Self::Digest(ours), Query::Digest(theirs)) => ours == theirs,
            (Self::Other(ours), Query::Other(theirs)) => **ours == **theirs,
            _ => false,
        }
    }

    pub(super) fn hash(&self, hasher: &DefaultHashBuilder) -> u64 {
        match self {
            Self::Digest(words) => hash_digest(hasher, words),
            Self::Other(bytes) => hasher.hash_one(&**bytes),
        }
    }

    pub(super) fn to_bytes(&self) -> Box<[u8]> {
        match self {
            Self::Digest(words) => words.iter().flat_map(|word| word.to_ne_bytes()).collect(),
            Self::Other(bytes) => bytes.clone(),
        }
    }
}

/// Word by word, which needs no call and no loop.
fn hash_digest(hasher: &DefaultHashBuilder, words: &Digest) -> u64 {
    let mut state = hasher.build_hasher();
    for &word in words {
        state.write_u64(word);
    }
    state.finish()
}
