//! Interleavings of every wait: flight, pool and cache compiled over shuttle's primitives.
//!
//! A lost wake-up is a deadlock here, which shuttle reports with the schedule that leads to it.

// The modules are compiled a second time, as private ones: their docs and exports are not the point.
#![allow(dead_code, unreachable_pub, missing_docs, unused_imports)]

#[path = "../src/cache/mod.rs"]
mod cache;
#[path = "../src/cancel.rs"]
mod cancel;
#[path = "../src/flight/mod.rs"]
mod flight;
#[path = "../src/fork.rs"]
mod fork;
#[path = "../src/lru/mod.rs"]
mod lru;
#[path = "../src/pool/mod.rs"]
mod pool;
#[path = "shuttle/sync.rs"]
mod sync;

use std::collections::VecDeque;
use std::sync::Arc;
// Counting is no part of what is explored.
use std::sync::atomic::{AtomicUsize as Counter, Ordering::SeqCst};

use cache::{Begin, Cache, Computed, Request};
use cancel::Cancel;
use flight::{Ending, Flight, WaitError, Waker};
use pool::{Job, Options, Pool, Site, SubmitError};
use shuttle::thread;

fn explore(iterations: usize, body: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(body.clone(), iterations);
    shuttle::check_pct(body, iterations, 3);
}

fn pool(threads: usize, queue: usize) -> Arc<Pool> {
    Arc::new(Pool::new(Options {
        threads,
        queue,
        ..Options::default()
    }))
}

/// Every thread of a run has to end, or shuttle takes it for a deadlock.
fn end(pool: &Pool) {
    pool.finish();
    assert!(pool.join(None));
}

fn job<T: Send + Sync + 'static>(flight: &Arc<Flight<T>>) -> VecDeque<Job> {
    VecDeque::from([Job::new(flight.clone())])
}

fn flight<T: Send + Sync + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Arc<Flight<T>> {
    Flight::new(Box::new(move |_: &Cancel| work()))
}

/// What the binding does, without signals.
fn get_or_compute(
    cache: &Cache<u32, &'static str>,
    pool: &Arc<Pool>,
    key: &[u8],
    predicted: u64,
    work: impl Fn() -> Computed<u32, &'static str> + Clone + Send + 'static,
) -> Result<u32, &'static str> {
    loop {
        let request = Request {
            predicted,
            ..Request::default()
        };
        let work = work.clone();
        match cache
            .begin(pool, key, request, |value| *value, move |_| work())
            .expect("the pool is open")
        {
            Begin::Hit(value) => return Ok(value),
            Begin::Flight(flight, _) => match flight.wait(None) {
                Ok(Ending::Returned(answer)) => return *answer,
                Ok(Ending::Withdrawn) => {}
                Ok(_) => return Err("died"),
                Err(WaitError::Cycle) => return Err("cycle"),
                Err(WaitError::Timeout) => unreachable!("no timeout was given"),
            },
        }
    }
}

#[test]
fn a_staged_job_ends_whoever_runs_it_and_whoever_withdraws_it() {
    explore(1000, || {
        let pool = pool(2, 4);
        let flights: Vec<_> = (0..3)
            .map(|number| Flight::staged(Box::new(move |_| Some(Box::new(move || number)))))
            .collect();
        let mut jobs = flights
            .iter()
            .map(|flight| Job {
                site: Site::Both,
                ..Job::new(flight.clone())
            })
            .collect();
        pool.submit(&mut jobs, None).unwrap();
        flights[1].withdraw();
        for (number, flight) in flights.iter().enumerate() {
            let ending = flight.wait(None).unwrap();
            assert!(
                *ending == Ending::Returned(number) || number == 1 && *ending == Ending::Withdrawn
            );
        }
        pool.close();
        assert!(pool.join(None));
    });
}

#[test]
fn every_waiter_hears_of_the_ending() {
    explore(1000, || {
        let flight = flight(|| 7);
        let woken = Arc::new(Counter::new(0));
        let counted = woken.clone();
        let id = flight.watch(Waker::One(Box::new(move || {
            counted.fetch_add(1, SeqCst);
        })));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let flight = flight.clone();
                thread::spawn(move || assert_eq!(flight.wait(None), Ok(&Ending::Returned(7))))
            })
            .collect();
        let runner = flight.clone();
        let runner = thread::spawn(move || assert!(runner.run()));
        // Called or handed back, exactly one of the two.
        let detached = id.and_then(|id| flight.detach(id)).is_some();
        for thread in threads {
            thread.join().unwrap();
        }
        runner.join().unwrap();
        assert_eq!(woken.load(SeqCst), usize::from(!detached));
        assert_eq!(flight.waiters(), 0);
    });
}

#[test]
fn withdrawing_and_running_exclude_each_other() {
    explore(1000, || {
        let ran = Arc::new(Counter::new(0));
        let counted = ran.clone();
        let flight = flight(move || counted.fetch_add(1, SeqCst));
        let runner = flight.clone();
        let runner = thread::spawn(move || runner.run());
        let waiter = flight.clone();
        let waiter = thread::spawn(move || waiter.wait(None).map(|_| ()));
        let withdrawn = flight.withdraw();
        assert_eq!(runner.join().unwrap(), !withdrawn);
        waiter.join().unwrap().unwrap();
        assert_eq!(ran.load(SeqCst), usize::from(!withdrawn));
    });
}

#[test]
fn a_panic_ends_the_flight() {
    explore(200, || {
        let flight = flight(|| std::panic::resume_unwind(Box::new("no message, no backtrace")));
        let waiter = flight.clone();
        let waiter = thread::spawn(move || {
            assert_eq!(waiter.wait(None), Ok(&Ending::<()>::Panicked));
        });
        assert!(flight.run());
        waiter.join().unwrap();
    });
}

#[test]
fn a_full_queue_makes_submitters_wait_and_loses_no_job() {
    explore(500, || {
        let pool = pool(1, 1);
        let ran = Arc::new(Counter::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (pool, ran) = (pool.clone(), ran.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        let ran = ran.clone();
                        let flight = flight(move || ran.fetch_add(1, SeqCst));
                        pool.submit(&mut job(&flight), None).unwrap();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        end(&pool);
        assert_eq!(ran.load(SeqCst), 4);
    });
}

#[test]
fn closing_ends_every_flight_that_was_taken() {
    explore(500, || {
        let pool = pool(2, 8);
        let submitter = pool.clone();
        let submitter = thread::spawn(move || {
            let flights: Vec<_> = (0..3).map(|_| flight(|| ())).collect();
            flights
                .into_iter()
                .filter(|flight| match submitter.submit(&mut job(flight), None) {
                    Ok(()) => true,
                    Err(error) => {
                        assert_eq!(error, SubmitError::ShutDown);
                        false
                    }
                })
                .collect::<Vec<_>>()
        });
        pool.close();
        for flight in submitter.join().unwrap() {
            flight.wait(None).unwrap();
        }
        assert!(pool.join(None));
    });
}

#[test]
fn a_job_may_submit_to_its_own_full_pool() {
    explore(300, || {
        let pool = pool(1, 1);
        let inner = pool.clone();
        let outer = flight(move || {
            let flights: Vec<_> = (0..3).map(|value| flight(move || value)).collect();
            for flight in &flights {
                inner.submit(&mut job(flight), None).unwrap();
            }
            let mut sum = 0;
            for flight in &flights {
                match flight.wait(None) {
                    Ok(Ending::Returned(value)) => sum += value,
                    other => panic!("{other:?}"),
                }
            }
            sum
        });
        pool.submit(&mut job(&outer), None).unwrap();
        assert_eq!(outer.wait(None), Ok(&Ending::Returned(3)));
        drop(outer);
        end(&pool);
    });
}

#[test]
fn one_computation_for_all_who_ask() {
    explore(500, || {
        let pool = pool(2, 8);
        let cache = Arc::new(Cache::new(100, u64::MAX));
        let ran = Arc::new(Counter::new(0));
        let ask = {
            let (pool, cache, ran) = (pool.clone(), cache.clone(), ran.clone());
            move || {
                let ran = ran.clone();
                let work = move || {
                    ran.fetch_add(1, SeqCst);
                    Ok((7, 1))
                };
                assert_eq!(get_or_compute(&cache, &pool, b"k", 0, work), Ok(7));
            }
        };
        let threads = [thread::spawn(ask.clone()), thread::spawn(ask.clone())];
        ask();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(ran.load(SeqCst), 1);
        let stats = cache.stats();
        assert_eq!((stats.misses, stats.hits + stats.joins), (1, 2));
        assert_eq!((stats.in_flight, stats.bytes), (0, 1));
        end(&pool);
    });
}

#[test]
fn a_failure_reaches_those_who_asked_and_is_not_stored() {
    explore(500, || {
        let pool = pool(2, 8);
        let cache = Arc::new(Cache::new(100, u64::MAX));
        let ran = Arc::new(Counter::new(0));
        let ask = {
            let (pool, cache, ran) = (pool.clone(), cache.clone(), ran.clone());
            move || {
                let ran = ran.clone();
                let work = move || {
                    ran.fetch_add(1, SeqCst);
                    Err("failed")
                };
                assert_eq!(get_or_compute(&cache, &pool, b"k", 0, work), Err("failed"));
            }
        };
        let other = thread::spawn(ask.clone());
        ask();
        other.join().unwrap();
        let stats = cache.stats();
        assert_eq!(stats.misses, ran.load(SeqCst) as u64);
        assert_eq!((stats.failures, stats.in_flight), (stats.misses, 0));
        end(&pool);
    });
}

#[test]
fn those_who_leave_take_nothing_with_them() {
    explore(500, || {
        // One thread, one place: flights are withdrawn when nobody is left.
        let pool = pool(1, 1);
        let cache: Arc<Cache<u32, &'static str>> = Arc::new(Cache::new(100, u64::MAX));
        let leaver = {
            let (pool, cache) = (pool.clone(), cache.clone());
            move |key: &'static [u8]| {
                let begin = cache.begin(&pool, key, Request::default(), |_| (), |_| Ok((7, 1)));
                if let Begin::Flight(flight, _) = begin.unwrap() {
                    let id = flight.watch(Waker::One(Box::new(|| ())));
                    drop(id.and_then(|id| flight.detach(id)));
                    cache.leave(&pool, &flight);
                }
            }
        };
        let first = leaver.clone();
        let threads = [
            thread::spawn(move || first(b"a")),
            thread::spawn(move || leaver(b"b")),
        ];
        for key in [b"a", b"b"] {
            let answer = get_or_compute(&cache, &pool, key, 0, || Ok((7, 1)));
            assert_eq!(answer, Ok(7));
        }
        for thread in threads {
            thread.join().unwrap();
        }
        end(&pool);
        assert_eq!((cache.stats().in_flight, cache.stats().bytes), (0, 2));
        cache.validate().unwrap();
    });
}

#[test]
fn predicted_bytes_delay_but_lose_nothing() {
    explore(500, || {
        let pool = pool(2, 8);
        let cache = Arc::new(Cache::new(100, 10));
        let in_flight = Arc::new(Counter::new(0));
        let threads: Vec<_> = [b"a", b"b", b"c"]
            .into_iter()
            .map(|key| {
                let (pool, cache, in_flight) = (pool.clone(), cache.clone(), in_flight.clone());
                thread::spawn(move || {
                    let work = move || {
                        assert_eq!(in_flight.fetch_add(1, SeqCst), 0);
                        thread::yield_now();
                        in_flight.fetch_sub(1, SeqCst);
                        Ok((7, 1))
                    };
                    // Six and six are more than ten: one at a time.
                    assert_eq!(get_or_compute(&cache, &pool, key, 6, work), Ok(7));
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(cache.stats().in_flight_bytes, 0);
        end(&pool);
    });
}

#[test]
fn keys_that_ask_for_each_other_fail_instead_of_waiting() {
    explore(500, || {
        let pool = pool(2, 8);
        let cache = Arc::new(Cache::new(100, u64::MAX));
        let ask = {
            let (pool, cache) = (pool.clone(), cache.clone());
            move |mine: &'static [u8], theirs: &'static [u8]| {
                let (inner_pool, inner_cache) = (pool.clone(), cache.clone());
                let work = move || {
                    let (pool, cache) = (inner_pool.clone(), inner_cache.clone());
                    let back = move || {
                        get_or_compute(&cache, &pool, mine, 0, || Ok((1, 1)))
                            .map(|value| (value, 1))
                    };
                    get_or_compute(&inner_cache, &inner_pool, theirs, 0, back)
                        .map(|value| (value, 1))
                };
                get_or_compute(&cache, &pool, mine, 0, work)
            }
        };
        let other = ask.clone();
        let other = thread::spawn(move || other(b"b", b"a"));
        assert_eq!(ask(b"a", b"b"), Err("cycle"));
        assert_eq!(other.join().unwrap(), Err("cycle"));
        assert_eq!(pool.options().graph.waiting(), 0);
        end(&pool);
    });
}

#[test]
fn a_chain_is_no_cycle() {
    explore(500, || {
        let pool = pool(2, 8);
        let cache = Arc::new(Cache::new(100, u64::MAX));
        // "a" asks for "b"; meanwhile "b" is asked for, and "a" again by whoever computed "b".
        let ask_b = {
            let (pool, cache) = (pool.clone(), cache.clone());
            move || get_or_compute(&cache, &pool, b"b", 0, || Ok((2, 1)))
        };
        let ask_a = {
            let (pool, cache, ask_b) = (pool.clone(), cache.clone(), ask_b.clone());
            move || {
                let ask_b = ask_b.clone();
                let work = move || ask_b().map(|value| (value + 1, 1));
                get_or_compute(&cache, &pool, b"a", 0, work)
            }
        };
        let ask_c = {
            let (pool, cache, ask_a) = (pool.clone(), cache.clone(), ask_a.clone());
            move || {
                let ask_a = ask_a.clone();
                let work = move || ask_a().map(|value| (value + 1, 1));
                get_or_compute(&cache, &pool, b"c", 0, work)
            }
        };
        let threads = [thread::spawn(ask_b), thread::spawn(ask_c)];
        assert_eq!(ask_a(), Ok(3));
        let answers = threads.map(|thread| thread.join().unwrap());
        assert_eq!(answers, [Ok(2), Ok(4)]);
        end(&pool);
    });
}
