//! The functions that the code of `#[derive(Module)]` calls.
//!
//! [`assert_module`] is the only call that requires a field to be a module. The other calls are methods of [`FieldRef`]
//! if the field is a module, and otherwise methods of [`NoModule`], so they compile in both cases. The compiler
//! therefore reports a field that is no module only once.

use super::{Module, Visitor, VisitorMut};

/// Compiles if `M` is a module.
pub fn assert_module<M: Module>() {}

/// Returns the module as a trait object.
pub fn as_dyn<M: Module>(module: &M) -> &dyn Module {
    module
}

/// The same as [`as_dyn`], by mutable reference.
pub fn as_dyn_mut<M: Module>(module: &mut M) -> &mut dyn Module {
    module
}

/// A reference to a field.
#[derive(Debug)]
pub struct FieldRef<T>(pub T);

impl<'m, M: Module> FieldRef<&'m M> {
    /// Shows the field to a visitor.
    pub fn show(self, name: &str, visitor: &mut Visitor<'m, '_>) {
        visitor.member(name, self.0);
    }

    /// The module of the field.
    #[must_use]
    pub fn module(self) -> Option<&'m dyn Module> {
        self.0.as_module()
    }
}

impl<'m, M: Module> FieldRef<&'m mut M> {
    /// Shows the field to a visitor.
    pub fn show_mut(self, name: &str, visitor: &mut VisitorMut<'_>) {
        visitor.member(name, self.0);
    }

    /// The module of the field.
    #[must_use]
    pub fn module_mut(self) -> Option<&'m mut dyn Module> {
        self.0.as_module_mut()
    }
}

/// The methods of fields that are no modules.
pub trait NoModule: Sized {
    /// Never runs.
    fn show(self, _: &str, _: &mut Visitor<'_, '_>) {}

    /// Never runs.
    fn show_mut(self, _: &str, _: &mut VisitorMut<'_>) {}

    /// Never runs.
    fn module<'m>(self) -> Option<&'m dyn Module> {
        None
    }

    /// Never runs.
    fn module_mut<'m>(self) -> Option<&'m mut dyn Module> {
        None
    }
}

impl<T> NoModule for FieldRef<T> {}
