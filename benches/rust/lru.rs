//! The LRU against the least that any map of keys costs: one look-up, or one insertion and removal.

use std::collections::HashMap;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use safelight_core::lru::{Left, Lru};

const COUNT: u32 = 10_000;

fn keys() -> Vec<[u8; 32]> {
    (0..COUNT)
        .map(|index| safelight_core::key::derive(&index.to_le_bytes(), b"{}"))
        .collect()
}

fn get(criterion: &mut Criterion) {
    let keys = keys();
    let mut lru = Lru::new(u64::MAX);
    let mut map = HashMap::new();
    for (&key, value) in keys.iter().zip(0_u64..) {
        lru.insert(&key, value, 1, &mut Left::new());
        map.insert(key, value);
    }
    let mut group = criterion.benchmark_group("lru get, 10,000 entries");
    group.bench_function("ours", |bencher| {
        bencher.iter(|| {
            keys.iter()
                .filter_map(|key| lru.get(black_box(key)).copied())
                .sum::<u64>()
        });
    });
    group.bench_function(BenchmarkId::new("HashMap", 1.0), |bencher| {
        bencher.iter(|| {
            keys.iter()
                .filter_map(|key| map.get(black_box(key)).copied())
                .sum::<u64>()
        });
    });
    group.finish();
}

fn insert(criterion: &mut Criterion) {
    let keys = keys();
    let mut group = criterion.benchmark_group("lru insert that evicts, 5,000 of 10,000 entries");
    group.bench_function("ours", |bencher| {
        let mut lru = Lru::new(u64::from(COUNT / 2));
        bencher.iter(|| {
            for key in &keys {
                let mut left = Left::new();
                black_box(lru.insert(key, 0_u64, 1, &mut left));
                let _ = black_box(left);
            }
        });
    });
    group.bench_function(
        BenchmarkId::new("HashMap insert and remove", 1.0),
        |bencher| {
            let mut map = HashMap::new();
            let half = keys.len() / 2;
            bencher.iter(|| {
                for (index, key) in keys.iter().enumerate() {
                    black_box(map.insert(*key, 0_u64));
                    black_box(map.remove(&keys[(index + half) % keys.len()]));
                }
            });
        },
    );
    group.finish();
}

criterion_group!(benches, get, insert);
criterion_main!(benches);
