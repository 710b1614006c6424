//! What the lock and the counters cost beside the LRU alone.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use safelight_core::cache::{Begin, Cache, Request};
use safelight_core::lru::{Left, Lru};
use safelight_core::pool::{Options, Pool};

const COUNT: u32 = 10_000;

fn hit(criterion: &mut Criterion) {
    let keys: Vec<[u8; 32]> = (0..COUNT)
        .map(|index| safelight_core::key::derive(&index.to_le_bytes(), b"{}"))
        .collect();
    let cache: Cache<u64, ()> = Cache::new(u64::MAX, u64::MAX);
    let mut lru = Lru::new(u64::MAX);
    for key in &keys {
        cache.put(key, 1, 1, &mut Left::new());
        lru.insert(key, 1, 1, &mut Left::new());
    }
    let pool = Arc::new(Pool::new(Options::default()));
    let mut group = criterion.benchmark_group("cache hit, 10,000 entries");
    group.bench_function("ours", |bencher| {
        bencher.iter(|| {
            keys.iter()
                .filter_map(|key| cache.get(black_box(key), |value| *value))
                .sum::<u64>()
        });
    });
    group.bench_function(BenchmarkId::new("the LRU alone", 0.5), |bencher| {
        bencher.iter(|| {
            keys.iter()
                .filter_map(|key| lru.get(black_box(key)).copied())
                .sum::<u64>()
        });
    });
    group.finish();

    let mut group = criterion.benchmark_group("cache load-through hit, 10,000 entries");
    group.bench_function("ours", |bencher| {
        bencher.iter(|| {
            keys.iter()
                .filter(|key| {
                    let begin = cache.begin(
                        &pool,
                        black_box(*key),
                        Request::default(),
                        |value| *value,
                        |_| Ok((1, 1)),
                    );
                    matches!(begin, Ok(Begin::Hit(1)))
                })
                .count()
        });
    });
    group.bench_function(BenchmarkId::new("plain hit", 0.8), |bencher| {
        bencher.iter(|| {
            keys.iter()
                .filter(|key| cache.get(black_box(*key), |value| *value) == Some(1))
                .count()
        });
    });
    group.finish();
}

criterion_group!(benches, hit);
criterion_main!(benches);
