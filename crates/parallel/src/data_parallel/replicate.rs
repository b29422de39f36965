//! Copies of a module's parameters and buffers on other devices.
//!
//! A replica is a fresh clone of the module whose tensors are replaced by copies on the replica's device. The first
//! replica has the module's own tensors. Copies are cached between forward passes. A copy is renewed only if the
//! `Version` of the copy or of the original has changed, if the module now has a different tensor in the original's
//! place, or if the program kept the copy as a tensor of an earlier replica. Each launch, copy, replay and host access
//! that writes to a tensor changes its version.
//!
//! Invariant: a replica uses only copies that are up to date. The version of the original is read before the copy is
//! enqueued, so a concurrent write counts as a later write. No other code has access to a copy while it is written.
//! Captures are refused, because captured copies run only in replays.
//!
//! Under `SyncPolicy::Manual` the program orders its own tensors with its current streams, as in PyTorch. The cached
//! copies are ordered here: a forward pass on different streams than the last one makes its streams wait for the last
//! uses of the copies.

use std::collections::HashMap;
use std::sync::Arc;

use warpline::autograd::{Context, Function, Gradients, ToSave, is_grad_enabled};
use warpline::{Device, Error, ErrorKind, Result, Runtime, Tensor};
use warpline_nn::{Module, Visitor, VisitorMut};
use warpline_runtime::Version;
use warpline_stream::Stream;

use super::DataParallelError;

/// The parameters and buffers of a module.
pub(super) struct ModuleTensors {
    /// The distinct tensors. Several members may be the same tensor.
    distinct: Vec<Tensor>,
    /// Index in `distinct` of each visited tensor.
    indices: Arc<[usize]>,
}

impl ModuleTensors {
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
        let mut known: HashMap<usize, usize> = HashMap::with_capacity(all.len());
        let mut distinct = Vec::with_capacity(all.len());
        let indices = all.into_iter().map(|tensor| {
            *known.entry(tensor.id()).or_insert_with(|| {
                distinct.push(tensor);
                distinct.len() - 1
            })
        });
        let indices = indices.collect();
        Self { distinct, indices }
    }
}

/// The copies of a module's tensors on one device, cached between forward passes.
#[derive(Debug, Default)]
pub(super) struct DeviceCopies {
    copies: Vec<CachedCopy>,
    /// The stream that last used the copies.
    stream: Option<Stream>,
}

#[derive(Debug)]
struct CachedCopy {
    tensor: Tensor,
    /// Versions of the original and of the copy when the copy was made or last renewed.
    versions: [Version; 2],
    /// Address and strides of the original at that time.
    layout: (u64, Vec<isize>),
}

impl CachedCopy {
    #[track_caller]
    fn new(source: &Tensor, device: usize) -> Result<Self> {
        let version = source.storage().version();
        let tensor = source.detach().to_non_blocking(Device::cuda(device))?;
        let versions = [version, tensor.storage().version()];
        Ok(Self { tensor, versions, layout: (source.data_ptr(), source.stride().to_vec()) })
    }

    /// Renews the copy if it is out of date.
    #[track_caller]
    fn refresh(&mut self, source: &Tensor, device: usize) -> Result<()> {
        let (copy, [theirs, own]) = (&self.tensor, &self.versions);
        let (address, strides) = (source.data_ptr(), source.stride());
        let alike = copy.size() == source.size()
            && copy.dtype() == source.dtype()
            && copy.storage().runtime().same_as(source.storage().runtime());
        // The program may still hold this copy as a tensor of an earlier replica. The held tensor
        // must not change.
        if !alike || !copy.is_unique() {
            *self = Self::new(source, device)?;
        } else if !theirs.is_of(source.storage())
            || !own.is_of(copy.storage())
            || (self.layout.0, &*self.layout.1) != (address, strides)
        {
            let version = source.storage().version();
            copy.copy_(&source.detach(), true)?;
            self.versions = [version, copy.storage().version()];
            self.layout = (address, strides.to_vec());
        }
        Ok(())
    }
}

impl DeviceCopies {
    /// Brings all copies up to date, for use on `stream`.
    #[track_caller]
    fn refresh(&mut self, tensors: &ModuleTensors, stream: &Stream) -> Result<()> {
        // Under `SyncPolicy::Manual`, uses on two streams are not ordered automatically.
        if let Some(last) = &self.stream
            && last != stream
        {
            stream.wait_stream(last)?;
        }
        self.stream = Some(stream.clone());
        self.copies.truncate(tensors.distinct.len());
        for (i, source) in tensors.distinct.iter().enumerate() {
            match self.copies.get_mut(i) {
                Some(cached) => cached.refresh(source, stream.device_index())?,
                None => self.copies.push(CachedCopy::new(source, stream.device_index())?),
            }
        }
        Ok(())
    }

    /// Replaces the tensors of a replica by the copies. Gradients flow through the copies to the module's tensors.
    #[track_caller]
    fn replace_tensors(&self, module: &mut impl Module, tensors: &ModuleTensors) -> Result<()> {
        let tracked = self.copies.iter().zip(&tensors.distinct).map(|(cached, source)| {
            let copy = cached.tensor.clone();
            if !source.requires_grad() || !is_grad_enabled() {
                return Ok(copy);
            }
            Ok(Broadcast(copy).apply(&[source])?.swap_remove(0))
        });
        let copies = tracked.collect::<Result<Vec<Tensor>>>()?;
        let (mut indices, mut more) = (tensors.indices.iter(), false);
        module.visit_mut(&mut VisitorMut::new(&mut |_, mut member| {
            if member.tensor().is_none() {
                return;
            }
            match indices.next().and_then(|&index| copies.get(index)) {
                Some(copy) => member.replace(copy.clone()),
                None => more = true,
            }
        }));
        if more {
            let reason = "a clone of the module has more parameters or buffers than the module";
            return Err(Error::invalid("DataParallel", reason));
        }
        Ok(())
    }
}

/// Connects a copy on another device to its original in the autograd graph. The backward pass moves the gradient to the
/// original's device, where the gradients of all replicas are added.
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
    tensors: &ModuleTensors,
    cached: &mut [DeviceCopies],
    streams: &[Stream],
) -> Result<Vec<M>> {
    let mut replicas = Vec::with_capacity(streams.len());
    for (copies, stream) in cached.iter_mut().zip(&streams[1..]) {
        copies.refresh(tensors, stream)?;
        let mut replica = module.clone();
        copies.replace_tensors(&mut replica, tensors)?;
        replicas.push(replica);
    }
    replicas.insert(0, module);
    Ok(replicas)
}
