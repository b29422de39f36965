//! Headers of safetensors files, checked against the length of the file.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use warpline::DType;

use super::FileError;

/// A JSON object whose names are unique, without its metadata.
pub(super) struct UniqueMap<V>(pub(super) BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct UniqueMapVisitor<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueMapVisitor<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let value = map.next_value().map_err(|error| {
                        A::Error::custom(format!("the entry for the tensor `{name}`: {error}"))
                    })?;
                    if entries.contains_key(&name) {
                        return Err(A::Error::custom(format!("the tensor `{name}` occurs twice")));
                    }
                    entries.insert(name, value);
                }
                Ok(UniqueMap(entries))
            }
        }

        from.deserialize_map(UniqueMapVisitor(PhantomData))
    }
}

/// A tensor in the header. A tree of JSON values would take up to 130 times the memory of a hostile header.
#[derive(Deserialize)]
struct HeaderEntry {
    dtype: Option<String>,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

/// Largest accepted header, in bytes. A larger size means that the file has another format.
const MAX_HEADER: u64 = 100 << 20;

/// Name of the metadata entry in the header. All other entries are tensors.
pub(super) const METADATA: &str = "__metadata__";

/// A tensor in a file: its properties and position.
#[derive(Clone, Debug)]
pub(super) struct TensorEntry {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) sizes: Vec<usize>,
    /// Offset of the tensor's first byte from the start of the file.
    pub(super) begin: u64,
    pub(super) bytes: usize,
}

/// An open file with a valid header.
#[derive(Debug)]
pub(super) struct SafetensorsFile {
    pub(super) path: PathBuf,
    pub(super) file: File,
    /// Tensors in the order of their offsets.
    pub(super) entries: Vec<TensorEntry>,
}

/// Returns the name of the format if the first bytes are those of a file of `torch.save`.
fn pytorch_format(start: [u8; 8]) -> Option<&'static str> {
    // A pickle begins with the opcode PROTO and its version. A safetensors file begins with the size of its header.
    // This size may have the same two bytes, so a file counts as a pickle only if the size is also invalid.
    match start {
        [b'P', b'K', 3, 4, ..] => Some("a zip archive"),
        [0x80, 2..=5, ..] if u64::from_le_bytes(start) > MAX_HEADER => Some("a pickle"),
        _ => None,
    }
}

impl SafetensorsFile {
    pub(super) fn new(path: &Path) -> Result<Self, FileError> {
        let mut file = warpline_files::open(path).map_err(FileError::io(path, "opening it"))?;
        let length = file.metadata().map_err(FileError::io(path, "reading its length"))?.len();
        let invalid = |reason: String| FileError::invalid(path, reason);
        let mut size = [0; 8];
        if length < 8 {
            let reason = format!("it has {length} bytes, but a safetensors file has at least 8");
            return Err(invalid(reason));
        }
        file.read_exact(&mut size).map_err(FileError::io(path, "reading the header's length"))?;
        if let Some(format) = pytorch_format(size) {
            let reason = format!(
                "it is {format} of `torch.save`, not a safetensors file: convert it in Python with \
                 `safetensors.torch.save_file(torch.load(path), new_path)`"
            );
            return Err(invalid(reason));
        }
        let size = u64::from_le_bytes(size);
        if size > MAX_HEADER || size > length - 8 {
            let reason = format!(
                "the header is said to have {size} bytes, but the file has {length}: the file is truncated, or is not a safetensors file"
            );
            return Err(invalid(reason));
        }
        let mut header = vec![0; size as usize];
        file.read_exact(&mut header).map_err(FileError::io(path, "reading the header"))?;
        let UniqueMap::<HeaderEntry>(header) = serde_json::from_slice(&header)
            .map_err(|error| invalid(format!("its header (bytes 8 to {}): {error}", 8 + size)))?;
        let mut infos = Vec::new();
        for (name, mut info) in header {
            let Some(given) = info.dtype.take() else {
                return Err(invalid(format!("its header names no dtype of the tensor `{name}`")));
            };
            let known = serde_json::from_value::<Dtype>(Value::from(&given[..]));
            let Some(dtype) = known.ok().and_then(from_file_dtype) else {
                return Err(FileError::DType { path: path.to_owned(), name, dtype: given });
            };
            infos.push((info, dtype, name));
        }
        infos.sort_by_key(|(info, ..)| info.data_offsets);
        let (begin, mut at) = (8 + size, 0);
        let mut entries = Vec::new();
        for (info, dtype, name) in infos {
            let (from, to) = info.data_offsets;
            let elements = info.shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
            let bytes = elements.and_then(|elements| elements.checked_mul(dtype.size()));
            if from != at || bytes.is_none() || to.checked_sub(from) != bytes {
                let reason = format!(
                    "the tensor `{name}` of {:?} in {dtype} lies in bytes {from} to {to} of the data, but does not fill them exactly",
                    info.shape
                );
                return Err(invalid(reason));
            }
            at = to;
            let position = begin.saturating_add(from as u64);
            // `begin + to` could overflow.
            if to as u64 > length - begin {
                let reason = format!(
                    "the tensor `{name}` lies in bytes {position} to {} of the file, which has {length} bytes: the file is truncated",
                    begin.saturating_add(to as u64)
                );
                return Err(invalid(reason));
            }
            let (sizes, bytes) = (info.shape, to - from);
            entries.push(TensorEntry { name, dtype, sizes, begin: position, bytes });
        }
        if begin + at as u64 != length {
            let reason = format!(
                "it has {length} bytes, but the header describes only {}",
                begin + at as u64
            );
            return Err(invalid(reason));
        }
        Ok(Self { path: path.to_owned(), file, entries })
    }
}

fn from_file_dtype(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::U8,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        _ => return None,
    })
}

pub(super) fn to_file_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}
