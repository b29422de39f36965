//! Call sites: an op and the source location of its call.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

/// An op and the source location of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Name of the op.
    pub op: &'static str,
    /// Source location of the call.
    pub location: &'static Location<'static>,
}

impl Site {
    /// Returns a call site of `op`. The location is that of the call to the `#[track_caller]` function that calls
    /// `here`.
    #[inline]
    #[must_use]
    #[track_caller]
    pub const fn here(op: &'static str) -> Self {
        Self { op, location: Location::caller() }
    }

    /// Returns the site of the public call in progress on this thread, or this site if there is no such call. In the
    /// scope of [`CallScope::trait_object`], replaces the location of this site if it is in the trait's file.
    #[inline]
    #[must_use]
    pub fn or_public(self) -> Self {
        match SCOPE.get() {
            None => self,
            Some(Scope::Call { site, .. }) => site,
            Some(Scope::TraitObject { file, caller }) => {
                let location = if self.location.file() == file { caller } else { self.location };
                Self { location, ..self }
            }
        }
    }

    /// Returns the site of the public call in progress on this thread. `None` if there is no such call.
    #[inline]
    pub(crate) fn public() -> Option<Self> {
        match SCOPE.get() {
            Some(Scope::Call { site, .. }) => Some(site),
            _ => None,
        }
    }
}

/// Identity of a public call, unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId(u64);

impl CallId {
    /// A thread takes this many consecutive identities at a time.
    const BLOCK: u64 = 1 << 16;

    /// Returns the identity of the public call in progress on this thread. `None` if there is no such call.
    #[must_use]
    pub fn current() -> Option<Self> {
        match SCOPE.get() {
            Some(Scope::Call { id, .. }) => Some(id),
            _ => None,
        }
    }

    /// Returns a new identity.
    #[inline]
    #[must_use]
    pub fn next() -> Self {
        static BLOCKS: AtomicU64 = AtomicU64::new(0);
        let next = match LAST_CALL.get() {
            Some(Self(last)) if !(last + 1).is_multiple_of(Self::BLOCK) => last + 1,
            _ => BLOCKS.fetch_add(Self::BLOCK, Ordering::Relaxed),
        };
        LAST_CALL.set(Some(Self(next)));
        Self(next)
    }
}

/// The sites of calls inside a [`CallScope`].
#[derive(Clone, Copy, Debug)]
enum Scope {
    /// All calls have the site of this public call.
    Call { site: Site, id: CallId },
    /// Calls that are located in `file` have the location `caller`.
    TraitObject { file: &'static str, caller: &'static Location<'static> },
}

impl Scope {
    #[inline]
    fn call(site: Site) -> Self {
        Self::Call { site, id: CallId::next() }
    }
}

thread_local! {
    /// The innermost scope on this thread. `None` outside all scopes.
    static SCOPE: Cell<Option<Scope>> = const { Cell::new(None) };
    /// The last identity that this thread took.
    static LAST_CALL: Cell<Option<CallId>> = const { Cell::new(None) };
}

/// The scope of a public call that consists of other calls. Until this value is dropped, errors, launches and recorded
/// ops of the inner calls have the name and the location of the outermost public call, because the program knows only
/// that call.
///
/// Call the program's own functions, such as closures and hooks, outside all scopes ([`CallScope::none`]).
///
/// ```
/// use warpline_types::{CallScope, Error};
///
/// #[track_caller]
/// fn linear() -> Error {
///     let _call = CallScope::enter("linear");
///     Error::invalid("matmul", "the sizes differ")
/// }
///
/// let (error, line) = (linear(), line!());
/// assert_eq!((error.op(), error.location().unwrap().line()), ("linear", line));
/// ```
#[derive(Debug)]
#[must_use = "the scope ends when this value is dropped"]
pub struct CallScope {
    outer: Option<Scope>,
    /// The scope belongs to the thread that entered it.
    not_send: PhantomData<*const ()>,
}

impl CallScope {
    /// Enters the scope of a call of `op`, with the location that [`Site::here`] returns. Changes nothing inside the
    /// scope of another public call.
    #[inline]
    #[track_caller]
    pub fn enter(op: &'static str) -> Self {
        let outer = SCOPE.get();
        if !matches!(outer, Some(Scope::Call { .. })) {
            SCOPE.set(Some(Scope::call(Site::here(op).or_public())));
        }
        Self { outer, not_send: PhantomData }
    }

    /// Enters a call of a method of a trait object. Such a call loses its caller's location: the trait's
    /// implementation, in the source file `file`, calls the object's inherent method, so errors would name a location
    /// in `file`. In this scope, calls located in `file` have instead the location of the call to the `#[track_caller]`
    /// function that calls `trait_object`. Other locations stay, so that calls in the program's implementations of the
    /// trait have their own lines.
    #[inline]
    #[track_caller]
    pub fn trait_object(file: &'static str) -> Self {
        let outer = SCOPE.get();
        if !matches!(outer, Some(Scope::Call { .. })) {
            let caller = Site::here("").or_public().location;
            SCOPE.set(Some(Scope::TraitObject { file, caller }));
        }
        Self { outer, not_send: PhantomData }
    }

    /// Enters the scope of the call at `site`, even inside another scope. A gradient runs in the scope of its forward
    /// call.
    #[inline]
    pub fn at(site: Site) -> Self {
        Self { outer: SCOPE.replace(Some(Scope::call(site))), not_send: PhantomData }
    }

    /// Leaves all scopes, to call a function of the program.
    #[inline]
    pub fn none() -> Self {
        Self { outer: SCOPE.replace(None), not_send: PhantomData }
    }
}

impl Drop for CallScope {
    #[inline]
    fn drop(&mut self) {
        SCOPE.set(self.outer);
    }
}
