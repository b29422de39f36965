//! Visitors of modules, and the members that they see.

use warpline::Tensor;

use super::Module;
use crate::{Buffer, Parameter, Training};

/// A member of a module, by shared reference.
#[derive(Debug)]
pub enum Member<'a> {
    /// A parameter.
    Parameter(&'a Parameter),
    /// A buffer.
    Buffer(&'a Buffer),
    /// A training flag.
    Training(&'a Training),
}

impl Member<'_> {
    /// Returns the tensor of a parameter or buffer. `None` for a training flag.
    #[must_use]
    pub fn tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Parameter(parameter) => Some(parameter),
            Self::Buffer(buffer) => Some(buffer),
            Self::Training(_) => None,
        }
    }
}

impl MemberMut<'_> {
    /// Returns the tensor of a parameter or buffer. `None` for a training flag.
    #[must_use]
    pub fn tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Parameter(parameter) => Some(parameter),
            Self::Buffer(buffer) => Some(buffer),
            Self::Training(_) => None,
        }
    }

    /// Replaces the tensor of a parameter or buffer. Does nothing to a training flag. Does not mark the old tensor as
    /// moved and keeps `tensor`'s `requires_grad`.
    pub fn replace(&mut self, tensor: Tensor) {
        match self {
            Self::Parameter(parameter) => parameter.replace(tensor),
            Self::Buffer(buffer) => buffer.set(tensor),
            Self::Training(_) => {}
        }
    }
}

/// A member of a module, by mutable reference.
#[derive(Debug)]
pub enum MemberMut<'a> {
    /// A parameter.
    Parameter(&'a mut Parameter),
    /// A buffer.
    Buffer(&'a mut Buffer),
    /// A training flag.
    Training(&'a mut Training),
}

/// The full name of the visited member.
#[derive(Debug, Default)]
struct MemberPath(String);

impl MemberPath {
    /// Appends the name of a member. Returns the argument for [`MemberPath::leave`].
    fn enter(&mut self, name: &str) -> usize {
        let before = self.0.len();
        if before > 0 && !name.is_empty() {
            self.0.push('.');
        }
        self.0.push_str(name);
        before
    }

    fn leave(&mut self, before: usize) {
        self.0.truncate(before);
    }
}

macro_rules! visitor {
    ($name:ident, $member:ident, $visit:ident, [$($mutable:tt)?]) => {
        #[doc = concat!("A visitor of a module's members: the argument of [`Module::", stringify!($visit), "`].")]
        pub struct $name<'v> {
            path: MemberPath,
            see: &'v mut dyn FnMut(&str, $member<'_>),
        }

        impl<'v> $name<'v> {
            /// Creates a visitor that calls `see` with the name of each parameter, buffer and training flag, and the
            /// member.
            pub fn new(see: &'v mut dyn FnMut(&str, $member<'_>)) -> Self {
                Self { path: MemberPath::default(), see }
            }

            /// Visits a field. `name` and a dot come before the names of its members; an empty `name` adds nothing.
            pub fn member<M: Module + ?Sized>(&mut self, name: &str, module: & $($mutable)? M) {
                let before = self.path.enter(name);
                module.$visit(self);
                self.path.leave(before);
            }

            pub(crate) fn see(&mut self, member: $member<'_>) {
                (self.see)(&self.path.0, member);
            }
        }

        impl std::fmt::Debug for $name<'_> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).field("path", &self.path.0).finish_non_exhaustive()
            }
        }
    };
}

visitor!(Visitor, Member, visit, []);
visitor!(VisitorMut, MemberMut, visit_mut, [mut]);
