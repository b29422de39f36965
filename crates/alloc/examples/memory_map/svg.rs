//! Draws a map as an SVG.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Result, Write};

use super::common::PAGE;
use super::map::{CellUse, Map};

/// Left margin, for the addresses, in pixels.
const LEFT: f64 = 190.0;
/// Top margin, for the legend, in pixels.
const TOP: f64 = 56.0;
/// Gap between ranges, in pixels.
const GAP: f64 = 30.0;
/// Colours of each stream: inside a block, and free.
const COLOURS: [[&str; 2]; 5] = [
    ["#3b6fb6", "#c5d8f0"],
    ["#d9731a", "#f9dcc0"],
    ["#3a8f4d", "#c9e6cf"],
    ["#8a4fb0", "#e2d0ee"],
    ["#a0882a", "#ece2bd"],
];
const HEAD: &str = r##"<style>
#memory-map .mapped { fill: #ececec; stroke: #cfcfcf; stroke-width: 0.4 }
#memory-map .free, #memory-map .used { stroke: #fff; stroke-width: 0.2 }
#memory-map .block { fill: none; stroke: #222 }
#memory-map .migrated { fill: none; stroke: #b00020; stroke-width: 1.3; marker-end: url(#arrow) }
#memory-map .alias { fill: none; stroke: #444; stroke-width: 1.3; stroke-dasharray: 3 2; marker-end: url(#arrow) }
#memory-map .page { font-size: 9px }
</style>
<defs><marker id="arrow" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="5" markerHeight="5" orient="auto"><path d="M0 0 L6 3 L0 6 z"/></marker></defs>
<rect width="100%" height="100%" fill="#fff"/>
<text x="14" y="20" font-size="13" font-weight="bold">Memory by address (down) and request (right)</text>
<rect x="14" y="32" width="16" height="12" fill="#3b6fb6"/><text x="34" y="42">a page in a block</text>
<rect x="154" y="32" width="16" height="12" fill="#c5d8f0"/><text x="174" y="42">free</text>
<rect x="214" y="32" width="16" height="12" fill="#d9731a"/><text x="234" y="42">made for another stream</text>
<rect x="394" y="32" width="16" height="12" fill="#ececec"/><text x="414" y="42">mapped, but not used here</text>
<path d="M590 38 h24" stroke="#b00020" marker-end="url(#arrow)"/><text x="620" y="42">migrates</text>
<path d="M690 38 h24" stroke="#444" stroke-dasharray="3 2" marker-end="url(#arrow)"/><text x="720" y="42">becomes an alias</text>"##;

/// Draws a map.
pub fn draw(map: &Map) -> String {
    let mut svg = String::new();
    write(&mut svg, map).expect("a string takes all");
    svg
}

fn write(svg: &mut String, map: &Map) -> Result {
    let bytes: u64 = map.ranges.iter().map(|(base, range)| range.end - base).sum();
    // If there is room, a page is as high as a line of text.
    let byte = (1000.0 / bytes.max(1) as f64).min(17.0 / PAGE as f64);
    let column = (1100.0 / map.columns.max(1) as f64).clamp(1.0, 42.0);
    let (mut tops, mut bottom) = (BTreeMap::new(), TOP);
    for (&base, range) in &map.ranges {
        tops.insert(base, bottom + GAP);
        bottom += GAP + (range.end - base) as f64 * byte;
    }
    let x = |at: usize| LEFT + at as f64 * column;
    let y = |address: u64| {
        let base = map.range(address).0;
        tops[&base] + (address - base) as f64 * byte
    };
    let streams: BTreeSet<u64> = map.ranges.values().map(|range| range.stream).collect();
    let (right, height) =
        (x(map.columns).max(820.0), bottom + if map.is_short() { 190.0 } else { 20.0 });
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" id="memory-map" viewBox="0 0 {:.0} {height:.0}" font-family="DejaVu Sans, Verdana, sans-serif" font-size="11">{HEAD}"#,
        right + 20.0
    )?;
    for (&base, range) in &map.ranges {
        let name = match range.is_home {
            _ if map.made_for.is_empty() => "segment",
            true => "arena",
            false => "windows",
        };
        let (top, stream) = (tops[&base] - 6.0, range.stream);
        writeln!(
            svg,
            r#"<text x="{LEFT}" y="{top:.1}" font-weight="bold">{name} of stream {stream} at {base:#x}</text>"#
        )?;
    }
    let mut labels = BTreeMap::new();
    for &(cell, from, to) in &map.cells {
        let (left, top) = (x(from), y(cell.address));
        let (width, height) = (x(to) - left, cell.size as f64 * byte);
        let base = cell.page.map_or(map.range(cell.address).0, |page| map.made_for[page]);
        let [used, free] =
            COLOURS[streams.range(..map.ranges[&base].stream).count() % COLOURS.len()];
        let (class, style, ink) = match cell.is {
            CellUse::Mapped => ("mapped", String::new(), ""),
            CellUse::Free => ("free", format!(r#" fill="{free}""#), "#333"),
            CellUse::Used => ("used", format!(r#" fill="{used}""#), "#fff"),
            CellUse::Block => {
                ("block", format!(r#" stroke-width="{:.1}""#, (column / 35.0).max(0.2)), "")
            }
        };
        writeln!(
            svg,
            r#"<rect class="{class}" x="{left:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}"{style}/>"#
        )?;
        let page = cell.page.filter(|_| map.is_short() && height > 8.0);
        match (page, cell.is) {
            (Some(_), CellUse::Mapped) => {
                let label = format!(
                    r##"x="{:.1}" text-anchor="end" fill="#555">{:#x}"##,
                    LEFT - 8.0,
                    cell.address
                );
                labels.insert((top as usize, 0), (top, label));
            }
            (Some(page), _) => {
                let label = format!(r#"x="{:.1}" fill="{ink}">{page}"#, left + 3.0);
                labels.insert((top as usize, from + 1), (top, label));
            }
            _ => {}
        }
    }
    for (top, label) in labels.values() {
        writeln!(svg, r#"<text class="page" y="{:.1}" {label}</text>"#, top + 12.0)?;
    }
    if map.is_short() {
        for (class, alias) in [("migrated", false), ("alias", true)] {
            for it in map.moves(alias) {
                let middle = it.size.min(PAGE) as f64 * byte / 2.0;
                let (from, to, x) = (y(it.from) + middle, y(it.to) + middle, x(it.column));
                let (start, bend) = (x - 1.0, x - 22.0);
                writeln!(
                    svg,
                    r#"<path class="{class}" d="M{start:.1} {from:.1} C{bend:.1} {from:.1} {bend:.1} {to:.1} {x:.1} {to:.1}"/>"#
                )?;
            }
        }
        for (at, (request, ..)) in map.requests.iter().enumerate() {
            let (x, y) = (x(at) + column / 2.0 - 4.0, bottom + 10.0);
            writeln!(
                svg,
                r#"<text transform="translate({x:.1} {y:.1}) rotate(90)">{request}</text>"#
            )?;
        }
    }
    writeln!(svg, "</svg>")
}
