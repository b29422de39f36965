//! State dictionaries: a module's tensors by name.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Index;
use std::sync::Arc;

use warpline::{DType, Device, Error, ErrorKind, Result, Tensor};

#[cfg(doc)]
use super::Module;

/// Tensors by name, in insertion order (the `OrderedDict` that PyTorch's `state_dict` returns).
///
/// A name is ambiguous if a module has several tensors with that name, or if the entries of one
/// [`extend`](Extend::extend) or [`collect`](Iterator::collect) repeat the name. The state keeps all tensors of the name,
/// and [`StateDict::get`] returns the last of them. Such a state can be neither saved nor loaded, so that no tensor is
/// lost without an error. [`StateDict::insert`] and [`StateDict::remove`] remove all former tensors of a name.
#[derive(Clone, Default)]
pub struct StateDict {
    /// The tensors. An ambiguous name has several entries.
    entries: Vec<(String, Tensor)>,
    /// Index of the last entry with each name.
    indices: HashMap<String, usize>,
}

impl StateDict {
    /// Creates an empty state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Inserts a tensor under a name. Returns the tensor that had the name before; the new tensor takes its position.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) -> Option<Tensor> {
        let name = name.into();
        let Some(&index) = self.indices.get(&name) else {
            self.push(name, tensor);
            return None;
        };
        let old = std::mem::replace(&mut self.entries[index].1, tensor);
        if self.is_ambiguous() {
            let mut indices = 0..;
            self.entries.retain(|(other, _)| indices.next() == Some(index) || *other != name);
            self.number();
        }
        Some(old)
    }

    /// Adds a tensor. If the state has a tensor with this name, the name becomes ambiguous.
    pub(super) fn push(&mut self, name: String, tensor: Tensor) {
        self.indices.insert(name.clone(), self.entries.len());
        self.entries.push((name, tensor));
    }

    /// Returns `true` if a name is ambiguous.
    fn is_ambiguous(&self) -> bool {
        self.entries.len() != self.indices.len()
    }

    /// Returns the ambiguous names.
    fn ambiguous(&self) -> Vec<String> {
        let mut names = Vec::new();
        if self.is_ambiguous() {
            for (i, (name, _)) in self.entries.iter().enumerate() {
                if self.indices[name] != i && !names.contains(name) {
                    names.push(name.clone());
                }
            }
        }
        names
    }

    /// Returns the message of an error that refuses the state because names are ambiguous. `None` if no name is.
    pub(crate) fn ambiguity(&self) -> Option<String> {
        let names = self.ambiguous();
        (!names.is_empty()).then(|| several_tensors(&names))
    }

    /// Returns the tensor with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.indices.get(name).map(|&index| &self.entries[index].1)
    }

    /// Returns `true` if a tensor has this name.
    #[must_use]
    pub fn contains_key(&self, name: &str) -> bool {
        self.indices.contains_key(name)
    }

    /// Removes the tensor with this name and returns it (`state.pop(name)`). The other tensors keep their order.
    ///
    /// ```
    /// use warpline::zeros;
    /// use warpline_nn::StateDict;
    ///
    /// let mut state = StateDict::new();
    /// for name in ["pooler.weight", "fc.weight", "fc.bias"] {
    ///     state.insert(name, zeros([2], ())?);
    /// }
    /// assert!(state.remove("fc.bias").is_some() && !state.contains_key("fc.bias"));
    /// state.retain(|name, _| !name.starts_with("pooler."));
    /// assert_eq!(state.keys().collect::<Vec<_>>(), ["fc.weight"]);
    /// assert_eq!(state["fc.weight"].size(), [2]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        let (_, tensor) = self.entries.remove(self.indices.remove(name)?);
        self.entries.retain(|(other, _)| other != name);
        self.number();
        Some(tensor)
    }

    /// Keeps the tensors for which `f` returns `true`, in their order.
    pub fn retain(&mut self, mut f: impl FnMut(&str, &Tensor) -> bool) {
        self.entries.retain(|(name, tensor)| f(name, tensor));
        self.number();
    }

    /// Sets `indices` to the positions of `entries`.
    fn number(&mut self) {
        let names = self.entries.iter().map(|(name, _)| name.clone());
        self.indices = names.zip(0..).collect();
    }

    /// Iterates over names and tensors, in insertion order. An ambiguous name appears with each of its tensors.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.into_iter()
    }

    /// Iterates over the names, in insertion order (`state.keys()`).
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the number of tensors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns `true` if there are no tensors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Puts `prefix` and a dot before each name, to save several states in one file.
    #[must_use]
    pub fn with_prefix(self, prefix: &str) -> Self {
        self.into_iter().map(|(name, tensor)| (format!("{prefix}.{name}"), tensor)).collect()
    }

    /// Returns the tensors whose names begin with `prefix` and a dot, with that prefix removed from their names.
    #[must_use]
    pub fn under_prefix(&self, prefix: &str) -> Self {
        let renamed = |(name, tensor): (&str, &Tensor)| {
            Some((name.strip_prefix(prefix)?.strip_prefix('.')?.to_owned(), tensor.clone()))
        };
        self.iter().filter_map(renamed).collect()
    }
}

/// # Panics
/// If no tensor has the name. [`StateDict::get`] returns `None` instead.
impl Index<&str> for StateDict {
    type Output = Tensor;

    #[track_caller]
    fn index(&self, name: &str) -> &Tensor {
        // A panic in a closure would name this file instead of the caller's line.
        let Some(tensor) = self.get(name) else {
            panic!("the state has no tensor with the name `{name}`");
        };
        tensor
    }
}

impl FromIterator<(String, Tensor)> for StateDict {
    fn from_iter<I: IntoIterator<Item = (String, Tensor)>>(entries: I) -> Self {
        let mut all = Self::new();
        all.extend(entries);
        all
    }
}

/// Inserts the entries (`state.update(entries)`): an entry replaces the tensor that had its name before the call. A name
/// that the entries repeat becomes ambiguous.
impl Extend<(String, Tensor)> for StateDict {
    fn extend<I: IntoIterator<Item = (String, Tensor)>>(&mut self, entries: I) {
        let mut seen = HashSet::new();
        for (name, tensor) in entries {
            if seen.contains(&name) {
                self.push(name, tensor);
            } else {
                self.insert(name.clone(), tensor);
                seen.insert(name);
            }
        }
    }
}

/// Iterates over names and tensors, in insertion order.
impl IntoIterator for StateDict {
    type Item = (String, Tensor);
    type IntoIter = std::vec::IntoIter<(String, Tensor)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

/// Iterates over names and tensors, in insertion order.
impl<'a> IntoIterator for &'a StateDict {
    type Item = (&'a str, &'a Tensor);
    type IntoIter = std::iter::Map<
        std::slice::Iter<'a, (String, Tensor)>,
        fn(&'a (String, Tensor)) -> (&'a str, &'a Tensor),
    >;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }
}

/// Writes names, shapes, dtypes and devices, but no values, because reading values would wait for the device.
impl fmt::Debug for StateDict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(name, tensor)| (name, TensorDescription::of(tensor))))
            .finish()
    }
}

/// Shape, dtype and device of a tensor.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TensorDescription {
    size: Vec<usize>,
    dtype: DType,
    device: Device,
}

impl TensorDescription {
    pub(crate) fn of(tensor: &Tensor) -> Self {
        Self { size: tensor.size().to_vec(), dtype: tensor.dtype(), device: tensor.device() }
    }
}

impl fmt::Display for TensorDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({}, on {})", self.size, self.dtype, self.device)
    }
}

impl fmt::Debug for TensorDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A tensor of a state whose shape differs from that of the module's tensor.
#[derive(Clone)]
pub struct Mismatch {
    /// Name of the tensor.
    pub name: String,
    given: TensorDescription,
    own: TensorDescription,
}

impl fmt::Debug for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} was given, and the module has {}", self.name, self.given, self.own)
    }
}

/// The names that a module and a loaded state do not share, as [`Module::load_state_dict`] returns them. Both lists are
/// empty after a strict load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IncompatibleKeys {
    /// Names that are in the module but not in the state. Their tensors keep their values.
    pub missing_keys: Vec<String>,
    /// Names that are in the state but not in the module.
    pub unexpected_keys: Vec<String>,
}

/// The reason why a state could not be loaded.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Names or shapes differ. Nothing was loaded.
    #[error("{}", differences(missing, unexpected, mismatched))]
    Differs {
        /// Names that are in the module but not in the state. Empty if the load was not strict.
        missing: Vec<String>,
        /// Names that are in the state but not in the module. Empty if the load was not strict.
        unexpected: Vec<String>,
        /// Tensors whose shapes differ.
        mismatched: Vec<Mismatch>,
    },
    /// The module or the state has several tensors of one name, so it is unknown which tensor to load. Nothing was
    /// loaded.
    #[error("{}", several_tensors(names))]
    Ambiguous {
        /// The names.
        names: Vec<String>,
    },
    /// A tensor could not be copied. Tensors before it in the module's order have been loaded.
    #[error("{name}: {source}")]
    Copy {
        /// Name of the tensor.
        name: String,
        /// Error of the copy.
        source: Error,
    },
}

/// Describes ambiguous names.
fn several_tensors(names: &[String]) -> String {
    match names {
        [name] => format!("several tensors have the name {name}"),
        names => format!("several tensors have each of the names {}", names.join(", ")),
    }
}

fn differences(missing: &[String], unexpected: &[String], mismatched: &[Mismatch]) -> String {
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("missing from the state: {}", missing.join(", ")));
    }
    if !unexpected.is_empty() {
        parts.push(format!("not in the module: {}", unexpected.join(", ")));
    }
    parts.extend(mismatched.iter().map(|mismatch| format!("size mismatch for {mismatch:?}")));
    parts.join("; ")
}

/// Writes the same message as `Display`, because a `main` that returns an error prints its `Debug` form.
impl fmt::Debug for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Converts to [`ErrorKind::LoadState`] with the `LoadError` as its source.
impl From<LoadError> for Error {
    #[track_caller]
    fn from(error: LoadError) -> Self {
        ErrorKind::LoadState.of("load_state_dict").with_source(Arc::new(error))
    }
}

/// Copies the tensors of `given` into the tensors of `own` with the same names.
#[track_caller]
pub(super) fn load(own: &StateDict, given: &StateDict, strict: bool) -> Result<IncompatibleKeys> {
    for state in [own, given] {
        let names = state.ambiguous();
        if !names.is_empty() {
            return Err(LoadError::Ambiguous { names }.into());
        }
    }
    let absent = |from: &StateDict, of: &StateDict| -> Vec<String> {
        of.keys().filter(|name| !from.contains_key(name)).map(str::to_owned).collect()
    };
    let mut mismatched = Vec::new();
    for (name, tensor) in own.iter() {
        if let Some(new) = given.get(name)
            && new.size() != tensor.size()
        {
            let (given, own) = (TensorDescription::of(new), TensorDescription::of(tensor));
            mismatched.push(Mismatch { name: name.to_owned(), given, own });
        }
    }
    let (missing, unexpected) = (absent(given, own), absent(own, given));
    if strict && !(missing.is_empty() && unexpected.is_empty()) {
        return Err(LoadError::Differs { missing, unexpected, mismatched }.into());
    }
    if !mismatched.is_empty() {
        let (missing, unexpected) = (Vec::new(), Vec::new());
        return Err(LoadError::Differs { missing, unexpected, mismatched }.into());
    }
    for (name, tensor) in own.iter() {
        if let Some(new) = given.get(name)
            && let Err(source) = tensor.copy_(&new.detach(), ())
        {
            return Err(LoadError::Copy { name: name.to_owned(), source }.into());
        }
    }
    Ok(IncompatibleKeys { missing_keys: missing, unexpected_keys: unexpected })
}
