//! Any sequence of calls on an LRU: its invariants hold after each, and nothing gets lost.

#![no_main]

use libfuzzer_sys::fuzz_target;
use safelight_core::lru::{Insert, Left, Lru};

fuzz_target!(|bytes: &[u8]| {
    let Some((&bound, calls)) = bytes.split_first() else {
        return;
    };
    let mut lru = Lru::new(u64::from(bound) * 4);
    let mut alive = 0_usize;
    for call in calls.chunks_exact(3) {
        // Half of the keys are as long as a digest, which is kept in another way.
        let long = [call[1]; 32];
        let key = if call[1] % 2 == 0 {
            &long[..]
        } else {
            &long[..1]
        };
        match call[0] % 8 {
            0..=2 => {
                alive += 1;
                let weight = match call[2] {
                    255 => u64::MAX,
                    weight => u64::from(weight),
                };
                let mut left = Left::new();
                let insert = lru.insert(key, (), weight, &mut left);
                alive -= left.into_iter().count();
                assert_eq!(lru.peek(key).is_some(), insert != Insert::Refused);
            }
            3 => assert_eq!(lru.get(key).is_some(), lru.touch(key)),
            4 => alive -= usize::from(lru.remove(key).is_some()),
            5 => assert_eq!(lru.pin(key), lru.peek(key).is_some()),
            6 => {
                lru.unpin(key);
            }
            _ if call[2] == 0 => alive -= lru.clear().len(),
            _ => {
                let _ = lru.weight(key);
            }
        }
        lru.validate().expect("an invariant broke");
        assert_eq!(lru.len(), alive);
    }
});
