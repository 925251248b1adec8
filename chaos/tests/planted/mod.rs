//! The module with the feature that lets faults be planted.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Builds the module, once.
pub fn module() -> &'static Path {
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
        assert!(
            status.success(),
            "the module with planted faults is not built"
        );
        target.join("debug/libredislock.so")
    })
}
