//! Sums of products in Einstein's notation.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use super::contract::sum_of_products;
#[cfg(doc)]
use crate::ErrorKind;
use crate::amp::{Policy, cast_operands, casts};
use crate::exec::check_together;
use crate::{CallScope, DiagonalOptions, Error, Result, Tensor};

/// The label of a dimension: a letter, or a position in an ellipsis, counted from the end of the ellipsis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DimLabel {
    Ellipsis(usize),
    Letter(char),
}

/// The sum of products described by an equation in Einstein's notation (`torch.einsum`). The equation has one
/// letter per dimension of each operand. Elements with the same indices for all shared letters are multiplied,
/// and the products are summed over each letter that is not after the arrow. Without an arrow, the result has
/// the letters that appear once, in alphabetical order. `...` stands for dimensions that broadcast. The
/// operands are multiplied from left to right, two at a time.
///
/// ```
/// # use warpline::{arange, einsum};
/// let a = arange(6, ())?.reshape([2, 3])?;
/// assert_eq!(einsum("ij,ij->i", &[&a, &a])?.to_vec::<i64>()?, [5, 50]);
/// assert_eq!(einsum("...j->...", &[&a])?.to_vec::<i64>()?, [3, 12]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if the equation has a character other than letters, commas, `->` and `...`, if its
/// result has a letter twice or a letter that no term has, if the number of terms is not the number of operands, if the
/// letters of a term do not match the dimensions of its operand, or if one letter stands for different sizes. Otherwise
/// the same as [`Tensor::matmul`].
#[track_caller]
pub fn einsum<T: Borrow<Tensor>>(equation: &str, operands: &[T]) -> Result<Tensor> {
    let op = "einsum";
    let _call = CallScope::enter(op);
    let operands: Vec<&Tensor> = operands.iter().map(Borrow::borrow).collect();
    if casts()
        && let Some((cast, _closed)) = cast_operands(
            [Policy::Low, Policy::Keep],
            &operands.iter().copied().map(Some).collect::<Vec<_>>(),
        )?
    {
        let operands = operands.iter().zip(&cast).map(|(own, cast)| cast.as_ref().unwrap_or(own));
        return einsum(equation, &operands.collect::<Vec<&Tensor>>());
    }
    for pair in operands.windows(2) {
        check_together(op, pair[0], pair[1])?;
    }
    let Equation { labels: order, kept, operands: labels } = match parse(equation, &operands) {
        Ok(parsed) => parsed,
        Err(reason) => return Err(Error::invalid(op, format!("\"{equation}\": {reason}"))),
    };
    let mut aligned = Vec::new();
    for (tensor, labels) in operands.iter().zip(labels) {
        aligned.push(align(tensor, labels, &order)?);
    }
    check_sizes(equation, &order, &aligned)?;
    let mut rest = aligned.into_iter();
    let Some(mut out) = rest.next() else {
        return Err(Error::invalid(op, "needs at least one operand"));
    };
    let mut open: Vec<usize> = (kept..order.len()).collect();
    while let Some(next) = rest.next() {
        let later = rest.as_slice();
        let needed = |d: usize| later.iter().any(|t| t.size()[d] != 1);
        let (keep, summed): (Vec<usize>, Vec<usize>) = open.iter().partition(|&&d| needed(d));
        out = sum_of_products(&out, &next, &summed)?;
        open = keep;
    }
    let left: Vec<isize> =
        (kept..order.len()).filter(|&d| out.size()[d] != 1).map(|d| d as isize).collect();
    if !left.is_empty() {
        out = out.sum_keepdim(&left)?.to(out.dtype())?;
    }
    let sizes = out.size()[..kept].to_vec();
    out.reshape(&sizes)
}

/// The labels of an equation.
struct Equation {
    /// All labels, beginning with those of the result.
    labels: Vec<DimLabel>,
    /// Number of labels of the result.
    kept: usize,
    /// The labels of each operand.
    operands: Vec<Vec<DimLabel>>,
}

fn parse(equation: &str, operands: &[&Tensor]) -> Result<Equation, String> {
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (inputs, output) = match text.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output)),
        None => (text.as_str(), None),
    };
    let terms: Vec<&str> = inputs.split(',').collect();
    if terms.len() != operands.len() {
        return Err(format!("has {} operands, but {} were given", terms.len(), operands.len()));
    }
    let mut all = Vec::new();
    let mut uses: BTreeMap<DimLabel, usize> = BTreeMap::new();
    let mut widest = 0;
    for (term, tensor) in terms.iter().zip(operands) {
        let letters = term.chars().filter(|c| *c != '.').count();
        let spread = tensor.dim().checked_sub(letters);
        let Some(spread) = spread.filter(|n| *n == 0 || term.contains("...")) else {
            return Err(format!(
                "\"{term}\" has {letters} letters, but its operand has {} dimensions",
                tensor.dim()
            ));
        };
        widest = widest.max(spread);
        let labels = labels(term, spread)?;
        for label in &labels {
            *uses.entry(*label).or_default() += 1;
        }
        all.push(labels);
    }
    let mut order = match output {
        Some(output) => labels(output, widest)?,
        None => {
            let ellipsis = (0..widest).rev().map(DimLabel::Ellipsis);
            let single = |(label, count): (&DimLabel, &usize)| match label {
                DimLabel::Letter(_) if *count == 1 => Some(*label),
                _ => None,
            };
            ellipsis.chain(uses.iter().filter_map(single)).collect()
        }
    };
    for (i, label) in order.iter().enumerate() {
        if order[..i].contains(label) || !uses.contains_key(label) {
            return Err(format!("the result has {label:?} twice, or no operand has it"));
        }
    }
    let kept = order.len();
    let summed: Vec<DimLabel> = uses.into_keys().filter(|label| !order.contains(label)).collect();
    order.extend(summed);
    Ok(Equation { labels: order, kept, operands: all })
}

/// Parses a term. An ellipsis in the term stands for `spread` dimensions.
fn labels(term: &str, spread: usize) -> Result<Vec<DimLabel>, String> {
    let (before, after) = match term.split_once("...") {
        Some((before, after)) => (before, Some(after)),
        None => (term, None),
    };
    let mut labels = Vec::new();
    for letter in before.chars() {
        labels.push(parse_letter(letter)?);
    }
    if let Some(after) = after {
        labels.extend((0..spread).rev().map(DimLabel::Ellipsis));
        for letter in after.chars() {
            labels.push(parse_letter(letter)?);
        }
    }
    Ok(labels)
}

fn parse_letter(letter: char) -> Result<DimLabel, String> {
    match letter {
        'a'..='z' | 'A'..='Z' => Ok(DimLabel::Letter(letter)),
        other => Err(format!("'{other}' is neither a letter nor an ellipsis of three dots")),
    }
}

/// Returns an operand with one dimension per label in `order`. Dimensions of labels that the operand lacks have
/// size 1. If a letter appears twice, takes the diagonal of its two dimensions.
#[track_caller]
fn align(tensor: &Tensor, mut labels: Vec<DimLabel>, order: &[DimLabel]) -> Result<Tensor> {
    let mut tensor = tensor.clone();
    let mut i = 0;
    while i < labels.len() {
        match labels[i + 1..].iter().position(|label| *label == labels[i]) {
            None => i += 1,
            Some(after) => {
                let twin = i + 1 + after;
                if tensor.size()[i] != tensor.size()[twin] {
                    let sizes = (tensor.size()[i], tensor.size()[twin]);
                    let reason = format!("one letter stands for sizes {} and {}", sizes.0, sizes.1);
                    return Err(Error::invalid("einsum", reason));
                }
                tensor =
                    tensor.diagonal(DiagonalOptions::new().dim1(i as isize).dim2(twin as isize))?;
                let label = labels[i];
                labels.remove(twin);
                labels.remove(i);
                labels.push(label);
            }
        }
    }
    let place = |label: &DimLabel| labels.iter().position(|own| own == label);
    let permuted: Vec<isize> = order.iter().filter_map(place).map(|d| d as isize).collect();
    let mut tensor = tensor.permute(permuted)?;
    for (d, label) in order.iter().enumerate() {
        if place(label).is_none() {
            tensor = tensor.unsqueeze(d as isize)?;
        }
    }
    Ok(tensor)
}

#[track_caller]
fn check_sizes(equation: &str, order: &[DimLabel], operands: &[Tensor]) -> Result<()> {
    for (d, label) in order.iter().enumerate() {
        let mut size = 1;
        for operand in operands {
            let own = operand.size()[d];
            if own != 1 && size != 1 && own != size {
                let reason = format!("\"{equation}\": {label:?} stands for sizes {size} and {own}");
                return Err(Error::invalid("einsum", reason));
            }
            size = if own == 1 { size } else { own };
        }
    }
    Ok(())
}
