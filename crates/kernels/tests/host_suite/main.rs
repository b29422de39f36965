//! Tests that need no GPU, in one program so that they are linked once.

mod layout;
mod misuse;
mod moved_checkout;
mod releases;
