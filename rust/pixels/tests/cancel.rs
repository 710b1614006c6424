//! A decode ends when it is cancelled, before it begins or in its midst.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use safelight_pixels::{Cancel, Outcome, Request, decode};

/// A PNM of noise, wide enough that its decode meets the flag many times.
fn large() -> Vec<u8> {
    let mut file = b"P6 1000 700 255\n".to_vec();
    file.extend(
        (0..1000 * 700 * 3_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8),
    );
    file
}

fn reason(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Decoded(_) => "decoded",
        Outcome::Declined(declined) => declined.0,
        Outcome::Cancelled => "cancelled",
    }
}

#[test]
fn a_decode_that_is_cancelled_before_it_begins() {
    let cancel = Cancel::default();
    cancel.request();
    let outcome = decode(&large(), &Request::default(), &cancel).expect("no limit is broken");
    assert_eq!(reason(&outcome), "cancelled");
}

#[test]
fn decodes_that_are_cancelled_in_their_midst_end_all_the_same() {
    let file = large();
    let cancel = Cancel::default();
    let has_begun = AtomicBool::new(false);
    let reasons: Vec<_> = thread::scope(|scope| {
        let decodes: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut last = "decoded";
                    // Without the cancellation this would not end.
                    while last == "decoded" {
                        last =
                            reason(&decode(&file, &Request::default(), &cancel).expect("served"));
                        has_begun.store(true, Ordering::Relaxed);
                    }
                    last
                })
            })
            .collect();
        while !has_begun.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        cancel.request();
        decodes
            .into_iter()
            .map(|decode| decode.join().expect("no panic"))
            .collect()
    });
    assert_eq!(reasons, ["cancelled"; 4]);
}
