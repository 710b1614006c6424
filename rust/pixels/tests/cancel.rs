//! A decode ends when it is cancelled, before it begins or in its midst.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use safelight_pixels::{Cancel, Outcome, Request, decode};

/// Side of the pictures: their decodes meet the flag many times.
const SIDE: u16 = 1024;

fn pnm() -> Vec<u8> {
    let mut file = format!("P6 {SIDE} {SIDE} 255\n").into_bytes();
    file.resize(file.len() + 3 * usize::from(SIDE) * usize::from(SIDE), 77);
    file
}

fn png() -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, SIDE.into(), SIDE.into());
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().expect("it fits a vector");
    let pixels = vec![77; 3 * usize::from(SIDE) * usize::from(SIDE)];
    writer.write_image_data(&pixels).expect("it is as long");
    drop(writer);
    file
}

/// A gray JPEG whose every block is two bits: no difference, no coefficients.
#[cfg(feature = "jpeg")]
fn jpeg() -> Vec<u8> {
    let mut file = vec![0xFF, 0xD8];
    let mut segment = |marker: u8, body: &[u8]| {
        let length = u16::try_from(body.len() + 2).expect("short");
        file.extend([0xFF, marker]);
        file.extend(length.to_be_bytes());
        file.extend(body);
    };
    segment(0xDB, &[[0; 1].as_slice(), &[1; 64]].concat());
    let [high, low] = SIDE.to_be_bytes();
    segment(0xC0, &[8, high, low, high, low, 1, 1, 0x11, 0]);
    for class in [0x00, 0x10] {
        // One code of one bit, for the symbol 0.
        let mut table = [0; 18];
        table[..2].copy_from_slice(&[class, 1]);
        segment(0xC4, &table);
    }
    segment(0xDA, &[1, 1, 0, 0, 63, 0]);
    let blocks = usize::from(SIDE / 8) * usize::from(SIDE / 8);
    file.resize(file.len() + blocks * 2 / 8, 0);
    file.extend([0xFF, 0xD9]);
    file
}

fn files() -> Vec<Vec<u8>> {
    vec![
        pnm(),
        png(),
        #[cfg(feature = "jpeg")]
        jpeg(),
    ]
}

fn reason(file: &[u8], cancel: &Cancel) -> &'static str {
    match decode(file, &Request::default(), cancel).expect("no limit is broken") {
        Outcome::Decoded(_) => "decoded",
        Outcome::Declined(declined) => declined.0,
        Outcome::Cancelled => "cancelled",
    }
}

#[test]
fn a_decode_that_is_cancelled_before_it_begins() {
    let cancel = Cancel::default();
    for file in files() {
        assert_eq!(reason(&file, &cancel), "decoded");
    }
    cancel.request();
    for file in files() {
        assert_eq!(reason(&file, &cancel), "cancelled");
    }
}

#[test]
fn decodes_that_are_cancelled_in_their_midst_end_all_the_same() {
    for file in files() {
        let cancel = Cancel::default();
        let has_begun = AtomicBool::new(false);
        let decode_on = || {
            let mut last = "decoded";
            // Without the cancellation this would not end.
            while last == "decoded" {
                last = reason(&file, &cancel);
                has_begun.store(true, Ordering::Relaxed);
            }
            last
        };
        let reasons: Vec<_> = thread::scope(|scope| {
            let decodes: Vec<_> = (0..4).map(|_| scope.spawn(decode_on)).collect();
            while !has_begun.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            cancel.request();
            let ended = decodes.into_iter().map(thread::ScopedJoinHandle::join);
            ended.map(|reason| reason.expect("no panic")).collect()
        });
        assert_eq!(reasons, ["cancelled"; 4]);
    }
}
