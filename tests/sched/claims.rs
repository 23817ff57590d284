//! Several cores on one queue, which they claim from as those of GPUs do, with a host that is as slow as it likes. Each core
//! has a twin, which gets what was claimed over rings of its own and takes the recorded inputs: it must come to the same
//! steps, and the histories hold such a core to the rules.

use super::api::Api;
use super::check::{self, ensure};
use super::claim_queue::Queue;
use super::machine::{Lanes, Machine, Order};
use super::world::{Planned, VOCABULARY, World, biases};
use crate::common::random::Random;
use tailgraph::sys::abi;

/// What happened, for another run to be held to: every turn's outcome and what it claimed.
pub type Log = Vec<(usize, abi::tg_outcome, u64)>;

const PATIENT_TICKS: u32 = 400;
const MOST_TICKS: u32 = 8000;

struct Replica {
    machine: Machine,
    twin: Machine,
    /// Its claims' numbers by the queue, in the device's own memory.
    numbers: Vec<u64>,
    seen: Vec<u64>,
    /// By its own number: the queue's.
    claimed: Vec<u64>,
    /// By the queue's number: the clock of the first turn after the push.
    first_seen: Vec<u64>,
    twin_tokens: u64,
    to_cancel: Vec<u64>,
    popped: u64,
    /// The step that runs.
    runs: Option<u64>,
    done: bool,
}

struct Run {
    rng: Random,
    queue: Queue,
    replicas: Vec<Replica>,
    requests: Vec<Planned>,
    claimed_by: Vec<Option<usize>>,
    ends: Vec<u32>,
    pushed: usize,
    /// Requests say of some that are behind them that these begin alike.
    has_runs: bool,
    now_ns: u64,
    log: Log,
}

fn replica(
    api: Api,
    queue: &mut Queue,
    config: &abi::tg_config,
    shape: &abi::tg_rings,
    number: u32,
    lanes: Lanes,
) -> Replica {
    let machine = Machine::new(api, config, shape, lanes).expect("a good configuration");
    let twin_shape = abi::tg_rings {
        token_capacity: queue.head().token_capacity,
        record: 0,
        ..*shape
    };
    let twin = Machine::new(api, config, &twin_shape, Lanes::ONE).expect("a good configuration");
    let capacity = queue.head().capacity;
    let mut replica = Replica {
        machine,
        twin,
        numbers: vec![u64::MAX; (config.request_capacity + config.slots) as usize],
        seen: vec![u64::MAX; capacity as usize],
        claimed: vec![],
        first_seen: vec![],
        twin_tokens: 0,
        to_cancel: vec![],
        popped: 0,
        runs: None,
        done: false,
    };
    let Replica { numbers, seen, .. } = &mut replica;
    let words = queue.claimer(number, numbers, seen);
    replica.machine.state_mut().claimer = words;
    replica
}

/// The run of `seed`, with these lanes.
pub fn run(api: Api, seed: u64, lanes: Lanes) -> Result<Log, String> {
    let mut rng = Random::new(seed);
    let (mut world, more) = (World::new(&mut rng), World::new(&mut rng));
    world.requests.extend(more.requests);
    let config = abi::tg_config {
        stages: 1,
        steps_in_flight: 1,
        mailbox_depth: 1,
        ahead: 0,
        ..world.config
    };
    let shape = abi::tg_rings {
        record: 1,
        trace_capacity: 8,
        ..world.shape
    };
    let capacity = 1 << rng.below(4);
    let queue = abi::tg_queue {
        replicas: rng.range(1, 3),
        capacity,
        run_capacity: capacity,
        token_capacity: config.token_capacity << rng.below(2),
        bias_capacity: shape.bias_capacity,
        claim_capacity: 1 << rng.below(4),
        ..Default::default()
    };
    let mut queue = Queue::new(api, &queue);
    let count = queue.head().replicas;
    let replicas =
        (0..count).map(|number| replica(api, &mut queue, &config, &shape, number, lanes));
    let replicas = replicas.collect();
    let requests = world.requests;
    let mut run = Run {
        rng,
        replicas,
        queue,
        claimed_by: vec![None; requests.len()],
        ends: vec![0; requests.len()],
        requests,
        pushed: 0,
        has_runs: seed.is_multiple_of(2),
        now_ns: 1000,
        log: vec![],
    };
    for tick in 0..MOST_TICKS {
        let done = run.tick(tick >= PATIENT_TICKS);
        if done.map_err(|message| format!("seed {seed}, tick {tick}: {message}"))? {
            return Ok(run.log);
        }
    }
    Err(format!("seed {seed}: not drained"))
}

impl Run {
    fn tick(&mut self, patient: bool) -> Result<bool, String> {
        self.now_ns += u64::from(self.rng.below(9u32));
        if patient || self.rng.percent(60) {
            self.queue.free();
            while self.pushed < self.requests.len() && (patient || self.rng.percent(60)) {
                let followers = if self.has_runs { self.rng.below(5) } else { 0 };
                if !self.queue.push(&self.requests[self.pushed], followers) {
                    break;
                }
                self.pushed += 1;
            }
        }
        for index in 0..self.replicas.len() {
            if patient || self.rng.percent(50) {
                self.host(index)?;
            }
            if !self.replicas[index].done && (patient || self.rng.percent(60)) {
                self.turn(index)?;
            }
        }
        if self.replicas.iter().all(|replica| replica.done) {
            self.finish().map(|()| true)
        } else {
            Ok(false)
        }
    }

    /// What the host does for one replica: hears of claims, cancels, reads events and records, and says that all is pushed.
    fn host(&mut self, index: usize) -> Result<(), String> {
        let replica = &mut self.replicas[index];
        self.queue.head().claims_tail[index].value = replica.claimed.len() as u64;
        let rings = replica.machine.rings_mut();
        rings.trace_tail.value = rings.trace_head.value;
        let room = rings.control_head.value - rings.control_tail.value;
        if room < u64::from(rings.control_capacity)
            && let Some(request) = replica.to_cancel.pop()
        {
            for machine in [&mut replica.machine, &mut replica.twin] {
                let rings = machine.rings();
                let (controls, capacity) = (rings.controls, rings.control_capacity);
                let head = rings.control_head.value;
                machine.ring_set(controls, capacity, head, abi::tg_control { request });
                machine.rings_mut().control_head.value += 1;
            }
        }
        while replica.popped < replica.machine.rings().event_head.value && self.rng.percent(80) {
            let rings = replica.machine.rings();
            let event: abi::tg_event =
                replica
                    .machine
                    .ring_get(rings.events, rings.event_capacity, replica.popped);
            let number = replica.claimed.get(event.request as usize);
            let number = *number.ok_or("an event of a request that was not told of")? as usize;
            ensure!(
                self.ends[number] == 0,
                "{number} has an event after its end"
            );
            self.ends[number] += u32::from(event.type_ == abi::TG_EVENT_END);
            replica.popped += 1;
        }
        replica.machine.rings_mut().event_tail.value = replica.popped;
        if self.pushed == self.requests.len() {
            replica.machine.rings_mut().flags.value |= u64::from(abi::TG_INPUT_DRAIN);
        }
        Ok(())
    }

    /// One turn of a replica and of its twin, and the step that runs.
    fn turn(&mut self, index: usize) -> Result<(), String> {
        let now = self.now_ns;
        let replica = &mut self.replicas[index];
        if let Some(number) = replica.runs.filter(|_| self.rng.percent(70)) {
            for row in 0..replica.machine.step(number).sample_rows {
                let sampled = abi::tg_sampled {
                    token: self.rng.below(VOCABULARY) as i32,
                    ..Default::default()
                };
                replica.machine.set_sampled(number, row, sampled);
                replica.twin.set_sampled(number, row, sampled);
            }
            assert!(replica.machine.post(0, number));
            replica.runs = None;
        }
        let pushed = self.queue.pushed as usize;
        replica
            .first_seen
            .resize(pushed.max(replica.first_seen.len()), now);
        let (base, before) = (
            replica.machine.state().claimer.base,
            replica.claimed.len() as u64,
        );
        let outcome = replica.machine.turn(now);
        self.told(index)?;
        let replica = &mut self.replicas[index];
        let (inputs, claimer) = {
            let state = replica.machine.state();
            (state.inputs, state.claimer)
        };
        let share = (claimer.pushed - base).div_ceil(u64::from(claimer.replicas));
        ensure!(
            inputs.request_head - before <= share,
            "replica {index} has claimed {} of a share of {share}",
            inputs.request_head - before
        );
        ensure!(
            inputs.request_head == replica.claimed.len() as u64,
            "replica {index} has claimed {} and told of {}",
            inputs.request_head,
            replica.claimed.len()
        );
        // Turns that change nothing have no record.
        if outcome.changed != 0 {
            let twins = replica.twin.replay(&inputs);
            ensure!(
                outcome == twins,
                "replica {index}: {outcome:?}, its twin {twins:?}"
            );
        }
        let slots = replica.machine.state().config.slots;
        // It may take as many as it has slots of those that begin alike, whoever runs there.
        let most = if self.has_runs { 2 * slots } else { slots };
        ensure!(
            outcome.running + outcome.queue_depth <= most,
            "replica {index} has {} running and {} waiting on {slots} slots",
            outcome.running,
            outcome.queue_depth
        );
        if outcome.action == abi::TG_ACTION_STEP {
            let steps = [&replica.machine, &replica.twin];
            let [own, twins] = steps.map(|machine| check::read_step(machine, outcome.step));
            ensure!(own == twins, "replica {index}: {own:?}, its twin {twins:?}");
            replica.runs = Some(outcome.step);
        }
        ensure!(outcome.error == 0, "{outcome:?}");
        replica.done = outcome.action == abi::TG_ACTION_DONE;
        self.log.push((index, outcome, inputs.request_head));
        self.biases(index)
    }

    /// The biases of those that run are theirs.
    fn biases(&self, index: usize) -> Result<(), String> {
        let Replica {
            machine, claimed, ..
        } = &self.replicas[index];
        let state = machine.state();
        for index in 0..state.config.slots {
            let slot = machine.slot(index);
            if slot.phase == abi::TG_SLOT_FREE {
                continue;
            }
            let count = slot.sampling.bias_count;
            let room = u64::from(state.config.bias_capacity) * size_of::<abi::tg_bias>() as u64;
            let found: &[abi::tg_bias] =
                machine.table(state.bias_table + u64::from(index) * room, count);
            let number = claimed[slot.request as usize];
            ensure!(
                found.iter().copied().eq(biases(number, count)),
                "slot {index} has other biases than request {number}: {found:?}"
            );
        }
        Ok(())
    }

    /// Takes what a replica has told of its claims, for its twin.
    fn told(&mut self, index: usize) -> Result<(), String> {
        let replica = &mut self.replicas[index];
        let head = *self.queue.head();
        let (told, capacity) = (head.claims_head[index].value, head.claim_capacity);
        let (waiting, heard) = (
            told - replica.claimed.len() as u64,
            head.claims_tail[index].value,
        );
        ensure!(
            told - heard <= u64::from(capacity),
            "replica {index} tells of {waiting} claims in {capacity} places"
        );
        for own in replica.claimed.len() as u64..told {
            let place = index as u64 * u64::from(capacity) + own % u64::from(capacity);
            let notice: *mut abi::tg_claimed =
                self.queue
                    .entry(head.claims, capacity * head.replicas, place);
            // SAFETY: inside the table.
            let abi::tg_claimed { number, waited_ns } = unsafe { notice.read() };
            ensure!(
                number < self.queue.pushed,
                "claimed {number}, which was not pushed"
            );
            let known = &mut self.claimed_by[number as usize];
            ensure!(
                known.is_none(),
                "{number} was claimed by {known:?} and {index}"
            );
            *known = Some(index);
            ensure!(
                replica.claimed.last().is_none_or(|&last| last < number),
                "replica {index} claimed {number} after {:?}",
                replica.claimed.last()
            );
            let waited = self.now_ns - replica.first_seen[number as usize];
            ensure!(
                waited == waited_ns,
                "{number} waited {waited_ns}, expected {waited}"
            );
            replica.claimed.push(number);
            let planned = &self.requests[number as usize];
            replica.push_to_twin(own, number, planned, waited);
            if planned.cancel {
                replica.to_cancel.insert(0, own);
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        while self
            .replicas
            .iter()
            .any(|replica| replica.popped < replica.machine.rings().event_head.value)
        {
            (0..self.replicas.len()).try_for_each(|index| self.host(index))?;
        }
        let all = self.requests.len();
        ensure!(
            self.claimed_by.iter().all(Option::is_some) && self.ends == vec![1; all],
            "claimed by {:?}, ends {:?}",
            self.claimed_by,
            self.ends
        );
        self.queue.free();
        ensure!(
            self.queue.tail == all as u64,
            "{} of {all} are free",
            self.queue.tail
        );
        for replica in &self.replicas {
            let (free, pages) = {
                let state = replica.machine.state();
                let all = replica
                    .machine
                    .table::<abi::tg_prefix>(state.prefix_table, state.config.prefixes);
                let idle = all.iter().filter(|p| p.phase != abi::TG_PREFIX_FREE);
                let shared: u32 = idle.map(|prefix| prefix.pages).sum();
                (state.free_pages + shared, state.config.pages)
            };
            ensure!(
                free == pages,
                "{free} of {pages} pages are free or a prefix's"
            );
        }
        Ok(())
    }
}

impl Replica {
    fn push_to_twin(&mut self, own: u64, number: u64, planned: &Planned, waited: u64) {
        let timeout_ns = match planned.request.timeout_ns {
            abi::TG_NO_TIMEOUT => abi::TG_NO_TIMEOUT,
            timeout => timeout.saturating_sub(waited),
        };
        let request = abi::tg_request {
            token_start: self.twin_tokens,
            timeout_ns,
            ..planned.request
        };
        let rings = self.twin.rings();
        let (requests, capacity) = (rings.requests, rings.request_capacity);
        let (tokens, token_capacity) = (rings.tokens, rings.token_capacity);
        self.twin.ring_set(requests, capacity, own, request);
        let count = request.sampling.bias_count;
        self.twin.set_biases(own, biases(number, count));
        for (at, &token) in (self.twin_tokens..).zip(&planned.prompt) {
            self.twin.ring_set(tokens, token_capacity, at, token);
        }
        self.twin_tokens += planned.prompt.len() as u64;
    }
}

/// One lane, and as many as `seed` says in another order: nothing of it shows.
pub fn with_other_lanes(api: Api, seed: u64) -> Result<(), String> {
    let one = run(api, seed, Lanes::ONE)?;
    let count = [2, 3, 32, 256][(seed % 4) as usize];
    let order = Order::Shuffled(seed);
    let other = run(api, seed, Lanes { count, order })?;
    ensure!(one == other, "seed {seed}: {count} lanes show");
    Ok(())
}
