//! Options, in PyTorch's spelling.

use std::env::VarError;
use std::fmt;

use crate::HostConfig;
use crate::rules::{LARGE_BUFFER, MIB, SMALL_SIZE, SMALL_SIZE_IN_PAGES};

/// Intervals with divisions of their own: 1 MB, 2 MB, … 32 GB and above.
const INTERVALS: usize = 16;

/// The variables that hold options, the first that is set wins.
const VARIABLES: [&str; 3] =
    ["WARPLINE_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];

/// How an allocator gets more memory, and makes use of what is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Policy {
    /// Pages of 4 MiB. Where enough is free, but not in one piece, the pieces are mapped once more
    /// behind each other, so that little is ever reserved that is not allocated. As
    /// [`Policy::Torch`] where the device has no virtual memory management.
    #[default]
    Default,
    /// PyTorch's rules, to the byte: segments, or with
    /// [`expandable_segments`](AllocatorConfig::expandable_segments) its ranges that grow.
    Torch,
    /// The driver's own stream-ordered pools: each block is an allocation of theirs and goes back to
    /// them as it is freed (`backend:cudaMallocAsync`). They keep what is free until the cache is
    /// emptied, which counts neither as reserved nor against
    /// [`memory_fraction`](AllocatorConfig::memory_fraction). Private pools, and so captures, have
    /// segments as in [`Policy::Torch`]; such a block has no handle that another process could open.
    CudaMallocAsync,
}

impl Policy {
    /// What it is called in options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Torch => "torch",
            Self::CudaMallocAsync => "cudaMallocAsync",
        }
    }
}

/// How an allocator behaves.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AllocatorConfig {
    /// Blocks of this many bytes or more are never split (`max_split_size_mb`).
    pub max_split_size: Option<usize>,
    /// How much larger, in bytes, than the request a block of at least `max_split_size` may be
    /// (`max_non_split_rounding_mb`).
    pub max_non_split_rounding: usize,
    /// Steps between powers of two that requests are rounded to; 0 and 1 mean none. Entry `i` is
    /// for requests from 2^(20 + i) bytes, the first also for smaller and the last for larger
    /// ones (`roundup_power2_divisions`).
    pub roundup_power2_divisions: [usize; INTERVALS],
    /// Share of the memory limit from which idle segments are given back
    /// (`garbage_collection_threshold`). Has an effect only with a memory fraction under 1, and on
    /// segments: under [`Policy::Default`] free pages serve others before new ones are made.
    pub garbage_collection_threshold: Option<f64>,
    /// Size in bytes of a segment for requests over 1 MiB and under 10 MiB
    /// (`large_segment_size_mb`).
    pub large_segment_size: usize,
    /// Share of the device's memory that may be reserved (`per_process_memory_fraction`).
    pub memory_fraction: Option<f64>,
    /// How it gets more memory (`policy:default` or `policy:torch`; options that only PyTorch's
    /// segments have choose the latter).
    pub policy: Policy,
    /// Whether [`Policy::Torch`] has ranges that grow in place of segments
    /// (`expandable_segments`).
    pub expandable_segments: bool,
    /// Whether freed memory is kept. Without it every block is an exact allocation of the backend
    /// and goes back to it when freed (`PYTORCH_NO_CUDA_MEMORY_CACHING`), except in private pools.
    pub caching: bool,
    /// Options of page-locked host memory, for a [`HostCache`](crate::HostCache) (`pinned_…`).
    pub host: HostConfig,
}

impl Default for AllocatorConfig {
    fn default() -> Self {
        Self {
            max_split_size: None,
            max_non_split_rounding: LARGE_BUFFER,
            roundup_power2_divisions: [0; INTERVALS],
            garbage_collection_threshold: None,
            large_segment_size: LARGE_BUFFER,
            memory_fraction: None,
            policy: Policy::Default,
            expandable_segments: false,
            caching: true,
            host: HostConfig::default(),
        }
    }
}

/// What is wrong with an option.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no such option.
    #[error("unknown allocator option `{key}`; there are {}", KEYS.join(", "))]
    UnknownOption {
        /// The option.
        key: String,
    },
    /// The option has no value.
    #[error("allocator option `{key}` has no value; write `{key}:VALUE`")]
    MissingValue {
        /// The option.
        key: String,
    },
    /// The value is not one the option can have.
    #[error("allocator option `{key}` cannot be `{value}`: expected {expected}")]
    InvalidValue {
        /// The option.
        key: String,
        /// The value.
        value: String,
        /// What it should have been.
        expected: String,
    },
    /// PyTorch knows the option and value, and this allocator does not have it.
    #[error("allocator option `{key}:{value}` is not supported: {reason}")]
    NotSupported {
        /// The option.
        key: String,
        /// The value.
        value: String,
        /// Why not, and what there is instead.
        reason: &'static str,
    },
    /// An option that the driver's pools do not have.
    #[error("allocator option `{key}` has a meaning only with `backend:native`")]
    OnlyNative {
        /// The option.
        key: &'static str,
    },
    /// The options are no text.
    #[error("the value is not UTF-8")]
    NotUnicode,
    /// A variable of the environment is wrong.
    #[error("the environment variable {variable} is `{value}`: {reason}")]
    Variable {
        /// The variable that was read.
        variable: &'static str,
        /// What it holds.
        value: String,
        /// What is wrong with it.
        reason: Box<ConfigError>,
    },
}

/// Its message: what `main` prints of the error that it returns, and `unwrap` of the one that it meets.
impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

pub(crate) fn invalid(key: &str, value: &str, expected: impl Into<String>) -> ConfigError {
    ConfigError::InvalidValue { key: key.into(), value: value.into(), expected: expected.into() }
}

impl AllocatorConfig {
    /// Reads PyTorch's option text, such as `max_split_size_mb:128,large_segment_size_mb:40`.
    /// Spaces are ignored, and empty text is the default.
    ///
    /// ```
    /// use warpline_alloc::AllocatorConfig;
    /// let text = "max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,>:8]";
    /// assert_eq!(AllocatorConfig::parse(text)?.max_split_size, Some(128 << 20));
    /// let error = AllocatorConfig::parse("max_split_sise_mb:128").unwrap_err();
    /// assert!(error.to_string().starts_with("unknown allocator option `max_split_sise_mb`"));
    /// # Ok::<(), warpline_alloc::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`], which names the option and the value.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let mut config = Self::default();
        let options: Vec<(&str, &str)> = split_options(&text)
            .map(|option| {
                let (key, value) = option.split_once(':').unwrap_or((option, ""));
                if value.is_empty() && KEYS.contains(&key) {
                    return Err(ConfigError::MissingValue { key: key.into() });
                }
                Ok((key, value))
            })
            .collect::<Result<_, _>>()?;
        // `max_split_size_mb` is checked against it, whichever comes first.
        let is_segment_size = |option: &&(&str, &str)| option.0 == "large_segment_size_mb";
        for (key, value) in options.iter().filter(is_segment_size) {
            config.set(key, value)?;
        }
        for (key, value) in options.iter().filter(|o| !is_segment_size(o)) {
            config.set(key, value)?;
        }
        let given = |key: &str| options.iter().any(|option| option.0 == key);
        let only_torch = TORCH_KEYS.into_iter().find(|key| given(key));
        if options.contains(&("backend", "cudaMallocAsync")) {
            let native = ["policy", "roundup_power2_divisions"].into_iter().find(|key| given(key));
            if let Some(key) = only_torch.or(native) {
                return Err(ConfigError::OnlyNative { key });
            }
        } else if !given("policy") && only_torch.is_some() {
            config.policy = Policy::Torch;
        }
        Ok(config)
    }

    /// Reads the options from the environment as `read` returns it (which is
    /// [`std::env::var`] where a program does not know better): `WARPLINE_ALLOC_CONF`, else
    /// `PYTORCH_ALLOC_CONF`, else `PYTORCH_CUDA_ALLOC_CONF`; and
    /// `PYTORCH_NO_CUDA_MEMORY_CACHING`, where anything but nothing or `0` turns caching off.
    ///
    /// ```
    /// # use warpline_alloc::AllocatorConfig;
    /// let config = AllocatorConfig::from_env_with(|name| std::env::var(name))?;
    /// # Ok::<(), warpline_alloc::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::Variable`], which names the variable that was read.
    pub fn from_env_with(
        mut read: impl FnMut(&str) -> Result<String, VarError>,
    ) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for name in VARIABLES {
            if let Some(text) = value_of(name, &mut read)? {
                config = Self::parse(&text).map_err(|error| in_variable(name, &text, error))?;
                break;
            }
        }
        let no_caching = value_of("PYTORCH_NO_CUDA_MEMORY_CACHING", &mut read)?;
        config.caching = no_caching.is_none_or(|value| matches!(value.trim(), "" | "0"));
        Ok(config)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        match key {
            "max_split_size_mb" => {
                self.max_split_size = Some(megabytes(key, value, self.large_segment_size / MIB)?);
            }
            "max_non_split_rounding_mb" => {
                self.max_non_split_rounding = megabytes(key, value, LARGE_BUFFER / MIB)?;
            }
            "large_segment_size_mb" => {
                let size = megabytes(key, value, 2)?;
                if size % (2 * MIB) != 0 {
                    return Err(invalid(key, value, "a multiple of 2"));
                }
                self.large_segment_size = size;
            }
            "roundup_power2_divisions" => self.roundup_power2_divisions = divisions(key, value)?,
            "garbage_collection_threshold" => {
                let threshold = number::<f64>(key, value, "a number over 0 and under 1")?;
                if !(threshold > 0.0 && threshold < 1.0) {
                    return Err(invalid(key, value, "a number over 0 and under 1"));
                }
                self.garbage_collection_threshold = Some(threshold);
            }
            "per_process_memory_fraction" => {
                let fraction = number::<f64>(key, value, "a number from 0 to 1")?;
                self.memory_fraction = Some(check_fraction(fraction)?);
            }
            // No call of the backend is ever made under the lock, and one that fails for want of
            // memory is always an error that says so: both values hold.
            "release_lock_on_cudamalloc" | "throw_on_cudamalloc_oom" => {
                boolean(key, value)?;
            }
            "backend" => match value {
                "native" => {}
                "cudaMallocAsync" => self.policy = Policy::CudaMallocAsync,
                _ => return Err(invalid(key, value, "`native` or `cudaMallocAsync`")),
            },
            "expandable_segments" => self.expandable_segments = boolean(key, value)?,
            "policy" => {
                self.policy = match value {
                    "default" => Policy::Default,
                    "torch" => Policy::Torch,
                    _ => return Err(invalid(key, value, "`default` or `torch`")),
                }
            }
            "graph_capture_record_stream_reuse" => {
                if boolean(key, value)? {
                    let reason = "memory that several streams used during a capture is used again \
                                  after the capture; write `False`";
                    return Err(not_supported(key, value, reason));
                }
            }
            "expandable_segments_reserve" | "expandable_segments_reserve_by_class" => {
                let reason = "each stream reserves addresses for all of the device's memory, of \
                              which there are enough; leave it out";
                return Err(not_supported(key, value, reason));
            }
            _ if key.starts_with("pinned_") => self.host.set(key, value)?,
            _ => return Err(ConfigError::UnknownOption { key: key.into() }),
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn max_split(&self) -> usize {
        self.max_split_size.unwrap_or(usize::MAX)
    }

    /// Whether segments are ranges that grow, as PyTorch's are with the option.
    #[inline]
    pub(crate) fn expandable(&self) -> bool {
        self.expandable_segments && self.policy == Policy::Torch
    }

    /// Requests up to this come from the small pool.
    #[inline]
    pub(crate) fn small_size(&self) -> usize {
        match self.policy {
            Policy::Default => SMALL_SIZE_IN_PAGES,
            Policy::Torch | Policy::CudaMallocAsync => SMALL_SIZE,
        }
    }

    /// The divisions for a request of `bytes` bytes, which is not 0.
    #[inline]
    pub(crate) fn divisions_for(&self, bytes: usize) -> usize {
        let interval = (bytes.ilog2() as usize).saturating_sub(20).min(INTERVALS - 1);
        self.roundup_power2_divisions[interval]
    }
}

/// Options that have a meaning only for PyTorch's segments.
const TORCH_KEYS: [&str; 5] = [
    "expandable_segments",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
];

const KEYS: [&str; 18] = [
    "backend",
    "expandable_segments",
    "garbage_collection_threshold",
    "graph_capture_record_stream_reuse",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "per_process_memory_fraction",
    "policy",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "roundup_power2_divisions",
    "throw_on_cudamalloc_oom",
];

fn in_variable(variable: &'static str, value: &str, reason: ConfigError) -> ConfigError {
    ConfigError::Variable { variable, value: value.into(), reason: Box::new(reason) }
}

/// `None` where the variable is not set.
fn value_of(
    name: &'static str,
    mut read: impl FnMut(&str) -> Result<String, VarError>,
) -> Result<Option<String>, ConfigError> {
    match read(name) {
        Ok(value) => Ok(Some(value)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(value)) => {
            Err(in_variable(name, &value.to_string_lossy(), ConfigError::NotUnicode))
        }
    }
}

/// The parts between commas that are not inside brackets, empty ones left out.
fn split_options(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0i32;
    text.split(move |c: char| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth <= 0
    })
    .filter(|option| !option.is_empty())
}

fn not_supported(key: &str, value: &str, reason: &'static str) -> ConfigError {
    ConfigError::NotSupported { key: key.into(), value: value.into(), reason }
}

pub(crate) fn number<T: std::str::FromStr>(
    key: &str,
    value: &str,
    expected: &str,
) -> Result<T, ConfigError> {
    value.parse().map_err(|_| invalid(key, value, expected))
}

pub(crate) fn boolean(key: &str, value: &str) -> Result<bool, ConfigError> {
    match value {
        "True" | "true" => Ok(true),
        "False" | "false" => Ok(false),
        _ => Err(invalid(key, value, "`True` or `False`")),
    }
}

/// A size in MiB of at least `least`, in bytes; capped where it would overflow, as in PyTorch.
pub(crate) fn megabytes(key: &str, value: &str, least: usize) -> Result<usize, ConfigError> {
    let expected = format!("a whole number of at least {least}");
    let size = number::<usize>(key, value, &expected)?;
    if size < least {
        return Err(invalid(key, value, expected));
    }
    Ok(size.min(usize::MAX / MIB) * MIB)
}

pub(crate) fn check_fraction(fraction: f64) -> Result<f64, ConfigError> {
    if (0.0..=1.0).contains(&fraction) {
        return Ok(fraction);
    }
    Err(invalid("per_process_memory_fraction", &fraction.to_string(), "a number from 0 to 1"))
}

/// One number for all sizes, or `[256:1,512:2,>:8]` with bounds in MB.
fn divisions(key: &str, value: &str) -> Result<[usize; INTERVALS], ConfigError> {
    let expected = "0 or a power of two";
    let count = |text: &str| -> Result<usize, ConfigError> {
        let count = number::<usize>(key, text, expected)?;
        if count == 0 || count.is_power_of_two() {
            return Ok(count);
        }
        Err(invalid(key, text, expected))
    };
    let Some(list) = value.strip_prefix('[') else {
        return Ok([count(value)?; INTERVALS]);
    };
    let Some(list) = list.strip_suffix(']') else {
        return Err(invalid(key, value, "a closing bracket"));
    };
    let mut divisions = [0; INTERVALS];
    let mut next = 0;
    for pair in list.split(',') {
        let Some((bound, steps)) = pair.split_once(':') else {
            return Err(invalid(key, pair, "`MB:DIVISIONS` or `>:DIVISIONS`"));
        };
        let steps = count(steps)?;
        if bound == ">" {
            divisions[next..].fill(steps);
            continue;
        }
        let megabytes = number::<usize>(key, bound, "a power of two, or `>`")?;
        if !megabytes.is_power_of_two() {
            return Err(invalid(key, bound, "a power of two, or `>`"));
        }
        let interval = (megabytes.ilog2() as usize).min(INTERVALS - 1);
        if next == 0 {
            divisions[..interval].fill(steps);
        }
        divisions[interval] = steps;
        next = interval + 1;
    }
    Ok(divisions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_read() {
        let config = AllocatorConfig::parse(
            "max_split_size_mb:128, max_non_split_rounding_mb:40, large_segment_size_mb:30,\
             garbage_collection_threshold:0.8, per_process_memory_fraction:0.5, backend:native,\
             release_lock_on_cudamalloc:True, expandable_segments:False,\
             pinned_num_register_threads:1,roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
        )
        .unwrap();
        assert_eq!(config.max_split_size, Some(128 * MIB));
        assert_eq!(config.max_non_split_rounding, 40 * MIB);
        assert_eq!(config.large_segment_size, 30 * MIB);
        assert_eq!(config.garbage_collection_threshold, Some(0.8));
        assert_eq!(config.memory_fraction, Some(0.5));
        let mut divisions = [8; INTERVALS];
        divisions[..=8].fill(1);
        divisions[9..=10].copy_from_slice(&[2, 4]);
        assert_eq!(config.roundup_power2_divisions, divisions);
        assert_eq!(config.divisions_for(300 * MIB), 1);
        assert_eq!(config.divisions_for(600 * MIB), 2);
        assert_eq!(config.divisions_for(1 << 50), 8);
        assert_eq!(AllocatorConfig::parse("").unwrap(), AllocatorConfig::default());
    }

    #[test]
    fn a_bad_option_is_named() {
        for (text, key) in [
            ("max_split_sise_mb:128", "max_split_sise_mb"),
            ("max_split_size_mb", "max_split_size_mb"),
            ("max_split_size_mb:19", "`19`"),
            ("max_split_size_mb:-1", "`-1`"),
            ("large_segment_size_mb:100,max_split_size_mb:64", "at least 100"),
            ("max_split_size_mb:64,large_segment_size_mb:100", "at least 100"),
            ("max_non_split_rounding_mb:x", "`x`"),
            ("large_segment_size_mb:3", "`3`"),
            ("garbage_collection_threshold:1.2", "`1.2`"),
            ("garbage_collection_threshold:0", "`0`"),
            ("garbage_collection_threshold:NaN", "`NaN`"),
            ("per_process_memory_fraction:1.5", "1.5"),
            ("roundup_power2_divisions:3", "`3`"),
            ("roundup_power2_divisions:[256:3]", "`3`"),
            ("roundup_power2_divisions:[100:1]", "`100`"),
            ("roundup_power2_divisions:[256:1", "bracket"),
            ("roundup_power2_divisions:[256]", "`256`"),
            ("release_lock_on_cudamalloc:maybe", "`maybe`"),
            ("backend:other", "`other`"),
            ("a:1,", "`a`"),
        ] {
            let error = AllocatorConfig::parse(text).unwrap_err().to_string();
            assert!(error.contains(key), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_not_there_is_refused_with_the_reason() {
        for text in [
            "graph_capture_record_stream_reuse:True",
            "expandable_segments_reserve:0.5",
            "expandable_segments_reserve_by_class:[capture:0.25]",
        ] {
            let error = AllocatorConfig::parse(text).unwrap_err();
            assert!(matches!(error, ConfigError::NotSupported { .. }), "{text}: {error}");
        }
        assert!(AllocatorConfig::parse("graph_capture_record_stream_reuse:False").is_ok());
    }

    #[test]
    fn the_drivers_pools_have_no_options_of_segments() {
        let config = AllocatorConfig::parse("backend:cudaMallocAsync,throw_on_cudamalloc_oom:True");
        assert_eq!(config.unwrap().policy, Policy::CudaMallocAsync);
        for option in ["max_split_size_mb:128", "policy:torch", "roundup_power2_divisions:4"] {
            for text in [
                format!("backend:cudaMallocAsync,{option}"),
                format!("{option},backend:cudaMallocAsync"),
            ] {
                let error = AllocatorConfig::parse(&text).unwrap_err();
                assert!(matches!(error, ConfigError::OnlyNative { .. }), "{text}: {error}");
            }
        }
    }

    #[test]
    fn the_first_variable_that_is_set_wins() {
        let env = |set: &[(&'static str, &'static str)]| {
            let set = set.to_vec();
            AllocatorConfig::from_env_with(move |name| {
                let found = set.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_string()).ok_or(VarError::NotPresent)
            })
        };
        let config = env(&[
            ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:30"),
            ("PYTORCH_ALLOC_CONF", "max_split_size_mb:40"),
        ]);
        assert_eq!(config.unwrap().max_split_size, Some(40 * MIB));
        let config = env(&[
            ("PYTORCH_ALLOC_CONF", "max_split_size_mb:40"),
            ("WARPLINE_ALLOC_CONF", "max_split_size_mb:50"),
        ]);
        assert_eq!(config.unwrap().max_split_size, Some(50 * MIB));
        assert!(!env(&[("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")]).unwrap().caching);
        assert!(env(&[("PYTORCH_NO_CUDA_MEMORY_CACHING", "0")]).unwrap().caching);
        assert_eq!(env(&[]).unwrap(), AllocatorConfig::default());
        for name in VARIABLES {
            let error = env(&[(name, "per_process_memory_fraction:2")]).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(name) && text.contains("per_process_memory_fraction"), "{text}");
        }
    }

    #[test]
    fn a_variable_that_is_no_text_is_an_error_that_names_it() {
        for name in VARIABLES.into_iter().chain(["PYTORCH_NO_CUDA_MEMORY_CACHING"]) {
            let error = AllocatorConfig::from_env_with(|asked| match asked == name {
                true => Err(VarError::NotUnicode("\u{fffd}".into())),
                false => Err(VarError::NotPresent),
            });
            let reason = Box::new(ConfigError::NotUnicode);
            let value = "\u{fffd}".into();
            assert_eq!(error, Err(ConfigError::Variable { variable: name, value, reason }));
        }
    }
}
