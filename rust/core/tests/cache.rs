//! The cache's promises on real threads: identity of flights, admission, forks, destructors.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use safelight_core::cache::{Begin, Cache, CacheFlight, Request};
use safelight_core::flight::Ending;
use safelight_core::fork::Resident;
use safelight_core::lru::Left;
use safelight_core::pool::{Options, Pool, Priority, Site};

const LONG: Duration = Duration::from_secs(30);

type Texts = Cache<String, String>;

fn pool(threads: usize) -> Arc<Pool> {
    Arc::new(Pool::new(Options {
        threads,
        queue: 1,
        ..Options::default()
    }))
}

/// A flight of `key` that ends when the sender sends its value.
fn begin(
    cache: &Texts,
    pool: &Arc<Pool>,
    key: &[u8],
    predicted: u64,
) -> (
    Arc<CacheFlight<String, String>>,
    bool,
    mpsc::Sender<&'static str>,
) {
    let (send, receive) = mpsc::channel::<&str>();
    let receive = Mutex::new(receive);
    let request = Request {
        predicted,
        site: Site::Thread,
        priority: Priority::Foreground,
    };
    let work = move |_: &_| match receive.lock().unwrap().recv_timeout(LONG) {
        Ok(value) => Ok((value.to_owned(), 10)),
        Err(_) => Err("nobody sent".to_owned()),
    };
    match cache
        .begin(pool, key, request, String::clone, work)
        .unwrap()
    {
        Begin::Flight(flight, is_first) => (flight, is_first, send),
        Begin::Hit(value) => panic!("{value} was there"),
    }
}

fn value(flight: &CacheFlight<String, String>) -> &str {
    match flight.wait(Some(LONG)).unwrap() {
        Ending::Returned(Ok(value)) => value,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_flight_ends_itself_and_no_later_one_of_its_key() {
    let (pool, cache) = (pool(2), Texts::new(100, u64::MAX));
    let (old, _, end_old) = begin(&cache, &pool, b"k", 0);
    assert!(!cache.invalidate(b"k"), "no entry, only a flight");
    let (new, is_first, end_new) = begin(&cache, &pool, b"k", 0);
    assert_eq!(cache.stats().in_flight, 2);
    assert!(is_first, "the invalidated flight is not joined");
    end_old.send("old").unwrap();
    assert_eq!(value(&old), "old");
    assert_eq!(cache.peek(b"k", String::clone), None, "out of date");
    let (joined, is_first, _) = begin(&cache, &pool, b"k", 0);
    assert!(!is_first && Arc::ptr_eq(&joined, &new));
    end_new.send("new").unwrap();
    assert_eq!(value(&new), "new");
    assert_eq!(cache.get(b"k", String::clone).as_deref(), Some("new"));
    assert_eq!(cache.stats().in_flight, 0);
}

#[test]
fn predicted_bytes_admit_in_order_and_one_alone_always() {
    let (pool, cache) = (pool(3), Texts::new(100, 50));
    let (large, _, end_large) = begin(&cache, &pool, b"large", 80);
    let (next, _, end_next) = begin(&cache, &pool, b"next", 40);
    // It would fit beside neither, and may not overtake either.
    let (last, _, end_last) = begin(&cache, &pool, b"last", 1);
    assert_eq!(cache.stats().in_flight_bytes, 80);
    assert!(next.is_waiting() && last.is_waiting());
    end_large.send("l").unwrap();
    assert_eq!(value(&large), "l");
    assert_eq!(cache.stats().in_flight_bytes, 41);
    end_last.send("z").unwrap();
    end_next.send("n").unwrap();
    assert_eq!((value(&last), value(&next)), ("z", "n"));
    assert_eq!(cache.stats().in_flight_bytes, 0);
}

#[test]
fn a_parked_flight_that_nobody_waits_for_gives_way() {
    let (pool, cache) = (pool(2), Texts::new(100, 50));
    let (large, _, end_large) = begin(&cache, &pool, b"large", 50);
    let (parked, _, _end) = begin(&cache, &pool, b"parked", 50);
    cache.leave(&pool, &parked);
    assert_eq!(parked.wait(Some(LONG)), Ok(&Ending::Withdrawn));
    assert_eq!(cache.stats().in_flight, 1);
    end_large.send("l").unwrap();
    assert_eq!(value(&large), "l");
    let stats = cache.stats();
    assert_eq!(
        (stats.cancelled, stats.failures, stats.in_flight_bytes),
        (1, 0, 0)
    );
}

#[test]
fn a_panic_counts_as_a_failure_and_frees_the_key() {
    let (pool, cache) = (pool(1), Texts::new(100, u64::MAX));
    let request = Request::default();
    let work = |_: &_| std::panic::resume_unwind(Box::new(()));
    let Ok(Begin::Flight(flight, true)) = cache.begin(&pool, b"k", request, String::clone, work)
    else {
        panic!("a flight was to begin");
    };
    assert_eq!(flight.wait(Some(LONG)), Ok(&Ending::Panicked));
    let stats = cache.stats();
    assert_eq!((stats.failures, stats.in_flight), (1, 0));
}

#[test]
fn a_pool_that_is_shut_down_leaves_no_flight_behind() {
    let (pool, cache) = (pool(1), Texts::new(100, u64::MAX));
    pool.close();
    let begun = cache.begin(&pool, b"k", Request::default(), String::clone, |_| {
        Ok((String::new(), 1))
    });
    assert!(begun.is_err());
    assert_eq!(cache.stats().in_flight, 0);
}

#[test]
fn a_fork_keeps_values_and_forgets_flights() {
    let (pool, cache) = (pool(1), Texts::new(100, u64::MAX));
    cache.put(b"kept", "v".to_owned(), 1, &mut Left::new());
    let (_flight, _, _end) = begin(&cache, &pool, b"k", 5);
    cache.after_fork();
    let stats = cache.stats();
    assert_eq!(
        (stats.entries, stats.in_flight, stats.in_flight_bytes),
        (1, 0, 0)
    );
    let (_, is_first, _) = begin(&cache, &pool, b"k", 5);
    assert!(is_first);
}

#[test]
fn a_lock_held_at_the_fork_is_noticed() {
    let cache = Texts::new(100, u64::MAX);
    cache.put(b"k", "v".to_owned(), 1, &mut Left::new());
    // `read` runs under the lock: there the cache is as a forked child may find it.
    cache.peek(b"k", |_| cache.after_fork());
    // Another one, under another lock, of the same size.
    assert_eq!((cache.stats().entries, cache.stats().max_bytes), (0, 100));
    assert!(cache.put(b"k", "v".to_owned(), 1, &mut Left::new()));
}

/// Calls the cache when it is dropped.
#[derive(Clone)]
struct Calls(Arc<Mutex<Option<CallsCache>>>);

type CallsCache = Arc<Cache<Calls, ()>>;

impl Drop for Calls {
    fn drop(&mut self) {
        if let Some(cache) = &*self.0.lock().unwrap() {
            let _ = cache.touch(b"k");
        }
    }
}

#[test]
fn destructors_may_call_the_cache() {
    let link = Arc::new(Mutex::new(None));
    let cache = Arc::new(Cache::new(10, u64::MAX));
    *link.lock().unwrap() = Some(cache.clone());
    let (done, is_done) = mpsc::channel();
    let body = move || {
        for weight in [10, 6, 6, 11, 3] {
            cache.put(b"k", Calls(link.clone()), weight, &mut Left::new());
            cache.put(b"l", Calls(link.clone()), weight, &mut Left::new());
        }
        let _ = cache.invalidate(b"k");
        cache.clear();
        link.lock().unwrap().take();
        done.send(cache.validate()).unwrap();
    };
    // On a thread of its own: a deadlock fails the test instead of holding it.
    std::thread::Builder::new().spawn(body).unwrap();
    assert_eq!(is_done.recv_timeout(LONG).unwrap(), Ok(()));
}
