//! `expr!`: turns a formula into fallible calls.
//!
//! The formula becomes a labeled block. Each operator becomes a call of the operator's trait, and each call in the
//! formula may return a `Result`. A failure leaves the block:
//!
//! ```text
//! a + x.pow(2)    '__formula: { Ok(match Add::add(operand(&a), operand(match FormulaCall(x.pow(2)) { … })) {
//!                     Ok(value) => value,
//!                     Err(error) => break '__formula Err(error),
//!                 }) }
//! ```
//!
//! In a block, unlike a closure, `?`, `return` and labeled `break`s of the formula keep their meaning. The tokens of an
//! operator's call have the span of the operator, so `Location::caller()` names the operator. All other generated
//! tokens have the hygiene of a macro: lints skip them, and their names do not collide with the caller's.
//!
//! A place expression is passed by reference, so that no variable is moved. A literal is marked as a number
//! (`FormulaNumber(2)`), so that the operator's implementation is known before the literal's type is inferred.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{BinOp, Expr, ExprRepeat, GenericArgument, Item, Lit, Pat, Type, UnOp};

/// Returns the block that computes `formula`.
pub(crate) fn expand(mut formula: Expr) -> TokenStream {
    FormulaExpander.visit_expr_mut(&mut formula);
    quote_spanned! { Span::mixed_site() =>
        '__formula: {
            #[allow(unused_imports)]
            use ::warpline::expr::traits::*;
            ::core::result::Result::<_, ::warpline::Error>::Ok(#formula)
        }
    }
}

/// Replaces each operator and each call of a formula by code that computes its value or leaves the block.
struct FormulaExpander;

impl VisitMut for FormulaExpander {
    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        match expr {
            // A failure inside a closure, an async block or a constant block cannot leave the block of the formula.
            Expr::Closure(_) | Expr::Async(_) | Expr::Const(_) => {}
            // The values of `return` and `break` are not part of the formula.
            Expr::Return(_) | Expr::Break(_) => {}
            _ if is_literal(expr) => {}
            _ if operator_of(expr).is_some() => {
                let span = here(expr.span());
                let operand = operand(expr);
                *expr = Expr::Verbatim(
                    quote_spanned! { span => ::warpline::expr::Value::into_value(#operand) },
                );
            }
            // `?` already unwraps its operand, so only the parts of the operand are replaced.
            Expr::Try(tried) => visit_mut::visit_expr_mut(self, &mut tried.expr),
            Expr::Call(_) | Expr::MethodCall(_) | Expr::Macro(_) => {
                visit_mut::visit_expr_mut(self, expr);
                let span = expr.span();
                let called = quote_spanned! { here(span) =>
                    ::warpline::expr::FormulaCall(#expr).unwrap_value()
                };
                *expr = Expr::Verbatim(or_leave(span, called));
            }
            _ => visit_mut::visit_expr_mut(self, expr),
        }
    }

    // Array lengths, patterns, types, generic arguments and items are not part of the formula.
    fn visit_expr_repeat_mut(&mut self, repeat: &mut ExprRepeat) {
        self.visit_expr_mut(&mut repeat.expr);
    }
    fn visit_pat_mut(&mut self, _: &mut Pat) {}
    fn visit_type_mut(&mut self, _: &mut Type) {}
    fn visit_generic_argument_mut(&mut self, _: &mut GenericArgument) {}
    fn visit_item_mut(&mut self, _: &mut Item) {}
}

/// Returns the code that passes `expr` to an operator: as a tensor, a reference to a tensor, or a `FormulaNumber`.
fn operand(expr: &mut Expr) -> TokenStream {
    match expr {
        Expr::Paren(inner) => return operand(&mut inner.expr),
        Expr::Group(inner) => return operand(&mut inner.expr),
        _ => {}
    }
    let span = expr.span();
    if is_literal(expr) {
        return quote_spanned! { here(span) => ::warpline::expr::FormulaNumber(#expr) };
    }
    let Some((path, at)) = operator_of(expr) else {
        let reference = is_place(expr).then(|| quote_spanned! { here(span) => & });
        FormulaExpander.visit_expr_mut(expr);
        return quote_spanned! { here(span) => ::warpline::expr::Term(#reference #expr).operand() };
    };
    let operands = match expr {
        Expr::Binary(binary) => {
            let (left, right) = (operand(&mut binary.left), operand(&mut binary.right));
            quote!(#left, #right)
        }
        Expr::Unary(unary) => operand(&mut unary.expr),
        _ => unreachable!("only these have operators"),
    };
    // The span of a call reaches from its path to its closing parenthesis.
    let mut arguments = Group::new(Delimiter::Parenthesis, operands);
    arguments.set_span(at);
    let mut call = path;
    call.extend([TokenTree::from(arguments)]);
    or_leave(at, call)
}

/// Returns the code that unwraps the `Result` of `call`, or leaves the block with its error.
fn or_leave(span: Span, call: TokenStream) -> TokenStream {
    quote_spanned! { here(span) =>
        (match #call {
            ::core::result::Result::Ok(value) => value,
            ::core::result::Result::Err(error) => break '__formula ::core::result::Result::Err(error),
        })
    }
}

/// Returns a span at the location of `span`, with the hygiene of the macro.
fn here(span: Span) -> Span {
    Span::mixed_site().located_at(span)
}

/// Returns the path of the function that replaces an operator, and the operator's span.
fn operator_of(expr: &Expr) -> Option<(TokenStream, Span)> {
    let (name, method, span) = match expr {
        Expr::Binary(binary) => {
            let (name, method) = match binary.op {
                BinOp::Add(_) => ("Add", "add"),
                BinOp::Sub(_) => ("Sub", "sub"),
                BinOp::Mul(_) => ("Mul", "mul"),
                BinOp::Div(_) => ("Div", "div"),
                BinOp::Rem(_) => ("Rem", "rem"),
                BinOp::BitAnd(_) => ("BitAnd", "bitand"),
                BinOp::BitOr(_) => ("BitOr", "bitor"),
                BinOp::BitXor(_) => ("BitXor", "bitxor"),
                BinOp::Shl(_) => ("Shl", "shl"),
                BinOp::Shr(_) => ("Shr", "shr"),
                BinOp::Eq(_) => ("Compare", "eq"),
                BinOp::Ne(_) => ("Compare", "ne"),
                BinOp::Lt(_) => ("Compare", "lt"),
                BinOp::Le(_) => ("Compare", "le"),
                BinOp::Gt(_) => ("Compare", "gt"),
                BinOp::Ge(_) => ("Compare", "ge"),
                _ => return None,
            };
            (name, method, binary.op.span())
        }
        Expr::Unary(unary) => match unary.op {
            UnOp::Neg(_) => ("Neg", "neg", unary.op.span()),
            UnOp::Not(_) => ("Not", "not", unary.op.span()),
            _ => return None,
        },
        _ => return None,
    };
    let (name, method) = (Ident::new(name, span), Ident::new(method, span));
    let path = if name == "Compare" {
        quote_spanned! { span => ::warpline::expr::#name::#method }
    } else {
        quote_spanned! { span => ::core::ops::#name::#method }
    };
    Some((path, span))
}

/// Returns whether an expression consists of numeric literals and operators only, so that its type may be unknown.
fn is_literal(expr: &Expr) -> bool {
    match expr {
        Expr::Lit(literal) => matches!(literal.lit, Lit::Int(_) | Lit::Float(_)),
        Expr::Paren(inner) => is_literal(&inner.expr),
        Expr::Group(inner) => is_literal(&inner.expr),
        Expr::Unary(unary) => matches!(unary.op, UnOp::Neg(_)) && is_literal(&unary.expr),
        Expr::Binary(binary) => is_literal(&binary.left) && is_literal(&binary.right),
        _ => false,
    }
}

/// Returns whether using an expression by value would move from a variable.
fn is_place(expr: &Expr) -> bool {
    match expr {
        Expr::Path(_) | Expr::Field(_) | Expr::Index(_) => true,
        Expr::Unary(unary) => matches!(unary.op, UnOp::Deref(_)),
        _ => false,
    }
}
