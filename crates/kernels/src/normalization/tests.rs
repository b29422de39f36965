//! Tests of the distribution of columns over blocks.

use super::*;
use bytemuck::Zeroable;

#[test]
fn columns_are_distributed_over_the_whole_gpu() {
    let distributed = |rows: u64, size: u64, vector: u64, item_size: u64| {
        let mut norm = Norm { rows, size, ..Norm::zeroed() };
        let [blocks, splits] = norm.distribute(vector, item_size, 132);
        let columns = vector << norm.team;
        assert!(columns <= MOST_COLUMNS.into() && norm.team <= 5);
        assert_eq!(u64::from(blocks), size.div_ceil(columns));
        (columns, splits)
    };
    assert_eq!(
        distributed(1024, 256, 4, 2),
        (16, 1),
        "one sector per block, and too few rows to split columns"
    );
    assert_eq!(distributed(8192, 256, 4, 2), (16, 16));
    assert_eq!(distributed(8192, 768, 4, 2), (64, 22), "one cache line per block");
    assert_eq!(distributed(65536, 1024, 4, 4), (32, 8));
    assert_eq!(distributed(65536, 5, 1, 2), (16, 264));
    assert_eq!(distributed(16, 4096, 4, 2), (64, 1));
    assert_eq!(distributed(1024, 1 << 20, 4, 4), (32, 1));
    assert_eq!(distributed(1 << 20, 1, 1, 8), (4, 264));
    assert_eq!(distributed(1, 1, 1, 4), (32, 1));
}
