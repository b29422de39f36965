//! Gradients (`torch.autograd`).
//!
//! Ops on tensors that require a gradient ([`Tensor::requires_grad_`](crate::Tensor::requires_grad_)) are
//! recorded in a graph. [`Tensor::backward`](crate::Tensor::backward) traverses the graph from its end.
//!
//! ```
//! use warpline::{autograd, tensor};
//!
//! let weight = tensor([1f32, 2.0], ())?.requires_grad_(true)?;
//! let loss = weight.square()?.sum(())?;
//! loss.backward()?;
//! let grad = weight.grad().unwrap();
//! assert_eq!(grad.to_vec::<f32>()?, [2.0, 4.0]);
//! autograd::no_grad(|| weight.add_scaled_(&grad, -0.5).map(drop))?;
//! assert_eq!(weight.to_vec::<f32>()?, [0.0, 0.0]);
//! # Ok::<(), warpline::Error>(())
//! ```

mod accumulate;
mod backward_program;
mod callbacks;
mod checkpoint;
mod context;
mod elementwise;
mod engine;
mod formula;
mod function;
mod gradcheck;
mod hooks;
mod leaves;
mod meta;
mod mode;
mod moved;
mod node;
mod op_backward;
mod reclaim;
mod record;
mod saved;
mod tensor_methods;
mod views;

pub use callbacks::queue_callback;
pub use checkpoint::checkpoint;
pub use context::Context;
pub use function::{Function, ToSave};
pub use gradcheck::{GradcheckOptions, gradcheck, gradgradcheck};
pub use hooks::{HookHandle, HookList};
pub use leaves::reachable_leaves;
#[doc(hidden)]
pub use mode::is_making_graphed_callables;
pub use mode::{
    ModeGuard, Modes, detect_anomaly, enable_grad, inference_mode, is_anomaly_enabled,
    is_grad_enabled, is_inference_mode_enabled, no_grad, set_grad_enabled,
};
pub use moved::{check_not_moved, mark_moved, moved_to};
pub use node::Gradients;
pub(crate) use node::next_op;
#[doc(hidden)]
pub use reclaim::{DeferredDrops, Reclaimed};
pub use tensor_methods::{BackwardOptions, BackwardTensorsOptions, GradOptions, backward, grad};

pub(crate) use elementwise::{elementwise, elementwise_as, finish_in_place, prepare_in_place};
pub(crate) use leaves::{for_each_saved, has_node, op_before};
pub(crate) use meta::{AutogradSlot, LeafCast};
pub(crate) use mode::{AutocastMode, AutocastModes};
pub(crate) use op_backward::{NodeInputs, OpBackward, linear};
pub(crate) use record::{
    check_in_place, record, record_all, record_in_place, record_overwritten, refuse_gradient,
    should_record, should_record_in_place,
};
pub(crate) use saved::{Saved, saved};
pub(crate) use tensor_methods::grad_before_leaf_hooks;
pub(crate) use views::{embed, reshape_back};
