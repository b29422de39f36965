//! Options of `DistributedDataParallel`.

/// Capacity of a bucket, in bytes, if none is set.
pub(super) const BUCKET_CAP: usize = 25 << 20;
/// Capacity of the first bucket, in bytes, if no capacity is set. A small first bucket starts the communication early.
pub(super) const FIRST_BUCKET_CAP: usize = 1 << 20;

/// Options of [`DistributedDataParallel`](super::DistributedDataParallel).
///
/// ```
/// use warpline_parallel::distributed::DdpOptions;
///
/// let options = DdpOptions::new().bucket_cap_mb(10.0).gradient_as_bucket_view(true);
/// ```
#[derive(Clone, Debug)]
pub struct DdpOptions {
    pub(super) broadcast_buffers: bool,
    pub(super) init_sync: bool,
    bucket_cap: Option<usize>,
    pub(super) find_unused_parameters: bool,
    pub(super) gradient_as_bucket_view: bool,
    pub(super) static_graph: bool,
}

impl Default for DdpOptions {
    fn default() -> Self {
        Self {
            broadcast_buffers: true,
            init_sync: true,
            bucket_cap: None,
            find_unused_parameters: false,
            gradient_as_bucket_view: false,
            static_graph: false,
        }
    }
}

impl From<()> for DdpOptions {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl DdpOptions {
    /// Creates options with the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether each forward pass begins by copying the buffers of rank 0 to the other ranks. Default: `true`.
    #[must_use]
    pub fn broadcast_buffers(mut self, broadcast: bool) -> Self {
        self.broadcast_buffers = broadcast;
        self
    }

    /// Sets whether the constructor compares the parameters of all ranks and copies those of rank 0 to the other ranks.
    /// Without, the program must give all ranks the same parameters. Default: `true`.
    #[must_use]
    pub fn init_sync(mut self, init_sync: bool) -> Self {
        self.init_sync = init_sync;
        self
    }

    /// Sets the capacity of a bucket, in MiB. A bucket is full once the gradients in it reach the capacity. Default: 25,
    /// and 1 for the first bucket.
    #[must_use]
    pub fn bucket_cap_mb(mut self, mebibytes: f64) -> Self {
        // The conversion saturates: a negative capacity is 0, which makes a bucket for each parameter.
        self.bucket_cap = Some((mebibytes * f64::from(1 << 20)) as usize);
        self
    }

    /// Sets whether a backward pass may leave out parameters. After each forward pass, the graph of its outputs is then
    /// searched for the parameters that will get no gradient, and the ranks agree on the parameters that no rank used.
    /// Default: `false`.
    #[must_use]
    pub fn find_unused_parameters(mut self, find: bool) -> Self {
        self.find_unused_parameters = find;
        self
    }

    /// Sets whether gradients are views of the buckets, which saves memory and copies. Such a gradient cannot be
    /// detached from its bucket. Default: `false`.
    #[must_use]
    pub fn gradient_as_bucket_view(mut self, view: bool) -> Self {
        self.gradient_as_bucket_view = view;
        self
    }

    /// Declares that each iteration uses the same parameters the same number of times. The first iteration finds the
    /// unused parameters. Default: `false`.
    #[must_use]
    pub fn static_graph(mut self, static_graph: bool) -> Self {
        self.static_graph = static_graph;
        self
    }

    /// Returns whether the buckets are rebuilt after the first iteration.
    pub(super) fn rebuilds_buckets(&self) -> bool {
        self.static_graph || !self.find_unused_parameters
    }

    /// Returns the capacities of the first buckets, in bytes; the last one holds for all further buckets.
    pub(super) fn capacities(&self) -> Vec<usize> {
        match self.bucket_cap {
            Some(cap) => vec![cap],
            None => vec![FIRST_BUCKET_CAP, BUCKET_CAP],
        }
    }

    /// Returns the capacities for the first iteration.
    pub(super) fn initial_capacities(&self) -> Vec<usize> {
        if self.rebuilds_buckets() { vec![usize::MAX] } else { self.capacities() }
    }
}
