//! Values that are dropped one after another.

use std::ops::{Deref, DerefMut};

use warpline::autograd::drop_in_turn;

/// A value that may own further values of its kind, to any depth. It is dropped in turn, not by recursion.
#[derive(Clone)]
pub(super) struct InTurn<T: 'static>(Option<T>);

impl<T> InTurn<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Some(value))
    }

    pub(super) fn into_inner(mut self) -> T {
        self.0.take().expect(PRESENT)
    }
}

const PRESENT: &str = "the value is present until it is moved out or dropped";

impl<T> Deref for InTurn<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect(PRESENT)
    }
}

impl<T> DerefMut for InTurn<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect(PRESENT)
    }
}

impl<T> Drop for InTurn<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            drop_in_turn(value);
        }
    }
}
