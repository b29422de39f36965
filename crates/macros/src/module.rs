//! The derive macro `Module`.

use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::{Data, DeriveInput, Error, Field, Fields, Index, LitStr, Member, parse_quote};

/// Returns the implementation of `Module` for `input`.
pub(crate) fn expand(mut input: DeriveInput) -> Result<Tokens, Error> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(&input.ident, "a module is a struct"));
    };
    let members = members(&data.fields)?;
    let names: Vec<&String> = members.iter().map(|(name, _)| name).collect();
    let fields: Vec<&Member> = members.iter().map(|(_, member)| member).collect();
    for parameter in input.generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(::warpline_nn::Module));
    }
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    let ident = &input.ident;
    Ok(quote! {
        impl #generics ::warpline_nn::Module for #ident #arguments #bounds {
            fn visit(&self, visitor: &mut ::warpline_nn::Visitor<'_>) {
                let _ = &visitor;
                #(visitor.member(#names, &self.#fields);)*
            }

            fn visit_mut(&mut self, visitor: &mut ::warpline_nn::VisitorMut<'_>) {
                let _ = &visitor;
                #(visitor.member(#names, &mut self.#fields);)*
            }
        }
    })
}

/// Returns the member name and the field of each member.
fn members(fields: &Fields) -> Result<Vec<(String, Member)>, Error> {
    let mut members = Vec::new();
    for (i, field) in fields.iter().enumerate() {
        let attributes = FieldAttributes::of(field)?;
        if attributes.skip {
            continue;
        }
        let (name, member) = match &field.ident {
            Some(ident) => {
                let name = ident.to_string();
                let name = name.strip_prefix("r#").map(str::to_owned).unwrap_or(name);
                (name, Member::Named(ident.clone()))
            }
            None => (i.to_string(), Member::Unnamed(Index::from(i))),
        };
        members.push((attributes.name.unwrap_or(name), member));
    }
    Ok(members)
}

/// The `#[module(…)]` attributes of a field.
#[derive(Default)]
struct FieldAttributes {
    skip: bool,
    name: Option<String>,
}

impl FieldAttributes {
    fn of(field: &Field) -> Result<Self, Error> {
        let mut attributes = Self::default();
        for attribute in field.attrs.iter().filter(|a| a.path().is_ident("module")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("skip") {
                    attributes.skip = true;
                } else if meta.path.is_ident("name") {
                    attributes.name = Some(meta.value()?.parse::<LitStr>()?.value());
                } else {
                    return Err(meta.error("expected `skip` or `name = \"…\"`"));
                }
                Ok(())
            })?;
        }
        Ok(attributes)
    }
}
