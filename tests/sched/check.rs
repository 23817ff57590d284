//! What must hold in the core's memory after every turn, whatever the model says: nothing lost, nothing shared.

use super::machine::Machine;
use super::model::{Model, Place, Running, Step};
use super::world::biases;
use tailgraph::sys::abi;

macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}
pub(crate) use ensure;

/// Every page is either free or held by exactly one slot; every request runs in exactly one slot.
pub fn pages_and_slots(machine: &Machine, model: &Model) -> Result<(), String> {
    let state = machine.state();
    let config = &state.config;
    ensure!(
        state.free_pages <= config.pages,
        "{} of {} pages are free",
        state.free_pages,
        config.pages
    );
    let mut owners = vec![0u8; config.pages as usize];
    let free = machine.table::<u32>(state.free_page_table, state.free_pages);
    let mut running = 0;
    let mut held: Vec<&[u32]> = vec![free];
    for index in 0..config.slots {
        let slot = machine.slot(index);
        let expected = model.running.get(&index);
        ensure!(
            (slot.phase != abi::TG_SLOT_FREE) == expected.is_some(),
            "slot {index} is in phase {}, the model has {expected:?}",
            slot.phase
        );
        let Some(expected) = expected else { continue };
        running += 1;
        let prefix = match slot.prefix {
            abi::TG_NONE => None,
            place => Some(place),
        };
        ensure!(
            (prefix, slot.skipped) == (expected.prefix, expected.skipped),
            "slot {index} shares {prefix:?} and skipped {}, expected {:?} and {}",
            slot.skipped,
            expected.prefix,
            expected.skipped
        );
        let request = &model.requests[expected.request as usize];
        let count = request.sampling.bias_count;
        let room = u64::from(config.bias_capacity) * size_of::<abi::tg_bias>() as u64;
        let held_biases: &[abi::tg_bias] =
            machine.table(state.bias_table + u64::from(index) * room, count);
        ensure!(
            held_biases
                .iter()
                .copied()
                .eq(biases(expected.request, count)),
            "slot {index} has other biases than request {}: {held_biases:?}",
            expected.request
        );
        let phase = match expected.place {
            Place::Leaving => abi::TG_SLOT_LEAVING,
            Place::Preempted => abi::TG_SLOT_PREEMPTED,
            Place::Runs if expected.composed == expected.reading => abi::TG_SLOT_DECODE,
            Place::Runs => abi::TG_SLOT_PREFILL,
        };
        let found = (
            slot.request,
            slot.composed,
            slot.generated,
            slot.steps,
            slot.pages,
            slot.recomputes,
            slot.phase,
        );
        let wanted = (
            expected.request,
            expected.composed,
            expected.generated,
            expected.steps,
            expected.pages,
            expected.again,
            phase,
        );
        ensure!(
            found == wanted,
            "slot {index} holds (request, composed, generated, steps, pages, again, phase) {found:?}, expected {wanted:?}"
        );
        ensure!(
            slot.end_reason == expected.end.unwrap_or(abi::TG_END_NONE),
            "slot {index} ends with {}, expected {:?}",
            slot.end_reason,
            expected.end
        );
        kept(machine, model, index, expected)?;
        let (shared, own) = machine
            .pages(index)
            .split_at(model.filled(expected.prefix) as usize);
        let chain: Vec<u32> = (0..shared.len() as u32)
            .map(|page| prefix_page(machine, model, expected.prefix, page))
            .collect();
        ensure!(
            shared == chain,
            "slot {index} has the pages {shared:?} of its prefixes, expected {chain:?}"
        );
        held.push(own);
    }
    for (&place, prefix) in &model.prefixes {
        let row = prefix_pages(machine, place);
        let first = model.filled(prefix.parent) as usize;
        held.push(&row[first..first + prefix.pages as usize]);
    }
    for &page in held.into_iter().flatten() {
        ensure!(page < config.pages, "page {page} of {}", config.pages);
        owners[page as usize] += 1;
    }
    for (page, owners) in owners.iter().enumerate() {
        ensure!(*owners == 1, "page {page} has {owners} owners");
    }
    ensure!(
        state.running == running && state.free_pages == model.free_pages,
        "{} slots run with {} pages free, expected {running} and {}",
        state.running,
        state.free_pages,
        model.free_pages
    );
    Ok(())
}

/// A prefix's row of the page table.
fn prefix_pages(machine: &Machine, place: u32) -> &[u32] {
    let (state, columns) = (machine.state(), machine.state().max_pages);
    let offset = state.prefix_page_table + u64::from(place) * u64::from(columns) * 4;
    machine.table(offset, columns)
}

/// Page `index` of a sequence with this prefix: the shortest in the chain that fills it has it.
fn prefix_page(machine: &Machine, model: &Model, prefix: Option<u32>, index: u32) -> u32 {
    let chain = model.chain(prefix);
    let mut filling = chain.iter().rev();
    let owner = filling.find(|place| model.filled(Some(**place)) > index);
    prefix_pages(machine, *owner.expect("one fills it"))[index as usize]
}

/// Checks what is kept of a sequence without a limit: what it has read of its prompt, and its tokens; all of its prompt once it
/// has begun to leave.
fn kept(machine: &Machine, model: &Model, slot: u32, running: &Running) -> Result<(), String> {
    if model.requests[running.request as usize].flags & abi::TG_REQUEST_UNLIMITED == 0 {
        return Ok(());
    }
    let prompt = &model.prompts[running.request as usize];
    let shared = running
        .prefix
        .map_or(0, |place| model.prefixes[&place].tokens);
    let read = match (running.place, running.again) {
        (Place::Runs, 0) => running.composed.max(shared) as usize,
        _ => prompt.len(),
    };
    let wanted = [&prompt[..read], &running.tokens].concat();
    let columns = u64::from(machine.state().config.max_context);
    let offset = machine.state().kept_table + u64::from(slot) * columns * 4;
    let found = machine.table::<i32>(offset, wanted.len() as u32);
    ensure!(
        found == wanted,
        "of slot {slot} {found:?} is kept, expected {wanted:?}"
    );
    Ok(())
}

/// The descriptor as the core wrote it.
pub fn read_step(machine: &Machine, number: u64) -> Step {
    let step = machine.step(number);
    Step {
        number: step.number,
        start_ns: step.start_ns,
        kind: step.kind,
        bucket: step.bucket,
        bucket_rows: step.bucket_rows,
        decode_rows: step.decode_rows,
        rows: machine.table(step.row_table, step.rows).to_vec(),
        sequences: machine.table(step.sequence_table, step.sequences).to_vec(),
        sample_rows: machine.table(step.sample_table, step.sample_rows).to_vec(),
    }
}

/// A step fits its bucket, and no smaller one; its rows lie in pages that its slots hold.
pub fn step(machine: &Machine, step: &Step) -> Result<(), String> {
    let config = &machine.state().config;
    let kind = step.kind as usize;
    let rows = step.rows.len() as u32;
    ensure!(
        rows >= 1 && rows <= config.step_tokens && rows <= step.bucket_rows,
        "step {} has {rows} rows in a bucket of {}",
        step.number,
        step.bucket_rows
    );
    let prompt_rows = rows - step.decode_rows;
    ensure!(
        step.decode_rows == 0 || config.chunk_share != 0 || prompt_rows <= config.chunk_tokens,
        "step {} has {prompt_rows} prompt rows beside {} decode rows, expected at most {}",
        step.number,
        step.decode_rows,
        config.chunk_tokens
    );
    if step.bucket > 0 {
        let smaller = config.bucket_rows[kind][step.bucket as usize - 1];
        ensure!(
            rows > smaller,
            "{rows} rows fit a bucket of {smaller}, not {} needed",
            step.bucket_rows
        );
    }
    for row in &step.rows {
        let page = row.position / config.page_tokens;
        ensure!(
            (page as usize) < machine.pages(row.slot).len(),
            "position {} of slot {} lies on no page it holds",
            row.position,
            row.slot
        );
    }
    Ok(())
}

/// Where two cores that were laid out over different patterns still differ: the gaps between the tables.
pub fn gaps(a: &[u8], b: &[u8]) -> Vec<bool> {
    a.iter().zip(b).map(|(a, b)| a != b).collect()
}
