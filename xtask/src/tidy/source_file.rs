//! Parsed Rust source files.

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Ident, Spacing, TokenStream, TokenTree};

use super::Complaint;

/// A parsed Rust source file.
pub(super) struct SourceFile {
    /// Path relative to the workspace root, with forward slashes.
    pub(super) path: String,
    pub(super) text: String,
    pub(super) file: syn::File,
    words: SourceWords,
}

/// Words of a token stream, including those in macro calls and macro definitions.
#[derive(Debug, Default)]
struct SourceWords {
    /// Identifiers and keywords.
    idents: Vec<Ident>,
    /// The identifiers among them that begin a path.
    first_of_paths: Vec<Ident>,
    /// Texts of doc comments.
    docs: Vec<String>,
}

impl SourceFile {
    /// Parses a file.
    ///
    /// # Errors
    /// An error if `text` is not valid Rust.
    pub(super) fn new(path: &str, text: &str) -> Result<Self> {
        let parse = || -> syn::Result<(TokenStream, syn::File)> {
            let tokens: TokenStream = text.parse()?;
            Ok((tokens.clone(), syn::parse2(tokens)?))
        };
        let (tokens, file) =
            parse().map_err(|error| anyhow!("{path}:{}: {error}", error.span().start().line))?;
        let (path, text) = (path.to_owned(), text.to_owned());
        Ok(Self { path, text, file, words: SourceWords::of(tokens) })
    }

    /// Returns whether the file belongs to a crate's library or program.
    pub(super) fn in_src(&self) -> bool {
        self.path.contains("/src/")
    }

    /// Returns whether the whole file is test code.
    pub(super) fn is_test(&self) -> bool {
        ["/tests/", "/benches/", "/tests.rs"].iter().any(|part| self.path.contains(part))
    }

    /// Returns the lines where the code has `name` as an identifier or a keyword.
    pub(super) fn lines_with(&self, name: &str) -> impl Iterator<Item = usize> {
        let idents = self.words.idents.iter().filter(move |ident| *ident == name);
        idents.map(|ident| ident.span().start().line)
    }

    /// Returns whether a path in the code begins with the crate or module `name`, as `name::item` does.
    pub(super) fn has_path_from(&self, name: &str) -> bool {
        self.words.first_of_paths.iter().any(|ident| ident == name)
    }

    /// Returns whether a doc comment contains `text`.
    pub(super) fn documents(&self, text: &str) -> bool {
        self.words.docs.iter().any(|doc| doc.contains(text))
    }

    pub(super) fn complaint(
        &self,
        line: usize,
        rule: &'static str,
        text: impl Into<String>,
    ) -> Complaint {
        Complaint::error(&self.path, line, rule, text)
    }
}

/// Returns the identifiers and keywords of a token stream.
pub(super) fn idents(tokens: TokenStream) -> Vec<Ident> {
    SourceWords::of(tokens).idents
}

impl SourceWords {
    fn of(tokens: TokenStream) -> Self {
        let mut words = Self::default();
        words.add(tokens, false);
        words
    }

    /// Adds the words of `tokens`, which are names within a path if `within_path` is set.
    fn add(&mut self, tokens: TokenStream, within_path: bool) {
        let mut tokens = tokens.into_iter().peekable();
        let colon = |token: &TokenTree| match token {
            TokenTree::Punct(punct) if punct.as_char() == ':' => Some(punct.spacing()),
            _ => None,
        };
        // The number of colons before a token.
        let mut colons = 0;
        while let Some(token) = tokens.next() {
            let before = std::mem::take(&mut colons);
            match token {
                token if colon(&token).is_some() => colons = before + 1,
                TokenTree::Group(group) => {
                    let of_import = group.delimiter() == Delimiter::Brace && before == 2;
                    self.add(group.stream(), within_path || of_import);
                }
                TokenTree::Ident(ident) => {
                    if !within_path
                        && before < 2
                        && tokens.peek().and_then(colon) == Some(Spacing::Joint)
                    {
                        self.first_of_paths.push(ident.clone());
                    }
                    self.idents.push(ident);
                }
                // A doc comment is the attribute `doc = "text"`.
                TokenTree::Literal(text) if self.idents.last().is_some_and(|i| i == "doc") => {
                    self.docs.push(text.to_string());
                }
                TokenTree::Literal(_) | TokenTree::Punct(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_not_code() {
        let text = "fn f<'a>() { g(\"un\\\"safe\", 'u', br#\"a\" // \"#, r#type) } // b\n/* c /* d */ */ m!(x);";
        let source = SourceFile::new("a.rs", text).unwrap();
        let words: Vec<_> = source.words.idents.iter().map(ToString::to_string).collect();
        assert_eq!(words, ["fn", "f", "a", "g", "r#type", "m", "x"]);
        assert_eq!(source.lines_with("x").collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn doc_comments_are_kept_and_others_are_not() {
        let source = SourceFile::new("a.rs", "//! a::b\n// c::d\n/// e::f\nfn g() {}\n").unwrap();
        let documented = ["a::b", "c::d", "e::f"].map(|text| source.documents(text));
        assert_eq!(documented, [true, false, true]);
    }

    #[test]
    fn only_whole_identifiers_match() {
        let source =
            SourceFile::new("a.rs", "const A: u8 = unsafe_code;\nunsafe fn not_unsafe() {}\n");
        let source = source.unwrap();
        assert_eq!(source.lines_with("unsafe").collect::<Vec<_>>(), [2]);
        assert_eq!(source.lines_with("code").count(), 0);
    }

    #[test]
    fn only_the_first_name_of_a_path_begins_it() {
        let text =
            "/* é */ use a::{b::c, d};\nfn f() { m!(e::g()); crate::h::i(); let j: d = k; }\n";
        let source = SourceFile::new("a.rs", text).unwrap();
        let names = ["a", "b", "c", "d", "e", "h", "i", "j", "k"];
        let found: Vec<_> = names.into_iter().filter(|name| source.has_path_from(name)).collect();
        assert_eq!(found, ["a", "e"]);
    }

    #[test]
    fn a_file_that_is_not_rust_is_named() {
        for text in ["use a;\nfn f( {}\n", "use a;\nfn f() { let }\n"] {
            let error = SourceFile::new("crates/a/src/b.rs", text).err().unwrap().to_string();
            assert!(error.starts_with("crates/a/src/b.rs:2: "), "{error}");
        }
    }

    #[test]
    fn tests_and_benches_are_test_code() {
        let is_test = |path| SourceFile::new(path, "fn f() {}\n").unwrap().is_test();
        assert!(is_test("crates/a/tests/b.rs"));
        assert!(is_test("crates/a/benches/b.rs"));
        assert!(is_test("crates/a/src/b/tests.rs"));
        assert!(!is_test("crates/a/src/b.rs"));
        assert!(!is_test("crates/a/examples/b.rs"));
    }
}
