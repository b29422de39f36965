//! Maps of modules.

use std::fmt;
use std::ops::{Index, IndexMut};

use warpline::{Error, Result};

#[cfg(doc)]
use warpline::ErrorKind;

use crate::{Module, Visitor, VisitorMut};

/// Modules of one type by name, in insertion order (`torch.nn.ModuleDict`). The name of a member is its key. A
/// `BTreeMap<String, M>` is a module, too, in the order of its keys. For modules of several types, derive [`Module`] for
/// an enum, or use `Box<dyn Layer>`.
///
/// ```
/// use warpline_nn::{Linear, Module, ModuleDict};
///
/// let mut heads = ModuleDict::new();
/// for (name, classes) in [("verb", 3), ("noun", 5)] {
///     heads.insert(name, Linear::new(4, classes, ())?)?;
/// }
/// assert_eq!(heads["noun"].weight.size(), [5, 4]);
/// assert_eq!(heads.keys().collect::<Vec<_>>(), ["verb", "noun"]);
/// assert_eq!(heads.state_dict().keys().next(), Some("verb.weight"));
/// # Ok::<(), warpline::Error>(())
/// ```
#[derive(Clone)]
pub struct ModuleDict<M> {
    entries: Vec<(String, M)>,
}

impl<M> ModuleDict<M> {
    /// Creates an empty map.
    #[must_use]
    pub fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// Inserts a module under a name (`modules[name] = module`). Returns the module that had the name before; the new
    /// module takes its position.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the name is empty or contains a dot.
    #[track_caller]
    pub fn insert(&mut self, name: impl Into<String>, module: M) -> Result<Option<M>> {
        let name = name.into();
        check_name("ModuleDict", &name)?;
        match self.entries.iter_mut().find(|(other, _)| *other == name) {
            Some((_, old)) => Ok(Some(std::mem::replace(old, module))),
            None => {
                self.entries.push((name, module));
                Ok(None)
            }
        }
    }

    /// Removes a module and returns it (`modules.pop(name)`). The other modules keep their order.
    pub fn remove(&mut self, name: &str) -> Option<M> {
        let index = self.entries.iter().position(|(other, _)| other == name)?;
        Some(self.entries.remove(index).1)
    }

    /// Returns the module with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&M> {
        self.iter().find(|(other, _)| *other == name).map(|(_, module)| module)
    }

    /// Returns the module with this name, by mutable reference.
    #[must_use]
    pub fn get_mut(&mut self, name: &str) -> Option<&mut M> {
        self.entries.iter_mut().find(|(other, _)| other == name).map(|(_, module)| module)
    }

    /// Returns `true` if a module has this name.
    #[must_use]
    pub fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Iterates over names and modules, in insertion order (`items`).
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &M)> {
        self.into_iter()
    }

    /// Iterates over the names, in insertion order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }

    /// Iterates over the modules, in insertion order.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &M> {
        self.iter().map(|(_, module)| module)
    }

    /// Returns the number of modules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns `true` if there are no modules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Fails for a name that would be ambiguous in a state.
#[track_caller]
pub(super) fn check_name(op: &'static str, name: &str) -> Result<()> {
    if name.is_empty() || name.contains('.') {
        let reason = format!("the name `{name}` of a module must not be empty or contain a dot");
        return Err(Error::invalid(op, reason));
    }
    Ok(())
}

impl<M> Default for ModuleDict<M> {
    fn default() -> Self {
        Self::new()
    }
}

/// # Panics
/// If no module has the name. [`ModuleDict::get`] returns `None` instead.
impl<M> Index<&str> for ModuleDict<M> {
    type Output = M;

    #[track_caller]
    fn index(&self, name: &str) -> &M {
        // A panic in a closure would name this file instead of the caller's line.
        let Some(module) = self.get(name) else {
            panic!("there is no module with the name `{name}`");
        };
        module
    }
}

/// # Panics
/// If no module has the name. [`ModuleDict::get_mut`] returns `None` instead.
impl<M> IndexMut<&str> for ModuleDict<M> {
    #[track_caller]
    fn index_mut(&mut self, name: &str) -> &mut M {
        let Some(module) = self.get_mut(name) else {
            panic!("there is no module with the name `{name}`");
        };
        module
    }
}

/// Iterates over names and modules, in insertion order.
impl<'a, M> IntoIterator for &'a ModuleDict<M> {
    type Item = (&'a str, &'a M);
    type IntoIter =
        std::iter::Map<std::slice::Iter<'a, (String, M)>, fn(&'a (String, M)) -> (&'a str, &'a M)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter().map(|(name, module)| (name.as_str(), module))
    }
}

/// Iterates over names and modules, in insertion order, by mutable reference.
impl<'a, M> IntoIterator for &'a mut ModuleDict<M> {
    type Item = (&'a str, &'a mut M);
    type IntoIter = std::iter::Map<
        std::slice::IterMut<'a, (String, M)>,
        fn(&'a mut (String, M)) -> (&'a str, &'a mut M),
    >;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter_mut().map(|(name, module)| (name.as_str(), module))
    }
}

impl<M: Module> Module for ModuleDict<M> {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m, '_>) {
        self.iter().for_each(|(name, module)| visitor.member(name, module));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.entries.iter_mut().for_each(|(name, module)| visitor.member(name, module));
    }
}

/// Writes the tree of modules.
impl<M: Module> fmt::Display for ModuleDict<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let module: &dyn Module = self;
        fmt::Display::fmt(module, f)
    }
}

/// Writes the tree of modules.
impl<M: Module> fmt::Debug for ModuleDict<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
