//! A run that `bench` has measured, as the trace of its records has it.

use serde_json::Value;
use tailgraph::bench::workload::Arrival;
use tailgraph::files::Unfinished;
use tailgraph::io::identity::Identity;
use tailgraph::io::record::{Header, Line, Turn, VERSION};
use tailgraph::runtime::EngineShape;
use tailgraph::sys::abi;
use tailgraph::trace::Timeline;
use tailgraph::trace::json::Out;

/// Milliseconds from the start of a decode step of `batch` rows to that of the next such step, by the slices of the
/// trace that these records make. `launch`: as in a recording's header.
pub fn traced_step_ms(
    engine: &EngineShape,
    launch: Option<&str>,
    arrivals: &[Arrival],
    records: &[abi::tg_trace],
    batch: u64,
) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let header = Header {
        version: VERSION,
        model: "none".to_owned(),
        device: launch.map_or("cpu", |_| "cuda").to_owned(),
        dtype: "f32".to_owned(),
        weights: None,
        activations: None,
        launch: launch.map(str::to_owned),
        identity: Identity::default(),
        kernel_variants: None,
        engine: engine.clone(),
    };
    let out = Out::create(&path, Unfinished::Removed).unwrap();
    let mut timeline = Timeline::new(out, &header, "a test".to_owned()).unwrap();
    for arrival in arrivals {
        let line = Line::Request(Box::new(arrival.request.clone()));
        timeline.line(line).unwrap();
    }
    for record in records {
        timeline
            .line(Line::Turn(Box::new(Turn::from(record))))
            .unwrap();
    }
    let (_, out) = timeline.end().unwrap();
    out.finish().unwrap();
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let steps = trace["traceEvents"].as_array().unwrap().iter();
    let mut steps: Vec<(u64, f64)> = steps
        .filter(|event| {
            let name = event["name"].as_str().unwrap();
            event["ph"] == "X" && name.starts_with("decode ") && event["args"]["rows"] == batch
        })
        .map(|event| {
            let step = event["args"]["step"].as_u64().unwrap();
            (step, event["ts"].as_f64().unwrap())
        })
        .collect();
    steps.sort_by_key(|&(step, _)| step);
    let pairs = steps.windows(2).filter(|pair| pair[0].0 + 1 == pair[1].0);
    pairs.map(|pair| (pair[1].1 - pair[0].1) / 1e3).collect()
}
