//! A batch of keys over the pool gives the same keys in the same order, however busy the pool is.

use std::sync::mpsc;
use std::time::Duration;

use safelight_core::flight::Flight;
use safelight_core::key::{derive_all, derive_spread};
use safelight_core::pool::{Job, Options, Pool};

fn payloads(count: usize, size: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|index| vec![u8::try_from(index % 251).unwrap(); size + index])
        .collect()
}

fn pool(threads: usize) -> Pool {
    Pool::new(Options {
        threads,
        ..Options::default()
    })
}

#[test]
fn spread_keys_equal_plain_ones() {
    let pool = pool(3);
    for (count, size) in [(0, 0), (1, 1 << 20), (300, 640), (7, 100_000), (1000, 3000)] {
        let payloads = payloads(count, size);
        assert_eq!(
            derive_spread(&pool, payloads.clone(), b"{}"),
            derive_all(&payloads, b"{}")
        );
    }
    assert!(pool.stats().taken > 0);
}

#[test]
fn a_busy_pool_is_not_waited_for() {
    let pool = pool(1);
    let (release, gate) = mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let blocker = Flight::new(Box::new(move |_: &_| {
        let _ = gate.lock().unwrap().recv_timeout(Duration::from_secs(30));
    }));
    pool.submit(&mut [Job::new(blocker.clone())].into(), None)
        .unwrap();
    let payloads = payloads(100, 10_000);
    assert_eq!(
        derive_spread(&pool, payloads.clone(), b"{}"),
        derive_all(&payloads, b"{}")
    );
    assert!(blocker.ending().is_none());
    release.send(()).unwrap();
}
