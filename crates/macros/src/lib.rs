//! The procedural macros of Warpline. `warpline` re-exports and documents [`expr!`](expr()), and `warpline-nn` the
//! derive macro [`Module`](macro@Module).

#![forbid(unsafe_code)]

mod expr;
mod module;

use proc_macro::TokenStream;
use syn::{DeriveInput, Error, Expr, parse_macro_input};

/// Computes a formula of tensors and numbers. Its value is a `Result`.
#[proc_macro]
pub fn expr(input: TokenStream) -> TokenStream {
    expr::expand(parse_macro_input!(input as Expr)).into()
}

/// Implements `warpline_nn::Module` and `Display` for a struct or an enum. Each field becomes a member with the field's
/// name (its index in a tuple struct), in declaration order. `#[module(name = "…")]` renames a member. The
/// name cannot contain a dot; with an empty name, the members of the field have no prefix. `#[module(skip)]` leaves out
/// the field. Each type parameter gets the bound `Module`.
///
/// An enum has the members of its current variant. If a tuple variant has one field, which is not renamed, that field
/// adds no name of its own: its members have the names that they would have without the enum.
///
/// `Display` writes the tree of modules. `#[module(extra_repr = path)]` on the type names a function that takes `&Self`
/// and returns a `String` of settings, which is printed between the parentheses.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    module::expand(input).unwrap_or_else(Error::into_compile_error).into()
}
