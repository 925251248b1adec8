//! What clients of one lock saw, and whether any correct lock could have shown
//! it to them.

pub mod clock;
pub mod history;
