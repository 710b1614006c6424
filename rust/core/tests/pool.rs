//! The pool's promises on real threads: order, priorities, hosts, panics, cancellation, the end.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use safelight_core::cancel::Cancel;
use safelight_core::flight::{Ending, Flight, WaitError, Waker};
use safelight_core::pool::{Job, Options, Pool, Priority, Site, SubmitError};

const LONG: Duration = Duration::from_secs(30);

fn pool(threads: usize, queue: usize) -> Pool {
    Pool::new(Options {
        threads,
        queue,
        ..Options::default()
    })
}

fn flight<T: Send + Sync + 'static>(
    work: impl FnOnce(&Cancel) -> T + Send + 'static,
) -> Arc<Flight<T>> {
    Flight::new(Box::new(work))
}

fn job<T: Send + Sync + 'static>(flight: &Arc<Flight<T>>, priority: Priority) -> Job {
    Job {
        priority,
        ..Job::new(flight.clone())
    }
}

fn submit<T: Send + Sync + 'static>(pool: &Pool, flight: &Arc<Flight<T>>) {
    pool.submit(&mut [job(flight, Priority::Foreground)].into(), None)
        .unwrap();
}

/// Occupies one thread until the sender is dropped or sends.
fn block(pool: &Pool) -> mpsc::Sender<()> {
    let (release, gate) = mpsc::channel();
    let (begun, has_begun) = mpsc::channel();
    let blocker = flight(move |_| {
        let _ = begun.send(());
        let _ = gate.recv_timeout(LONG);
    });
    submit(pool, &blocker);
    has_begun.recv_timeout(LONG).unwrap();
    release
}

#[test]
fn foreground_goes_first_and_each_queue_keeps_its_order() {
    let pool = pool(1, 16);
    let gate = block(&pool);
    let order = Arc::new(Mutex::new(Vec::new()));
    let flights: Vec<_> = (0..6)
        .map(|index| {
            let order = order.clone();
            flight(move |_| order.lock().unwrap().push(index))
        })
        .collect();
    for (index, flight) in flights.iter().enumerate() {
        let priority = if index % 2 == 0 {
            Priority::Background
        } else {
            Priority::Foreground
        };
        pool.submit(&mut [job(flight, priority)].into(), None)
            .unwrap();
    }
    // A background job that somebody waits for overtakes its kind, behind what came before.
    pool.promote(&job(&flights[4], Priority::Background).task);
    drop(gate);
    for flight in &flights {
        flight.wait(Some(LONG)).unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [1, 3, 5, 4, 0, 2]);
}

#[test]
fn hosted_jobs_share_a_visit_while_they_follow_each_other() {
    let visits = Arc::new(AtomicUsize::new(0));
    let counted = visits.clone();
    let pool = Pool::new(Options {
        host: Some(Arc::new(move |run| {
            counted.fetch_add(1, SeqCst);
            run();
        })),
        ..Options::default()
    });
    let gate = block(&pool);
    let flights: Vec<_> = (0..9).map(|index| flight(move |_| index)).collect();
    let mut jobs: VecDeque<Job> = flights
        .iter()
        .enumerate()
        .map(|(index, flight)| Job {
            site: if index == 4 { Site::Thread } else { Site::Host },
            ..job(flight, Priority::Foreground)
        })
        .collect();
    pool.submit(&mut jobs, None).unwrap();
    drop(gate);
    for (index, flight) in flights.iter().enumerate() {
        assert_eq!(flight.wait(Some(LONG)), Ok(&Ending::Returned(index)));
    }
    // Four, then the native one without a host, then four.
    assert_eq!(visits.load(SeqCst), 2);
}

#[test]
fn a_hosted_job_can_be_withdrawn_while_its_thread_waits_to_be_let_in() {
    let (asks, asked) = mpsc::channel();
    let (let_in, door) = mpsc::channel::<()>();
    let (asks, door) = (Mutex::new(asks), Mutex::new(door));
    let pool = Pool::new(Options {
        host: Some(Arc::new(move |run| {
            asks.lock().unwrap().send(()).unwrap();
            door.lock().unwrap().recv_timeout(LONG).unwrap();
            run();
        })),
        ..Options::default()
    });
    let hosted = flight(|_| ());
    let job = Job {
        site: Site::Host,
        ..job(&hosted, Priority::Foreground)
    };
    pool.submit(&mut VecDeque::from([job]), None).unwrap();
    asked.recv_timeout(LONG).unwrap();
    assert!(hosted.withdraw());
    let_in.send(()).unwrap();
    assert_eq!(hosted.wait(Some(LONG)), Ok(&Ending::Withdrawn));
}

/// A job in two parts that notes both in `notes`, as `number` and `number + 100`.
fn staged(number: u32, notes: &Arc<Mutex<Vec<u32>>>, cost: u64) -> (Arc<Flight<u32>>, Job) {
    let notes = Arc::clone(notes);
    let flight = Flight::staged(Box::new(move |_| {
        notes.lock().unwrap().push(number);
        Some(Box::new(move || {
            notes.lock().unwrap().push(number + 100);
            number
        }))
    }));
    let job = Job {
        site: Site::Both,
        cost,
        ..Job::new(flight.clone())
    };
    (flight, job)
}

#[test]
fn staged_jobs_enter_the_host_together_as_far_as_their_cost_allows() {
    let notes = Arc::new(Mutex::new(Vec::new()));
    let visits = Arc::new(AtomicUsize::new(0));
    let counted = visits.clone();
    let pool = Pool::new(Options {
        host: Some(Arc::new(move |run| {
            counted.fetch_add(1, SeqCst);
            run();
        })),
        max_batch_cost: 10,
        ..Options::default()
    });
    let gate = block(&pool);
    let (flights, mut jobs): (Vec<_>, VecDeque<_>) = [(0, 4), (1, 4), (2, 4), (3, 90), (4, 1)]
        .into_iter()
        .map(|(number, cost)| staged(number, &notes, cost))
        .unzip();
    // Between the fourth and the fifth, one that joins no batch.
    let alone = flight(|_| ());
    jobs.insert(4, job(&alone, Priority::Foreground));
    pool.submit(&mut jobs, None).unwrap();
    drop(gate);
    for (number, flight) in (0..).zip(&flights) {
        assert_eq!(flight.wait(Some(LONG)), Ok(&Ending::Returned(number)));
    }
    assert_eq!(
        *notes.lock().unwrap(),
        [0, 1, 100, 101, 2, 102, 3, 103, 4, 104]
    );
    assert_eq!(visits.load(SeqCst), 4);
}

#[test]
fn a_staged_job_that_is_waited_for_by_work_runs_there_whole() {
    let notes = Arc::new(Mutex::new(Vec::new()));
    let pool = Arc::new(pool(1, 16));
    let (flight_of_two, job) = staged(1, &notes, 0);
    let (inner, shared) = (flight_of_two.clone(), pool.clone());
    let waits = flight(move |_| {
        shared.submit(&mut [job].into(), None).unwrap();
        // The only thread of the pool is this one.
        matches!(inner.wait(Some(LONG)), Ok(Ending::Returned(1)))
    });
    submit(&pool, &waits);
    assert_eq!(waits.wait(Some(LONG)), Ok(&Ending::Returned(true)));
}

#[test]
fn a_staged_job_ends_as_its_parts_do() {
    let panics: Arc<Flight<()>> = Flight::staged(Box::new(|_| panic()));
    let panics_later: Arc<Flight<()>> = Flight::staged(Box::new(|_| Some(Box::new(|| panic()))));
    let whole: Arc<Flight<()>> = Flight::staged(Box::new(|_| Some(Box::new(|| ()))));
    let stops: Arc<Flight<()>> = Flight::staged(Box::new(|_| None));
    let locked_out: Arc<Flight<()>> = Flight::staged(Box::new(|_| Some(Box::new(|| ()))));
    let lets_in = Pool::new(Options {
        host: Some(Arc::new(|run| run())),
        ..Options::default()
    });
    let keeps_out = Pool::new(Options {
        host: Some(Arc::new(|_| {})),
        ..Options::default()
    });
    for (pool, flight, expected) in [
        (&lets_in, panics, Ending::Panicked),
        (&lets_in, panics_later, Ending::Panicked),
        (&lets_in, whole, Ending::Returned(())),
        (&lets_in, stops, Ending::Withdrawn),
        (&keeps_out, locked_out, Ending::Abandoned),
    ] {
        let job = Job {
            site: Site::Both,
            ..Job::new(flight.clone())
        };
        pool.submit(&mut [job].into(), None).unwrap();
        assert_eq!(flight.wait(Some(LONG)), Ok(&expected));
    }
}

/// A panic that prints nothing.
fn panic() -> ! {
    std::panic::resume_unwind(Box::new(7))
}

#[test]
fn bulk_lets_others_pass_but_not_for_ever() {
    let pool = pool(1, 128);
    let gate = block(&pool);
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |number: usize| {
        let order = order.clone();
        flight(move |_| order.lock().unwrap().push(number))
    };
    let bulk: Vec<_> = (1000..1002).map(note).collect();
    let small: Vec<_> = (0..40).map(note).collect();
    let mut jobs: VecDeque<Job> = bulk
        .iter()
        .map(|flight| job(flight, Priority::Bulk))
        .chain(small.iter().map(|flight| job(flight, Priority::Foreground)))
        .collect();
    pool.submit(&mut jobs, None).unwrap();
    drop(gate);
    for flight in bulk.iter().chain(&small) {
        flight.wait(Some(LONG)).unwrap();
    }
    let order = order.lock().unwrap();
    let places: Vec<_> = order
        .iter()
        .enumerate()
        .filter(|(_, number)| **number >= 1000)
        .collect();
    assert_eq!(places, [(16, &1000), (33, &1001)]);
}

#[test]
fn a_host_that_is_gone_withdraws_its_jobs_and_spares_the_others() {
    let pool = Pool::new(Options {
        host: Some(Arc::new(|_| {})),
        ..Options::default()
    });
    let hosted = flight(|_| ());
    let native = flight(|_| ());
    let mut jobs = VecDeque::from([
        Job {
            site: Site::Host,
            ..job(&hosted, Priority::Foreground)
        },
        job(&native, Priority::Foreground),
    ]);
    pool.submit(&mut jobs, None).unwrap();
    assert_eq!(hosted.wait(Some(LONG)), Ok(&Ending::Withdrawn));
    assert_eq!(native.wait(Some(LONG)), Ok(&Ending::Returned(())));
}

#[test]
fn a_panic_ends_its_own_job_only() {
    let pool = pool(1, 16);
    let panics = flight(|_| -> () { std::panic::resume_unwind(Box::new(7)) });
    let after = flight(|_| 7);
    submit(&pool, &panics);
    submit(&pool, &after);
    assert_eq!(panics.wait(Some(LONG)), Ok(&Ending::Panicked));
    assert_eq!(after.wait(Some(LONG)), Ok(&Ending::Returned(7)));
}

#[test]
fn a_waker_that_panics_costs_the_others_nothing() {
    let (sender, receiver) = mpsc::channel();
    let flight = flight(|_| ());
    flight.watch(Waker::One(Box::new(|| {
        std::panic::resume_unwind(Box::new(()))
    })));
    flight.watch(Waker::One(Box::new(move || sender.send(()).unwrap())));
    assert!(flight.run());
    receiver.recv_timeout(LONG).unwrap();
}

#[test]
fn cancelling_withdraws_what_waits_and_asks_what_runs() {
    let pool = pool(1, 16);
    let (begun, has_begun) = mpsc::channel();
    let running = flight(move |cancel| {
        begun.send(()).unwrap();
        while !cancel.is_requested() {
            std::thread::yield_now();
        }
        "stopped"
    });
    let waiting = flight(|_| "never");
    submit(&pool, &running);
    submit(&pool, &waiting);
    has_begun.recv_timeout(LONG).unwrap();
    assert!(waiting.cancel());
    assert!(!running.cancel());
    assert_eq!(waiting.wait(Some(LONG)), Ok(&Ending::Withdrawn));
    assert_eq!(running.wait(Some(LONG)), Ok(&Ending::Returned("stopped")));
}

#[test]
fn a_full_queue_refuses_waits_and_forgets_what_was_withdrawn() {
    let pool = pool(1, 2);
    let gate = block(&pool);
    let flights: Vec<_> = (0..4).map(|index| flight(move |_| index)).collect();
    let mut jobs: VecDeque<Job> = flights
        .iter()
        .map(|flight| job(flight, Priority::Foreground))
        .collect();
    assert_eq!(pool.try_submit(&mut jobs), Err(SubmitError::Full));
    assert_eq!(jobs.len(), 2);
    assert_eq!(
        pool.submit(&mut jobs, Some(Duration::from_millis(1))),
        Err(SubmitError::Full)
    );
    flights[0].withdraw();
    flights[1].withdraw();
    // Their places are free without a worker having passed by.
    assert_eq!(pool.try_submit(&mut jobs), Ok(()));
    drop(gate);
    assert_eq!(flights[3].wait(Some(LONG)), Ok(&Ending::Returned(3)));
}

#[test]
fn a_wait_has_its_timeout() {
    let flight = flight(|_| ());
    assert_eq!(flight.wait(Some(Duration::ZERO)), Err(WaitError::Timeout));
    assert_eq!(flight.waiters(), 0);
}

#[test]
fn what_is_queued_ends_when_the_pool_is_dropped_or_closed() {
    let dropped = pool(1, 16);
    let gate = block(&dropped);
    let queued = flight(|_| 7);
    submit(&dropped, &queued);
    drop(dropped);
    drop(gate);
    assert_eq!(queued.wait(Some(LONG)), Ok(&Ending::Returned(7)));

    let closed = pool(1, 16);
    let gate = block(&closed);
    let queued = flight(|_| 7);
    submit(&closed, &queued);
    closed.close();
    assert_eq!(queued.wait(Some(LONG)), Ok(&Ending::Withdrawn));
    assert!(!closed.join(Some(Duration::ZERO)));
    let late = flight(|_| 7);
    assert_eq!(
        closed.try_submit(&mut [job(&late, Priority::Foreground)].into()),
        Err(SubmitError::ShutDown)
    );
    drop(gate);
    assert!(closed.join(Some(LONG)));
    assert_eq!(closed.stats().threads, 0);
}

#[test]
fn threads_start_with_the_work_and_have_names() {
    let pool = Pool::new(Options {
        threads: 4,
        name: "lamp".to_owned(),
        ..Options::default()
    });
    assert_eq!(pool.stats().threads, 0);
    let named = flight(|_| std::thread::current().name().map(str::to_owned));
    submit(&pool, &named);
    assert_eq!(
        named.wait(Some(LONG)),
        Ok(&Ending::Returned(Some("lamp-0".to_owned())))
    );
    assert_eq!(pool.stats().threads, 1);
}

#[test]
fn what_ended_in_the_queue_is_dropped_without_the_lock() {
    struct Asks(Arc<Pool>);
    impl Drop for Asks {
        fn drop(&mut self) {
            assert_eq!(self.0.stats().threads, 1);
        }
    }
    let pool = Arc::new(pool(1, 2));
    let gate = block(&pool);
    let asking = pool.clone();
    let queued = flight(move |_| Asks(asking));
    submit(&pool, &queued);
    // Run elsewhere: what is left of it in the queue is its last owner.
    queued.run();
    drop(queued);
    let (done, is_done) = mpsc::channel();
    let submitter = pool.clone();
    let body = move || {
        let flights = [flight(|_| ()), flight(|_| ())];
        for flight in &flights {
            submit(&submitter, flight);
        }
        done.send(()).unwrap();
    };
    std::thread::Builder::new().spawn(body).unwrap();
    is_done.recv_timeout(LONG).expect("no deadlock");
    drop(gate);
}
