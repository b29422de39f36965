//! Modules as a tree: trait objects, and the printed tree.

use std::any::Any;
use std::fmt;

use super::Module;

/// Converts a module of a known type to a trait object.
pub trait AsDyn {
    fn as_dyn(&self) -> &dyn Module;
    fn as_dyn_mut(&mut self) -> &mut dyn Module;
}

impl<M: Module> AsDyn for M {
    fn as_dyn(&self) -> &dyn Module {
        self
    }

    fn as_dyn_mut(&mut self) -> &mut dyn Module {
        self
    }
}

/// Tests for the type of a module (`isinstance`).
impl dyn Module {
    /// Returns `true` if the type of the module, or of the module that it wraps (in a `Box`, an `Option` or a
    /// `Hooked`), is `M`.
    #[must_use]
    pub fn is<M: Module>(&self) -> bool {
        self.downcast_ref::<M>().is_some()
    }

    /// Returns the module, or the module that it wraps (in a `Box`, an `Option` or a `Hooked`), if its type is `M`.
    #[must_use]
    pub fn downcast_ref<M: Module>(&self) -> Option<&M> {
        let inner = || (self.as_module()? as &dyn Any).downcast_ref();
        (self as &dyn Any).downcast_ref().or_else(inner)
    }

    /// Returns the module, or the module that it wraps (in a `Box`, an `Option` or a `Hooked`), if its type is `M`.
    #[must_use]
    pub fn downcast_mut<M: Module>(&mut self) -> Option<&mut M> {
        match (self as &dyn Any).is::<M>() {
            true => (self as &mut dyn Any).downcast_mut(),
            false => (self.as_module_mut()? as &mut dyn Any).downcast_mut(),
        }
    }
}

/// Writes the tree of modules in PyTorch's format.
impl fmt::Display for dyn Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&tree(self.as_module().unwrap_or(self)))
    }
}

/// Writes the tree of modules in PyTorch's format.
impl fmt::Debug for dyn Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the name of a type without its path and its parameters.
pub(super) fn short_name(full: &'static str) -> &'static str {
    let path = full.split('<').next().unwrap_or(full);
    path.rsplit("::").next().unwrap_or(path)
}

/// Returns the printed tree of a module, as PyTorch's `Module.__repr__`.
fn tree(module: &dyn Module) -> String {
    let (name, extra) = (module.type_name(), module.extra_repr());
    let mut children: Vec<(String, String)> =
        module.named_children().into_iter().map(|(name, child)| (name, tree(child))).collect();
    if children.is_empty() && !extra.contains('\n') {
        return format!("{name}({extra})");
    }
    if name == LIST {
        children = joined(children);
    }
    let mut lines: Vec<String> = Vec::new();
    if !extra.is_empty() {
        lines.push(extra);
    }
    lines.extend(children.into_iter().map(|(name, child)| format!("({name}): {child}")));
    format!("{name}(\n  {}\n)", lines.join("\n").replace('\n', "\n  "))
}

/// The printed name of `Vec`s, arrays and tuples.
pub(super) const LIST: &str = "ModuleList";

/// Joins equal neighbours, as `ModuleList.__repr__` does: `(0-11): 12 x Block(…)`.
fn joined(children: Vec<(String, String)>) -> Vec<(String, String)> {
    children
        .chunk_by(|a, b| a.1 == b.1)
        .map(|equal| match equal {
            [(first, child), .., (last, _)] => {
                (format!("{first}-{last}"), format!("{} x {child}", equal.len()))
            }
            one => one[0].clone(),
        })
        .collect()
}
