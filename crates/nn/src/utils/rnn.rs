//! Batches of sequences of different lengths (`torch.nn.utils.rnn`).

use std::borrow::Borrow;

use warpline::functional::{PadMode, pad};
use warpline::{CallScope, Error, IntoOptions, Result, Scalar, Tensor, stack};

#[cfg(doc)]
use warpline::ErrorKind;

warpline::__options! {
    /// Options of [`pad_sequence`].
    #[derive(Clone, Copy, Debug)]
    PadSequenceOptions [] [] {
        /// Sets whether the first dimension of the result is the batch, and not the time. Default: `false`.
        batch_first: bool = false, bool;
        /// Sets the value after the end of a sequence. Default: 0.
        padding_value: Scalar = Scalar::Int(0), impl Into<Scalar> => Into::into;
    }
}

/// Pads sequences, `[length, …]`, to the longest of them and stacks them to `[longest, sequences, …]`, or to
/// `[sequences, longest, …]` with `batch_first`.
///
/// ```
/// use warpline::tensor;
/// use warpline_nn::utils::rnn::{PadSequenceOptions, pad_sequence};
///
/// let words = [tensor([3i64, 4, 5], ())?, tensor([6i64], ())?];
/// let options = PadSequenceOptions::new().batch_first(true).padding_value(1);
/// assert_eq!(pad_sequence(&words, options)?.to_vec2::<i64>()?, [[3, 4, 5], [6, 1, 1]]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`] if a sequence has no dimensions, or sequences differ in a size other than their length.
/// [`ErrorKind::InvalidArgument`] if there are no sequences, or the value would overflow their dtype. Errors
/// of [`stack`].
#[track_caller]
pub fn pad_sequence<T: Borrow<Tensor>>(
    sequences: &[T],
    options: impl IntoOptions<PadSequenceOptions>,
) -> Result<Tensor> {
    let _call = CallScope::enter("pad_sequence");
    let PadSequenceOptions { batch_first, padding_value } = options.into_options();
    let (mut longest, mut rest) = (0, None);
    for (i, sequence) in sequences.iter().enumerate() {
        let Some((&length, sizes)) = sequence.borrow().size().split_first() else {
            let reason = format!("sequence {i} has no dimensions");
            return Err(Error::shape("pad_sequence", reason));
        };
        let rest = *rest.get_or_insert(sizes);
        if sizes != rest {
            let reason = format!(
                "after their lengths, sequence {i} has the sizes {sizes:?}, and sequence 0 has {rest:?}"
            );
            return Err(Error::shape("pad_sequence", reason));
        }
        longest = longest.max(length);
    }
    let mut padded = Vec::with_capacity(sequences.len());
    for sequence in sequences {
        let sequence = sequence.borrow();
        // The last pair of numbers is for the first dimension.
        let mut sides = vec![0; 2 * sequence.dim()];
        sides[2 * sequence.dim() - 1] = longest - sequence.size()[0];
        padded.push(pad(sequence, sides, PadMode::Constant(padding_value))?);
    }
    stack(&padded, if batch_first { 0 } else { 1 })
}
