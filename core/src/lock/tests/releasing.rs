use super::*;

#[test]
fn one_release_ends_one_hold() {
    check_release(
        &held("a", 3, Some(7), Some(END)),
        &release("a", None, ReleaseExtent::One),
        Ok(Released::StillHeld),
        &[sets("a", 2, None)],
    );
}

#[test]
fn the_last_release_frees_the_lock() {
    for (holds, extent) in [
        (1, ReleaseExtent::One),
        (1, ReleaseExtent::All),
        (5, ReleaseExtent::All),
        (i64::MAX, ReleaseExtent::All),
        (1, hold(1)),
    ] {
        for token in [None, Some(7)] {
            check_release(
                &held("a", holds, Some(7), Some(END)),
                &release("a", token, extent),
                Ok(Released::LastHold),
                &[Effect::Delete],
            );
        }
    }
}

#[test]
fn a_hold_of_redisson_is_released_like_any_other() {
    let of_redisson = |holds| held("a", holds, None, Some(END));
    check_release(
        &of_redisson(2),
        &release("a", None, ReleaseExtent::One),
        Ok(Released::StillHeld),
        &[sets("a", 1, None)],
    );
    check_release(
        &of_redisson(1),
        &release("a", None, ReleaseExtent::One),
        Ok(Released::LastHold),
        &[Effect::Delete],
    );
    // It has no token, so none can be the right one.
    let named = release("a", Some(7), ReleaseExtent::All);
    check_release_in_vain(&of_redisson(1), &named, Ok(Released::NotHeld));
}

#[test]
fn who_names_another_token_releases_nothing() {
    let lock = held("a", 2, Some(7), Some(END));
    for token in [6, 8] {
        for extent in [ReleaseExtent::One, ReleaseExtent::All, hold(2), hold(9)] {
            let request = release("a", Some(token), extent);
            check_release_in_vain(&lock, &request, Ok(Released::NotHeld));
        }
    }
}

#[test]
fn who_does_not_hold_the_lock_releases_nothing() {
    for lock in [
        free(None),
        free(Some(7)),
        held("b", 1, Some(7), Some(END)),
        held("b", 1, None, Some(END)),
    ] {
        for extent in [ReleaseExtent::One, ReleaseExtent::All] {
            for token in [None, Some(7)] {
                let request = release("a", token, extent);
                check_release_in_vain(&lock, &request, Ok(Released::NotHeld));
            }
        }
    }
}

#[test]
fn a_named_hold_ends_once() {
    check_release(
        &held("a", 3, Some(7), Some(END)),
        &release("a", None, hold(3)),
        Ok(Released::StillHeld),
        &[sets("a", 2, None)],
    );
    let lock = held("a", 2, Some(7), Some(END));
    check_release_in_vain(&lock, &release("a", None, hold(3)), Ok(Released::StillHeld));
}

#[test]
fn a_resent_release_of_the_first_hold_gets_the_reply_it_missed() {
    let request = release("a", None, hold(1));
    for lock in [free(None), free(Some(7)), held("b", 3, Some(8), Some(END))] {
        check_release_in_vain(&lock, &request, Ok(Released::LastHold));
    }
}

#[test]
fn any_other_hold_is_refused() {
    let lock = held("a", 3, Some(7), Some(END));
    for wanted in [1, 2, 5, i64::MAX] {
        let request = release("a", None, hold(wanted));
        check_release_in_vain(&lock, &request, hold_count(wanted, 3));
    }
    for lock in [free(None), held("b", 3, Some(8), Some(END))] {
        let request = release("a", None, hold(2));
        check_release_in_vain(&lock, &request, hold_count(2, 0));
    }
}

#[test]
fn a_release_and_the_grant_that_follows_are_one_write() {
    let mut lock = held("a", 1, Some(NEW + 5), Some(END));
    let mut effects = Effects::new();
    let released = lock.release(&release("a", None, ReleaseExtent::One), &mut effects);
    assert_eq!(released, Ok(Released::LastHold));
    let request = acquire("b", LEASE_MS, None);
    let acquired = lock.acquire(
        &request,
        None,
        true,
        NOW,
        &mut TokenClock::default(),
        &mut effects,
    );
    assert_eq!(acquired, granted(NEW + 6));
    assert_eq!(effects[..], [replaces("b", NEW + 6, END)]);
    assert_eq!(lock, held("b", 1, Some(NEW + 6), Some(END)));
}
