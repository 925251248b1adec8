//! When a grant was made, by its token.

use std::collections::HashSet;

use super::{Nanos, Tenancies};

/// A grant comes after all those with smaller tokens.
pub(super) struct GrantTimes(Vec<(i64, Nanos)>);

impl GrantTimes {
    pub(super) fn new(tenancies: &Tenancies<'_>) -> Self {
        let mut sent: Vec<(i64, Nanos)> = Vec::new();
        for tenancy in tenancies.values() {
            let known = tenancy
                .operations
                .iter()
                .take_while(|one| !(one.acquires() && one.unknown()));
            let mut told = HashSet::new();
            for one in known {
                if let Some(token) = one.token()
                    && told.insert(token)
                {
                    sent.push((token, one.sent));
                }
            }
        }
        sent.sort_unstable();
        let mut latest = 0;
        for (_, sent) in &mut sent {
            latest = latest.max(*sent);
            *sent = latest;
        }
        Self(sent)
    }

    pub(super) fn not_before(&self, token: i64) -> Nanos {
        let smaller = self.0.partition_point(|&(other, _)| other < token);
        smaller.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}
