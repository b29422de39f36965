//! Reads the golden files `cases.json` and `tensors.safetensors`.

use std::collections::BTreeMap;

use bytemuck::AnyBitPattern;
use half::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::Metadata;
use serde::Deserialize;
use serde_json::Value;
use warpline::{Device, Element, Error, Result, Scalar, Tensor, TensorData, tensor};

use crate::common;

#[derive(Debug, Deserialize)]
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) op: String,
    pub(crate) inputs: Vec<CaseSource>,
    pub(crate) attrs: Value,
    #[serde(default)]
    pub(crate) outputs: Vec<String>,
    pub(crate) error: Option<String>,
    /// Names of the incoming gradients, by the index of the output.
    #[serde(default)]
    pub(crate) upstream: BTreeMap<String, String>,
    /// Names of the expected gradients, by the name of the input tensor.
    #[serde(default)]
    pub(crate) grads: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum CaseSource {
    Tensor {
        tensor: String,
        #[serde(default)]
        view: Vec<Value>,
    },
    Scalar {
        scalar: Value,
    },
    List {
        list: Vec<CaseSource>,
    },
}

/// An argument of an op.
#[derive(Debug)]
pub(crate) enum Input {
    Tensor(Tensor),
    Scalar(Scalar),
    List(Vec<Tensor>),
}

pub(crate) struct Goldens {
    pub(crate) cases: Vec<Case>,
    metadata: Metadata,
    /// The tensors' bytes.
    data: Vec<u8>,
}

impl Goldens {
    /// Reads a folder of cases.
    pub(crate) fn load(folder: &str) -> Self {
        let folder = common::goldens().join(folder);
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        let cases = serde_json::from_slice(&read("cases.json")).expect("cases.json");
        let mut data = read("tensors.safetensors");
        let (header, metadata) = SafeTensors::read_metadata(&data).expect("tensors.safetensors");
        // The length of the header comes before it.
        data.drain(..size_of::<u64>() + header);
        Self { cases, metadata, data }
    }

    /// Reads a tensor by name, on the CPU.
    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor> {
        let info = self.metadata.info(name).ok_or_else(|| bad(format!("{name} is missing")))?;
        let (data, sizes) = (&self.data[info.data_offsets.0..info.data_offsets.1], &*info.shape);
        match info.dtype {
            safetensors::Dtype::BOOL => {
                let values: Vec<bool> = data.iter().map(|b| *b != 0).collect();
                reshaped(values, sizes)
            }
            safetensors::Dtype::U8 => elements::<u8>(data, sizes),
            safetensors::Dtype::I8 => elements::<i8>(data, sizes),
            safetensors::Dtype::I16 => elements::<i16>(data, sizes),
            safetensors::Dtype::I32 => elements::<i32>(data, sizes),
            safetensors::Dtype::I64 => elements::<i64>(data, sizes),
            safetensors::Dtype::F16 => elements::<f16>(data, sizes),
            safetensors::Dtype::BF16 => elements::<bf16>(data, sizes),
            safetensors::Dtype::F32 => elements::<f32>(data, sizes),
            safetensors::Dtype::F64 => elements::<f64>(data, sizes),
            other => Err(bad(format!("{name}: {other:?} is not supported"))),
        }
    }

    /// Makes an argument on a device, and applies its view steps there. Adds named tensors to
    /// `leaves`. A tensor requires a gradient if `case` has an expected gradient for it.
    pub(crate) fn input(
        &self,
        source: &CaseSource,
        device: Device,
        case: &Case,
        leaves: &mut BTreeMap<String, Tensor>,
    ) -> Result<Input> {
        match source {
            CaseSource::Scalar { scalar } => Ok(Input::Scalar(number(scalar)?)),
            CaseSource::Tensor { tensor: name, view } => {
                let tensor = self.tensor(name)?.to(device)?;
                if case.grads.contains_key(name) {
                    tensor.requires_grad_(true)?;
                }
                leaves.insert(name.clone(), tensor.clone());
                Ok(Input::Tensor(view.iter().try_fold(tensor, step)?))
            }
            CaseSource::List { list } => {
                let parts = list.iter().map(|s| match self.input(s, device, case, leaves)? {
                    Input::Tensor(tensor) => Ok(tensor),
                    other => Err(bad(format!("{other:?} in a list"))),
                });
                Ok(Input::List(parts.collect::<Result<_>>()?))
            }
        }
    }
}

fn elements<T: Element + AnyBitPattern + TensorData<Elem = T>>(
    data: &[u8],
    sizes: &[usize],
) -> Result<Tensor> {
    let values: Vec<T> =
        data.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect();
    reshaped(values, sizes)
}

fn reshaped<T: TensorData>(values: Vec<T>, sizes: &[usize]) -> Result<Tensor> {
    let shape: Vec<isize> = sizes.iter().map(|&n| n as isize).collect();
    tensor(values, ())?.reshape(&shape)
}

/// Applies a view step, which is the name of a method and its arguments.
fn step(tensor: Tensor, step: &Value) -> Result<Tensor> {
    let name = step[0].as_str().unwrap_or_default();
    let args: Vec<isize> = step.as_array().into_iter().flatten().skip(1).filter_map(int).collect();
    match (name, args.as_slice()) {
        ("transpose", &[a, b]) => tensor.transpose(a, b),
        ("narrow", &[dim, start, length]) => tensor.narrow(dim, start, length as usize),
        ("unsqueeze", &[dim]) => tensor.unsqueeze(dim),
        ("select", &[dim, index]) => tensor.select(dim, index),
        ("permute", dims) => tensor.permute(dims),
        ("expand", sizes) => tensor.expand(sizes),
        _ => Err(bad(format!("unknown view step {step}"))),
    }
}

pub(crate) fn int(value: &Value) -> Option<isize> {
    value.as_i64().map(|v| v as isize)
}

pub(crate) fn number(value: &Value) -> Result<Scalar> {
    match value {
        Value::Bool(v) => Ok(Scalar::Bool(*v)),
        Value::Number(v) if v.is_i64() => Ok(Scalar::Int(v.as_i64().unwrap_or_default())),
        Value::Number(v) => Ok(Scalar::Float(v.as_f64().unwrap_or_default())),
        other => Err(bad(format!("{other} is no number"))),
    }
}

pub(crate) fn bad(reason: String) -> Error {
    Error::invalid("goldens", reason)
}
