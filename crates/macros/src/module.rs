//! The derive macro `Module`.
//!
//! Each field of a struct is a member with the field's name, unless an attribute renames or skips the field. The
//! members of an enum are those of its current variant; if a tuple variant has one field, which is not renamed, that
//! field adds no name of its own. Two members of one name are an error, because a state could keep only one of them. The
//! generated code asserts once per member that its field is a module. The assertion
//! has the span of the field's type, so the compiler reports each wrong field once, at its type.

use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DeriveInput, Error, Field, Fields, Ident, Index, LitStr, Member, Path,
    parse_quote,
};

/// Returns the implementations of `Module` and `Display` for `input`.
pub(crate) fn expand(mut input: DeriveInput) -> Result<Tokens, Error> {
    let extra_repr = extra_repr(&input.attrs)?;
    let mut arms = Vec::new();
    match &input.data {
        Data::Struct(data) => arms.push(Arm::new(parse_quote!(Self), None, &data.fields)?),
        Data::Enum(data) => {
            for variant in &data.variants {
                let ident = &variant.ident;
                arms.push(Arm::new(parse_quote!(Self::#ident), Some(ident), &variant.fields)?);
            }
        }
        Data::Union(_) => {
            return Err(Error::new_spanned(&input.ident, "a module is a struct or an enum"));
        }
    }
    for parameter in input.generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(::warpline_nn::Module));
    }
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    let ident = &input.ident;
    let asserts: Tokens = arms.iter().map(|arm| arm.asserts()).collect();
    let [visit, visit_mut] =
        ["show", "show_mut"].map(|method| body(&arms, |arm| arm.visit(method)));
    let as_enum = matches!(input.data, Data::Enum(_)).then(|| enum_methods(&arms));
    Ok(quote! {
        impl #generics ::warpline_nn::Module for #ident #arguments #bounds {
            fn visit<'__m>(&'__m self, visitor: &mut ::warpline_nn::Visitor<'__m, '_>) {
                #asserts
                #[allow(unused_imports)]
                use ::warpline_nn::__private::NoModule as _;
                let _ = &visitor;
                #visit
            }

            fn visit_mut(&mut self, visitor: &mut ::warpline_nn::VisitorMut<'_>) {
                #[allow(unused_imports)]
                use ::warpline_nn::__private::NoModule as _;
                let _ = &visitor;
                #visit_mut
            }

            #as_enum
            #extra_repr
        }

        impl #generics ::core::fmt::Display for #ident #arguments #bounds {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                let module: &dyn ::warpline_nn::Module = self;
                ::core::fmt::Display::fmt(module, f)
            }
        }
    })
}

/// Returns a `match` of `self` with one arm for the struct, or for each variant of the enum.
fn body(arms: &[Arm<'_>], value: impl Fn(&Arm<'_>) -> Tokens) -> Tokens {
    if arms.is_empty() {
        return quote!(match *self {});
    }
    let (patterns, values) = (arms.iter().map(|arm| arm.pattern()), arms.iter().map(value));
    quote!(match self { #(#patterns => { #values })* })
}

/// Returns the methods of an enum. If the current variant has exactly one field, which is unnamed and neither renamed
/// nor skipped, the enum's module is the module of that field. The enum's type name is the variant's name.
fn enum_methods(arms: &[Arm<'_>]) -> Tokens {
    let as_module = |method: &str, by_self: &str| {
        let (method, by_self) = (format_ident!("{method}"), format_ident!("{by_self}"));
        body(arms, |arm| match arm.only_member() {
            Some(ArmMember { variable, .. }) => {
                quote!(::warpline_nn::__private::FieldRef(#variable).#method())
            }
            None => quote!(::core::option::Option::Some(::warpline_nn::__private::#by_self(self))),
        })
    };
    let (by_ref, by_mut) = (as_module("module", "as_dyn"), as_module("module_mut", "as_dyn_mut"));
    let names = body(arms, |arm| {
        let name = arm.variant.map(|variant| variant.unraw().to_string());
        quote!(#name)
    });
    quote! {
        #[allow(unused_variables)]
        fn as_module(&self) -> ::core::option::Option<&dyn ::warpline_nn::Module> {
            #[allow(unused_imports)]
            use ::warpline_nn::__private::NoModule as _;
            #by_ref
        }

        #[allow(unused_variables)]
        fn as_module_mut(&mut self) -> ::core::option::Option<&mut dyn ::warpline_nn::Module> {
            #[allow(unused_imports)]
            use ::warpline_nn::__private::NoModule as _;
            #by_mut
        }

        #[allow(unused_variables)]
        fn type_name(&self) -> &'static str {
            #names
        }
    }
}

/// The struct, or a variant of the enum.
struct Arm<'a> {
    path: Path,
    variant: Option<&'a Ident>,
    members: Vec<ArmMember<'a>>,
}

/// A field that is a member of the module.
struct ArmMember<'a> {
    /// Name of the member.
    name: String,
    /// The field.
    field: Member,
    /// The variable that the field is bound to.
    variable: Ident,
    ty: &'a syn::Type,
}

impl<'a> Arm<'a> {
    fn new(path: Path, variant: Option<&'a Ident>, fields: &'a Fields) -> Result<Self, Error> {
        let is_only =
            variant.is_some() && matches!(fields, Fields::Unnamed(_)) && fields.len() == 1;
        let mut members: Vec<ArmMember<'_>> = Vec::new();
        for (i, field) in fields.iter().enumerate() {
            let attributes = FieldAttributes::of(field)?;
            if attributes.skip {
                continue;
            }
            let (name, member) = match &field.ident {
                Some(ident) => (ident.unraw().to_string(), Member::Named(ident.clone())),
                None if is_only => (String::new(), Member::Unnamed(Index::from(0))),
                None => (i.to_string(), Member::Unnamed(Index::from(i))),
            };
            let (name, span) = match attributes.name {
                Some(name) => (name.value(), name.span()),
                None => (name, field.span()),
            };
            if !name.is_empty() && members.iter().any(|member| member.name == name) {
                let reason = format!("the module has another member with the name `{name}`");
                return Err(Error::new(span, reason));
            }
            members.push(ArmMember {
                name,
                field: member,
                variable: format_ident!("field_{i}"),
                ty: &field.ty,
            });
        }
        Ok(Self { path, variant, members })
    }

    /// Returns the field whose module is the module of the enum, if the variant has exactly one field, which is unnamed
    /// and neither renamed nor skipped.
    fn only_member(&self) -> Option<&ArmMember<'a>> {
        match &self.members[..] {
            [one] if self.variant.is_some() && one.name.is_empty() => Some(one),
            _ => None,
        }
    }

    fn pattern(&self) -> Tokens {
        let path = &self.path;
        let fields =
            self.members.iter().map(|ArmMember { field, variable, .. }| quote!(#field: #variable));
        quote!(#path { #(#fields,)* .. })
    }

    fn visit(&self, method: &str) -> Tokens {
        let method = format_ident!("{method}");
        let members = self.members.iter().map(|ArmMember { name, variable, .. }| {
            quote!(::warpline_nn::__private::FieldRef(#variable).#method(#name, visitor);)
        });
        quote!(#(#members)*)
    }

    fn asserts(&self) -> Tokens {
        let asserts = self.members.iter().map(|ArmMember { ty, .. }| {
            quote_spanned! { ty.span() => ::warpline_nn::__private::assert_module::<#ty>(); }
        });
        quote!(#(#asserts)*)
    }
}

/// Returns the method that calls the function of `#[module(extra_repr = …)]`.
fn extra_repr(attributes: &[Attribute]) -> Result<Option<Tokens>, Error> {
    let mut path = None::<Path>;
    for attribute in attributes.iter().filter(|a| a.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("extra_repr") {
                return Err(meta.error("expected `extra_repr = …`, the path of a function"));
            }
            path = Some(meta.value()?.parse()?);
            Ok(())
        })?;
    }
    Ok(path.map(|path| {
        quote! {
            fn extra_repr(&self) -> ::std::string::String {
                #path(self)
            }
        }
    }))
}

/// The `#[module(…)]` attributes of a field.
#[derive(Default)]
struct FieldAttributes {
    skip: bool,
    name: Option<LitStr>,
}

impl FieldAttributes {
    fn of(field: &Field) -> Result<Self, Error> {
        let mut attributes = Self::default();
        for attribute in field.attrs.iter().filter(|a| a.path().is_ident("module")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("skip") {
                    attributes.skip = true;
                } else if meta.path.is_ident("name") {
                    let name: LitStr = meta.value()?.parse()?;
                    if name.value().contains('.') {
                        let reason = "the name of a member must not contain a dot, which separates the names of \
                                      modules in a state";
                        return Err(Error::new(name.span(), reason));
                    }
                    attributes.name = Some(name);
                } else {
                    return Err(meta.error("expected `skip` or `name = \"…\"`"));
                }
                Ok(())
            })?;
        }
        Ok(attributes)
    }
}
