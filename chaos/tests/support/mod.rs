//! What tests of campaigns and of scenes share.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use redis_lock_testing::processors;

/// The module with the feature that lets faults be planted, built once.
pub fn module_with_faults() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("planted");
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--locked"])
            .args(["--features", "planted-faults"])
            .args(["--package", "redis-lock-module", "--target-dir"])
            .arg(&target)
            .status()
            .unwrap();
        assert!(status.success(), "the module is not built");
        target.join("debug/libredislock.so")
    })
}

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
