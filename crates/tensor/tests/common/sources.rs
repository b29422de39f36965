//! A scanner for the public functions in a crate's sources, including functions that macros declare.
//!
//! The scanner works on tokens, because the body of a macro cannot be parsed as items.

use std::path::{Path, PathBuf};

use proc_macro2::TokenTree::{self, Group, Ident};
use proc_macro2::{Delimiter, TokenStream};

/// A public function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// The type of the `impl` block. Empty if the type is an argument of a macro. `None` for a free
    /// function.
    pub(crate) owner: Option<String>,
    pub(crate) name: String,
    /// The generic parameters and their bounds, without spaces except between words.
    pub(crate) generics: String,
    /// The text between the parentheses, without spaces except between words.
    pub(crate) parameters: String,
    /// The text of the returned type, without spaces except between words. Empty for `()`.
    pub(crate) output: String,
    /// Whether the name comes from the arguments of a macro call.
    pub(crate) from_macro: bool,
}

/// Returns the Rust files of a folder, sorted, without test files.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder of sources").flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            all.extend(files(&path));
        } else if name.ends_with(".rs") && !name.contains("test") {
            all.push(path);
        }
    }
    all.sort();
    all
}

/// Returns the public functions of a file's text.
pub(crate) fn functions(text: &str) -> Vec<Function> {
    let tokens: TokenStream = text.parse().expect("a Rust file");
    let mut scanner = Scanner { calls: Vec::new(), functions: Vec::new() };
    scanner.add_calls(tokens.clone());
    scanner.scan(tokens, None, None);
    scanner.functions
}

/// Returns the methods of the public traits in a file's text, except hidden methods.
pub(crate) fn trait_methods(text: &str) -> Vec<String> {
    names_of_items(text, "trait", |rest| match rest.iter().find(|token| is_braces(token)) {
        Some(Group(body)) => methods(body.stream()),
        _ => Vec::new(),
    })
}

/// Returns the names of the methods in the body of a trait, except hidden methods.
fn methods(body: TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = body.into_iter().collect();
    let (mut names, mut is_hidden) = (Vec::new(), false);
    for at in 0..tokens.len() {
        match &tokens[at..] {
            [Ident(word), Ident(name), ..] if word == "fn" && !is_hidden => {
                names.push(name.to_string());
            }
            [Group(group), ..] if group.delimiter() == Delimiter::Bracket => {
                is_hidden |= self::text(group.stream()) == "doc(hidden)";
            }
            [end, ..] if is_braces(end) || is_punct(end, ';') => is_hidden = false,
            _ => {}
        }
    }
    names
}

/// Returns the names that the `pub use` items of a file's text export, except names that begin with an underscore.
pub(crate) fn exports(text: &str) -> Vec<String> {
    let mut found = names_of_items(text, "use", |rest| {
        leaves(rest.iter().take_while(|token| !is_punct(token, ';')).cloned().collect())
    });
    found.retain(|name| !name.starts_with('_'));
    found
}

/// Returns the names that `names` finds in the tokens after each `pub` with this keyword.
fn names_of_items(
    text: &str,
    keyword: &str,
    names: impl Fn(&[TokenTree]) -> Vec<String>,
) -> Vec<String> {
    let mut found = Vec::new();
    visit(text.parse().expect("a Rust file"), &mut |tokens| {
        if let [Ident(word), Ident(item), rest @ ..] = tokens
            && word == "pub"
            && item == keyword
        {
            found.extend(names(rest));
        }
    });
    found
}

/// Returns the last names of the paths in a `use` item.
fn leaves(paths: TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = paths.into_iter().collect();
    let paths = tokens.split(|token| is_punct(token, ','));
    paths
        .flat_map(|path| match path {
            [.., Group(list)] => leaves(list.stream()),
            [.., Ident(name)] => vec![name.to_string()],
            _ => Vec::new(),
        })
        .collect()
}

/// Calls `see` with the rest of the tokens from each position on, also within groups.
fn visit(tokens: TokenStream, see: &mut impl FnMut(&[TokenTree])) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for at in 0..tokens.len() {
        see(&tokens[at..]);
        if let Group(group) = &tokens[at] {
            visit(group.stream(), see);
        }
    }
}

struct Scanner {
    /// The name and the arguments of each macro call with braces.
    calls: Vec<(String, TokenStream)>,
    functions: Vec<Function>,
}

/// A macro whose arguments are entries of names, each closed by a semicolon.
struct Rules {
    name: String,
    /// The matcher's variables for identifiers, in order.
    variables: Vec<String>,
}

impl Scanner {
    fn add_calls(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            let TokenTree::Group(group) = token else { continue };
            match &tokens[..at] {
                [.., Ident(name), TokenTree::Punct(punct)]
                    if punct.as_char() == '!' && group.delimiter() == Delimiter::Brace =>
                {
                    self.calls.push((name.to_string(), group.stream()));
                }
                _ => self.add_calls(group.stream()),
            }
        }
    }

    /// Adds the public functions of an `impl` block of `owner` or, if `owner` is `None`, of other
    /// code.
    fn scan(&mut self, tokens: TokenStream, owner: Option<&str>, rules: Option<&Rules>) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            let rest = &tokens[at..];
            at += 1;
            match rest {
                [Ident(word), TokenTree::Punct(_), Ident(name), Group(body), ..]
                    if word == "macro_rules" =>
                {
                    let matcher = body.stream().into_iter().next().into_iter().collect();
                    let rules = Rules { name: name.to_string(), variables: variables(matcher) };
                    self.scan(body.stream(), None, Some(&rules));
                    at += 3;
                }
                [Ident(word), ..] if word == "impl" && starts_item(&tokens[..at - 1]) => {
                    let head = rest.iter().take_while(|token| !is_braces(token));
                    let head: Vec<&TokenTree> = head.skip(1).collect();
                    at += head.len();
                    if let Some(Group(body)) = rest.get(1 + head.len()) {
                        self.scan(body.stream(), Some(&type_name(&head)), rules);
                        at += 1;
                    }
                }
                [Ident(word), Ident(head), ..] if word == "pub" && head == "fn" => {
                    self.add(&rest[2..], owner, rules);
                }
                [Ident(word), Ident(head), Ident(last), ..]
                    if word == "pub" && head == "const" && last == "fn" =>
                {
                    self.add(&rest[3..], owner, rules);
                }
                [Group(group), ..] => self.scan(group.stream(), owner, rules),
                _ => {}
            }
        }
    }

    /// Adds the function whose name and signature are at the start of `tokens`.
    fn add(&mut self, tokens: &[TokenTree], owner: Option<&str>, rules: Option<&Rules>) {
        let is_list = |token: &TokenTree| matches!(token, Group(group) if group.delimiter() == Delimiter::Parenthesis);
        let Some(list) = tokens.iter().position(is_list) else { return };
        let output = tokens[list + 1..].iter().take_while(|token| match token {
            Ident(word) => word != "where",
            TokenTree::Punct(punct) => punct.as_char() != ';',
            token => !is_braces(token),
        });
        // The arrow has two tokens.
        let output: TokenStream = output.skip(2).cloned().collect();
        let Group(parameters) = &tokens[list] else { return };
        let (parameters, output) = (text(parameters.stream()), text(output));
        let generics = text(tokens[1..list].iter().cloned().collect());
        let (names, from_macro) = match (tokens, rules) {
            ([Ident(name), ..], _) => (vec![name.to_string()], false),
            ([_, Ident(variable), ..], Some(rules)) => (self.values(rules, variable), true),
            _ => return,
        };
        self.functions.extend(names.into_iter().map(|name| Function {
            owner: owner.map(str::to_owned),
            name,
            generics: generics.clone(),
            parameters: parameters.clone(),
            output: output.clone(),
            from_macro,
        }));
    }

    /// Returns the values of a macro's variable in all its calls.
    fn values(&self, rules: &Rules, variable: &proc_macro2::Ident) -> Vec<String> {
        let Some(position) = rules.variables.iter().position(|name| variable == name) else {
            return Vec::new();
        };
        let calls = self.calls.iter().filter(|(name, _)| *name == rules.name);
        let mut values = Vec::new();
        for (_, arguments) in calls {
            let arguments: Vec<TokenTree> = arguments.clone().into_iter().collect();
            for entry in arguments.split(|token| is_punct(token, ';')) {
                // An attribute has two tokens.
                let attributes = entry.iter().step_by(2).take_while(|token| is_punct(token, '#'));
                let names = entry.iter().skip(2 * attributes.count());
                let mut names = names.map_while(|token| match token {
                    Ident(name) => Some(name.to_string()),
                    _ => None,
                });
                values.extend(names.nth(position));
            }
        }
        values
    }
}

fn is_punct(token: &TokenTree, expected: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == expected)
}

fn is_braces(token: &TokenTree) -> bool {
    matches!(token, Group(group) if group.delimiter() == Delimiter::Brace)
}

/// Returns whether an item may follow these tokens. At any other position, `impl` is part of a
/// type.
fn starts_item(before: &[TokenTree]) -> bool {
    match before.last() {
        None | Some(Group(_)) => true,
        Some(Ident(word)) => word == "unsafe",
        Some(token) => is_punct(token, ';'),
    }
}

/// Returns the first word of the type in the head of an `impl` block. Empty if the type is an
/// argument of a macro.
fn type_name(head: &[&TokenTree]) -> String {
    let (mut depth, mut name) = (0, None);
    for (at, token) in head.iter().enumerate() {
        let follows = |punct| at > 0 && is_punct(head[at - 1], punct);
        match token {
            token if is_punct(token, '<') => depth += 1,
            token if is_punct(token, '>') => depth -= 1,
            Ident(word) if depth == 0 && word == "for" => name = None,
            Ident(word) if depth == 0 && name.is_none() && !follows('\'') => {
                name = Some(if follows('$') { String::new() } else { word.to_string() });
            }
            _ => {}
        }
    }
    name.unwrap_or_default()
}

/// Returns the names of the `$name:ident` variables in a macro's matcher.
fn variables(matcher: TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = matcher.into_iter().collect();
    let mut names = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match (token, &tokens[..at]) {
            (Group(group), _) => names.extend(variables(group.stream())),
            (Ident(kind), [.., Ident(name), colon]) if kind == "ident" && is_punct(colon, ':') => {
                names.push(name.to_string());
            }
            _ => {}
        }
    }
    names
}

/// Splits text at commas outside all brackets.
pub(crate) fn split_list(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start, mut before) = (Vec::new(), 0, 0, ' ');
    for (at, c) in list.char_indices() {
        match c {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' if before == '-' => {}
            '>' | ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        before = c;
    }
    parts.push(&list[start..]);
    parts.retain(|part| !part.is_empty());
    parts
}

/// Returns the text of tokens, with spaces only between words.
pub(crate) fn text(tokens: TokenStream) -> String {
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let mut joined = String::new();
    for word in tokens.to_string().split_whitespace() {
        if is_word(joined.chars().last()) && is_word(word.chars().next()) {
            joined.push(' ');
        }
        joined += word;
    }
    joined
}
