//! Finds, in the source of the tables, the parameters for which the tables' calls pass an extreme number.
//!
//! A call covers a parameter if the argument in its place contains the number `n` of the row, and a struct's field if
//! the field's value contains it. Calls in functions of these files count too: there, the parameters that the row gives
//! the number stand for `n`, and so do the variables that are made from them.

use std::collections::{HashMap, HashSet};

use proc_macro2::TokenTree::{self, Group, Ident};
use proc_macro2::{Delimiter, TokenStream};

use super::parser;
use super::sources::Parameter;

/// The sources of the tables.
const TABLES: [&str; 5] = [
    include_str!("cases.rs"),
    include_str!("devices.rs"),
    include_str!("kernels.rs"),
    include_str!("modules.rs"),
    include_str!("numbers.rs"),
];

/// A function of the tables' files: the names of its parameters, and its body.
type Helper = (Vec<String>, TokenStream);

/// The parameters and options for which the rows of the tables pass an extreme number.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    /// The name of a row, and the position of an argument.
    arguments: HashSet<(String, usize)>,
    /// The name of a type that the call names, and of the setter or the field.
    setters: HashSet<(String, String)>,
}

impl Coverage {
    /// Reads the tables.
    pub(crate) fn of_tables() -> Self {
        let mut coverage = Self::default();
        for text in TABLES {
            let tokens: Vec<TokenTree> =
                text.parse::<TokenStream>().expect("a Rust file").into_iter().collect();
            let helpers = helpers(&tokens);
            let tables = tokens.windows(3).filter_map(|found| match found {
                [Ident(name), mark, Group(rows)] if name == "cases" && is_mark(mark, '!') => {
                    Some(rows.stream())
                }
                _ => None,
            });
            for rows in tables {
                let rows: Vec<TokenTree> = rows.into_iter().collect();
                for row in rows.split(|token| is_mark(token, ';')) {
                    coverage.add_row(row, &helpers);
                }
            }
        }
        coverage
    }

    pub(crate) fn covers(&self, parameter: &Parameter) -> bool {
        let owner = parameter.owner.clone();
        match parameter.position {
            Some(position) => self.arguments.contains(&(owner, position)),
            None => self.setters.contains(&(owner, parameter.name.clone())),
        }
    }

    fn add_row(&mut self, row: &[TokenTree], helpers: &HashMap<String, Helper>) {
        let [name @ TokenTree::Literal(_), rest @ ..] = row else { return };
        let name = name.to_string().trim_matches('"').to_owned();
        // Skip the closure's parameter list, which precedes the call.
        let call: TokenStream = rest.iter().skip(5).cloned().collect();
        let mut number = HashSet::from(["n".to_owned()]);
        self.add_calls(&name, call, &mut number, helpers, 0);
    }

    /// Adds the calls in `tokens`. `number` has the names of the variables that hold the row's extreme number `n` or
    /// are computed from it.
    fn add_calls(
        &mut self,
        row: &str,
        tokens: TokenStream,
        number: &mut HashSet<String>,
        helpers: &HashMap<String, Helper>,
        depth: usize,
    ) {
        let types = idents(tokens.clone());
        self.add_calls_in(row, tokens, &types, number, helpers, depth);
    }

    fn add_calls_in(
        &mut self,
        row: &str,
        tokens: TokenStream,
        types: &HashSet<String>,
        number: &mut HashSet<String>,
        helpers: &HashMap<String, Helper>,
        depth: usize,
    ) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for field in tokens.split(|token| is_mark(token, ',')) {
            if let [Ident(name), value @ ..] = field
                && value.first().is_none_or(|token| is_mark(token, ':'))
                && has_any(field, number)
            {
                let fields = types.iter().map(|owner| (owner.clone(), name.to_string()));
                self.setters.extend(fields);
            }
        }
        for statement in tokens.split(|token| is_mark(token, ';')) {
            // A variable that is computed from the number counts as the number.
            if let [Ident(word), names @ ..] = statement
                && word == "let"
                && let Some(at) = names.iter().position(|token| is_mark(token, '='))
                && has_any(&names[at..], number)
            {
                number.extend(idents(names[..at].iter().cloned().collect()));
            }
            for (at, token) in statement.iter().enumerate() {
                let Group(group) = token else { continue };
                self.add_calls_in(row, group.stream(), types, number, helpers, depth);
                let [.., Ident(callee)] = &statement[..at] else { continue };
                if group.delimiter() != Delimiter::Parenthesis {
                    continue;
                }
                let owner = match &statement[..at] {
                    [.., Ident(owner), first, second, Ident(_)]
                        if is_mark(first, ':') && is_mark(second, ':') =>
                    {
                        format!("{owner}::{callee}")
                    }
                    _ => String::new(),
                };
                let arguments: Vec<TokenTree> = group.stream().into_iter().collect();
                let arguments: Vec<&[TokenTree]> =
                    arguments.split(|token| is_mark(token, ',')).collect();
                let given: Vec<usize> = (0..arguments.len())
                    .filter(|position| has_any(arguments[*position], number))
                    .collect();
                let callee = callee.to_string();
                if row == callee
                    || row == owner
                    || row.ends_with(&format!("::{callee}")) && callee != "new"
                {
                    self.arguments.extend(given.iter().map(|position| (row.to_owned(), *position)));
                }
                if !given.is_empty() {
                    let setters = types.iter().map(|owner| (owner.clone(), callee.clone()));
                    self.setters.extend(setters);
                }
                if let Some((names, body)) = helpers.get(&callee)
                    && !given.is_empty()
                    && depth < 3
                {
                    let mut inner = given.iter().filter_map(|at| names.get(*at).cloned()).collect();
                    self.add_calls(row, body.clone(), &mut inner, helpers, depth + 1);
                }
            }
        }
    }
}

/// Returns the functions of a table's file.
fn helpers(tokens: &[TokenTree]) -> HashMap<String, Helper> {
    let mut found = HashMap::new();
    for at in 0..tokens.len() {
        let [Ident(word), Ident(name), rest @ ..] = &tokens[at..] else { continue };
        if word != "fn" {
            continue;
        }
        let groups = |delimiter| {
            move |token: &TokenTree| match token {
                Group(group) if group.delimiter() == delimiter => Some(group.stream()),
                _ => None,
            }
        };
        let list = rest.iter().find_map(groups(Delimiter::Parenthesis));
        let body = rest.iter().find_map(groups(Delimiter::Brace));
        let (Some(list), Some(body)) = (list, body) else { continue };
        let list = parser::text(list);
        let names = parser::split_list(&list)
            .into_iter()
            .map(|one| one.split(':').next().unwrap_or(one).to_owned())
            .collect();
        found.insert(name.to_string(), (names, body));
    }
    found
}

fn is_mark(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == mark)
}

/// Returns all words of the tokens.
fn idents(tokens: TokenStream) -> HashSet<String> {
    let mut found = HashSet::new();
    for token in tokens {
        match token {
            Ident(word) => _ = found.insert(word.to_string()),
            Group(group) => found.extend(idents(group.stream())),
            _ => {}
        }
    }
    found
}

fn has_any(tokens: &[TokenTree], words: &HashSet<String>) -> bool {
    !idents(tokens.iter().cloned().collect()).is_disjoint(words)
}
