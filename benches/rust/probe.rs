//! Header probes of each format against hashing the same bytes: what a probe adds to a key.

#[path = "../../rust/core/tests/media/mod.rs"]
mod media;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use safelight_core::key;
use safelight_core::probe::probe;

fn probes(criterion: &mut Criterion) {
    for (name, bytes) in media::every_format() {
        if !["JPEG", "PNG", "WEBP", "GIF", "TIFF", "AVIF"].contains(&name) {
            continue;
        }
        let mut group = criterion.benchmark_group(format!("probe, {name} of {} B", bytes.len()));
        group.bench_function("ours", |bencher| bencher.iter(|| probe(black_box(&bytes))));
        // A header must cost less than the key of the smallest picture that is worth a cache entry.
        let picture = vec![0_u8; 1024];
        group.bench_function(BenchmarkId::new("key of 1 KiB", 1.0), |bencher| {
            bencher.iter(|| key::derive(black_box(&picture), b"{}"));
        });
        group.finish();
    }
}

criterion_group!(benches, probes);
criterion_main!(benches);
