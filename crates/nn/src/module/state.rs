//! A module's tensors by name (`state_dict`).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use warpline::{DType, Device, Error, ErrorKind, Result, Tensor};

/// Tensors by name, in order (`state_dict`, an `OrderedDict`).
#[derive(Clone, Default)]
pub struct StateDict {
    entries: Vec<(String, Tensor)>,
    places: HashMap<String, usize>,
}

impl StateDict {
    /// Without entries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a tensor under a name; one that is there already is exchanged, and returned.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) -> Option<Tensor> {
        let name = name.into();
        if let Some(&place) = self.places.get(&name) {
            return Some(std::mem::replace(&mut self.entries[place].1, tensor));
        }
        self.places.insert(name.clone(), self.entries.len());
        self.entries.push((name, tensor));
        None
    }

    pub(super) fn push(&mut self, name: &str, tensor: &Tensor) {
        self.insert(name, tensor.detach());
    }

    /// The tensor of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.places.get(name).map(|&place| &self.entries[place].1)
    }

    /// Names and tensors, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.entries.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The names, in order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.iter().map(|(name, _)| name.as_str())
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// These, each name with `prefix` and a dot before it: to save several in one file.
    #[must_use]
    pub fn with_prefix(self, prefix: &str) -> Self {
        let entries = self.entries.into_iter();
        entries.map(|(name, tensor)| (format!("{prefix}.{name}"), tensor)).collect()
    }

    /// Those whose names begin with `prefix` and a dot, without that.
    #[must_use]
    pub fn under_prefix(&self, prefix: &str) -> Self {
        let under = |name: &str| Some(name.strip_prefix(prefix)?.strip_prefix('.')?.to_owned());
        self.iter().filter_map(|(name, tensor)| Some((under(name)?, tensor.clone()))).collect()
    }
}

impl FromIterator<(String, Tensor)> for StateDict {
    fn from_iter<I: IntoIterator<Item = (String, Tensor)>>(entries: I) -> Self {
        let mut all = Self::new();
        all.extend(entries);
        all
    }
}

impl Extend<(String, Tensor)> for StateDict {
    fn extend<I: IntoIterator<Item = (String, Tensor)>>(&mut self, entries: I) {
        for (name, tensor) in entries {
            self.insert(name, tensor);
        }
    }
}

impl IntoIterator for StateDict {
    type Item = (String, Tensor);
    type IntoIter = std::vec::IntoIter<(String, Tensor)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

/// Names, shapes, dtypes and devices: values would have to be waited for.
impl fmt::Debug for StateDict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(name, tensor)| (name, What::of(tensor)))).finish()
    }
}

/// What a tensor is, but for its values.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct What {
    size: Vec<usize>,
    dtype: DType,
    device: Device,
}

impl What {
    pub(crate) fn of(tensor: &Tensor) -> Self {
        Self { size: tensor.size().to_vec(), dtype: tensor.dtype(), device: tensor.device() }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({}, on {})", self.size, self.dtype, self.device)
    }
}

impl fmt::Debug for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A tensor that does not fit where its name is.
#[derive(Clone)]
pub struct Mismatch {
    /// Its name.
    pub name: String,
    given: What,
    own: What,
}

impl fmt::Debug for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} was given, and the module has {}", self.name, self.given, self.own)
    }
}

/// Why a state could not be loaded; nothing was.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Names or shapes differ.
    #[error("{}", differences(missing, unexpected, mismatched))]
    Differs {
        /// Names of the module that the state has not.
        missing: Vec<String>,
        /// Names of the state that the module has not.
        unexpected: Vec<String>,
        /// What is of another shape.
        mismatched: Vec<Mismatch>,
    },
    /// Copying failed.
    #[error("{name}: {cause}")]
    Copy {
        /// What was copied.
        name: String,
        /// What it failed with.
        cause: Error,
    },
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

/// Its message, as `main` prints of the error that it returns.
impl fmt::Debug for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// [`ErrorKind::LoadState`] with this source.
impl From<LoadError> for Error {
    #[track_caller]
    fn from(error: LoadError) -> Self {
        ErrorKind::LoadState.of("load_state_dict").with_source(Arc::new(error))
    }
}

/// Copies `given` into the tensors of the same names.
#[track_caller]
pub(super) fn load(own: &StateDict, given: &StateDict, strict: bool) -> Result<()> {
    let absent = |from: &StateDict, of: &StateDict| -> Vec<String> {
        of.names().filter(|name| from.get(name).is_none()).map(str::to_owned).collect()
    };
    let mut mismatched = Vec::new();
    for (name, tensor) in own.iter() {
        if let Some(new) = given.get(name)
            && new.size() != tensor.size()
        {
            let (given, own) = (What::of(new), What::of(tensor));
            mismatched.push(Mismatch { name: name.to_owned(), given, own });
        }
    }
    let (missing, unexpected) = (absent(given, own), absent(own, given));
    if !mismatched.is_empty() || (strict && !(missing.is_empty() && unexpected.is_empty())) {
        return Err(LoadError::Differs { missing, unexpected, mismatched }.into());
    }
    for (name, tensor) in own.iter() {
        if let Some(new) = given.get(name)
            && let Err(cause) = tensor.copy_(&new.detach(), false)
        {
            return Err(LoadError::Copy { name: name.to_owned(), cause }.into());
        }
    }
    Ok(())
}
