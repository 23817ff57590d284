//! `bench` with a model: the bare graph is the fastest way to launch.

use crate::common::program::bench;
use serde_json::Value;

/// A way is only too fast if it is in each of three measurements.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn no_way_is_faster_than_the_bare_graph() {
    let mut found = vec![];
    for _ in 0..3 {
        found = faster_than_bare();
        if found.is_empty() {
            return;
        }
    }
    panic!("{found:?}");
}

/// Launch ways whose steps take less than the bare graph's; each with its batch, its time and that of the graph, in ms.
fn faster_than_bare() -> Vec<(String, u64, f64, f64)> {
    let ways = "bare,host-kernels,host-graph,host-graph-ahead,device-graph";
    let sizes = [
        "-b", "1,4", "-p", "9", "-n", "100", "-r", "2", "--device", "cuda",
    ];
    let rows = bench("decode", &[&["--launch", ways], &sizes[..]].concat());
    assert_eq!(rows.len(), 2 * 5);
    let step_ms = |row: &Value| row["median_step_ms"].as_f64().unwrap();
    let mut found = vec![];
    for bare in rows.iter().filter(|row| row["launch"] == "bare") {
        for row in rows.iter().filter(|row| row["batch"] == bare["batch"]) {
            let way = row["launch"].as_str().unwrap();
            // What runs ahead, on the host or on the GPU, may come as close as the two medians' noise.
            let least = match way {
                "bare" => continue,
                "host-kernels" => step_ms(bare),
                _ => 0.95 * step_ms(bare),
            };
            if step_ms(row) <= least {
                let batch = row["batch"].as_u64().unwrap();
                found.push((way.to_owned(), batch, step_ms(row), step_ms(bare)));
            }
        }
    }
    found
}
