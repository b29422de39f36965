//! Recorded workloads, against what PyTorch's own allocator did with them.

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use common::{Fake, check_books};
use flate2::read::GzDecoder;

/// Replays a trace (`a,ID,BYTES,STREAM` and `f,ID,,` lines); answers events, peak requested,
/// allocated and reserved bytes, and the number of driver allocations.
fn replay(name: &str) -> [i64; 5] {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces").join(name);
    let file = std::fs::File::open(path).unwrap();
    let fake = Fake::new(usize::MAX / 2);
    let allocator = fake.allocator("");
    let mut live = HashMap::new();
    let mut events = 0;
    for line in BufReader::new(GzDecoder::new(file)).lines() {
        let line = line.unwrap();
        let fields: Vec<&str> = line.split(',').collect();
        let id: u64 = fields[1].parse().unwrap();
        match fields[0] {
            "a" => {
                let (bytes, stream) = (fields[2].parse().unwrap(), fields[3].parse().unwrap());
                live.insert(id, allocator.malloc(bytes, &stream).unwrap());
                events += 1;
            }
            "f" => {
                assert!(live.remove(&id).is_some());
                events += 1;
            }
            _ => {}
        }
    }
    check_books(&allocator);
    let stats = allocator.memory_stats();
    [
        events,
        stats.requested_bytes.all.peak,
        stats.allocated_bytes.all.peak,
        stats.reserved_bytes.all.peak,
        stats.num_device_alloc,
    ]
}

fn check(name: &str, [events, requested, allocated, reserved, device_alloc]: [i64; 5]) {
    let found = replay(name);
    assert_eq!(found[0], events, "{name}: events");
    assert_eq!(found[1], requested, "{name}: peak requested");
    assert_eq!(found[3], reserved, "{name}: peak reserved");
    assert_eq!(found[4], device_alloc, "{name}: driver allocations");
    // Ties between equal blocks fall by the addresses that the driver chose.
    let off = (found[2] - allocated).abs() as f64 / allocated as f64;
    assert!(off < 0.001, "{name}: peak allocated {} instead of {allocated}", found[2]);
}

#[test]
fn multistream_prefetch_is_as_in_pytorch() {
    check("multistream_prefetch.csv.gz", [7936, 2_146_885_640, 2_161_566_720, 4_263_510_016, 76]);
}

#[test]
fn resnet50_is_as_in_pytorch() {
    check("resnet50.csv.gz", [20_894, 4_352_746_976, 4_372_188_672, 5_513_412_608, 104]);
}

#[test]
fn unet_multires_is_as_in_pytorch() {
    check("unet_multires.csv.gz", [25_874, 5_524_830_120, 5_533_408_768, 7_491_026_944, 74]);
}
