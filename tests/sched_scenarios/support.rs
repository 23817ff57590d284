//! What several scenarios ask or set.

use crate::sched::model::Step;
use tailgraph::sys::abi;

pub fn positions(step: &Step) -> Vec<(u32, u32, i32)> {
    let rows = step.rows.iter();
    rows.map(|row| (row.slot, row.position, row.token))
        .collect()
}

pub fn stop_at(id: i32) -> impl FnOnce(&mut abi::tg_request) {
    move |request| {
        request.stop_count = 1;
        request.stop_ids[0] = id;
    }
}
