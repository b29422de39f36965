//! Layouts, misuse and refused releases: one program of all, which is linked once.

mod layout;
mod misuse;
mod releases;
