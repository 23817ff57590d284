//! Where rows go, counted after all that is timed, on engines of its own: they wait at every router.

use super::around::Runner;
use super::scored::Scored;
use super::work::{Unit, Work};
use crate::backend::{RoutingSink, SharedSink};
use crate::bench::clock::Clocks;
use crate::bench::routing::Counts;
use crate::bench::{Kind, Point};
use crate::error::Result;
use crate::model::Model;
use crate::telemetry::say;
use std::sync::Arc;

/// Counts each point's routing once for each type, bucket and kernel file: launch ways and busy threads choose no experts. Of
/// the prompts of the first repeat. False: interrupted.
pub fn count(work: &Work<'_>, units: &mut [Unit], model: &Arc<Model>) -> Result<bool> {
    let typical = work.args.kind != Kind::Serve;
    if !typical || work.config.num_experts == 0 {
        return Ok(true);
    }
    for index in 0..units.len() {
        // The counts would be of one device's share of the work.
        if !units[index].opened.spec.beside.is_empty() {
            continue;
        }
        let (before, rest) = units.split_at_mut(index);
        let unit = &mut rest[0];
        let alike = |other: &&mut Unit| {
            let dtype = |unit: &Unit| unit.opened.spec.device.dtype();
            let files = |unit: &Unit| (unit.bucket_file.clone(), unit.kernel_file.clone());
            dtype(other) == dtype(unit) && files(other) == files(unit)
        };
        if let Some(other) = before.iter_mut().find(alike) {
            for (tried, other) in unit.points.iter_mut().zip(&other.points) {
                tried.spread = other.spread;
            }
        } else if !of_unit(work, unit, model)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn of_unit(work: &Work<'_>, unit: &mut Unit, model: &Arc<Model>) -> Result<bool> {
    if !work.args.quiet {
        say("counting which experts are chosen");
    }
    let config = &work.config;
    let counts = Arc::new(Counts::new(config.num_experts, config.num_experts_per_tok));
    let routing: Arc<dyn RoutingSink> = counts.clone();
    let sink: SharedSink = match work.delivers() {
        true => Some(Arc::new(Scored::default())),
        false => None,
    };
    let mut engine = unit.opened.engine_with_routing(model, &sink, &routing)?;
    let mut runner = Runner {
        engine: &mut engine,
        sent: 0,
        interrupt: work.interrupt,
        clocks: Clocks::unknown(),
        life: None,
    };
    for index in 0..unit.points.len() {
        let point = Point {
            cpu_load: 0,
            ..unit.points[index].point
        };
        let (before, rest) = unit.points.split_at_mut(index);
        let alike = before.iter().find(|other| {
            let lengths = |point: &Point| {
                let prompts = (point.ragged_from, point.prompt_tokens);
                (point.batch, prompts, point.new_tokens)
            };
            lengths(&other.point) == lengths(&point)
        });
        if let Some(other) = alike {
            rest[0].spread = other.spread;
            continue;
        }
        counts.begin(&point);
        let arrivals = work.arrivals(&point, 0);
        if runner.run(&point, &arrivals)?.is_none() {
            return Ok(false);
        }
        rest[0].spread = counts.end();
    }
    Ok(true)
}
