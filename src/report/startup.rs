//! What engines did before their first token.

use super::bench::Row;
use super::charts::{Axes, both};
use super::html::Page;
use super::steps::Startup;
use super::svg::exact;
use super::time::{Piece, tracks};

/// Of each engine that `rows` ran on, once.
pub fn of_rows(rows: &[&Row]) -> Vec<Startup> {
    let engine = |row: &Row| (row.way(), row.dtype.clone(), row.max_seqs);
    let mut all: Vec<&Row> = vec![];
    for row in rows.iter().filter(|row| row.startup_engine_ms.is_some()) {
        if !all.iter().any(|seen| engine(seen) == engine(row)) {
            all.push(row);
        }
    }
    let same = |value: &dyn Fn(&Row) -> String| all.iter().all(|row| value(row) == value(all[0]));
    let (one_dtype, one_size) = (
        same(&|row| row.dtype.clone()),
        same(&|row| row.max_seqs.to_string()),
    );
    let startup = |row: &&Row| {
        let mut name = row.way();
        if !one_dtype {
            name += &format!(", {}", row.dtype);
        }
        if !one_size {
            name += &format!(", {} slots", row.max_seqs);
        }
        let known = |phase: &'static str, ms: Option<f64>| ms.map(|ms| (phase, ms));
        let load = known("load", row.startup_load_ms);
        let graphs = known("graphs", row.startup_graphs_ms);
        let of_graphs = [
            known("capture", row.startup_capture_ms),
            known("instantiate", row.startup_instantiate_ms),
            known("upload", row.startup_upload_ms),
        ];
        let of_graphs: Vec<_> = of_graphs.into_iter().flatten().collect();
        // Results without the graphs' time are of runs that did these three one after the other.
        let (made, beside) = match graphs {
            Some(graphs) => (vec![graphs], of_graphs),
            None => (of_graphs, vec![]),
        };
        let mut phases: Vec<_> = load.into_iter().chain(made).collect();
        let in_engine: f64 = phases.iter().map(|(_, ms)| ms).sum();
        let rest = row.startup_engine_ms.map(|ms| (ms - in_engine).max(0.0));
        phases.extend(known("rest of the engine", rest));
        phases.extend(known("first token", row.startup_first_token_ms));
        Startup {
            name,
            phases,
            beside,
        }
    };
    all.iter().map(startup).collect()
}

fn color(phase: &str) -> usize {
    match phase {
        "graphs" | "capture" => 0,
        "instantiate" => 1,
        "upload" => 2,
        "first token" => 3,
        _ => super::NEUTRAL,
    }
}

/// Each once, in the order of their first.
fn distinct(names: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    let mut all = vec![];
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// `model_ms`: what came before all engines, where that is known.
pub fn write(page: &mut Page, startup: &[Startup], model_ms: Option<f64>) {
    if startup.is_empty() {
        return;
    }
    page.head("Before the first token");
    let name = |(name, _): &(&'static str, f64)| *name;
    let phases = distinct(startup.iter().flat_map(|engine| &engine.phases).map(name));
    let beside = distinct(startup.iter().flat_map(|engine| &engine.beside).map(name));
    if let Some(ms) = model_ms {
        page.text(&format!(
            "The model's files, or its generation, took {} ms once; after that each engine:",
            exact(ms)
        ));
    }
    let bars: Vec<(String, Vec<Piece>)> = startup
        .iter()
        .map(|engine| {
            let mut from = 0.0;
            let piece = |(phase, ms): &(&str, f64)| {
                let piece = Piece {
                    name: (*phase).to_owned(),
                    color: color(phase),
                    from,
                    to: from + ms,
                };
                from = piece.to;
                piece
            };
            (
                engine.name.clone(),
                engine.phases.iter().map(piece).collect(),
            )
        })
        .collect();
    let axes = Axes {
        label: "What each engine did before its first token, over time",
        x: "ms",
        y: "",
    };
    let key: Vec<(&str, usize)> = phases.iter().map(|&name| (name, color(name))).collect();
    page.key(&key);
    page.chart(&both(|width| tracks(&axes, &bars, width)));
    if !beside.is_empty() {
        page.text(&format!(
            "Threads make graphs ready side by side, so within the time of the graphs these overlap: {}.",
            beside.join(", ")
        ));
    }
    let columns = distinct(phases.iter().chain(&beside).copied());
    let heads: Vec<String> = columns.iter().map(|name| format!("{name}, ms")).collect();
    let mut all = vec!["launch"];
    all.extend(heads.iter().map(String::as_str));
    let cell = |engine: &Startup, phase: &str| {
        let mut all = engine.phases.iter().chain(&engine.beside);
        let found = all.find(|(name, _)| *name == phase);
        found.map_or("\u{2013}".to_owned(), |(_, ms)| exact(*ms))
    };
    let rows: Vec<Vec<String>> = startup
        .iter()
        .map(|engine| {
            let cells = columns.iter().map(|phase| cell(engine, phase));
            std::iter::once(engine.name.clone()).chain(cells).collect()
        })
        .collect();
    page.table(1, &all, &rows);
}
