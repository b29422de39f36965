//! The memory map that an example draws, and the documentation page that shows it.
#![cfg(feature = "cuda")]

use roxmltree::{Document, Node};

use crate::tool::trace::Trace;
use crate::tool::{map, svg};

const DEFAULT: &str = "policy:default";
const DRAWN: &str = include_str!("../../docs/default-policy.svg");
const PAGE: &str = include_str!("../../docs/default-policy.md");

/// Returns the number of elements of the picture with a class.
fn count(picture: &str, class: &str) -> usize {
    let document = Document::parse(picture).unwrap();
    let is = |node: &Node<'_, '_>| node.attribute("class") == Some(class);
    document.descendants().filter(is).count()
}

#[test]
fn the_picture_shows_pages_that_migrate_and_aliases() {
    let picture = svg::draw(&map::record(&map::program(), DEFAULT).unwrap());
    // Three pages migrate to the other stream and back. Three aliases have two pieces each.
    assert_eq!((count(&picture, "migrated"), count(&picture, "alias")), (6, 6));
    assert_eq!(count(&picture, "block"), 10);
    let torch = svg::draw(&map::record(&map::program(), "policy:torch").unwrap());
    assert_eq!((count(&torch, "migrated"), count(&torch, "alias")), (0, 0));
    assert_eq!(count(&torch, "block"), 10);
}

#[test]
fn the_committed_picture_is_up_to_date() {
    let picture = svg::draw(&map::record(&map::program(), DEFAULT).unwrap());
    assert!(
        picture == DRAWN,
        "docs/default-policy.svg is another: cargo run -p warpline-alloc --example memory_map -- \
         crates/alloc/docs/default-policy.svg"
    );
}

/// Checks that the page's table of the example's run is up to date, addresses included.
#[test]
fn the_documented_run_is_up_to_date() {
    let table = map::record(&map::program(), DEFAULT).unwrap().table();
    assert!(PAGE.contains(&table), "docs/default-policy.md has another table than:\n{table}");
}

#[test]
fn a_recorded_workload_is_drawn_too() {
    let traces = std::path::Path::new("traces");
    let trace = Trace::open(&traces.join("multistream_prefetch.csv.gz")).unwrap();
    let map = map::record(&trace, DEFAULT).unwrap();
    assert!(map.columns > 400 && !map.is_short());
    assert!(map.moves(true).count() > 0 && map.moves(false).count() > 0);
    assert!(count(&svg::draw(&map), "used") > 1000);
}
