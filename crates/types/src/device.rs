//! Device names: parsing and printing.

use std::fmt;
use std::str::FromStr;

use crate::{Error, ErrorKind, Result};

/// A device that holds tensors (`torch.device`).
///
/// ```
/// use warpline_types::Device;
///
/// assert_eq!("cuda:1".parse::<Device>()?, Device::Cuda(Some(1)));
/// assert_eq!(Device::Cuda(None).to_string(), "cuda");
/// assert!("cudaa".parse::<Device>().is_err());
/// # Ok::<(), warpline_types::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Device {
    /// The host.
    #[default]
    Cpu,
    /// The GPU with this index. `None`: the current GPU at the time of use.
    Cuda(Option<usize>),
}

/// Highest device index, as in PyTorch, which stores indices in a signed byte.
const MAX_INDEX: usize = 127;

impl Device {
    /// Returns the GPU with this index.
    #[must_use]
    pub const fn cuda(index: usize) -> Self {
        Self::Cuda(Some(index))
    }

    /// Returns `true` for a GPU.
    #[must_use]
    pub const fn is_cuda(self) -> bool {
        matches!(self, Self::Cuda(_))
    }

    /// Returns `true` for the host.
    #[must_use]
    pub const fn is_cpu(self) -> bool {
        matches!(self, Self::Cpu)
    }

    /// Returns the index of the GPU. `None` for the host and for the current GPU.
    #[must_use]
    pub const fn index(self) -> Option<usize> {
        match self {
            Self::Cpu => None,
            Self::Cuda(index) => index,
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(index)) => write!(f, "cuda:{index}"),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    /// Parses `cpu`, `cpu:0`, `cuda` and `cuda:N`, where `N` is from 0 to 127.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidDeviceString`] for any other text.
    fn from_str(text: &str) -> Result<Self> {
        let bad = |reason| {
            Error::unlocated(ErrorKind::InvalidDeviceString { text: text.to_owned(), reason })
        };
        let (kind, index) = match text.split_once(':') {
            Some((kind, index)) => (kind, Some(index)),
            None => (text, None),
        };
        if kind != "cpu" && kind != "cuda" {
            return Err(bad("the name of a device begins with cpu or cuda"));
        }
        let index = match index {
            None => None,
            Some(digits) => {
                if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(bad("the colon must be followed by an index, such as 0"));
                }
                if digits.len() > 1 && digits.starts_with('0') {
                    return Err(bad("the index must not start with a zero"));
                }
                let index = digits.parse().ok().filter(|i| *i <= MAX_INDEX);
                Some(index.ok_or_else(|| bad("the index must be at most 127"))?)
            }
        };
        match (kind, index) {
            ("cuda", index) => Ok(Self::Cuda(index)),
            (_, None | Some(0)) => Ok(Self::Cpu),
            _ => Err(bad("the CPU's only index is 0")),
        }
    }
}

impl TryFrom<&str> for Device {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for (text, device) in [
            ("cpu", Device::Cpu),
            ("cuda", Device::Cuda(None)),
            ("cuda:0", Device::cuda(0)),
            ("cuda:12", Device::cuda(12)),
        ] {
            assert_eq!(text.parse::<Device>().unwrap(), device);
            assert_eq!(device.to_string(), text);
        }
        assert_eq!("cpu:0".parse::<Device>().unwrap(), Device::Cpu);
    }

    #[test]
    fn nonsense_is_refused_with_its_text() {
        for text in [
            "",
            "cudaa",
            "CUDA",
            "cuda:",
            "cuda:-1",
            "cuda:+1",
            "cuda:01",
            "cuda:1:2",
            "cuda: 1",
            "cuda:x",
            "cuda:128",
            "cuda:99999999999999999999",
            "cpu:1",
            ":0",
            "gpu",
            " cuda",
            "cuda:١",
        ] {
            let error = text.parse::<Device>().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InvalidDeviceString { .. }), "{text}");
            assert!(error.to_string().contains(&format!("'{text}'")), "{error}");
        }
    }
}
