//! A runtime: one driver with its devices, their caches, and the policies for their use.

mod cudnn;
mod device;
mod generators;
mod host_cache;
mod peers;
mod precision;
mod shared_memory;
mod staging;
mod workspaces;

use std::path::PathBuf;
use std::sync::Arc;

use warpline_alloc::cuda::{CudaHostBackend, CudaHostCache};
use warpline_alloc::{AllocatorConfig, HostConfig};
use warpline_cuda_sys_safe::owned::CudaPluggableAllocator;
use warpline_cuda_sys_safe::{Driver, DriverError, fork_generation};
use warpline_stream::{Devices, Stream};
use warpline_sync::OnceLock;
use warpline_sync::atomic::{AtomicU8, Ordering};

use crate::generator::CpuGenerator;
use crate::race::Detector;
use crate::{Error, ErrorKind, Race, RaceReport, Result};

pub use cudnn::CudnnSettings;
pub use device::CudaDevice;
pub use generators::{ChosenGenerators, Generator, SharedGenerator};
pub use host_cache::HostCacheStats;
pub(crate) use host_cache::{MIN_CACHED_BYTES, PageableCache};
use peers::PeerLinks;
pub use precision::{Precision, PrecisionOf};
use shared_memory::RuntimeSharedMemory;
pub(crate) use shared_memory::{SharedMapping, UnusedMemory, new_memory_id};
pub use staging::Staging;
pub use workspaces::Workspace;

/// The party that orders work on different streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncPolicy {
    /// Warpline orders streams: before a stream uses a tensor, it waits on the GPU for the tensor's
    /// last use on any other stream.
    #[default]
    Auto,
    /// The program orders streams, as in PyTorch. Unordered accesses are reported as races.
    Manual,
}

/// Options of a runtime.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// Whether Warpline or the program orders streams. Default: [`SyncPolicy::Auto`].
    pub sync_policy: SyncPolicy,
    /// Whether to wait for each launch, so that each launch reports its own failure
    /// (`CUDA_LAUNCH_BLOCKING=1`). Default: `false`.
    pub launch_blocking: bool,
    /// Handling of races under [`SyncPolicy::Manual`]. Default: [`RaceReport::Collect`].
    pub race_report: RaceReport,
    /// Whether to run matrix products on Warpline's own kernel even if cuBLAS is available.
    /// Default: `false`.
    pub no_cublas: bool,
    /// Size of cuBLAS's workspace in bytes (`CUBLAS_WORKSPACE_CONFIG`). Each stream with matrix products has one
    /// workspace, from the caching allocator. With 0, cuBLAS uses no workspace. Default: `None`, which is
    /// [`CudaDevice::cublas_workspace_bytes`].
    pub cublas_workspace: Option<usize>,
    /// Options of the caching allocators, one per device, and of the cache of page-locked memory.
    /// Default: [`AllocatorConfig::default`], which is `policy:default` without limits.
    pub allocator: AllocatorConfig,
    /// Library that allocates all device memory (`torch.cuda.memory.change_current_allocator`). As
    /// in PyTorch, the library is called for each tensor. Only private pools and captured graphs
    /// cache its memory. Default: `None`, the driver.
    pub pluggable_allocator: Option<CudaPluggableAllocator>,
    /// Size limits and threads of copies that go through page-locked memory, because neither end is
    /// page-locked. Default: copies of 8 MiB and more, in pieces of up to 4 MiB, by one thread per
    /// core, up to 8 ([`Staging::default`]).
    pub staging: Staging,
    /// Folder that keeps GPU code compiled at run time for later processes. The folder is created
    /// with mode 0700, and is not used if it belongs to another user or others can write to it.
    /// `None`, the default: nothing is kept.
    pub compile_cache: Option<PathBuf>,
    /// Maximum bytes of freed CPU tensors' memory that are kept for new tensors. 0 keeps none.
    /// Default: 2 GiB.
    pub host_cache_limit: usize,
}

impl Default for RuntimeConfig {
    /// Returns the default of each field.
    fn default() -> Self {
        Self {
            sync_policy: SyncPolicy::default(),
            launch_blocking: false,
            race_report: RaceReport::default(),
            no_cublas: false,
            cublas_workspace: None,
            allocator: AllocatorConfig::default(),
            pluggable_allocator: None,
            staging: Staging::default(),
            compile_cache: None,
            host_cache_limit: 2 << 30,
        }
    }
}

/// One driver with its devices and caches, isolated from all other runtimes. Clones share the
/// runtime.
///
/// # Forked children
/// A child process made with `fork` may use its parent's CPU tensors and new CPU tensors. CPU ops
/// start new threads in the child, and generators continue from the parent's state. CUDA does not survive
/// a fork, and neither does page-locked memory: using them returns [`DriverError::ForkedChild`],
/// and dropping such tensors does nothing.
///
/// State that another thread was changing during the fork stays locked in the child, so using it
/// may block forever. This concerns tensors used by a running op, the CPU generator during a draw,
/// and Warpline's initialization. Therefore fork only while no other thread is inside Warpline, or
/// do not use that state in the child.
#[derive(Clone, Debug)]
pub struct Runtime(Arc<RuntimeInner>);

#[derive(Debug)]
struct RuntimeInner {
    /// Memory shared with other processes. The first field, so that it is dropped first: its drop
    /// waits for streams.
    shared: RuntimeSharedMemory,
    devices: Result<Devices, DriverError>,
    gpus: Vec<CudaDevice>,
    peers: PeerLinks,
    pinned: OnceLock<CudaHostCache>,
    pinned_config: HostConfig,
    host_cache: PageableCache,
    cpu_generator: SharedGenerator<CpuGenerator>,
    policy: AtomicU8,
    launch_blocking: bool,
    no_cublas: bool,
    cudnn: CudnnSettings,
    precision: Precision,
    detector: Arc<Detector>,
    staging: Staging,
    /// Fork generation and id of the process that created the runtime.
    process: (u32, u32),
}

impl Runtime {
    /// Creates a runtime over a driver. Creates no driver context.
    ///
    /// # Errors
    /// [`ErrorKind::Driver`] if the driver cannot report the properties of its devices.
    #[track_caller]
    pub fn new(driver: Arc<dyn Driver>, config: RuntimeConfig) -> Result<Self> {
        let devices = Devices::new(driver)?;
        let gpus = devices.iter().map(|d| CudaDevice::new(d.clone(), &config)).collect();
        Ok(Self::build(Ok(devices), gpus, &config))
    }

    /// Creates a runtime without CUDA. CPU tensors work. Calls that need a device return an error
    /// with `reason`: [`ErrorKind::CudaUnavailable`] if there is no GPU,
    /// [`ErrorKind::InvalidVariable`] if an environment variable is invalid, otherwise
    /// [`ErrorKind::Driver`].
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
        Self(Arc::new(RuntimeInner {
            shared: RuntimeSharedMemory::default(),
            peers: PeerLinks::new(gpus.len()),
            devices,
            gpus,
            pinned: OnceLock::new(),
            pinned_config: config.allocator.host.clone(),
            host_cache: PageableCache::new(config.host_cache_limit),
            cpu_generator: SharedGenerator::default(),
            policy: AtomicU8::new(config.sync_policy as u8),
            launch_blocking: config.launch_blocking,
            no_cublas: config.no_cublas,
            cudnn: CudnnSettings::default(),
            precision: Precision::default(),
            detector,
            staging: config.staging.clamped(),
            process: (fork_generation(), std::process::id()),
        }))
    }

    /// Returns whether `self` and `other` are clones of the same runtime.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns an identifier that no other living runtime has.
    #[must_use]
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Returns the number of devices. 0 if CUDA cannot be used; [`Runtime::devices`] then returns
    /// the cause.
    #[must_use]
    pub fn device_count(&self) -> usize {
        self.0.gpus.len()
    }

    /// Returns the device with an index.
    ///
    /// # Errors
    /// - [`ErrorKind::NoSuchDevice`] if there is no device with this index.
    /// - The errors of [`Runtime::devices`] if there are no devices.
    #[track_caller]
    pub fn device(&self, index: usize) -> Result<&CudaDevice> {
        if let Some(gpu) = self.gpu(index) {
            return Ok(gpu);
        }
        self.devices()?;
        Err(ErrorKind::NoSuchDevice { index, count: self.0.gpus.len() }.of("device"))
    }

    /// Returns the device with an index, for callers that do not need an error.
    pub(crate) fn gpu(&self, index: usize) -> Option<&CudaDevice> {
        self.0.gpus.get(index)
    }

    /// Returns the devices, with each thread's current device and streams.
    ///
    /// # Errors
    /// - [`ErrorKind::CudaUnavailable`] if there is no driver or no device.
    /// - [`ErrorKind::InvalidVariable`] if an environment variable has an invalid value.
    /// - [`ErrorKind::Driver`] if loading or initializing the driver fails for another reason.
    #[inline]
    #[track_caller]
    pub fn devices(&self) -> Result<&Devices> {
        match &self.0.devices {
            Ok(devices) if !self.0.gpus.is_empty() => Ok(devices),
            Ok(_) => Err(no_device()),
            Err(reason) => Err(crate::error::no_cuda(reason.clone())),
        }
    }

    /// Returns the driver.
    ///
    /// # Errors
    /// The same as [`Runtime::devices`].
    #[track_caller]
    pub fn driver(&self) -> Result<&Arc<dyn Driver>> {
        Ok(self.devices()?.driver())
    }

    /// Returns the cache of page-locked host memory.
    ///
    /// # Errors
    /// The same as [`Runtime::devices`].
    #[track_caller]
    pub fn pinned_cache(&self) -> Result<&CudaHostCache> {
        let driver = self.driver()?;
        Ok(self.0.pinned.get_or_init(|| {
            let backend = CudaHostBackend::new(Arc::clone(driver), 0);
            CudaHostCache::new(backend, self.0.pinned_config.clone())
        }))
    }

    /// Returns the cache of pageable host memory. `None` in a forked child, because a thread of the
    /// parent may have held its lock.
    pub(crate) fn host_cache(&self) -> Option<&PageableCache> {
        self.is_own_process().then_some(&self.0.host_cache)
    }

    /// Returns the statistics of the cache of pageable host memory. All zero in a forked child,
    /// which has no cache.
    #[must_use]
    pub fn host_cache_stats(&self) -> HostCacheStats {
        self.host_cache().map_or_else(HostCacheStats::default, PageableCache::stats)
    }

    /// Returns the pageable host memory that is kept for new CPU tensors to the system.
    pub fn empty_host_cache(&self) {
        if let Some(cache) = self.host_cache() {
            cache.empty();
        }
    }

    /// Seeds all generators that this thread draws from (`torch.manual_seed`).
    pub fn manual_seed(&self, seed: u64) {
        self.cpu_generator().lock().manual_seed(seed);
        for gpu in &self.0.gpus {
            gpu.manual_seed(seed);
        }
    }

    /// Returns whether Warpline or the program orders streams.
    #[must_use]
    pub fn sync_policy(&self) -> SyncPolicy {
        if self.0.policy.load(Ordering::Relaxed) == SyncPolicy::Manual as u8 {
            SyncPolicy::Manual
        } else {
            SyncPolicy::Auto
        }
    }

    /// Sets whether Warpline or the program orders streams, for work enqueued from now on.
    pub fn set_sync_policy(&self, policy: SyncPolicy) {
        self.0.policy.store(policy as u8, Ordering::Relaxed);
    }

    /// Returns whether the host waits for each launch.
    #[must_use]
    pub fn launch_blocking(&self) -> bool {
        self.0.launch_blocking
    }

    /// Returns the settings of products and convolutions that trade precision for speed.
    #[must_use]
    pub fn precision(&self) -> &Precision {
        &self.0.precision
    }

    /// Returns whether matrix products run on cuBLAS if it is available.
    #[must_use]
    pub fn uses_cublas(&self) -> bool {
        !self.0.no_cublas
    }

    /// Returns the settings of cuDNN.
    #[must_use]
    pub fn cudnn(&self) -> &CudnnSettings {
        &self.0.cudnn
    }

    /// Returns the options for copies through page-locked memory.
    #[must_use]
    pub fn staging(&self) -> &Staging {
        &self.0.staging
    }

    /// Takes the races recorded since the last call, oldest first. At most 1024 are kept.
    #[must_use]
    pub fn take_races(&self) -> Vec<Race> {
        self.0.detector.take(true)
    }

    /// Takes the possible races ([`Race::certain`] is `false`) recorded since the last call, oldest
    /// first. At most 1024 are kept.
    #[must_use]
    pub fn take_possible_races(&self) -> Vec<Race> {
        self.0.detector.take(false)
    }

    /// Sets the handling of races. Memory allocated and work enqueued under [`RaceReport::Off`] or
    /// [`SyncPolicy::Auto`] are not checked afterwards.
    pub fn set_race_report(&self, report: RaceReport) {
        self.0.detector.set_report(report);
    }

    /// Returns the handling of races.
    #[must_use]
    pub fn race_report(&self) -> RaceReport {
        self.0.detector.report()
    }

    /// Checks that a stream belongs to this runtime: streams of another runtime, even of the same
    /// driver, cannot be ordered with streams of this one. Also rejects the twin of a captured
    /// stream, because the twin may outlive its capture.
    #[track_caller]
    pub(crate) fn check_stream(&self, stream: &Stream, op: &'static str) -> Result<()> {
        if self.devices()?.id() != stream.devices_id() {
            return Err(ErrorKind::RuntimeMismatch.of(op));
        }
        if stream.is_twin() {
            let reason = "a captured stream's twin only numbers the capture's operations: pass the stream itself";
            return Err(Error::invalid(op, reason));
        }
        Ok(())
    }

    /// Returns whether this process created the runtime, and is not a forked child of that process.
    pub(crate) fn is_own_process(&self) -> bool {
        self.0.process.0 == fork_generation()
    }

    /// Fails in a forked child, because the addresses of the parent's page-locked memory may be
    /// unmapped there.
    #[track_caller]
    pub(crate) fn check_process(&self, op: &'static str) -> Result<()> {
        self.check_process_for(op, "page-locked memory")
    }

    /// Fails in a forked child. `call` is the use of CUDA that the error names.
    #[track_caller]
    #[inline]
    pub(crate) fn check_process_for(&self, op: &'static str, call: &'static str) -> Result<()> {
        if self.is_own_process() {
            return Ok(());
        }
        let parent = self.0.process.1;
        Err(Error::driver(op, DriverError::ForkedChild { call, parent }))
    }

    /// Returns whether races are detected.
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
    crate::error::no_cuda(DriverError::NoDevice { reason: "the driver has no devices".into() })
}
