//! Options of `DistributedDataParallel`.

/// Default capacity of a bucket, in bytes.
pub(super) const BUCKET_CAP: usize = 25 << 20;
/// Default capacity of the first bucket, in bytes. A small first bucket starts the communication early.
pub(super) const FIRST_BUCKET_CAP: usize = 1 << 20;

warpline::__options! {
    /// Options of [`DistributedDataParallel`](super::DistributedDataParallel).
    ///
    /// ```
    /// use warpline_parallel::distributed::DdpOptions;
    ///
    /// let options = DdpOptions::new().bucket_cap_mb(10.0).gradient_as_bucket_view(true);
    /// ```
    #[derive(Clone, Debug)]
    DdpOptions [] [] {
        /// Sets whether a forward pass begins by copying the buffers of rank 0 to the other ranks. A forward pass does
        /// not copy them if the gradients of the previous forward pass are not reduced. Default: `true`.
        broadcast_buffers: bool = true, bool;
        /// Sets whether the constructor compares the models and options of all ranks and copies the parameters and
        /// buffers of rank 0 to the other ranks. If it does not, the program must give all ranks the same model.
        /// Default: `true`.
        init_sync: bool = true, bool;
        /// Sets the capacity of a bucket, in MiB. A bucket is full once the gradients in it reach the capacity.
        /// Default: 25, and 1 for the first bucket.
        bucket_cap_mb: Option<f64> = None, f64 => Some;
        /// Sets whether a backward pass may leave out parameters. After each forward pass, the graph of its outputs is
        /// then searched for the parameters that will get no gradient, and the ranks agree on the parameters that no
        /// rank used. Default: `false`.
        find_unused_parameters: bool = false, bool;
        /// Sets whether gradients are views of the buckets, which saves memory and copies. Such a gradient cannot be
        /// detached from its bucket. Default: `false`.
        gradient_as_bucket_view: bool = false, bool;
        /// Sets whether the program uses the same parameters the same number of times in each iteration. The first
        /// iteration then finds the unused parameters. Default: `false`.
        static_graph: bool = false, bool;
    }
}

impl DdpOptions {
    /// Returns whether the buckets are rebuilt after the first iteration.
    pub(super) fn rebuilds_buckets(&self) -> bool {
        self.static_graph || !self.find_unused_parameters
    }

    /// Returns the capacities of the first buckets, in bytes. The last capacity applies to all further buckets.
    pub(super) fn capacities(&self) -> Vec<usize> {
        match self.bucket_cap_mb {
            // The conversion saturates: a negative capacity is 0, which makes a bucket for each parameter.
            Some(mebibytes) => vec![(mebibytes * f64::from(1 << 20)) as usize],
            None => vec![FIRST_BUCKET_CAP, BUCKET_CAP],
        }
    }

    /// Returns the capacities for the first iteration.
    pub(super) fn initial_capacities(&self) -> Vec<usize> {
        if self.rebuilds_buckets() { vec![usize::MAX] } else { self.capacities() }
    }
}
