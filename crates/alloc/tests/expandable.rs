//! PyTorch's expandable segments.

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use common::{Fake, check_books};
use flate2::read::GzDecoder;

fn replay(path: &Path, options: &str) -> [i64; 4] {
    let fake = Fake::with_pages(141 << 30);
    let allocator = fake.allocator(options);
    for round in 0..5 {
        let file = std::fs::File::open(path).unwrap();
        let before = fake.world().maps;
        let start = std::time::Instant::now();
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
        drop(live);
        check_books(&allocator);
        let s = allocator.memory_stats();
        let (maps, unmaps) = {
            let w = fake.world();
            (w.maps - before, w.unmaps)
        };
        println!(
            " {options} round {round}: {} maps {} unmaps, {:?} remaps {} ratio {:.4} {} ns/event",
            maps,
            unmaps,
            s.num_device_alloc,
            s.num_remaps,
            s.reserved_bytes.all.peak as f64 / s.requested_bytes.all.peak as f64,
            start.elapsed().as_nanos() as i64 / events
        );
    }
    let stats = allocator.memory_stats();
    [
        stats.requested_bytes.all.peak,
        stats.allocated_bytes.all.peak,
        stats.reserved_bytes.all.peak,
        stats.num_device_alloc,
    ]
}

#[test]
fn all() {
    for name in ["resnet50", "gpt2_var", "llama_lora_ckpt", "unet_multires", "multistream_prefetch"]
    {
        let path = format!("/work/shared/traces/{name}.csv.gz");
        for options in ["policy:default"] {
            println!("{name} {options} {:?}", replay(Path::new(&path), options));
        }
    }
}
