//! Checks, for tests, that the CUDA source of a kernel takes the kernel's parameters.

use bytemuck::Pod;

use super::Kernel;
use crate::module::{CudaType, Source};

impl<P: CudaType + Pod, const N: usize> Kernel<P, N> {
    /// Checks that the source of each variant defines `P`, and that the last parameter of the kernel is a `P`.
    ///
    /// # Errors
    /// A message that names the kernel and `P`, if one of both is not so.
    #[doc(hidden)]
    pub fn check_source(&self) -> Result<(), String> {
        for variant in self.variants.iter().flatten() {
            let kernel = self.program.kernels(variant.number).nth(self.number).unwrap_or_default();
            let (text, name) = (self.program.source(variant.number).text(), P::declare(""));
            check_definition::<P>(&kernel, &text)?;
            if !takes(&text, &kernel, name.trim_end()) {
                return Err(format!("{kernel}: its last parameter is not a `{}`", name.trim_end()));
            }
        }
        Ok(())
    }
}

/// Checks that the source of a kernel defines `P`.
///
/// # Errors
/// A message that names the kernel and `P`.
pub(crate) fn check_definition<P: CudaType>(kernel: &str, text: &str) -> Result<(), String> {
    let declared = P::declare("");
    let name = declared.trim_end();
    let definition = Source::new().with::<P>().text();
    let begin = definition.rfind(&format!("struct {name} {{")).unwrap_or(0);
    if text.contains(&definition[begin..]) {
        return Ok(());
    }
    Err(format!("{kernel}: its source does not define `{name}` as in Rust"))
}

/// Returns whether the last parameter of `kernel` is a `structure`. A macro may define the kernel and make its name. If
/// several definitions fit the name, those that share most characters with it decide.
fn takes(text: &str, kernel: &str, structure: &str) -> bool {
    let definitions = text.split("__global__").skip(1).filter_map(|text| text.split_once('{'));
    let fitting = definitions.filter_map(|(head, _)| {
        let (before, parameters) = head.rsplit_once('(')?;
        let name = before.split_whitespace().next_back()?;
        let last = parameters.split(')').next()?.rsplit(',').next()?;
        let takes = last.split_whitespace().rev().nth(1) == Some(structure);
        Some((common_characters(name, kernel)?, takes))
    });
    let fitting: Vec<(usize, bool)> = fitting.collect();
    let most = fitting.iter().map(|(common, _)| *common).max();
    fitting.iter().any(|&(common, takes)| Some(common) == most && takes)
}

/// Returns the number of characters that the name in a definition, such as `NAME##_rows`, shares with `kernel`, or
/// `None` if it cannot be the kernel's name. Parts without `_` are parameters of a macro, and stand for any text.
fn common_characters(name: &str, kernel: &str) -> Option<usize> {
    if name == kernel {
        return Some(kernel.len());
    }
    let mut parts = name.split("##").map(|part| if part.contains('_') { part } else { "" });
    let (first, last) = (parts.next().unwrap_or(""), parts.last().unwrap_or(""));
    let fits = kernel.starts_with(first) && kernel.ends_with(last);
    fits.then_some(first.len() + last.len())
}
