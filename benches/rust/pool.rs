//! A batch of jobs against the least that threads cost: a channel there and a channel back.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use safelight_core::flight::Flight;
use safelight_core::pool::{Job, Options, Pool};

const COUNT: usize = 64;

fn batch(criterion: &mut Criterion) {
    let pool = Pool::new(Options {
        threads: 2,
        ..Options::default()
    });
    let (work, tasks) = mpsc::channel::<usize>();
    let tasks = Arc::new(Mutex::new(tasks));
    let (answer, answers) = mpsc::channel();
    for _ in 0..2 {
        let (tasks, answer) = (Arc::clone(&tasks), answer.clone());
        let body = move || {
            loop {
                let task = tasks.lock().unwrap().recv();
                let Ok(task) = task else { return };
                let _ = answer.send(task);
            }
        };
        thread::Builder::new().spawn(body).unwrap();
    }
    let mut group = criterion.benchmark_group("pool, 64 native jobs");
    group.bench_function("ours", |bencher| {
        bencher.iter(|| {
            let flights: Vec<Arc<Flight<usize>>> = (0..COUNT)
                .map(|index| Flight::new(Box::new(move |_: &_| index)))
                .collect();
            let mut jobs: VecDeque<Job> = flights
                .iter()
                .map(|flight| Job::new(flight.clone()))
                .collect();
            pool.submit(&mut jobs, None).unwrap();
            flights
                .iter()
                .filter(|flight| flight.wait(None).is_ok())
                .count()
        });
    });
    group.bench_function(BenchmarkId::new("channels", 0.5), |bencher| {
        bencher.iter(|| {
            for index in 0..COUNT {
                work.send(index).unwrap();
            }
            answers.iter().take(COUNT).count()
        });
    });
    group.finish();
}

criterion_group!(benches, batch);
criterion_main!(benches);
