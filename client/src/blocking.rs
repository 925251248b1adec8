//! The same for threads.
