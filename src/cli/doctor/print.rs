//! What `doctor` found, as text and as JSON.

use super::kernels::Kernels;
use super::{Check, kernels, links};
use crate::backend::cuda::catalogue::Link;
use crate::bytes::Bytes;
use crate::cli::shown;
use crate::cli::table::Table;
use crate::plan::memory::MemoryItem;
use crate::plan::{MemoryPlan, Place, RingCapacities};
use crate::quote;
use serde_json::{Value, json};
use std::io::{self, Write};

/// What stands below the checks, each where it is known.
#[derive(Default)]
pub(super) struct Details {
    pub links: Option<Vec<Link>>,
    pub kernels: Option<Kernels>,
    pub memory: Option<MemoryPlan>,
}

pub(super) fn text(checks: &[Check], details: &Details, out: &mut dyn Write) -> io::Result<()> {
    let width = checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
    for check in checks {
        let status = check.status.name();
        let detail = quote::visible(&check.detail);
        writeln!(out, "{status:<7}  {:<width$}  {detail}", check.name)?;
        if let Some(advice) = &check.advice {
            let advice = quote::visible(advice);
            writeln!(out, "{:<7}  {:<width$}  -> {advice}", "", "")?;
        }
    }
    if let Some(between) = &details.links {
        links::text(between, out)?;
    }
    match &details.memory {
        None => Ok(()),
        Some(memory) => {
            writeln!(out)?;
            memory_text(memory, out)
        }
    }
}

/// What a run takes, item by item.
pub fn memory_text(memory: &MemoryPlan, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "memory")?;
    let mut table = Table::new(&[0, 2]);
    let is_counted = |item: &&MemoryItem| item.place == Place::Budget;
    for item in memory.items.iter().filter(is_counted) {
        table.row([
            item.name.to_owned(),
            Bytes(item.bytes).to_string(),
            shown(&item.arithmetic),
        ]);
    }
    table.row(["total".to_owned(), Bytes(memory.total_bytes()).to_string()]);
    table.row([
        "budget".to_owned(),
        Bytes(memory.budget.bytes).to_string(),
        shown(&memory.budget.source),
    ]);
    for item in memory.items.iter().filter(|item| !is_counted(item)) {
        table.row([
            format!("{} (not in it)", item.name),
            Bytes(item.bytes).to_string(),
            shown(&item.arithmetic),
        ]);
    }
    table.write("  ", out)
}

pub(super) fn json_document(
    checks: &[Check],
    details: &Details,
    out: &mut dyn Write,
) -> io::Result<()> {
    let checks: Vec<Value> = checks
        .iter()
        .map(|check| {
            json!({
                "name": check.name,
                "status": check.status.name(),
                "detail": check.detail,
                "advice": check.advice,
            })
        })
        .collect();
    let mut document = json!({ "checks": checks });
    if let Some(between) = &details.links {
        document["links"] = json!(between);
    }
    if let Some(kernels) = &details.kernels {
        document["kernels"] = kernels::json_object(kernels);
    }
    if let Some(memory) = &details.memory {
        document["memory"] = memory_json(memory);
    }
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}

fn memory_json(memory: &MemoryPlan) -> Value {
    let options = &memory.options;
    let RingCapacities {
        requests,
        tokens,
        controls,
        events,
        sampled,
        trace,
        biases,
    } = memory.rings;
    json!({
        "options": {
            "max_seqs": options.max_seqs,
            "max_context": options.max_context,
            "page_tokens": options.page_tokens,
            "pages": options.pages,
            "step_tokens": options.step_tokens,
            "chunk_tokens": options.chunk_tokens,
            "chunk_share": options.chunk_share,
            "chunk_align": options.chunk_align,
            "steps_in_flight": options.steps_in_flight,
        },
        "rings": {
            "requests": requests,
            "tokens": tokens,
            "controls": controls,
            "events": events,
            "sampled": sampled,
            "trace": trace,
            "biases": biases,
        },
        "items": memory.items.iter().map(|item| json!({
            "name": item.name,
            "bytes": item.bytes,
            "arithmetic": shown(&item.arithmetic),
            "in_budget": item.place == Place::Budget,
            "place": item.place.name(),
        })).collect::<Vec<_>>(),
        "total_bytes": memory.total_bytes(),
        "budget_bytes": memory.budget.bytes,
        "budget_source": shown(&memory.budget.source),
    })
}
