//! Formatting of sizes, and the table of statistics.

use std::fmt::Write;

use crate::{MemoryStats, PoolStats, Stat};

/// Formats a size as PyTorch's errors do: `512 bytes`, `1.50 MiB`, `139.80 GiB`.
pub(crate) fn size_text(bytes: usize) -> String {
    let size = bytes as f64;
    let kib = 1024.0;
    if bytes <= 1 << 10 {
        format!("{bytes} bytes")
    } else if bytes <= 1 << 20 {
        format!("{:.2} KiB", size / kib)
    } else if bytes <= 1 << 30 {
        format!("{:.2} MiB", size / (kib * kib))
    } else {
        format!("{:.2} GiB", size / (kib * kib * kib))
    }
}

const WIDTH: usize = 75;

/// A function that formats a value of the table. The second argument is the total of the row's
/// group, which selects the unit.
type Cell = fn(i64, i64) -> String;

fn size_cell(mut size: i64, mut group: i64) -> String {
    let mut unit = "B  ";
    for larger in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if group < 768 * 1024 {
            break;
        }
        unit = larger;
        size /= 1024;
        group /= 1024;
    }
    format!("{size:6} {unit}")
}

fn count_cell(mut count: i64, mut group: i64) -> String {
    let mut unit = " ";
    for larger in ["K", "M"] {
        if group < 750 * 1000 {
            break;
        }
        unit = larger;
        count /= 1000;
        group /= 1000;
    }
    format!("{count:7} {unit} ")
}

fn row(text: &mut String, name: &str, stat: &Stat, group: &Stat, cell: Cell) {
    let _ = writeln!(
        text,
        "| {name:<21} | {} | {} | {} | {} |",
        cell(stat.current, group.current),
        cell(stat.peak, group.peak),
        cell(stat.allocated, group.allocated),
        cell(stat.freed, group.freed)
    );
}

fn rule(text: &mut String, with: char) {
    text.push('|');
    text.extend(std::iter::repeat_n(with, WIDTH));
    text.push_str("|\n");
}

/// Returns the table of `torch.cuda.memory_summary`. Names the device "GPU" only for CUDA devices.
pub(crate) fn table(device: &str, stats: &MemoryStats) -> String {
    let mut text = String::new();
    rule(&mut text, '=');
    let title = format!("Warpline memory summary, {device}");
    let _ = writeln!(text, "|{title:^WIDTH$}|");
    rule(&mut text, '-');
    let ooms = format!("Out of memory: {}", stats.num_ooms);
    let retries = format!("Allocation retries: {}", stats.num_alloc_retries);
    let _ = writeln!(text, "|{ooms:^36}|{retries:^38}|");
    if stats.refused_releases > 0 {
        let bytes = size_text(stats.refused_bytes as usize);
        let refused = format!("Releases that were refused: {} ({bytes})", stats.refused_releases);
        let _ = writeln!(text, "|{refused:^WIDTH$}|");
    }
    rule(&mut text, '=');
    text.push_str(
        "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n",
    );
    let on_gpu = device.starts_with("cuda");
    let reserved = if on_gpu {
        ["GPU reserved memory", "GPU reserved segments", "Oversize GPU segments"]
    } else {
        ["Reserved memory", "Reserved segments", "Oversize segments"]
    };
    let groups: [(&str, &PoolStats, Cell); 9] = [
        ("Allocated memory", &stats.allocated_bytes, size_cell),
        ("Active memory", &stats.active_bytes, size_cell),
        ("Requested memory", &stats.requested_bytes, size_cell),
        (reserved[0], &stats.reserved_bytes, size_cell),
        ("Non-releasable memory", &stats.inactive_split_bytes, size_cell),
        ("Allocations", &stats.allocation, count_cell),
        ("Active allocs", &stats.active, count_cell),
        (reserved[1], &stats.segment, count_cell),
        ("Non-releasable allocs", &stats.inactive_split, count_cell),
    ];
    for (name, pools, cell) in groups {
        rule(&mut text, '-');
        row(&mut text, name, &pools.all, &pools.all, cell);
        row(&mut text, "      from large pool", &pools.large_pool, &pools.all, cell);
        row(&mut text, "      from small pool", &pools.small_pool, &pools.all, cell);
    }
    for (name, stat) in [
        ("Oversize allocations", &stats.oversize_allocations),
        (reserved[2], &stats.oversize_segments),
    ] {
        rule(&mut text, '-');
        row(&mut text, name, stat, stat, count_cell);
    }
    rule(&mut text, '=');
    text
}
