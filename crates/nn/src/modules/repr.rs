//! Settings of modules in PyTorch's notation, for the printed tree.

use std::fmt::Display;

use warpline::Tensor;

/// Returns a size of a tensor, or 0 if the tensor does not have the dimension.
pub(super) fn size(tensor: &Tensor, dim: usize) -> usize {
    tensor.size().get(dim).copied().unwrap_or(0)
}

/// Returns a number as Python prints it: `0.1`, `1.0`, `1e-05`.
pub(super) fn float(number: f64) -> String {
    let text = format!("{number:?}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => text,
    }
}

/// Returns `True` or `False`.
pub(super) fn boolean(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// Returns a value, or `None`.
pub(super) fn optional(value: Option<impl Display>) -> String {
    value.map_or_else(|| "None".to_owned(), |value| value.to_string())
}

/// Returns numbers as a tuple: `(3,)`, `(3, 3)`.
pub(super) fn tuple(numbers: &[impl Display]) -> String {
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    match &numbers[..] {
        [one] => format!("({one},)"),
        all => format!("({})", all.join(", ")),
    }
}

/// Returns one number if all numbers are equal, otherwise a tuple.
pub(super) fn one_or_tuple(numbers: &[usize]) -> String {
    match numbers {
        [first, others @ ..] if others.iter().all(|other| other == first) => first.to_string(),
        all => tuple(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_in_python() {
        let floats = [1e-5, 0.1, 1.0, 20.0, 1e-4, 2.5e-10, 1e16];
        let expected = ["1e-05", "0.1", "1.0", "20.0", "0.0001", "2.5e-10", "1e+16"];
        assert_eq!(floats.map(float), expected);
        assert_eq!((tuple(&[3]), tuple(&[3, 4])), ("(3,)".to_owned(), "(3, 4)".to_owned()));
        assert_eq!(one_or_tuple(&[3, 3]), "3");
        assert_eq!(one_or_tuple(&[3, 4]), "(3, 4)");
    }
}
