//! The scheduler core over random histories: arrivals, lengths, cancels, deadlines, page pools from barely
//! enough to ample, event rings of two entries, host stalls, stages that lag.
//!
//! A failure names its seed: `TAILGRAPH_SCHED_SEED=n cargo test --test sched_properties` runs that one again;
//! `TAILGRAPH_SCHED_HISTORIES=n` runs more or fewer of them.

mod common;
mod sched;

use common::random::Random;
use sched::api::Api;
use sched::coverage::Coverage;
use sched::history::{self, Choice, Options};
use sched::machine::{Lanes, Machine, Order};
use sched::{check, claims, for_seeds, replay, script, world::World};
use tailgraph::sys::abi;

const HISTORIES: u64 = 100_000;
/// How often each rare branch must have been taken.
const RARE: u64 = 500;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|n| n.parse().expect("a number"))
}

#[test]
fn histories_keep_the_rules() {
    let api = Api::linked();
    if let Some(seed) = number("TAILGRAPH_SCHED_SEED") {
        history::run(api, seed, Options::default()).unwrap_or_else(|message| panic!("{message}"));
        return;
    }
    let histories = number("TAILGRAPH_SCHED_HISTORIES").unwrap_or(HISTORIES);
    let mut coverage = Coverage::default();
    for_seeds(
        histories,
        |seed| history::run(api, seed, Options::default()),
        |report| coverage.add(&report.coverage),
    )
    .unwrap_or_else(|message| panic!("{message}"));
    for (branch, count) in coverage.counts() {
        println!("{branch:28} {count:>9}");
        assert!(
            count >= RARE || histories < HISTORIES,
            "{branch} was taken {count} times, expected at least {RARE}"
        );
    }
}

#[test]
fn the_order_and_number_of_lanes_do_not_show() {
    let api = Api::linked();
    let run = |seed, count, order| {
        let lanes = Some(Lanes { count, order });
        let options = Options {
            lanes,
            hash: true,
            record: false,
        };
        history::run(api, seed, options).map(|report| report.hashes)
    };
    for_seeds(
        1500,
        |seed| {
            let one = run(seed, 1, Order::Forward)?;
            let few = 2 + seed as u32 % 7;
            let many = if seed % 50 == 0 { 256 } else { 33 };
            for (count, order) in [
                (few, Order::Forward),
                (few, Order::Backward),
                (few, Order::Shuffled(seed)),
                (many, Order::Shuffled(seed)),
            ] {
                let other = run(seed, count, order)?;
                if let Some(turn) = one.iter().zip(&other).position(|(a, b)| a != b) {
                    return Err(format!(
                        "seed {seed}: after turn {turn}, {count} lanes {order:?} differ from one lane"
                    ));
                }
            }
            Ok(())
        },
        |()| {},
    )
    .unwrap_or_else(|message| panic!("{message}"));
}

#[test]
fn a_replay_gives_the_same_steps() {
    let api = Api::linked();
    let mut steps = 0;
    for_seeds(
        3000,
        |seed| {
            let options = Options {
                record: true,
                ..Options::default()
            };
            let report = history::run(api, seed, options)?;
            let lanes = Lanes {
                count: 1 + seed as u32 % 5,
                order: Order::Backward,
            };
            replay::run(api, &report, lanes)
                .map_err(|message| format!("seed {seed}: {message}"))?;
            Ok(report.steps.len())
        },
        |n| steps += n,
    )
    .unwrap_or_else(|message| panic!("{message}"));
    assert!(steps > 10_000, "only {steps} steps were replayed");
}

/// Every order of seven arrivals, cancels, steps that come back and timeouts, where requests share prefixes.
#[test]
fn prefixes_are_shared_whatever_happens_when() {
    const CHOICES: u32 = 7;
    let api = Api::linked();
    let one = script::config();
    let two_stages = abi::tg_config {
        stages: 2,
        steps_in_flight: 2,
        ..one
    };
    let ahead = abi::tg_config {
        ahead: 1,
        steps_in_flight: 2,
        ..one
    };
    let orders = (Choice::ALL.len() as u64).pow(CHOICES);
    let mut coverage = Coverage::default();
    for config in [one, two_stages, ahead] {
        let run = |order: u64| {
            let choice = |at| Choice::ALL[(order >> (2 * at)) as usize % Choice::ALL.len()];
            let choices: Vec<Choice> = (0..CHOICES).map(choice).collect();
            history::explore(api, order, World::alike(&config), &choices)
                .map_err(|message| format!("{choices:?} of {config:?}: {message}"))
        };
        for_seeds(orders, run, |found| coverage.add(&found))
            .unwrap_or_else(|message| panic!("{message}"));
    }
    for (branch, count) in [
        ("waited", coverage.waited_for_a_prefix),
        ("took over", coverage.took_a_prefix_over),
        ("began behind", coverage.began_behind_a_prefix),
        ("place wanted", coverage.place_was_wanted),
        ("made room", coverage.prefix_made_room),
        ("was preempted", coverage.left_with_a_prefix),
    ] {
        println!("{branch:16} {count}");
        assert!(count > 100, "{branch}: {count} times");
    }
}

/// Two cores laid out over different patterns differ in the gaps alone, and turns leave those alone.
#[test]
fn nothing_is_written_between_the_tables() {
    let api = Api::linked();
    for seed in 0..300 {
        let world = World::new(&mut Random::new(seed));
        let make = |pattern| {
            Machine::with_pattern(api, &world.config, &world.shape, Lanes::ONE, pattern).unwrap()
        };
        let (a, b) = (make(0xa5), make(0x5a));
        let gaps = check::gaps(a.state_bytes(), b.state_bytes());
        let gap_bytes = gaps.iter().filter(|gap| **gap).count();
        assert!(gap_bytes >= 20 * 64, "{gap_bytes} bytes of gaps");
        let after = history::run_to_end(api, seed, Options::default());
        let (_, after) = after.unwrap_or_else(|message| panic!("{message}"));
        let touched = gaps
            .iter()
            .zip(after.state_bytes())
            .position(|(gap, byte)| *gap && *byte != 0xa5);
        assert_eq!(touched, None, "seed {seed}: a byte outside the tables");
    }
}

/// Claims from a queue by several cores: nothing is lost or doubled, what is claimed are inputs like any others, and neither the
/// order nor the number of lanes shows.
#[test]
fn cores_claim_from_one_queue() {
    let api = Api::linked();
    let histories = number("TAILGRAPH_SCHED_HISTORIES").unwrap_or(HISTORIES) / 10;
    for_seeds(
        histories,
        |seed| claims::with_other_lanes(api, seed),
        |()| {},
    )
    .unwrap_or_else(|message| panic!("{message}"));
}
