//! A recorded history through a fresh core: only the records and the ring entries they speak of go in.

use super::api::Api;
use super::check::{self, ensure};
use super::history::Report;
use super::machine::{Lanes, Machine};
use super::world::biases;
use tailgraph::sys::abi;

/// Replays the records of `report`; every outcome and descriptor must come out again.
pub fn run(api: Api, report: &Report, lanes: Lanes) -> Result<(), String> {
    let shape = abi::tg_rings {
        record: 0,
        ..report.shape
    };
    let mut machine = Machine::new(api, &report.config, &shape, lanes)
        .map_err(|error| format!("the core refuses its configuration: {error}"))?;
    let (mut pushed, mut controls) = (0, 0);
    let mut steps = report.steps.iter();
    for record in &report.records {
        for number in pushed..record.inputs.request_head {
            let request = report.requests[number as usize];
            let (requests, tokens) = (machine.rings().requests, machine.rings().tokens);
            machine.ring_set(requests, shape.request_capacity, number, request);
            let biases = biases(number, request.sampling.bias_count);
            machine.set_biases(number, biases);
            let prompt = &report.prompts[number as usize];
            for (at, &token) in (request.token_start..).zip(prompt) {
                machine.ring_set(tokens, shape.token_capacity, at, token);
            }
        }
        for n in controls..record.inputs.control_head {
            let request = report.controls[n as usize];
            let offset = machine.rings().controls;
            machine.ring_set(
                offset,
                shape.control_capacity,
                n,
                abi::tg_control { request },
            );
        }
        pushed = record.inputs.request_head;
        controls = record.inputs.control_head;
        let outcome = machine.replay(&record.inputs);
        ensure!(
            outcome == record.outcome,
            "replay of turn {}: {outcome:?}, recorded {:?}",
            record.turn,
            record.outcome
        );
        if outcome.action == abi::TG_ACTION_STEP {
            let found = check::read_step(&machine, outcome.step);
            let wanted = steps.next();
            ensure!(
                Some(&found.clone().without_pages()) == wanted,
                "replay of turn {}: {found:?}, recorded {wanted:?}",
                record.turn
            );
        }
    }
    ensure!(
        steps.next().is_none(),
        "the replay ends before its last step"
    );
    Ok(())
}
