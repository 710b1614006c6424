//! Base64 by the kernel of our own against the crate that decodes what is left of a text by it.

use std::hint::black_box;

use base64_simd::{Out, STANDARD};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use safelight_core::base64::{decode_into, decoded_len};

fn texts(criterion: &mut Criterion) {
    for (name, size) in [
        ("1 KB", 1_000_u64),
        ("200 KB", 200_000),
        ("5 MB", 5_000_000),
    ] {
        let payload: Vec<u8> = (0..size)
            .map(|index| ((index * 31) >> 3).to_le_bytes()[0])
            .collect();
        let text = STANDARD.encode_to_string(&payload).into_bytes();
        let mut out = vec![0; decoded_len(&text).expect("whole groups")];
        let mut group = criterion.benchmark_group(format!("base64 kernel, {name}"));
        group.throughput(Throughput::Bytes(size));
        group.bench_function("ours", |bencher| {
            bencher.iter(|| decode_into(black_box(&text), &mut out).is_ok());
        });
        assert_eq!(out, payload);
        group.bench_function(BenchmarkId::new("base64-simd", 1.1), |bencher| {
            bencher.iter(|| {
                STANDARD
                    .decode(black_box(&text), Out::from_slice(&mut out))
                    .is_ok()
            });
        });
        assert_eq!(out, payload);
        group.finish();
    }
}

criterion_group!(benches, texts);
criterion_main!(benches);
