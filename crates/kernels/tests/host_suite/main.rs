//! Tests that need no GPU, in one program, which is linked once.

mod layout;
mod misuse;
mod moved_checkout;
mod releases;
