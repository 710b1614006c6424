//! The LRU against a model too plain to be wrong.

use proptest::prelude::*;
use safelight_core::lru::{Insert, Left, Lru};

#[derive(Clone, Debug)]
enum Call {
    Get(u8),
    Peek(u8),
    Touch(u8),
    Insert(u8, u64),
    Remove(u8),
    Pin(u8),
    Unpin(u8),
    Clear,
}

/// Least recently used first. Pinned entries stay where they are and are passed over.
#[derive(Default)]
struct Model {
    max_bytes: u64,
    entries: Vec<Modeled>,
}

#[derive(Clone, Debug)]
struct Modeled {
    key: u8,
    value: u32,
    weight: u64,
    pins: u32,
}

impl Model {
    fn place(&self, key: u8) -> Option<usize> {
        self.entries.iter().position(|entry| entry.key == key)
    }

    fn renew(&mut self, place: usize) {
        let entry = self.entries.remove(place);
        self.entries.push(entry);
    }

    fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.weight).sum()
    }

    /// What became of it, and the values that left.
    fn insert(&mut self, key: u8, value: u32, weight: u64) -> (Insert, Vec<u32>) {
        let old = self.place(key).map(|place| self.entries.remove(place));
        let mut left: Vec<u32> = old.iter().map(|entry| entry.value).collect();
        let pinned: u64 = self
            .entries
            .iter()
            .filter(|entry| entry.pins > 0)
            .map(|entry| entry.weight)
            .sum();
        if self.max_bytes == 0 || u128::from(pinned) + u128::from(weight) > self.max_bytes.into() {
            left.push(value);
            return (Insert::Refused, left);
        }
        let mut evicted = 0;
        while u128::from(self.bytes()) + u128::from(weight) > self.max_bytes.into() {
            let place = self.entries.iter().position(|entry| entry.pins == 0);
            left.push(self.entries.remove(place.unwrap()).value);
            evicted += 1;
        }
        self.entries.push(Modeled {
            key,
            value,
            weight,
            pins: old.map_or(0, |entry| entry.pins),
        });
        (Insert::Stored { evicted }, left)
    }
}

/// Half of the keys are as long as a digest, which is kept in another way.
fn name(key: u8) -> Vec<u8> {
    vec![key; if key.is_multiple_of(2) { 32 } else { 1 }]
}

fn call() -> impl Strategy<Value = Call> {
    let key = 0..12_u8;
    let weight = prop_oneof![
        8 => 0..40_u64,
        1 => Just(100_u64),
        1 => Just(101_u64),
        1 => Just(u64::MAX),
    ];
    prop_oneof![
        4 => (key.clone(), weight).prop_map(|(key, weight)| Call::Insert(key, weight)),
        3 => key.clone().prop_map(Call::Get),
        1 => key.clone().prop_map(Call::Peek),
        1 => key.clone().prop_map(Call::Touch),
        1 => key.clone().prop_map(Call::Remove),
        1 => key.clone().prop_map(Call::Pin),
        2 => key.prop_map(Call::Unpin),
        1 => Just(Call::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn agrees_with_a_plain_list(
        max_bytes in prop_oneof![Just(0_u64), Just(100), Just(u64::MAX)],
        calls in prop::collection::vec(call(), 1..200),
    ) {
        let mut lru = Lru::new(max_bytes);
        let mut model = Model { max_bytes, ..Model::default() };
        for (value, call) in (0_u32..).zip(calls) {
            match call {
                Call::Insert(key, weight) => {
                    let mut left = Left::new();
                    let insert = lru.insert(&name(key), value, weight, &mut left);
                    let (expected, gone) = model.insert(key, value, weight);
                    prop_assert_eq!(insert, expected);
                    prop_assert_eq!(left.into_iter().collect::<Vec<_>>(), gone);
                }
                Call::Get(key) => {
                    let place = model.place(key);
                    prop_assert_eq!(lru.get(&name(key)).copied(), place.map(|at| model.entries[at].value));
                    place.inspect(|&at| model.renew(at));
                }
                Call::Peek(key) => {
                    let entry = model.place(key).map(|at| &model.entries[at]);
                    prop_assert_eq!(lru.peek(&name(key)).copied(), entry.map(|entry| entry.value));
                    prop_assert_eq!(lru.weight(&name(key)), entry.map(|entry| entry.weight));
                }
                Call::Touch(key) => {
                    let place = model.place(key);
                    prop_assert_eq!(lru.touch(&name(key)), place.is_some());
                    place.inspect(|&at| model.renew(at));
                }
                Call::Remove(key) => {
                    let removed = model.place(key).map(|at| model.entries.remove(at).value);
                    prop_assert_eq!(lru.remove(&name(key)), removed);
                }
                Call::Pin(key) => {
                    let place = model.place(key);
                    prop_assert_eq!(lru.pin(&name(key)), place.is_some());
                    place.inspect(|&at| model.entries[at].pins += 1);
                }
                Call::Unpin(key) => {
                    let place = model.place(key).filter(|&at| model.entries[at].pins > 0);
                    prop_assert_eq!(lru.unpin(&name(key)), place.is_some());
                    if let Some(at) = place {
                        model.entries[at].pins -= 1;
                        if model.entries[at].pins == 0 {
                            model.renew(at);
                        }
                    }
                }
                Call::Clear => {
                    let mut left = lru.clear();
                    left.sort_unstable();
                    let mut expected: Vec<u32> = model.entries.drain(..).map(|entry| entry.value).collect();
                    expected.sort_unstable();
                    prop_assert_eq!(left, expected);
                }
            }
            prop_assert_eq!(lru.validate(), Ok(()));
            prop_assert_eq!(lru.bytes(), model.bytes());
            prop_assert_eq!(lru.len(), model.entries.len());
            let order: Vec<u8> = lru.eviction_order().map(|(key, _)| key[0]).collect();
            let expected: Vec<u8> = model.entries.iter().filter(|e| e.pins == 0).map(|e| e.key).collect();
            prop_assert_eq!(order, expected);
        }
    }
}

#[test]
fn size_is_checked_before_anything_is_evicted() {
    let mut lru = Lru::new(100);
    let mut left = Left::new();
    lru.insert(b"a", 'a', 40, &mut left);
    lru.insert(b"b", 'b', 40, &mut left);
    assert_eq!(lru.insert(b"a", 'A', 500, &mut left), Insert::Refused);
    assert!(left.into_iter().eq(['a', 'A']));
    assert_eq!(lru.peek(b"b"), Some(&'b'));
    assert_eq!(lru.bytes(), 40);
}

#[test]
fn mirrors_see_the_same_order() {
    // Two units each for A, B, C, then one each for D, E, A, C, in a cache of six.
    let mut lru = Lru::new(6);
    for (key, weight) in [
        ("A", 2),
        ("B", 2),
        ("C", 2),
        ("D", 1),
        ("E", 1),
        ("A", 1),
        ("C", 1),
    ] {
        lru.insert(key.as_bytes(), (), weight, &mut Left::new());
    }
    let order: Vec<_> = lru.eviction_order().map(|(key, _)| key).collect();
    assert_eq!(
        order,
        [b"D", b"E", b"A", b"C"].map(|key| key.as_slice().into())
    );
}
