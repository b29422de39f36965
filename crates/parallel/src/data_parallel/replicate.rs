//! Copies of a module's parameters and buffers on other devices.
//!
//! A replica is a fresh clone of the module whose tensors are replaced by copies on the replica's device. The first
//! replica has the module's own tensors. Copies are kept between forward passes. A copy is renewed only if the
//! `Version` of the copy or of the original has changed (each launch, copy, replay and host access that writes changes
//! it), or if the program kept a tensor of an earlier replica.
//!
//! Invariant: a copy is up to date or is renewed. The version of the original is read before the copy is enqueued, so a
//! concurrent write counts as a later write. No other code has access to a copy while it is written. Captures are
//! refused, because captured copies run only in replays.
//!
//! Under `SyncPolicy::Manual` the program orders its own tensors with its current streams, as in PyTorch. A forward
//! pass on different streams than the last one makes these streams wait for the last uses of the kept copies.

use std::collections::HashMap;
use std::sync::Arc;

use warpline::autograd::{Context, Function, Gradients, ToSave, is_grad_enabled};
use warpline::{DType, Device, Error, ErrorKind, Result, Runtime, Tensor};
use warpline_nn::{Module, Visitor, VisitorMut};
use warpline_runtime::Version;
use warpline_stream::Stream;

use super::DataParallelError;

/// The parameters and buffers of a module.
pub(super) struct Tensors {
    /// The distinct tensors. Several parameters may be the same tensor.
    distinct: Vec<Tensor>,
    /// Index in `distinct` of each visited tensor.
    places: Arc<[usize]>,
}

impl Tensors {
    /// Collects all parameters and buffers.
    ///
    /// # Errors
    /// [`DataParallelError::WrongDevice`] if a tensor is not on `device`; [`ErrorKind::RuntimeMismatch`] if a tensor
    /// belongs to another runtime.
    #[track_caller]
    pub(super) fn of(module: &impl Module, runtime: &Runtime, device: usize) -> Result<Self> {
        let mut all = Vec::new();
        module.visit(&mut Visitor::new(&mut |_, member| all.extend(member.tensor().cloned())));
        if all.iter().any(|tensor| !tensor.storage().runtime().same_as(runtime)) {
            return Err(ErrorKind::RuntimeMismatch.of("DataParallel"));
        }
        let elsewhere = |device_of: &Device| *device_of != Device::cuda(device);
        if let Some(found) = all.iter().map(Tensor::device).find(elsewhere) {
            return Err(DataParallelError::WrongDevice { expected: device, found }.into());
        }
        Ok(Self::new(all))
    }

    fn new(all: Vec<Tensor>) -> Self {
        type Key<'a> = (u64, DType, &'a [usize], &'a [isize]);
        let mut known: HashMap<Key<'_>, usize> = HashMap::with_capacity(all.len());
        let mut first = Vec::with_capacity(all.len());
        let places = all.iter().enumerate().map(|(i, tensor)| {
            let key = (tensor.data_ptr(), tensor.dtype(), tensor.size(), tensor.stride());
            *known.entry(key).or_insert_with(|| {
                first.push(i);
                first.len() - 1
            })
        });
        let places: Arc<[usize]> = places.collect();
        let distinct = first.iter().map(|&i| all[i].clone()).collect();
        Self { distinct, places }
    }
}

/// The copies on one device, kept between forward passes.
#[derive(Debug, Default)]
pub(super) struct Copies {
    copies: Vec<Kept>,
    /// The stream of their last use.
    stream: Option<Stream>,
}

#[derive(Debug)]
struct Kept {
    tensor: Tensor,
    /// Versions of the original and of the copy when the copy was made.
    versions: [Version; 2],
    /// Address and strides of the original.
    place: (u64, Vec<isize>),
}

impl Kept {
    #[track_caller]
    fn new(source: &Tensor, device: usize) -> Result<Self> {
        let version = source.storage().version();
        let tensor = source.detach().to_non_blocking(Device::cuda(device))?;
        let versions = [version, tensor.storage().version()];
        Ok(Self { tensor, versions, place: (source.data_ptr(), source.stride().to_vec()) })
    }

    /// Renews the copy if it is out of date.
    #[track_caller]
    fn refresh(&mut self, source: &Tensor, device: usize) -> Result<()> {
        let (copy, [theirs, own]) = (&self.tensor, &self.versions);
        let (address, strides) = (source.data_ptr(), source.stride());
        let alike = copy.size() == source.size()
            && copy.dtype() == source.dtype()
            && copy.storage().runtime().same_as(source.storage().runtime());
        // A tensor of an earlier replica that the program kept must not change.
        if !alike || !copy.is_unique() {
            *self = Self::new(source, device)?;
        } else if !theirs.is_of(source.storage())
            || !own.is_of(copy.storage())
            || (self.place.0, &*self.place.1) != (address, strides)
        {
            let version = source.storage().version();
            copy.copy_(&source.detach(), true)?;
            self.versions = [version, copy.storage().version()];
            self.place = (address, strides.to_vec());
        }
        Ok(())
    }
}

impl Copies {
    /// Brings all copies up to date, for use on `stream`.
    #[track_caller]
    fn refresh(&mut self, tensors: &Tensors, stream: &Stream) -> Result<()> {
        // Under `SyncPolicy::Manual` nothing else orders uses on two streams.
        if let Some(last) = &self.stream
            && last != stream
        {
            stream.wait_stream(last)?;
        }
        self.stream = Some(stream.clone());
        self.copies.truncate(tensors.distinct.len());
        for (i, source) in tensors.distinct.iter().enumerate() {
            match self.copies.get_mut(i) {
                Some(kept) => kept.refresh(source, stream.device_index())?,
                None => self.copies.push(Kept::new(source, stream.device_index())?),
            }
        }
        Ok(())
    }

    /// Replaces the tensors of a replica by the copies. Gradients flow through the copies to the module's tensors.
    #[track_caller]
    fn put(&self, module: &mut impl Module, tensors: &Tensors) -> Result<()> {
        let tracked = self.copies.iter().zip(&tensors.distinct).map(|(kept, source)| {
            let copy = kept.tensor.clone();
            if !source.requires_grad() || !is_grad_enabled() {
                return Ok(copy);
            }
            Ok(Broadcast(copy).apply(&[source])?.swap_remove(0))
        });
        let copies = tracked.collect::<Result<Vec<Tensor>>>()?;
        let (mut places, mut more) = (tensors.places.iter(), false);
        module.visit_mut(&mut VisitorMut::new(&mut |_, mut member| {
            if member.tensor().is_none() {
                return;
            }
            match places.next().and_then(|&place| copies.get(place)) {
                Some(copy) => member.replace(copy.clone()),
                None => more = true,
            }
        }));
        if more {
            let reason = "a clone of the module has more parameters or buffers than it";
            return Err(Error::invalid("DataParallel", reason));
        }
        Ok(())
    }
}

/// The autograd node of an existing copy on another device. The backward pass moves the gradient to the original's
/// device, where the gradients of all replicas are added.
struct Broadcast(Tensor);

impl Function for Broadcast {
    const NAME: &'static str = "broadcast";

    fn forward(&self, _save: &mut ToSave, _inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![self.0.detach()])
    }

    fn backward(&self, context: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        grads
            .iter()
            .map(|grad| grad.as_ref().map(|g| g.to(context.device(0))).transpose())
            .collect()
    }
}

/// Creates a replica for the device of each stream (`torch.nn.parallel.replicate`). The first replica has the module's
/// own tensors.
#[track_caller]
pub(super) fn replicate<M: Module + Clone>(
    module: M,
    tensors: &Tensors,
    kept: &mut [Copies],
    streams: &[Stream],
) -> Result<Vec<M>> {
    let mut replicas = Vec::with_capacity(streams.len());
    for (copies, stream) in kept.iter_mut().zip(&streams[1..]) {
        copies.refresh(tensors, stream)?;
        let mut replica = module.clone();
        copies.put(&mut replica, tensors)?;
        replicas.push(replica);
    }
    replicas.insert(0, module);
    Ok(replicas)
}
