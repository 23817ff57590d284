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
        let mut phases = vec![];
        let mut in_engine = 0.0;
        for (phase, ms) in [
            ("load", row.startup_load_ms),
            ("capture", row.startup_capture_ms),
            ("instantiate", row.startup_instantiate_ms),
            ("upload", row.startup_upload_ms),
        ] {
            phases.extend(ms.map(|ms| (phase, ms)));
            in_engine += ms.unwrap_or(0.0);
        }
        let rest = row.startup_engine_ms.map(|ms| (ms - in_engine).max(0.0));
        phases.extend(rest.map(|ms| ("rest of the engine", ms)));
        phases.extend(row.startup_first_token_ms.map(|ms| ("first token", ms)));
        Startup { name, phases }
    };
    all.iter().map(startup).collect()
}

fn color(phase: &str) -> usize {
    match phase {
        "capture" => 0,
        "instantiate" => 1,
        "upload" => 2,
        "first token" => 3,
        _ => super::NEUTRAL,
    }
}

/// `model_ms`: what came before all engines, where that is known.
pub fn write(page: &mut Page, startup: &[Startup], model_ms: Option<f64>) {
    if startup.is_empty() {
        return;
    }
    page.head("Before the first token");
    let mut phases: Vec<&'static str> = vec![];
    for (phase, _) in startup.iter().flat_map(|engine| &engine.phases) {
        if !phases.contains(phase) {
            phases.push(phase);
        }
    }
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
    let names: Vec<(&str, usize)> = phases.iter().map(|&name| (name, color(name))).collect();
    page.key(&names);
    page.chart(&both(|width| tracks(&axes, &bars, width)));
    let heads: Vec<String> = phases.iter().map(|name| format!("{name}, ms")).collect();
    let mut all = vec!["launch"];
    all.extend(heads.iter().map(String::as_str));
    let cell = |engine: &Startup, phase: &str| {
        let found = engine.phases.iter().find(|(name, _)| *name == phase);
        found.map_or("\u{2013}".to_owned(), |(_, ms)| exact(*ms))
    };
    let rows: Vec<Vec<String>> = startup
        .iter()
        .map(|engine| {
            let cells = phases.iter().map(|phase| cell(engine, phase));
            std::iter::once(engine.name.clone()).chain(cells).collect()
        })
        .collect();
    page.table(1, &all, &rows);
}
