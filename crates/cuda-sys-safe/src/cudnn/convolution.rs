//! Execution plans of convolutions and their gradients.

use std::sync::{Arc, PoisonError};

use cudarc::cudnn::sys::{
    cudaStream_t, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type,
    cudnnBackendDescriptorType_t as Kind, cudnnBackendHeurMode_t as Heuristics,
    cudnnBackendNumericalNote_t as Note, cudnnConvolutionMode_t, cudnnDataType_t,
};

use super::descriptor::Descriptor;
use super::{CudnnHandle, RawHandle};
use crate::device_handles::in_context;
use crate::{DevicePtr, Driver, DriverError, Result, StreamHandle};

/// The element type of a convolution's operands and result. Halves and `f32` are summed in `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float {
    /// IEEE half.
    F16,
    /// bfloat16.
    BF16,
    /// Single precision.
    F32,
    /// Double precision, summed in `f64`.
    F64,
}

impl Float {
    const fn raw(self) -> cudnnDataType_t {
        match self {
            Self::F16 => cudnnDataType_t::CUDNN_DATA_HALF,
            Self::BF16 => cudnnDataType_t::CUDNN_DATA_BFLOAT16,
            Self::F32 => cudnnDataType_t::CUDNN_DATA_FLOAT,
            Self::F64 => cudnnDataType_t::CUDNN_DATA_DOUBLE,
        }
    }
}

/// The operand that a convolution computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvolutionKind {
    /// The result, from images and weight.
    Forward,
    /// The gradient of the images, from the weight and the gradient of the result.
    InputGradient,
    /// The gradient of the weight, from the images and the gradient of the result.
    WeightGradient,
}

/// Sizes and strides of an operand in elements: batch (or outputs), channels, and the spatial
/// dimensions. With two spatial dimensions, the last entry is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorLayout {
    /// Number of indices per dimension.
    pub sizes: [i64; 5],
    /// Distance from one index to the next per dimension.
    pub strides: [i64; 5],
}

/// A convolution for which plans can be made. The number of groups follows from the channels of
/// images and weight. With two spatial dimensions, the last entry of each array is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// The operand that is computed.
    pub kind: ConvolutionKind,
    /// Element type of all operands.
    pub dtype: Float,
    /// Whether products of `f32` may be computed in TF32.
    pub tf32: bool,
    /// Whether only engines that give the same bits in each run may be used.
    pub deterministic: bool,
    /// Number of spatial dimensions, two or three.
    pub dims: usize,
    /// The images or their gradient.
    pub images: TensorLayout,
    /// The weight or its gradient.
    pub weight: TensorLayout,
    /// The result or its gradient.
    pub result: TensorLayout,
    /// Zeros before and after the image per spatial dimension, in elements.
    pub padding: [[i64; 3]; 2],
    /// Distance between neighbouring windows per spatial dimension, in elements.
    pub stride: [i64; 3],
    /// Distance between neighbouring elements of a window per spatial dimension, in elements of the
    /// images.
    pub dilation: [i64; 3],
    /// A power of two that divides the addresses of all operands, in bytes.
    pub alignment: i64,
}

/// A way to compute a convolution on one device.
#[derive(Clone, Debug)]
pub struct ConvolutionPlan {
    plan: Arc<Descriptor>,
    workspace: usize,
}

impl ConvolutionPlan {
    /// Returns the number of bytes of scratch memory that the plan needs.
    #[must_use]
    pub fn workspace(&self) -> usize {
        self.workspace
    }
}

/// Returns whether the error is cuDNN's answer to an unsupported description.
fn is_unsupported(error: &DriverError) -> bool {
    let of = |status: &str| {
        ["CUDNN_STATUS_NOT_SUPPORTED", "CUDNN_STATUS_BAD_PARAM"]
            .iter()
            .any(|s| status.starts_with(s))
    };
    matches!(error, DriverError::LibraryCall { status, .. } if of(status))
}

fn with_handle(descriptor: Descriptor, name: Name, raw: &RawHandle) -> Result<Descriptor> {
    // SAFETY: the handle is never destroyed.
    unsafe { descriptor.set(name, Type::CUDNN_TYPE_HANDLE, &[raw.0]) }
}

/// Identifiers of images, weight and result in a graph.
const IDS: [i64; 3] = [1, 2, 3];

impl CudnnHandle {
    /// Returns plans for a convolution, in the order of cuDNN's heuristics: the one expected to be
    /// the fastest first. Returns an empty list if no engine supports the convolution with its
    /// restrictions. At most `most` plans are made, because making one may take a tenth of a
    /// second. Allowed while a stream is captured.
    ///
    /// # Errors
    /// - [`DriverError::LibraryCall`] if cuDNN fails for a reason other than an unsupported
    ///   convolution, such as missing host memory. If only some engines fail, the plans of the
    ///   others are returned.
    /// - Errors of the [driver call](Driver#errors) that makes the device current.
    pub fn convolution_plans(
        &self,
        driver: &dyn Driver,
        convolution: &Convolution,
        most: usize,
    ) -> Result<Vec<ConvolutionPlan>> {
        // Heuristics and engines use the handle and the current context.
        let raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        let (plans, restored) =
            in_context(driver, self.device, || self.plans(&raw, convolution, most))?;
        restored.and(plans)
    }

    fn plans(
        &self,
        raw: &RawHandle,
        convolution: &Convolution,
        most: usize,
    ) -> Result<Vec<ConvolutionPlan>> {
        let (mut plans, mut failure) = (Vec::new(), None);
        let graph = match self.graph(raw, convolution) {
            Err(error) if is_unsupported(&error) => return Ok(plans),
            graph => graph?,
        };
        for heuristics in
            [Heuristics::CUDNN_HEUR_MODE_INSTANT, Heuristics::CUDNN_HEUR_MODE_FALLBACK]
        {
            let configs = match self.engine_configs(&graph, heuristics) {
                Err(error) if is_unsupported(&error) => continue,
                configs => configs?,
            };
            for config in configs {
                if plans.len() == most {
                    return Ok(plans);
                }
                if !self.permits(convolution, &config)? {
                    continue;
                }
                match self.plan(raw, &config) {
                    Ok(plan) => plans.push(plan),
                    Err(error) if is_unsupported(&error) => {}
                    Err(error) => failure = Some(error),
                }
            }
        }
        match failure {
            Some(error) if plans.is_empty() => Err(error),
            _ => Ok(plans),
        }
    }

    fn graph(&self, raw: &RawHandle, of: &Convolution) -> Result<Descriptor> {
        let compute = match of.dtype {
            Float::F64 => cudnnDataType_t::CUDNN_DATA_DOUBLE,
            _ => cudnnDataType_t::CUDNN_DATA_FLOAT,
        };
        let mode = cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        let window = self.descriptor(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
        let window = window
            .integers(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[of.dims as i64])?
            .integers(Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &of.padding[0][..of.dims])?
            .integers(Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &of.padding[1][..of.dims])?
            .integers(Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &of.stride[..of.dims])?
            .integers(Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, &of.dilation[..of.dims])?;
        // SAFETY: the attributes have the types that the second arguments name.
        let window = unsafe {
            window
                .set(
                    Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE,
                    Type::CUDNN_TYPE_DATA_TYPE,
                    &[compute],
                )?
                .set(
                    Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE,
                    Type::CUDNN_TYPE_CONVOLUTION_MODE,
                    &[mode],
                )?
        };
        let window = window.finalize()?;
        let [images, weight, result] =
            [(&of.images, IDS[0]), (&of.weight, IDS[1]), (&of.result, IDS[2])]
                .map(|(layout, id)| self.tensor(of, layout, id));
        let (images, weight, result) = (images?, weight?, result?);
        let (kind, [conv, x, w, y, alpha, beta]) = match of.kind {
            ConvolutionKind::Forward => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                ],
            ),
            ConvolutionKind::InputGradient => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                ],
            ),
            ConvolutionKind::WeightGradient => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                ],
            ),
        };
        let operation = self
            .descriptor(kind)?
            .descriptor(conv, &window)?
            .descriptor(x, &images)?
            .descriptor(w, &weight)?
            .descriptor(y, &result)?;
        // SAFETY: the factors have the C type that the second argument names.
        let operation = unsafe {
            match of.dtype {
                Float::F64 => operation.set(alpha, Type::CUDNN_TYPE_DOUBLE, &[1f64])?.set(
                    beta,
                    Type::CUDNN_TYPE_DOUBLE,
                    &[0f64],
                )?,
                _ => operation.set(alpha, Type::CUDNN_TYPE_FLOAT, &[1f32])?.set(
                    beta,
                    Type::CUDNN_TYPE_FLOAT,
                    &[0f32],
                )?,
            }
        };
        let operation = operation.finalize()?;
        let graph = self
            .descriptor(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?
            .descriptor(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &operation)?;
        with_handle(graph, Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, raw)?.finalize()
    }

    fn descriptor(&self, kind: Kind) -> Result<Descriptor> {
        Descriptor::new(self.cudnn, kind)
    }

    fn tensor(&self, of: &Convolution, layout: &TensorLayout, id: i64) -> Result<Descriptor> {
        let tensor = self
            .descriptor(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
            .integers(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &layout.sizes[..of.dims + 2])?
            .integers(Name::CUDNN_ATTR_TENSOR_STRIDES, &layout.strides[..of.dims + 2])?
            .integers(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[id])?
            .integers(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[of.alignment])?;
        // SAFETY: the value is of the C type that the second argument names.
        let tensor = unsafe {
            let dtype = [of.dtype.raw()];
            tensor.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &dtype)?
        };
        tensor.finalize()
    }

    /// Asks cuDNN's heuristics for engines with their settings, the best first.
    fn engine_configs(&self, graph: &Descriptor, mode: Heuristics) -> Result<Vec<Descriptor>> {
        let heuristics = self
            .descriptor(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?
            .descriptor(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)?;
        // SAFETY: the value is of the C type that the second argument names.
        let heuristics = unsafe {
            heuristics.set(Name::CUDNN_ATTR_ENGINEHEUR_MODE, Type::CUDNN_TYPE_HEUR_MODE, &[mode])?
        };
        let heuristics = heuristics.finalize()?;
        let (results, ty) =
            (Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR);
        let mut configs = (0..heuristics.count(results, ty)?)
            .map(|_| self.descriptor(Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR))
            .collect::<Result<Vec<_>>>()?;
        let mut raw: Vec<_> = configs.iter().map(Descriptor::raw).collect();
        // SAFETY: the values are descriptors of engine configurations, which cuDNN fills.
        let count = unsafe { heuristics.get(results, ty, &mut raw)? };
        configs.truncate(count);
        Ok(configs)
    }

    /// Returns whether the convolution permits an engine, by the engine's notes on its arithmetic
    /// and determinism.
    fn permits(&self, of: &Convolution, config: &Descriptor) -> Result<bool> {
        let engine = self.descriptor(Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
        let ty = Type::CUDNN_TYPE_BACKEND_DESCRIPTOR;
        // SAFETY: the value is a descriptor of an engine, which cuDNN fills.
        unsafe { config.get(Name::CUDNN_ATTR_ENGINECFG_ENGINE, ty, &mut [engine.raw()])? };
        // Read notes as integers, because a newer library may return a note that our enum lacks.
        let mut notes = [0u32; 32];
        let ty = Type::CUDNN_TYPE_NUMERICAL_NOTE;
        // SAFETY: notes are C enums, which are 32-bit integers.
        let count = unsafe { engine.get(Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, ty, &mut notes)? };
        let has = |note: Note| notes[..count].contains(&(note as u32));
        let ieee = of.dtype == Float::F32 && !of.tf32;
        Ok(!(of.deterministic && has(Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            || of.dtype == Float::F32 && has(Note::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)
            || ieee && has(Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE)
            || has(Note::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)))
    }

    fn plan(&self, raw: &RawHandle, config: &Descriptor) -> Result<ConvolutionPlan> {
        let plan = self
            .descriptor(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?
            .descriptor(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config)?;
        let plan = with_handle(plan, Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, raw)?.finalize()?;
        let mut bytes = [0i64];
        let ty = Type::CUDNN_TYPE_INT64;
        // SAFETY: the value is an integer of 64 bits.
        unsafe { plan.get(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, ty, &mut bytes)? };
        Ok(ConvolutionPlan { plan: Arc::new(plan), workspace: bytes[0].max(0) as usize })
    }

    /// Enqueues a plan. `operands` are the addresses of images, weight and result. Call this
    /// function from [`DeviceCode::Library`]: the driver then makes the device's context current
    /// and refuses lost devices.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if the stream is on another device.
    /// - [`DriverError::LibraryCall`] if cuDNN refuses the call.
    ///
    /// # Safety
    /// The plan was made by this handle. The stream is alive. The operands have the layouts, element
    /// type and alignment for which the plan was made, and `workspace` has the size that the plan
    /// needs; all lie in memory that this device can address and that stays valid until the work is
    /// done. The device's context is current.
    ///
    /// [`DeviceCode::Library`]: crate::DeviceCode::Library
    pub unsafe fn execute(
        &self,
        stream: StreamHandle,
        plan: &ConvolutionPlan,
        operands: [DevicePtr; 3],
        workspace: DevicePtr,
    ) -> Result<()> {
        const CALL: &str = "cudnnBackendExecute";
        if stream.device() != self.device {
            let (on, own) = (stream.device(), self.device);
            let reason = format!("the stream is on cuda:{on}, the handle on cuda:{own}");
            return Err(DriverError::InvalidArgument { call: CALL, reason });
        }
        let addresses = operands.map(|pointer| pointer.addr());
        let pack = self
            .descriptor(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
            .integers(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &IDS)?;
        // SAFETY: addresses are as wide as pointers; cuDNN does not follow them here.
        let pack = unsafe {
            let ty = Type::CUDNN_TYPE_VOID_PTR;
            pack.set(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, ty, &addresses)?.set(
                Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                ty,
                &[workspace.addr()],
            )?
        };
        let pack = pack.finalize()?;
        let api = &self.cudnn.api;
        let raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the handle is never destroyed, and the caller guarantees that the stream is alive.
        let status = unsafe { (api.cudnnSetStream)(raw.0, stream.raw() as usize as cudaStream_t) };
        self.cudnn.check("cudnnSetStream", status)?;
        // SAFETY: plan and variant pack are alive, and the caller guarantees that the operands fit
        // the plan.
        let status = unsafe { (api.cudnnBackendExecute)(raw.0, plan.plan.raw(), pack.raw()) };
        self.cudnn.check(CALL, status)
    }
}
