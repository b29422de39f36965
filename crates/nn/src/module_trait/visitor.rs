//! Visitors of modules, and the members that they see.

use std::fmt;

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
    /// A module. Its own members follow.
    Module(&'a dyn Module),
}

impl<'a> Member<'a> {
    /// Returns the tensor of a parameter or buffer. `None` for other members.
    #[must_use]
    pub fn tensor(&self) -> Option<&'a Tensor> {
        match self {
            Self::Parameter(parameter) => Some(parameter),
            Self::Buffer(buffer) => Some(buffer),
            Self::Training(_) | Self::Module(_) => None,
        }
    }
}

impl MemberMut<'_> {
    /// Returns the tensor of a parameter or buffer. `None` for other members.
    #[must_use]
    pub fn tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Parameter(parameter) => Some(parameter),
            Self::Buffer(buffer) => Some(buffer),
            Self::Training(_) | Self::Module(_) => None,
        }
    }

    /// Replaces the tensor of a parameter or buffer. Does nothing to other members. Does not mark the old tensor as
    /// moved and keeps `tensor`'s `requires_grad`.
    pub fn replace(&mut self, tensor: Tensor) {
        match self {
            Self::Parameter(parameter) => parameter.replace(tensor),
            Self::Buffer(buffer) => buffer.set(tensor),
            Self::Training(_) | Self::Module(_) => {}
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
    /// A module. Its own members came before.
    Module(&'a mut dyn Module),
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

/// A visitor of the members of a module that lives for `'m`: the argument of [`Module::visit`].
pub struct Visitor<'m, 'v> {
    path: MemberPath,
    see: &'v mut dyn FnMut(&str, Member<'m>),
    /// Whether the members of the module's modules are visited, too.
    is_deep: bool,
}

impl<'m, 'v> Visitor<'m, 'v> {
    /// Creates a visitor that calls `see` with each member and its name. A module comes before its own members.
    pub fn new(see: &'v mut dyn FnMut(&str, Member<'m>)) -> Self {
        Self { path: MemberPath::default(), see, is_deep: true }
    }

    /// Creates a visitor that does not visit the members of the module's modules.
    pub(super) fn shallow(see: &'v mut dyn FnMut(&str, Member<'m>)) -> Self {
        Self { is_deep: false, ..Self::new(see) }
    }

    /// Visits a field. `name` and a dot come before the names of its members. With an empty `name`, the members of the
    /// field count as members of the module that has the field.
    pub fn member<M: Module + ?Sized>(&mut self, name: &str, field: &'m M) {
        let before = self.path.enter(name);
        let module = if name.is_empty() { None } else { field.as_module() };
        if let Some(module) = module {
            self.see(Member::Module(module));
        }
        if module.is_none() || self.is_deep {
            field.visit(self);
        }
        self.path.leave(before);
    }

    pub(crate) fn see(&mut self, member: Member<'m>) {
        (self.see)(&self.path.0, member);
    }
}

/// A visitor of a module's members: the argument of [`Module::visit_mut`].
pub struct VisitorMut<'v> {
    path: MemberPath,
    see: &'v mut dyn FnMut(&str, MemberMut<'_>),
}

impl<'v> VisitorMut<'v> {
    /// Creates a visitor that calls `see` with each member and its name. A module comes after its own members.
    pub fn new(see: &'v mut dyn FnMut(&str, MemberMut<'_>)) -> Self {
        Self { path: MemberPath::default(), see }
    }

    /// Visits a field. `name` and a dot come before the names of its members. With an empty `name`, the members of the
    /// field count as members of the module that has the field.
    pub fn member<M: Module + ?Sized>(&mut self, name: &str, field: &mut M) {
        let before = self.path.enter(name);
        field.visit_mut(self);
        if !name.is_empty()
            && let Some(module) = field.as_module_mut()
        {
            self.see(MemberMut::Module(module));
        }
        self.path.leave(before);
    }

    pub(crate) fn see(&mut self, member: MemberMut<'_>) {
        (self.see)(&self.path.0, member);
    }
}

impl fmt::Debug for Visitor<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visitor").field("path", &self.path.0).finish_non_exhaustive()
    }
}

impl fmt::Debug for VisitorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VisitorMut").field("path", &self.path.0).finish_non_exhaustive()
    }
}
