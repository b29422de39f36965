//! Parsing of options in PyTorch's spelling.

use std::env::VarError;

use super::{AllocatorConfig, ConfigError, INTERVALS, Policy, invalid};
use crate::rules::{LARGE_BUFFER, MIB};

/// Environment variables with options. The first variable that is set is used.
pub(super) const VARIABLES: [&str; 3] =
    ["WARPLINE_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];

/// Options that apply only to PyTorch's segments.
const TORCH_KEYS: [&str; 5] = [
    "expandable_segments",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
];

pub(super) const KEYS: [&str; 23] = [
    "backend",
    "expandable_segments",
    "garbage_collection_threshold",
    "graph_capture_record_stream_reuse",
    "headroom_percent",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "page_size_mb",
    "per_process_memory_fraction",
    "policy",
    "pinned_free_catch_all",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "roundup_power2_divisions",
    "throw_on_cudamalloc_oom",
];

fn in_variable(variable: &'static str, value: &str, reason: ConfigError) -> ConfigError {
    ConfigError::Variable { variable, value: value.into(), reason: Box::new(reason) }
}

/// Returns the value of a variable. `None` if the variable is not set.
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

/// Splits options at commas outside of brackets. Skips empty parts.
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

/// Parses a size in MiB, at least `least`, and returns bytes. Caps the size on overflow, as PyTorch
/// does.
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

/// Parses one number for all sizes, or `[256:1,512:2,>:8]` with bounds in MB.
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

impl AllocatorConfig {
    /// Parses PyTorch's option text, such as `max_split_size_mb:128,large_segment_size_mb:40`.
    /// Ignores spaces. Empty text gives the defaults.
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
    /// - [`ConfigError::UnknownOption`] if there is no such option.
    /// - [`ConfigError::MissingValue`] if an option has no value.
    /// - [`ConfigError::InvalidValue`] if an option cannot have its value.
    /// - [`ConfigError::NotSupported`] if only PyTorch supports the option and value.
    /// - [`ConfigError::OnlyNative`] if an option does not apply to `backend:cudaMallocAsync`.
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
        // Set the segment size first, because `max_split_size_mb` must be at least this size,
        // wherever the two options stand in the text.
        let is_segment_size = |option: &&(&str, &str)| option.0 == "large_segment_size_mb";
        for (key, value) in options.iter().filter(is_segment_size) {
            config.set(key, value)?;
        }
        for (key, value) in options.iter().filter(|o| !is_segment_size(o)) {
            config.set(key, value)?;
        }
        let given = |key: &str| options.iter().any(|option| option.0 == key);
        // If the option is given several times, the last value is used.
        let backend = options.iter().rev().find(|option| option.0 == "backend");
        if backend.is_some_and(|option| option.1 == "cudaMallocAsync") {
            config.policy = Policy::CudaMallocAsync;
        }
        let only_torch = TORCH_KEYS.into_iter().find(|key| given(key));
        if config.policy == Policy::CudaMallocAsync {
            let native = ["policy", "headroom_percent", "page_size_mb", "roundup_power2_divisions"]
                .into_iter()
                .find(|key| given(key));
            if let Some(key) = only_torch.or(native) {
                return Err(ConfigError::OnlyNative { key });
            }
        } else if !given("policy") && only_torch.is_some() {
            config.policy = Policy::Torch;
        }
        Ok(config)
    }

    /// Reads the options from the environment with `read`, usually [`std::env::var`]. The options
    /// are in `WARPLINE_ALLOC_CONF`, else `PYTORCH_ALLOC_CONF`, else `PYTORCH_CUDA_ALLOC_CONF`. Any
    /// value of `PYTORCH_NO_CUDA_MEMORY_CACHING` except an empty one and `0` turns caching off.
    ///
    /// ```
    /// # use warpline_alloc::AllocatorConfig;
    /// let config = AllocatorConfig::from_env_with(|name| std::env::var(name))?;
    /// # Ok::<(), warpline_alloc::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::Variable`] if a variable is not valid UTF-8 or [`AllocatorConfig::parse`] fails for its value.
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
            // Accepted without effect: no shard's lock is held during an allocation by the backend,
            // and a lack of memory is always an error.
            "release_lock_on_cudamalloc"
            | "release_lock_on_hipmalloc"
            | "throw_on_cudamalloc_oom" => {
                boolean(key, value)?;
            }
            "backend" => match value {
                // `parse` sets the policy from the last value.
                "native" | "cudaMallocAsync" => {}
                _ => return Err(invalid(key, value, "`native` or `cudaMallocAsync`")),
            },
            "expandable_segments" => self.expandable_segments = boolean(key, value)?,
            "headroom_percent" => {
                let expected = "a number from 0 to 100";
                let percent = number::<f64>(key, value, expected)?;
                if !(0.0..=100.0).contains(&percent) {
                    return Err(invalid(key, value, expected));
                }
                self.headroom_percent = Some(percent);
            }
            "page_size_mb" => {
                let expected = "a power of two from 2 to 1024";
                let size = number::<usize>(key, value, expected)?;
                if !size.is_power_of_two() || !(2..=1024).contains(&size) {
                    return Err(invalid(key, value, expected));
                }
                self.page_size = size * MIB;
            }
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
                let reason = "each stream reserves enough addresses for all of the device's memory; leave the option out";
                return Err(not_supported(key, value, reason));
            }
            _ if key.starts_with("pinned_") => self.host.set(key, value)?,
            _ => return Err(ConfigError::UnknownOption { key: key.into() }),
        }
        Ok(())
    }
}
