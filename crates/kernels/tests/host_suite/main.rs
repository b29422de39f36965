//! Tests that need no GPU. They are modules of one program, so that it is linked only once.

mod layout;
mod misuse;
mod moved_checkout;
mod releases;
mod thread_locals;
