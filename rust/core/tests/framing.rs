//! Laws of a media key over drawn payloads and specs.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use safelight_core::key;
use sha2::{Digest, Sha256};

fn payload() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..300)
}

proptest! {
    #[test]
    fn is_sha256_of_the_framed_chunks(payload in payload(), spec in payload()) {
        let mut stream = (payload.len() as u64).to_le_bytes().to_vec();
        stream.extend(&payload);
        stream.extend((spec.len() as u64).to_le_bytes());
        stream.extend(&spec);
        let expected: key::Key = Sha256::digest(&stream).into();
        prop_assert_eq!(key::derive(&payload, &spec), expected);
    }

    #[test]
    fn no_chunk_borrows_bytes_from_its_neighbor(
        stream in payload(),
        first in any::<Index>(),
        second in any::<Index>(),
    ) {
        let size = stream.len() + 1;
        let (first, second) = (first.index(size), second.index(size));
        prop_assume!(first != second);
        prop_assert_ne!(
            key::derive(&stream[..first], &stream[first..]),
            key::derive(&stream[..second], &stream[second..])
        );
    }

    #[test]
    fn every_byte_counts(
        payload in vec(any::<u8>(), 1..300),
        spec in payload(),
        place in any::<Index>(),
        flip in 1_u8..,
    ) {
        let mut other = payload.clone();
        other[place.index(payload.len())] ^= flip;
        prop_assert_ne!(key::derive(&payload, &spec), key::derive(&other, &spec));
    }

    #[test]
    fn extending_is_deriving_from_the_parent_key(parent in any::<key::Key>(), spec in payload()) {
        prop_assert_eq!(key::extend(&parent, &spec), key::derive(&parent, &spec));
    }
}
