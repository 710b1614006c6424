//! PNG against the `png` crate, which is the fastest decoder that streams; what turning and pasting
//! add; and what the kept memory of large pictures saves, in time and in lateness of other threads.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{
    BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};
use safelight_pixels::{Cancel, Outcome, Request, decode, recycle};

const SIZE: (u32, u32) = (1920, 1080);

/// Large enough for its memory to be kept.
const LARGE: (u32, u32) = (4000, 3000);

/// Boxes of plain color on a plain ground, with dotted lines in place of text.
fn screenshot(color: png::ColorType) -> Vec<u8> {
    let (width, height) = SIZE;
    let samples = color.samples();
    let mut pixels = Vec::new();
    for y in 0..height {
        for x in 0..width {
            let is_ink = y % 18 < 9 && (x * 7 + y * 13) % 11 < 4 && x / 300 % 2 == 0;
            let level = if is_ink { 20 } else { 250 };
            let shade = u8::try_from((x / 240 + y / 135) * 16 % 256).unwrap_or(0);
            pixels.extend_from_slice(&[level, level, shade, 255][..samples]);
        }
    }
    encoded(color, SIZE, &pixels)
}

/// A smooth gradient with grain.
fn photo(color: png::ColorType, (width, height): (u32, u32)) -> Vec<u8> {
    let samples = color.samples();
    let mut state = 1u32;
    let mut pixels = Vec::new();
    for y in 0..height {
        for x in 0..width {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            let level = (x + y) / 12 % 240 + state % 8;
            let level = u8::try_from(level).unwrap_or(u8::MAX);
            pixels.extend_from_slice(&[level, level / 2, 255 - level, level][..samples]);
        }
    }
    encoded(color, (width, height), &pixels)
}

fn encoded(color: png::ColorType, size: (u32, u32), pixels: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, size.0, size.1);
    encoder.set_color(color);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().expect("a header can be written");
    writer
        .write_image_data(pixels)
        .expect("pixels fit the header");
    writer.finish().expect("memory can be written to");
    file
}

fn pixels(data: &[u8], request: &Request) -> Vec<u8> {
    match decode(data, request, &Cancel::default()) {
        Ok(Outcome::Decoded(picture)) => picture.pixels,
        outcome => panic!("not decoded: {outcome:?}"),
    }
}

fn native(data: &[u8], request: &Request) -> usize {
    pixels(data, request).len()
}

fn streaming(data: &[u8]) -> usize {
    let decoder = png::Decoder::new(std::io::Cursor::new(data));
    let mut reader = decoder.read_info().expect("a whole header");
    let mut pixels = vec![0; reader.output_buffer_size().expect("a size that fits")];
    reader.next_frame(&mut pixels).expect("a whole picture");
    black_box(pixels).len()
}

fn png_files(criterion: &mut Criterion) {
    let cases = [
        ("png screenshot, RGB", screenshot(png::ColorType::Rgb), 1.1),
        ("png photo, RGB", photo(png::ColorType::Rgb, SIZE), 1.1),
    ];
    let pixels = u64::from(SIZE.0) * u64::from(SIZE.1);
    for (name, data, target) in cases {
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(pixels));
        group.bench_function("ours", |bencher| {
            bencher.iter(|| native(black_box(&data), &Request::default()));
        });
        group.bench_function(BenchmarkId::new("png", target), |bencher| {
            bencher.iter(|| streaming(black_box(&data)));
        });
        group.finish();
    }
}

/// What is done in the same pass must cost less than a second pass of the decoder.
fn conversions(criterion: &mut Criterion) {
    let data = photo(png::ColorType::Rgba, SIZE);
    let plain = Request {
        target: None,
        ..Request::default()
    };
    let turned = Request {
        orientation: 6,
        ..Request::default()
    };
    let mut group = criterion.benchmark_group("png photo, RGBA over white and turned");
    group.bench_function("ours", |bencher| {
        bencher.iter(|| native(black_box(&data), &turned));
    });
    group.bench_function(BenchmarkId::new("as stored", 0.6), |bencher| {
        bencher.iter(|| native(black_box(&data), &plain));
    });
    group.finish();
}

/// Let two threads decode `data` four times each, and `free` take what they made; while they do,
/// `watch` is called about once a millisecond.
fn two_threads(data: &[u8], free: fn(Vec<u8>), mut watch: impl FnMut()) {
    let work = || (0..4).for_each(|_| free(black_box(pixels(data, &Request::default()))));
    thread::scope(|scope| {
        let workers = [scope.spawn(work), scope.spawn(work)];
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            watch();
        }
    });
}

/// How late a thread that sleeps for a millisecond wakes meanwhile, at the 99th percentile.
fn lateness(data: &[u8], free: fn(Vec<u8>)) -> Duration {
    const TICK: Duration = Duration::from_millis(1);
    let mut late = Vec::new();
    two_threads(data, free, || {
        let start = Instant::now();
        thread::sleep(TICK);
        late.push(start.elapsed().saturating_sub(TICK));
    });
    late.sort_unstable();
    late[late.len() * 99 / 100]
}

/// With the memory of large pictures kept for the next ones, and with all of it freed at once.
fn kept_memory(criterion: &mut Criterion) {
    let data = photo(png::ColorType::Rgb, LARGE);
    let mut group = criterion.benchmark_group("lateness (p99) while two threads decode 12 MP");
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    let sum = |count, free| (0..count).map(|_| lateness(&data, free)).sum();
    group.bench_function("ours", |bencher| {
        bencher.iter_custom(|count| sum(count, recycle));
    });
    group.bench_function(BenchmarkId::new("freed at once", 1.1), |bencher| {
        bencher.iter_custom(|count| sum(count, drop));
    });
    group.finish();
}

criterion_group!(benches, png_files, conversions, kept_memory);
criterion_main!(benches);
