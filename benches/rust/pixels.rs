//! PNG against the `png` crate, which is the fastest decoder that streams, and what turning and
//! pasting add.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use safelight_pixels::{Cancel, Outcome, Request, decode};

const SIZE: (u32, u32) = (1920, 1080);

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
    encoded(color, &pixels)
}

/// A smooth gradient with grain.
fn photo(color: png::ColorType) -> Vec<u8> {
    let (width, height) = SIZE;
    let samples = color.samples();
    let mut state = 1u32;
    let mut pixels = Vec::new();
    for y in 0..height {
        for x in 0..width {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            let level = (x + y) / 12 + state % 8;
            let level = u8::try_from(level).unwrap_or(u8::MAX);
            pixels.extend_from_slice(&[level, level / 2, 255 - level, level][..samples]);
        }
    }
    encoded(color, &pixels)
}

fn encoded(color: png::ColorType, pixels: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, SIZE.0, SIZE.1);
    encoder.set_color(color);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().expect("a header can be written");
    writer
        .write_image_data(pixels)
        .expect("pixels fit the header");
    writer.finish().expect("memory can be written to");
    file
}

fn native(data: &[u8], request: &Request) -> usize {
    match decode(data, request, &Cancel::default()) {
        Ok(Outcome::Decoded(picture)) => picture.pixels.len(),
        outcome => panic!("not decoded: {outcome:?}"),
    }
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
        ("png photo, RGB", photo(png::ColorType::Rgb), 1.1),
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
    let data = photo(png::ColorType::Rgba);
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

criterion_group!(benches, png_files, conversions);
criterion_main!(benches);
