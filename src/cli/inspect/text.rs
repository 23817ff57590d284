//! The plan as tables of at most 120 columns.

use super::{Group, Share, View, Written, layers_text, shape_text, us_text};
use crate::cli::table::Table;
use crate::model::LayerType;
use crate::plan::bytes::{Bytes, Si, whole_bytes};
use crate::plan::cost::distinct_experts;
use crate::plan::params::{model_bytes, model_parameters, params};
use crate::plan::{Cost, Stage, StepKind};
use std::io::Write;

/// Time columns of one table; more rows go into further tables.
const COLUMNS: usize = 5;

pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> Written {
    model(view, out)?;
    for rows in view.rows.chunks(COLUMNS) {
        for stage in &view.plan.stages {
            writeln!(out)?;
            stage_table(view, stage, rows, out)?;
        }
        writeln!(out)?;
        totals(view, rows, out)?;
    }
    writeln!(out)?;
    super::graphs::text(view, out)
}

fn model(view: &View<'_>, out: &mut dyn Write) -> Written {
    let config = &view.plan.config;
    let layers = config.layer_types.len();
    let conv = config
        .layer_types
        .iter()
        .filter(|&&mixer| mixer == LayerType::Conv)
        .count();
    let dense = config.num_dense_layers.min(layers);
    let (weights, compute) = (view.precision.weights, view.precision.compute);
    writeln!(
        out,
        "{layers} layers: {conv} convolution, {} attention; {dense} dense, {} of {} experts with {} a token",
        layers - conv,
        layers - dense,
        config.num_experts,
        config.num_experts_per_tok,
    )?;
    writeln!(
        out,
        "hidden {}, vocabulary {}{}, {} heads and {} key-value heads of {}",
        config.hidden_size,
        config.vocab_size,
        if config.tie_word_embeddings {
            " (tied)"
        } else {
            ""
        },
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
    )?;
    writeln!(
        out,
        "{} parameters, {}B of weights in {}",
        Si(model_parameters(config)),
        Si(model_bytes(config, weights)),
        weights.name(),
    )?;
    writeln!(
        out,
        "{} of keys and values a token, {} of convolution state a sequence, in {}",
        Bytes(whole_bytes(view.plan.kv_bytes_per_token(compute))),
        Bytes(whole_bytes(
            view.plan.conv_state_bytes_per_sequence(compute)
        )),
        compute.name(),
    )?;
    for kind in StepKind::ALL {
        let buckets: Vec<String> = view
            .plan
            .ladders
            .of(kind)
            .iter()
            .map(u32::to_string)
            .collect();
        writeln!(out, "{} buckets: {}", kind.name(), buckets.join(" "))?;
    }
    writeln!(
        out,
        "\n{} steps in {}, {} {}",
        view.kind.name(),
        compute.name(),
        match view.kind {
            StepKind::Decode => "every sequence at position",
            StepKind::Mixed | StepKind::Score => "prompts of length",
        },
        view.context,
    )?;
    writeln!(
        out,
        "roofline of {}, without launches: {} TB/s, {} TFLOP/s; {}",
        view.gpu.title,
        view.gpu.bytes_per_s / 1e12,
        view.gpu.flops_per_s(view.precision) / 1e12,
        view.gpu.source,
    )?;
    writeln!(
        out,
        "operands and results count where an operation's exceed the {} MB L2 cache",
        view.gpu.l2_bytes / 1e6
    )?;
    shares(view, out)
}

/// Which of several devices does what.
fn shares(view: &View<'_>, out: &mut dyn Write) -> Written {
    let all = view.plan.stages.len();
    let layers = |share: &Share| {
        let stages = view.plan.stages.get(share.stages.clone())?;
        let layers = stages.first()?.layers.start..stages.last()?.layers.end;
        Some(layers_text(&layers))
    };
    for share in view.shares {
        let what = match share.stages.len() {
            stages if stages == all => {
                "the whole model, its rows from a queue that is everyone's".to_owned()
            }
            1 => format!("stage {}", share.stages.start),
            _ => format!(
                "stages {} to {}",
                share.stages.start,
                share.stages.end.saturating_sub(1)
            ),
        };
        match layers(share).filter(|_| share.stages.len() < all) {
            Some(layers) => writeln!(out, "{}: {what}, {layers}", share.device)?,
            None => writeln!(out, "{}: {what}", share.device)?,
        }
    }
    Ok(())
}

fn stage_table(view: &View<'_>, stage: &Stage, rows: &[u32], out: &mut dyn Write) -> Written {
    writeln!(
        out,
        "stage {}: {}; a row's bytes and FLOPs in a step of {}",
        stage.index,
        layers_text(&stage.layers),
        rows_text(rows[0])
    )?;
    let mut table = Table::new(&[0, 1, 2]);
    let head = [
        "operation",
        "layers",
        "weights",
        "stored",
        "B/row",
        "FLOP/row",
    ];
    table.row(
        head.map(String::from)
            .into_iter()
            .chain(rows.iter().map(|rows| format!("us @{rows}"))),
    );
    for group in view.groups(stage) {
        let largest = params(&view.plan.config, group.kind).into_iter().next();
        let cost = view.cost(&group, rows[0]);
        let cells = [
            group.kind.name().to_owned(),
            group_layers(view, &group),
            largest.map_or(String::new(), |param| shape_text(&param.shape)),
            stored(view, &group),
            per_row(cost.cache_bytes + cost.activation_bytes, rows[0]),
            per_row(cost.flops, rows[0]),
        ];
        let times = rows
            .iter()
            .map(|&rows| us_text(view.roofline_us(&group, rows).0));
        table.row(cells.into_iter().chain(times));
    }
    if view.plan.stages.len() > 1 {
        let cost = stage.cost(&view.plan.config, &view.shape(rows[0]), view.precision);
        let cells = [
            "stage".to_owned(),
            String::new(),
            String::new(),
            String::new(),
            per_row(cost.cache_bytes + cost.activation_bytes, rows[0]),
            per_row(cost.flops, rows[0]),
        ];
        let times = rows.iter().map(|&rows| us_text(view.stage_us(stage, rows)));
        table.row(cells.into_iter().chain(times));
    }
    table.write("  ", out)
}

/// `x18`, or the layer's number where each has a line.
fn group_layers(view: &View<'_>, group: &Group) -> String {
    match group.layers.as_slice() {
        [] => String::new(),
        [layer] if view.each_layer => layer.to_string(),
        layers => format!("x{}", layers.len()),
    }
}

fn stored(view: &View<'_>, group: &Group) -> String {
    let bytes: f64 = params(&view.plan.config, group.kind)
        .iter()
        .map(|param| param.bytes(view.precision.weights))
        .sum();
    if bytes == 0.0 {
        return String::new();
    }
    format!("{}B", Si(bytes * group.count()))
}

fn per_row(amount: f64, rows: u32) -> String {
    Si((amount / f64::from(rows)).round()).to_string()
}

fn rows_text(rows: u32) -> String {
    match rows {
        1 => "1 row".into(),
        _ => format!("{rows} rows"),
    }
}

/// A line of the totals: its name, and what it shows for a number of rows and the step's cost.
type Total<'a> = (&'a str, &'a dyn Fn(u32, &Cost) -> String);

fn totals(view: &View<'_>, rows: &[u32], out: &mut dyn Write) -> Written {
    let costs: Vec<Cost> = rows
        .iter()
        .map(|&rows| view.plan.cost(&view.shape(rows), view.precision))
        .collect();
    let config = &view.plan.config;
    let mut table = Table::new(&[0]);
    let lines: [Total<'_>; 8] = [
        ("whole step, rows", &|rows, _| rows.to_string()),
        ("bucket", &|rows, _| {
            let bucket = view.plan.ladders.bucket(view.kind, rows);
            bucket.map_or(String::new(), |bucket| bucket.to_string())
        }),
        ("experts read in a layer (expected)", &|rows, _| {
            format!("{:.1}", distinct_experts(config, f64::from(rows)))
        }),
        ("weights read", &|_, cost| {
            format!("{}B", Si(cost.weight_bytes))
        }),
        ("keys, values, conv state", &|_, cost| {
            format!("{}B", Si(cost.cache_bytes))
        }),
        ("activations", &|_, cost| {
            format!("{}B", Si(cost.activation_bytes))
        }),
        ("FLOPs", &|_, cost| Si(cost.flops).to_string()),
        ("roofline, us", &|rows, _| us_text(view.step_us(rows))),
    ];
    for (name, show) in lines {
        let shown = rows
            .iter()
            .zip(&costs)
            .map(|(&rows, cost)| show(rows, cost));
        table.row(std::iter::once(name.to_owned()).chain(shown));
    }
    if view.plan.stages.len() > 1 {
        let slowest = rows
            .iter()
            .map(|&rows| us_text(view.slowest_stage_us(rows)));
        table.row(std::iter::once("slowest stage, us".to_owned()).chain(slowest));
    }
    let rate = rows
        .iter()
        .map(|&rows| Si((f64::from(rows) / view.slowest_stage_us(rows) * 1e6).round()).to_string());
    table.row(std::iter::once("rows/s at most".to_owned()).chain(rate));
    table.write("", out)
}
