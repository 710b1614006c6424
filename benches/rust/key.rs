//! A batch of keys spread over a pool, against the same batch hashed by one thread.

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use safelight_core::key::{derive_all, derive_spread};
use safelight_core::pool::{Options, Pool};

fn batch(criterion: &mut Criterion) {
    let pool = Pool::new(Options {
        threads: 2,
        ..Options::default()
    });
    for (count, size, target) in [(256, 640, 1.1), (16, 160 << 10, 1.3)] {
        let payloads: Vec<Vec<u8>> = (0..count).map(|_| vec![7; size]).collect();
        let mut group = criterion.benchmark_group(format!("keys on two cores, {count} x {size} B"));
        group.bench_function("ours", |bencher| {
            bencher.iter_batched(
                || payloads.clone(),
                |payloads| derive_spread(&pool, payloads, b"{}"),
                BatchSize::SmallInput,
            );
        });
        group.bench_function(BenchmarkId::new("one thread", target), |bencher| {
            bencher.iter(|| derive_all(&payloads, b"{}"));
        });
        group.finish();
    }
}

criterion_group!(benches, batch);
criterion_main!(benches);
