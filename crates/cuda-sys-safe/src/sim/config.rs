//! The configuration of simulated devices.

use std::fmt;
use std::time::Duration;

use super::state::memory::DEVICE_SPACE;
use super::{Fault, H200_TOTAL_MEMORY, Topology, h200};
use crate::DeviceProperties;

/// The order in which enqueued work runs. All orders obey the rules of streams. Work runs only
/// inside driver calls, except work for which another process may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// All work that can run does so before the call that enqueued it returns.
    Eager,
    /// Work runs only when a call must wait for it, and only as far as the wait needs. A query of
    /// incomplete work runs one operation.
    Lazy,
    /// Each call that needs a context first runs up to three operations of randomly picked streams.
    /// The number is the seed.
    Seeded(u64),
}

/// The configuration of a set of simulated devices, built into a [`SimDriver`](super::SimDriver).
///
/// ```
/// use warpline_cuda_sys_safe::{Driver, sim::{Schedule, SimConfig}};
/// let sim = SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(3) }.build();
/// assert_eq!(sim.device_count(), 3);
/// assert_eq!(SimConfig::from_spec("sim:3,lazy").unwrap().devices, 3);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SimConfig {
    /// Number of devices; more than 64 count as 64. [`SimConfig::visible`] may hide some of them.
    /// Default: 1.
    pub devices: usize,
    /// Memory of each device, in bytes. Default: [`H200_TOTAL_MEMORY`].
    pub capacity: usize,
    /// Order in which work runs. Default: `Schedule::Seeded(0)`.
    pub schedule: Schedule,
    /// Value of `CUDA_VISIBLE_DEVICES`, which selects and orders the visible devices. Default:
    /// `None`, all devices are visible.
    pub visible: Option<String>,
    /// Whether every launch, copy and memset waits until it is done, as with
    /// `CUDA_LAUNCH_BLOCKING=1`. Default: false.
    pub launch_blocking: bool,
    /// Whether a sticky error loses only the device whose work failed. On hardware, all devices of
    /// the process are lost. Default: false.
    pub isolate_faults: bool,
    /// Pairs of devices without a peer link, in either order. All other pairs are linked. Default:
    /// empty.
    pub unlinked_peers: Vec<(usize, usize)>,
    /// Whether each kernel also runs on poisoned copies, to check its footprints. Default: false.
    pub check_footprints: bool,
    /// Whether allocations are surrounded by redzones, whose content is checked when the allocation
    /// is freed. Default: true.
    pub redzones: bool,
    /// Failures to inject, as by [`SimDriver::inject`](super::SimDriver::inject). Default: none.
    pub faults: Vec<Fault>,
    /// Time that the host waits without progress for other ranks of a collective before the device
    /// is lost with `LAUNCH_TIMEOUT`. (A real device hangs.) Default: 60 seconds.
    pub collective_timeout: Duration,
    /// Machines of the devices and links between them, for the virtual time of collectives.
    /// Default: one machine.
    pub topology: Topology,
    /// Virtual time of a kernel besides the time of its memory accesses, in microseconds. Default: 3.
    pub kernel_time: f64,
    /// Properties of each device, except its UUID, PCI address and memory. If
    /// `virtual_memory_management` is false, devices have no virtual memory, as on systems where it
    /// cannot be simulated. Default: those of an H200 ([`h200`]).
    pub properties: DeviceProperties,
}

impl SimConfig {
    /// Creates a configuration of `devices` H200s, all linked, with the default of each option.
    #[must_use]
    pub fn new(devices: usize) -> Self {
        Self {
            devices,
            capacity: H200_TOTAL_MEMORY,
            schedule: Schedule::Seeded(0),
            visible: None,
            launch_blocking: false,
            isolate_faults: false,
            unlinked_peers: Vec::new(),
            check_footprints: false,
            redzones: true,
            faults: Vec::new(),
            collective_timeout: Duration::from_secs(60),
            topology: Topology::default(),
            kernel_time: 3.0,
            properties: h200(0),
        }
    }

    /// Parses a specification such as `sim`, `sim:3` or `sim:3,seed=7,memory=8GiB,check`. `sim`
    /// alone is one device.
    ///
    /// Options: `eager`, `lazy` or `seed=N` ([`Schedule`]); `memory=BYTES`, with an optional `KiB`,
    /// `MiB` or `GiB` ([`SimConfig::capacity`]); `blocking` ([`SimConfig::launch_blocking`]);
    /// `check` ([`SimConfig::check_footprints`]); `isolate` ([`SimConfig::isolate_faults`]);
    /// `machines=N` ([`Topology::machines`]);
    /// `fail=CALL[:CODE][@N][..]`, any number of times ([`SimConfig::faults`]). `fail=cuMemAlloc@3` lets three
    /// allocations succeed, and the next one fail. With `..`, all later ones fail, too. `CODE` is the number of the error;
    /// default: the first of
    /// [`CallKind::errors`](crate::sim::CallKind::errors).
    ///
    /// # Errors
    /// - [`SpecError::NotSim`] if `spec` does not start with `sim` or `sim:N`.
    /// - [`SpecError::NotANumber`] if a number cannot be parsed or is too large for its type.
    /// - [`SpecError::TooManyDevices`] if there are more than 64 devices.
    /// - [`SpecError::TooMuchMemory`] if a device has more than 512 TiB of memory.
    /// - [`SpecError::NotAFailure`] if the value of `fail` has another form, or no call has this name.
    /// - [`SpecError::SaidTwice`] if two options set the same field.
    /// - [`SpecError::UnknownOption`] if there is no such option.
    pub fn from_spec(spec: &str) -> Result<Self, SpecError> {
        let mut parts = spec.split(',').map(str::trim);
        let head = parts.next().unwrap_or_default();
        let devices = match head.split_once(':') {
            None if head == "sim" => 1,
            Some(("sim", n)) => number(spec, n, "a number of devices")?,
            _ => return Err(SpecError::NotSim { spec: spec.into() }),
        };
        if devices > MAX_DEVICES {
            return Err(SpecError::TooManyDevices { devices });
        }
        let mut config = Self::new(devices);
        let mut seen: Vec<(&str, &str)> = Vec::new();
        for option in parts {
            let name = option.split_once('=').map_or(option, |(name, _)| name);
            // These three options all set the schedule, so at most one may occur.
            let sets = if matches!(name, "eager" | "lazy" | "seed") { "schedule" } else { name };
            let first = seen.iter().find(|(other, _)| *other == sets && sets != "fail");
            if let Some((_, first)) = first {
                return Err(SpecError::SaidTwice {
                    spec: spec.into(),
                    first: (*first).into(),
                    second: option.into(),
                });
            }
            seen.push((sets, option));
            match option.split_once('=') {
                None if option == "eager" => config.schedule = Schedule::Eager,
                None if option == "lazy" => config.schedule = Schedule::Lazy,
                None if option == "check" => config.check_footprints = true,
                None if option == "blocking" => config.launch_blocking = true,
                None if option == "isolate" => config.isolate_faults = true,
                Some(("seed", n)) => {
                    let seed = number(spec, n, "a whole number from 0 on")?;
                    config.schedule = Schedule::Seeded(seed as u64);
                }
                Some(("machines", n)) => {
                    config.topology.machines = number(spec, n, "a number of machines")?;
                }
                Some(("fail", text)) => {
                    let not = || SpecError::NotAFailure { spec: spec.into(), text: text.into() };
                    config.faults.push(Fault::from_spec(text.trim()).ok_or_else(not)?);
                }
                Some(("memory", n)) => {
                    config.capacity = bytes(spec, n)?;
                    if config.capacity as u64 > DEVICE_SPACE / 2 {
                        let (spec, most) = (spec.into(), DEVICE_SPACE / 2);
                        return Err(SpecError::TooMuchMemory { spec, most });
                    }
                }
                _ => {
                    return Err(SpecError::UnknownOption {
                        spec: spec.into(),
                        option: option.into(),
                    });
                }
            }
        }
        Ok(config)
    }
}

impl Default for SimConfig {
    fn default() -> Self {
        Self::new(1)
    }
}

/// Largest number of devices. Each device has a 1 PiB range of addresses.
pub(super) const MAX_DEVICES: usize = 64;

/// The error of an invalid specification of simulated devices.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The specification does not start with `sim` or `sim:N`.
    #[error("`{spec}` does not name a simulated driver: write `sim` or `sim:3`")]
    NotSim {
        /// The specification.
        spec: String,
    },
    /// A number is invalid.
    #[error("`{text}` in `{spec}` should be {expected}")]
    NotANumber {
        /// The specification.
        spec: String,
        /// The invalid number.
        text: String,
        /// The expected kind of number, and its format.
        expected: &'static str,
    },
    /// There are more devices than can be simulated.
    #[error("{devices} simulated devices were asked for; at most 64 are possible")]
    TooManyDevices {
        /// Requested number of devices.
        devices: usize,
    },
    /// The memory is larger than the address range of a simulated device allows.
    #[error("`{spec}` asks for more memory than a simulated device can have, {most} bytes")]
    TooMuchMemory {
        /// The specification.
        spec: String,
        /// The largest size, in bytes.
        most: u64,
    },
    /// A failure has another form, or no call has its name.
    #[error(
        "`{text}` in `{spec}` is not a failure of a driver call; write for example `fail=cuMemAlloc@3`, \
         `fail=cuMemcpyAsync..` or `fail=cuLaunchKernel:700`"
    )]
    NotAFailure {
        /// The specification.
        spec: String,
        /// The value.
        text: String,
    },
    /// Two options set the same field.
    #[error("`{first}` and `{second}` in `{spec}` set the same option: give it once")]
    SaidTwice {
        /// The specification.
        spec: String,
        /// The first option.
        first: String,
        /// The second option.
        second: String,
    },
    /// There is no such option.
    #[error(
        "`{option}` in `{spec}` is not an option; there are eager, lazy, seed=N, memory=BYTES, blocking, check, isolate, machines=N, fail=CALL"
    )]
    UnknownOption {
        /// The specification.
        spec: String,
        /// The option.
        option: String,
    },
}

/// Writes the message, as `Display` does, because `main` and `unwrap` print errors by `Debug`.
impl fmt::Debug for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn number(spec: &str, text: &str, expected: &'static str) -> Result<usize, SpecError> {
    let text = text.trim();
    let not = |_| SpecError::NotANumber { spec: spec.into(), text: text.into(), expected };
    text.parse().map_err(not)
}

fn bytes(spec: &str, text: &str) -> Result<usize, SpecError> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("", 1)];
    let parts = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
    let count =
        parts.and_then(|(count, scale)| count.trim().parse::<usize>().ok()?.checked_mul(scale));
    count.ok_or_else(|| SpecError::NotANumber {
        spec: spec.into(),
        text: text.into(),
        expected: "a number of bytes, KiB, MiB or GiB that fits, such as `8GiB`",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_beyond_the_simulated_address_space_is_refused() {
        for text in ["sim:1,memory=18446744073709551615", "sim:1,memory=1048576GiB"] {
            let error = SimConfig::from_spec(text).unwrap_err();
            assert!(matches!(error, SpecError::TooMuchMemory { .. }), "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
        assert!(SimConfig::from_spec("sim:1,memory=524288GiB").is_ok());
    }

    #[test]
    fn failures_are_parsed() {
        use crate::{CudaCode, sim::CallKind};
        let config =
            SimConfig::from_spec("sim:2,fail=cuMemAlloc@3,fail=cuLaunchKernel:700..").unwrap();
        let expected = [
            Fault::new(CallKind::MemAlloc, CudaCode::OUT_OF_MEMORY).after(3),
            Fault::new(CallKind::Launch, CudaCode::ILLEGAL_ADDRESS).times(usize::MAX),
        ];
        assert_eq!(config.faults, expected);
        for text in [
            "",
            "cuMalloc",
            "cuMemAlloc@",
            "cuMemAlloc@-1",
            "cuMemAlloc:x",
            "cuMemAlloc:0",
            "cuMemAlloc@1@2",
        ] {
            let spec = format!("sim:1,fail={text}");
            let error = SimConfig::from_spec(&spec).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("`{text}` in `{spec}` is not a failure")),
                "{error}"
            );
        }
    }

    #[test]
    fn specs_are_parsed() {
        let read = SimConfig::from_spec;
        assert_eq!(read("sim").unwrap(), SimConfig::new(1));
        assert_eq!(read("sim:0").unwrap().devices, 0);
        let config = read("sim:3, seed=7,memory=8GiB,check,blocking,isolate,machines=2").unwrap();
        assert_eq!(config.devices, 3);
        assert_eq!(config.schedule, Schedule::Seeded(7));
        assert_eq!(config.capacity, 8 << 30);
        assert_eq!(config.topology.machines, 2);
        assert!(config.check_footprints && config.launch_blocking && config.isolate_faults);
        assert_eq!(read("sim:1,lazy").unwrap().schedule, Schedule::Lazy);
        assert_eq!(read("sim:1,eager").unwrap().schedule, Schedule::Eager);
        assert!(matches!(read("cuda"), Err(SpecError::NotSim { .. })));
        assert!(matches!(read("simulated"), Err(SpecError::NotSim { .. })));
        assert!(matches!(read("sim:x"), Err(SpecError::NotANumber { .. })));
        assert!(matches!(read("sim:-1"), Err(SpecError::NotANumber { .. })));
        assert!(matches!(read("sim:8,machines=two"), Err(SpecError::NotANumber { .. })));
        assert!(matches!(read("sim:65"), Err(SpecError::TooManyDevices { devices: 65 })));
        assert!(matches!(
            read("sim:1,memory=99999999999999GiB"),
            Err(SpecError::NotANumber { .. })
        ));
        assert_eq!(
            read("sim:1,memory=8GB").unwrap_err().to_string(),
            "`8GB` in `sim:1,memory=8GB` should be a number of bytes, KiB, MiB or GiB that fits, such as `8GiB`"
        );
        assert!(matches!(read("sim:1,fast"), Err(SpecError::UnknownOption { .. })));
        for (first, second) in [
            ("lazy", "eager"),
            ("seed=1", "lazy"),
            ("seed=1", "seed=1"),
            ("memory=1GiB", "memory=2GiB"),
            ("check", "check"),
        ] {
            let error = read(&format!("sim:1,{first},blocking,{second}")).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{first}` and `{second}` in `sim:1,")), "{error}");
        }
    }
}
