//! Much that waits most of its time, some of it at a time.

use std::sync::Mutex;

use redis_lock_testing::processors;

/// Plays all of these, some at a time. Each says what does not come out right.
#[track_caller]
pub fn play<T: Send>(all: Vec<T>, play: impl Fn(T) -> Option<String> + Sync) {
    let (all, wrong) = (Mutex::new(all), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..=processors().unwrap().len() {
            scope.spawn(|| {
                while let Some(one) = { all.lock().unwrap().pop() } {
                    let played = play(one);
                    wrong.lock().unwrap().extend(played);
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
