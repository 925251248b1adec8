//! How much memory a hold takes: a client may have ten thousand.

use super::{Hold, Unkept, keep};

/// How large the future is that a function returns.
const fn size_of_future<F>(_: &impl FnOnce(Unkept) -> F) -> usize {
    size_of::<F>()
}

#[test]
fn a_hold_at_rest_takes_little_room() {
    assert!(size_of::<Hold>() <= 512, "{}", size_of::<Hold>());
    let kept = size_of_future(&keep);
    assert!(kept <= 1024, "{kept}");
}
