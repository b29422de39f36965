//! Runs each target on the committed corpus of its fuzzer, so that a regression is found without a fuzzer.

use std::fs;
use std::path::Path;

use warpline_parsers::TARGETS;

#[test]
fn no_input_of_a_corpus_panics_or_takes_more_memory_than_the_limit() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for target in TARGETS {
        let folder = corpora.join(target.name);
        let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{} has no input", target.name);
        for file in files {
            let input = fs::read(&file).unwrap();
            // If the target panics, this is the name of the input.
            println!("{}", file.display());
            warpline_parsers::run(target.name, &input);
        }
    }
}
