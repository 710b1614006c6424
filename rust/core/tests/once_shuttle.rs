//! Interleavings of what is made once, of its followers, and of those who wait for room or for many.
//!
//! As `flight_shuttle.rs`, over the same modules.

#![allow(dead_code, unreachable_pub, missing_docs)]

#[path = "../src/cancel.rs"]
mod cancel;
#[path = "../src/flight/mod.rs"]
mod flight;
#[path = "../src/fork.rs"]
mod fork;
#[path = "../src/pool/mod.rs"]
mod pool;
#[path = "shuttle/sync.rs"]
mod sync;

use std::collections::VecDeque;
use std::sync::Arc;
// Counting is no part of what is explored.
use std::sync::atomic::{AtomicUsize as Counter, Ordering::SeqCst};

use cancel::Cancel;
use flight::{Ending, Equals, Flight, Interest, Mailbox, Once, WaitError, WaitGraph, Waker, Watch};
use pool::{Job, Options, Pool, SubmitError};
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

type Answer = Result<u32, &'static str>;

/// A thing that is made once, as the binding makes it: a memo, a flight, and who asks.
struct Thing {
    once: Once<Answer>,
    memo: Memo,
    made: Counter,
    graph: Arc<WaitGraph>,
}

/// What Python's objects are to the binding: no part of what is explored.
type Memo = std::sync::Mutex<Option<u32>>;

impl Thing {
    fn new(graph: &Arc<WaitGraph>) -> Arc<Self> {
        Arc::new(Self {
            once: Once::default(),
            memo: Memo::default(),
            made: Counter::new(0),
            graph: Arc::clone(graph),
        })
    }

    fn work(self: &Arc<Self>, make: impl FnOnce() -> Answer + Send + 'static) -> Work {
        let this = Arc::clone(self);
        Box::new(move || {
            this.made.fetch_add(1, SeqCst);
            let answer = make();
            if let Ok(value) = answer {
                *this.memo.lock().unwrap() = Some(value);
            }
            answer
        })
    }

    fn join(
        self: &Arc<Self>,
        make: impl FnOnce() -> Answer + Send + 'static,
    ) -> Option<Interest<Answer>> {
        let work = self.work(make);
        let start = || {
            let is_made = self.memo.lock().unwrap().is_some();
            let flight = Flight::staged(Box::new(move |_: &Cancel| Some(work)));
            flight.join().filter(|_| !is_made)
        };
        Some(self.once.join(0, start)?.0)
    }

    fn get(self: &Arc<Self>, make: impl Fn() -> Answer + Clone + Send + 'static) -> Answer {
        loop {
            let Some(interest) = self.join(make.clone()) else {
                return Ok(self.memo.lock().unwrap().unwrap());
            };
            self.graph.as_runner(|| interest.run());
            match interest.wait(None) {
                Ok(Ending::Returned(answer)) => return *answer,
                Ok(Ending::Withdrawn) => {}
                Ok(_) => return Err("died"),
                Err(WaitError::Cycle) => return Err("cycle"),
                Err(WaitError::Timeout) => unreachable!("no timeout was given"),
            }
        }
    }
}

type Work = flight::LastPart<Answer>;

#[test]
fn a_thing_is_made_once_whoever_asks_and_however() {
    explore(1000, || {
        let pool = pool(1, 4);
        let thing = Thing::new(&pool.options().graph);
        let asking = thing.clone();
        let asker = thread::spawn(move || assert_eq!(asking.get(|| Ok(7)), Ok(7)));
        if let Some(interest) = thing.join(|| Ok(7)) {
            pool.submit(&mut job(interest.flight()), None).unwrap();
            assert_eq!(interest.wait(None), Ok(&Ending::Returned(Ok(7))));
        }
        assert_eq!(thing.get(|| Ok(7)), Ok(7));
        asker.join().unwrap();
        assert_eq!(thing.made.load(SeqCst), 1);
        end(&pool);
    });
}

#[test]
fn a_failure_reaches_those_who_joined_and_is_not_remembered() {
    explore(1000, || {
        let thing = Thing::new(&Arc::default());
        let asking = thing.clone();
        let asker = thread::spawn(move || asking.get(|| Err("failed")));
        assert_eq!(thing.get(|| Err("failed")), Err("failed"));
        assert_eq!(asker.join().unwrap(), Err("failed"));
        assert_eq!(thing.get(|| Ok(7)), Ok(7));
    });
}

#[test]
fn the_last_to_leave_cancels_and_no_other() {
    explore(1000, || {
        let pool = pool(1, 4);
        let thing = Thing::new(&pool.options().graph);
        let leaving = thing.clone();
        let queue = pool.clone();
        let leaver = thread::spawn(move || {
            if let Some(interest) = leaving.join(|| Ok(7)) {
                queue.submit(&mut job(interest.flight()), None).unwrap();
                interest.leave();
                interest.leave();
            }
        });
        // Withdrawn under nobody who stays: a late joiner gets a flight of its own.
        let stays = thing.join(|| Ok(7));
        if let Some(interest) = &stays {
            pool.submit(&mut job(interest.flight()), None).unwrap();
            assert_eq!(interest.wait(None), Ok(&Ending::Returned(Ok(7))));
        }
        leaver.join().unwrap();
        assert_eq!(thing.made.load(SeqCst), 1);
        end(&pool);
    });
}

#[test]
fn first_part_that_all_left_stops_and_the_last_part_never_runs() {
    explore(1000, || {
        let (ran, once) = (Arc::new(Counter::new(0)), Once::default());
        let counted = ran.clone();
        let first: flight::StagedWork<u32> = Box::new(move |_| {
            thread::yield_now();
            Some(Box::new(move || {
                counted.fetch_add(1, SeqCst);
                7
            }))
        });
        let (interest, _) = once.join(0, || Flight::staged(first).join()).unwrap();
        let flight = interest.flight().clone();
        let runner = thread::spawn(move || flight.run());
        interest.leave();
        runner.join().unwrap();
        match interest.ending() {
            Some(Ending::Returned(7)) => assert_eq!(ran.load(SeqCst), 1),
            Some(Ending::Withdrawn) => {
                assert_eq!(ran.load(SeqCst), 0);
                assert!(interest.flight().join().is_none());
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn things_that_ask_for_each_other_fail_instead_of_waiting() {
    explore(1000, || {
        let graph: Arc<WaitGraph> = Arc::default();
        let (a, b) = (Thing::new(&graph), Thing::new(&graph));
        let ask = |mine: &Arc<Thing>, theirs: &Arc<Thing>| {
            let (mine, theirs) = (mine.clone(), theirs.clone());
            move || {
                let (back, theirs) = (mine.clone(), theirs.clone());
                mine.get(move || {
                    let back = back.clone();
                    theirs.get(move || back.get(|| Ok(1)))
                })
            }
        };
        let other = thread::spawn(ask(&b, &a));
        assert_eq!(ask(&a, &b)(), Err("cycle"));
        assert_eq!(other.join().unwrap(), Err("cycle"));
        assert_eq!(graph.waiting(), 0);
    });
}

#[test]
fn equal_things_are_made_once_while_one_is_under_way() {
    explore(1000, || {
        let pool = pool(2, 8);
        let equals: Arc<Equals<u8, u32>> = Arc::default();
        let made = Arc::new(Counter::new(0));
        let ask = {
            let (pool, equals, made) = (pool.clone(), equals.clone(), made.clone());
            move || {
                let counted = made.clone();
                let known = equals.clone();
                let first: flight::StagedWork<u32> = Box::new(move |_| {
                    let count = counted.fetch_add(1, SeqCst);
                    Some(Box::new(move || {
                        assert!(known.close(&1) <= 1);
                        u32::try_from(count).unwrap() * 10
                    }))
                });
                let own = Flight::staged(first).join().unwrap();
                let Some(leader) = equals.join_or_insert(1, &own) else {
                    pool.submit(&mut job(own.flight()), None).unwrap();
                    return (own, true);
                };
                let entry = job(leader.flight());
                let flight = Flight::follow(leader, |ending| match ending {
                    Some(Ending::Returned(value)) => value + 1,
                    other => panic!("{other:?}"),
                });
                let interest = flight.join().unwrap();
                pool.submit(&mut { entry }, None).unwrap();
                let (queue, late) = (pool.clone(), Job::new(flight.clone()));
                flight.leader().unwrap().watch(Waker::One(Box::new(move || {
                    queue.push(late).unwrap();
                })));
                (interest, false)
            }
        };
        let asking = ask.clone();
        let other = thread::spawn(move || {
            let (interest, leads) = asking();
            let Ok(Ending::Returned(value)) = interest.wait(None) else {
                panic!()
            };
            (*value, leads)
        });
        let (interest, leads) = ask();
        // The leader leaves: its follower still wants it.
        if leads {
            interest.leave();
        } else {
            assert_eq!(interest.wait(None), Ok(&Ending::Returned(1)));
        }
        let (value, other_leads) = other.join().unwrap();
        assert!(other_leads && value == 0 || !other_leads && value == 1 || value == 10);
        assert!(equals.is_empty() || leads);
        end(&pool);
    });
}

#[test]
fn whoever_waits_for_room_is_woken() {
    explore(500, || {
        let pool = pool(1, 2);
        let ran = Arc::new(Counter::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (pool, ran) = (pool.clone(), ran.clone());
                thread::spawn(move || {
                    let mut jobs: VecDeque<Job> = (0..3)
                        .map(|_| {
                            let ran = ran.clone();
                            Job::new(flight(move || ran.fetch_add(1, SeqCst)))
                        })
                        .collect();
                    while pool.offer(&mut jobs) == Err(SubmitError::Full) {
                        let room = flight(|| ());
                        let woken = room.clone();
                        pool.watch_room(Waker::One(Box::new(move || {
                            woken.run();
                        })));
                        room.wait(None).unwrap();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        end(&pool);
        assert_eq!(ran.load(SeqCst), 6);
    });
}

#[test]
fn a_watch_wakes_its_thread_and_its_waker_once_enough_have_ended() {
    explore(1000, || {
        let flights = [flight(|| ()), flight(|| ())];
        let watch = Watch::new();
        for (number, flight) in flights.iter().enumerate() {
            watch.add(number, flight);
        }
        let runners = flights.map(|flight| thread::spawn(move || flight.run()));
        let woken = flight(|| ());
        let told = woken.clone();
        watch.notify(
            2,
            Waker::One(Box::new(move || {
                told.run();
            })),
        );
        assert!(watch.wait(1, None));
        let mut ended = watch.take();
        woken.wait(None).unwrap();
        assert!(watch.wait(2, None));
        ended.extend(watch.take());
        ended.sort_unstable();
        assert_eq!(ended, [0, 1]);
        for runner in runners {
            assert!(runner.join().unwrap());
        }
    });
}

#[test]
fn a_mailbox_loses_nothing_and_calls_once_for_all_that_is_there() {
    explore(1000, || {
        let mailbox = Arc::new(Mailbox::default());
        let calls = Arc::new(Counter::new(0));
        let taken = Arc::new(Counter::new(0));
        let threads: Vec<_> = (0..3)
            .map(|mail| {
                let (mailbox, calls, taken) = (mailbox.clone(), calls.clone(), taken.clone());
                thread::spawn(move || {
                    if mailbox.post(mail) {
                        calls.fetch_add(1, SeqCst);
                        thread::yield_now();
                        taken.fetch_add(mailbox.take().len(), SeqCst);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(taken.load(SeqCst), 3);
        assert!((1..=3).contains(&calls.load(SeqCst)));
    });
}
