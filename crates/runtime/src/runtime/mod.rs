//! A runtime: one driver, its devices, their caches, and how they are to be used.

mod device;
mod generators;
mod host_cache;
mod peers;
mod shared;
mod staging;

use std::panic::Location;
use std::path::PathBuf;
use std::sync::Arc;

use warpline_alloc::cuda::{CudaHostBackend, CudaHostCache};
use warpline_alloc::{AllocatorConfig, HostConfig};
use warpline_cuda_sys_safe::{Driver, DriverError, fork_generation};
use warpline_stream::{Devices, Stream};
use warpline_sync::atomic::{AtomicU8, Ordering};
use warpline_sync::{Mutex, OnceLock};

use crate::generator::CpuGenerator;
use crate::race::Detector;
use crate::{Error, ErrorKind, Race, RaceReport, Result};

pub use device::CudaDevice;
pub use generators::GeneratorGuard;
pub use host_cache::HostCacheStats;
pub(crate) use host_cache::{HostCache, KEPT_FROM};
use peers::Peers;
use shared::Shared;
pub(crate) use shared::{SharedMapping, Unused, new_memory_id};
pub use staging::Staging;

/// Who orders work on different streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncPolicy {
    /// Warpline does: a stream that meets a tensor waits, on the GPU, for its last use.
    #[default]
    Auto,
    /// The program does, as in PyTorch; what nothing orders is reported as a race.
    Manual,
}

/// How a runtime is made.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// Who orders streams.
    pub sync_policy: SyncPolicy,
    /// Whether each launch is waited for, so that it reports its own failure
    /// (`CUDA_LAUNCH_BLOCKING=1`).
    pub launch_blocking: bool,
    /// What is done with races, under [`SyncPolicy::Manual`].
    pub race_report: RaceReport,
    /// Whether matrix products run on Warpline's own kernel even where there is a cuBLAS.
    pub no_cublas: bool,
    /// The caching allocators' options.
    pub allocator: AllocatorConfig,
    /// How copies go through page-locked memory.
    pub staging: Staging,
    /// Folder in which GPU code that is compiled at run time is kept for later processes. It is created with mode
    /// 0700, and not used if it belongs to another user or others can write to it. `None`: nothing is kept.
    pub compile_cache: Option<PathBuf>,
    /// Bytes of freed CPU tensors' memory that are kept for new ones; 0 keeps none.
    pub host_cache_limit: usize,
}

impl Default for RuntimeConfig {
    /// As PyTorch; up to 2 GiB of freed CPU tensors' memory are kept.
    fn default() -> Self {
        Self {
            sync_policy: SyncPolicy::default(),
            launch_blocking: false,
            race_report: RaceReport::default(),
            no_cublas: false,
            allocator: AllocatorConfig::default(),
            staging: Staging::default(),
            compile_cache: None,
            host_cache_limit: 2 << 30,
        }
    }
}

/// One driver with its devices and caches: an isolated world. Clones share it.
///
/// # Forked children
/// A child made with `fork` may use CPU tensors, its parent's and new ones: ops start threads of
/// its own, and generators go on from where they were. CUDA does not survive a fork, and neither
/// does page-locked memory: their use is [`DriverError::ForkedChild`], and to drop such tensors does
/// nothing. What another thread was in the middle of at the fork stays so in the child, where using
/// it may wait for ever: tensors that an op was using, the CPU generator while it was drawn from,
/// Warpline's first use ever. So fork while no other thread is inside Warpline, or leave alone in
/// the child what those threads use.
#[derive(Clone, Debug)]
pub struct Runtime(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Dropped first: it waits for streams.
    shared: Shared,
    devices: Result<Devices, DriverError>,
    gpus: Vec<CudaDevice>,
    peers: Peers,
    pinned: OnceLock<CudaHostCache>,
    pinned_config: HostConfig,
    host_cache: HostCache,
    cpu_generator: Mutex<CpuGenerator>,
    policy: AtomicU8,
    launch_blocking: bool,
    no_cublas: bool,
    detector: Arc<Detector>,
    staging: Staging,
    /// The process that it was made in, and its id.
    process: (u32, u32),
}

impl Runtime {
    /// A runtime over a driver. Creates no context.
    ///
    /// # Errors
    /// The driver's own, when it cannot say what its devices are.
    #[track_caller]
    pub fn new(driver: Arc<dyn Driver>, config: RuntimeConfig) -> Result<Self> {
        let devices = Devices::new(driver)?;
        let gpus = devices.iter().map(|d| CudaDevice::new(d.clone(), &config)).collect();
        Ok(Self::build(Ok(devices), gpus, &config))
    }

    /// A runtime without CUDA: CPU tensors work, and `cuda` is an error that gives `reason`:
    /// [`ErrorKind::CudaUnavailable`] where there is no GPU, [`ErrorKind::InvalidVariable`] or
    /// [`ErrorKind::Driver`] where something is wrong.
    #[must_use]
    pub fn without_cuda(reason: DriverError, config: &RuntimeConfig) -> Self {
        Self::build(Err(reason), Vec::new(), config)
    }

    fn build(
        devices: Result<Devices, DriverError>,
        gpus: Vec<CudaDevice>,
        config: &RuntimeConfig,
    ) -> Self {
        let detector = Arc::new(Detector::new(config.race_report));
        for gpu in &gpus {
            detector.follow(gpu);
        }
        Self(Arc::new(Inner {
            shared: Shared::default(),
            peers: Peers::new(gpus.len()),
            devices,
            gpus,
            pinned: OnceLock::new(),
            pinned_config: config.allocator.host.clone(),
            host_cache: HostCache::new(config.host_cache_limit),
            cpu_generator: Mutex::default(),
            policy: AtomicU8::new(config.sync_policy as u8),
            launch_blocking: config.launch_blocking,
            no_cublas: config.no_cublas,
            detector,
            staging: config.staging.clamped(),
            process: (fork_generation(), std::process::id()),
        }))
    }

    /// Whether two are the same world.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// A number that no other runtime alive has.
    #[must_use]
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// How many devices there are: none also where CUDA cannot be used, of which
    /// [`Runtime::devices`] says why.
    #[must_use]
    pub fn device_count(&self) -> usize {
        self.0.gpus.len()
    }

    /// A device.
    ///
    /// # Errors
    /// [`ErrorKind::CudaUnavailable`] or [`ErrorKind::NoSuchDevice`].
    #[track_caller]
    pub fn device(&self, index: usize) -> Result<&CudaDevice> {
        if let Some(gpu) = self.gpu(index) {
            return Ok(gpu);
        }
        self.devices()?;
        let (count, location) = (self.0.gpus.len(), Location::caller());
        Err(ErrorKind::NoSuchDevice { index, count }.of("").at(location))
    }

    /// [`Runtime::device`] where nobody asks why there is none.
    pub(crate) fn gpu(&self, index: usize) -> Option<&CudaDevice> {
        self.0.gpus.get(index)
    }

    /// The devices with their current-device and current-stream state.
    ///
    /// # Errors
    /// [`ErrorKind::CudaUnavailable`] when there is no driver or no device; [`ErrorKind::InvalidVariable`] or
    /// [`ErrorKind::Driver`] when something is wrong with what there is.
    #[inline]
    #[track_caller]
    pub fn devices(&self) -> Result<&Devices> {
        match &self.0.devices {
            Ok(devices) if !self.0.gpus.is_empty() => Ok(devices),
            Ok(_) => Err(no_device()),
            Err(reason) => Err(crate::error::no_cuda(reason.clone())),
        }
    }

    /// The driver.
    ///
    /// # Errors
    /// [`ErrorKind::CudaUnavailable`].
    #[track_caller]
    pub fn driver(&self) -> Result<&Arc<dyn Driver>> {
        Ok(self.devices()?.driver())
    }

    /// The cache of page-locked host memory.
    ///
    /// # Errors
    /// [`ErrorKind::CudaUnavailable`].
    #[track_caller]
    pub fn pinned_cache(&self) -> Result<&CudaHostCache> {
        let driver = self.driver()?;
        Ok(self.0.pinned.get_or_init(|| {
            let backend = CudaHostBackend::new(Arc::clone(driver), 0);
            CudaHostCache::with_config(backend, self.0.pinned_config.clone())
        }))
    }

    /// The cache of pageable host memory; `None` in a forked child, of whose parent a thread may have
    /// had it locked.
    pub(crate) fn host_cache(&self) -> Option<&HostCache> {
        self.is_own_process().then_some(&self.0.host_cache)
    }

    /// What the cache of pageable host memory holds. Zeros in a forked child, which has none.
    #[must_use]
    pub fn host_cache_stats(&self) -> HostCacheStats {
        self.host_cache().map_or_else(HostCacheStats::default, HostCache::stats)
    }

    /// Gives the pageable host memory that is kept for new CPU tensors back to the system.
    pub fn empty_host_cache(&self) {
        if let Some(cache) = self.host_cache() {
            cache.empty();
        }
    }

    /// Seeds every generator that this thread draws from (`torch.manual_seed`).
    pub fn manual_seed(&self, seed: u64) {
        self.cpu_generator().manual_seed(seed);
        for gpu in &self.0.gpus {
            gpu.manual_seed(seed);
        }
    }

    /// Who orders streams.
    #[must_use]
    pub fn sync_policy(&self) -> SyncPolicy {
        if self.0.policy.load(Ordering::Relaxed) == SyncPolicy::Manual as u8 {
            SyncPolicy::Manual
        } else {
            SyncPolicy::Auto
        }
    }

    /// Changes who orders streams, for work enqueued from now on.
    pub fn set_sync_policy(&self, policy: SyncPolicy) {
        self.0.policy.store(policy as u8, Ordering::Relaxed);
    }

    /// Whether each launch is waited for.
    #[must_use]
    pub fn launch_blocking(&self) -> bool {
        self.0.launch_blocking
    }

    /// Whether matrix products run on cuBLAS where there is one.
    #[must_use]
    pub fn uses_cublas(&self) -> bool {
        !self.0.no_cublas
    }

    /// How copies go through page-locked memory.
    #[must_use]
    pub fn staging(&self) -> &Staging {
        &self.0.staging
    }

    /// The races noted since the last call, oldest first. At most 1024 are kept.
    #[must_use]
    pub fn take_races(&self) -> Vec<Race> {
        self.0.detector.take(true)
    }

    /// The possible races noted since the last call ([`Race::certain`]), oldest first. At most
    /// 1024 are kept.
    #[must_use]
    pub fn take_possible_races(&self) -> Vec<Race> {
        self.0.detector.take(false)
    }

    /// Changes what is done with races. Memory and work from before are not looked at where they
    /// were [`RaceReport::Off`], or under [`SyncPolicy::Auto`].
    pub fn set_race_report(&self, report: RaceReport) {
        self.0.detector.set_report(report);
    }

    /// What is done with races.
    #[must_use]
    pub fn race_report(&self) -> RaceReport {
        self.0.detector.report()
    }

    /// Refuses a stream of another runtime: it cannot be ordered with this one's, nor its work be
    /// waited for, even where both are of one driver. Refuses a captured stream's twin too, which
    /// outlives its capture.
    #[track_caller]
    pub(crate) fn check_stream(&self, stream: &Stream, op: &'static str) -> Result<()> {
        if self.devices()?.id() != stream.devices_id() {
            return Err(ErrorKind::RuntimeMismatch.of(op));
        }
        if stream.is_twin() {
            let reason = "a captured stream's twin only numbers the capture's operations: give the \
                          stream itself";
            return Err(Error::invalid(op, reason));
        }
        Ok(())
    }

    /// Whether this is no forked child of the process that the runtime was made in.
    pub(crate) fn is_own_process(&self) -> bool {
        self.0.process.0 == fork_generation()
    }

    /// Refuses forked children, in whose memory there may be nothing where page-locked memory is in
    /// their parent's.
    #[track_caller]
    pub(crate) fn check_process(&self, op: &'static str) -> Result<()> {
        if self.is_own_process() {
            return Ok(());
        }
        let parent = self.0.process.1;
        Err(Error::driver(op, DriverError::ForkedChild { call: "page-locked memory", parent }))
    }

    /// Whether races are looked for.
    #[inline]
    pub(crate) fn detects_races(&self) -> bool {
        self.sync_policy() == SyncPolicy::Manual && self.race_report() != RaceReport::Off
    }

    pub(crate) fn detector(&self) -> &Detector {
        &self.0.detector
    }
}

#[cold]
#[track_caller]
fn no_device() -> Error {
    crate::error::no_cuda(DriverError::NoDevice { reason: "the driver has none".into() })
}
