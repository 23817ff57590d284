//! The protocols between devices, explored: every interleaving of single accesses to memory that several of them see, where
//! a write may be seen late (`memory.rs`), over the C core as it is (`actors.c` compiles kernels/sched with its accesses as
//! calls), at small sizes. And the exploration is worth what it finds: bugs are put in, and each is found.
//!
//! `loom` and its kin run Rust code again from the start for each interleaving, and forget nothing they have seen; a ring of
//! stages that poll has too many for that. Here states are remembered, so that equal ones are gone through once.

mod actors;
#[path = "../common/compile.rs"]
mod compile;
mod memory;
mod search;

use actors::{Actors, Scenario};
use search::{Found, Trouble, explore};

/// actors.c, with a bug or without (0).
fn compiled(bug: u32) -> Actors {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let library = folder.path().join("actors.so");
    let mutation = format!("-DTG_MUTATION={bug}");
    let flags = ["-std=c11", "-O2", "-DTG_EXPLORE", &mutation];
    compile::shared_library(&library, &["tests/explore/actors.c"], &flags);
    Actors::load(&library)
}

fn ring(stages: u32, depth: u32, in_flight: u32, steps: u32) -> Scenario {
    Scenario {
        stages,
        depth,
        return_depth: in_flight,
        in_flight,
        steps,
        ..Default::default()
    }
}

fn announced(scenario: Scenario) -> Scenario {
    Scenario {
        announces: 1,
        ..scenario
    }
}

fn queue(replicas: u32, capacity: u32, requests: u32, most: u32) -> Scenario {
    Scenario {
        replicas,
        capacity,
        requests,
        most,
        ..Default::default()
    }
}

fn holds(actors: &Actors, scenario: Scenario, trouble: Trouble) {
    let start = std::time::Instant::now();
    let Found { states, fault } = explore(actors, scenario, trouble);
    println!(
        "{states} states in {:.1?}: {scenario:?} {trouble:?}",
        start.elapsed()
    );
    assert_eq!(fault, None, "{scenario:?} {trouble:?}");
}

fn is_found(bug: u32, scenario: Scenario, trouble: Trouble, expected: &str) {
    let fault = explore(&compiled(bug), scenario, trouble).fault;
    let fault = fault.unwrap_or_else(|| panic!("bug {bug} was not found in {scenario:?}"));
    assert!(fault.contains(expected), "bug {bug}: {fault}");
}

const QUIET: Trouble = Trouble {
    dies: None,
    late: false,
};

/// A bug of the links, by what it is called where it is found.
fn link_bug(bug: u32, expected: &str) {
    is_found(bug, ring(2, 1, 2, 3), QUIET, expected);
}

/// Nothing is lost, doubled, written over or out of order, all comes to its end, and all credits are back then.
#[test]
fn steps_go_round_the_ring() {
    let actors = compiled(0);
    let sizes = [
        (2, 1, 2, 4),
        (2, 4, 4, 5),
        (3, 1, 3, 4),
        (3, 2, 3, 3),
        (4, 1, 2, 2),
    ];
    for (stages, depth, in_flight, steps) in sizes {
        holds(&actors, ring(stages, depth, in_flight, steps), QUIET);
    }
}

/// The same holds where a step's announcement goes ahead of it, and is read before it comes.
#[test]
fn steps_that_are_announced_go_round_the_ring() {
    let actors = compiled(0);
    for (stages, depth, in_flight, steps) in [(2, 1, 2, 4), (2, 2, 2, 4), (3, 1, 2, 3)] {
        holds(
            &actors,
            announced(ring(stages, depth, in_flight, steps)),
            QUIET,
        );
    }
}

#[test]
fn the_stop_flag_ends_every_stage() {
    let actors = compiled(0);
    for scenario in [
        ring(2, 1, 2, 3),
        ring(3, 1, 2, 2),
        announced(ring(2, 1, 2, 2)),
    ] {
        let scenario = Scenario {
            stops: 1,
            ..scenario
        };
        holds(&actors, scenario, QUIET);
    }
}

/// Also where a stage that is only slow is taken for dead.
#[test]
fn a_dead_stage_ends_every_other_by_deadline() {
    let actors = compiled(0);
    for (stages, dies) in [(2, 1), (3, 1), (3, 2)] {
        let trouble = Trouble {
            dies: Some(dies),
            late: true,
        };
        holds(&actors, ring(stages, 1, 2, 2), trouble);
    }
}

/// Nobody owes stage 0 an answer to those that wait for its steps. The host's stop ends them.
#[test]
fn the_stop_flag_ends_the_others_where_stage_0_is_dead() {
    let scenario = Scenario {
        stops: 1,
        ..ring(3, 1, 2, 2)
    };
    let trouble = Trouble {
        dies: Some(0),
        late: true,
    };
    holds(&compiled(0), scenario, trouble);
}

#[test]
fn a_link_back_with_too_few_places_would_fill_the_ring() {
    let actors = compiled(0);
    let enough = Scenario {
        greedy: 1,
        ..ring(2, 1, 3, 3)
    };
    holds(&actors, enough, QUIET);
    let short = Scenario {
        return_depth: 1,
        ..enough
    };
    let fault = explore(&actors, short, QUIET).fault.expect("a deadlock");
    assert!(fault.contains("nothing comes to its end"), "{fault}");
}

#[test]
fn a_credit_too_many_is_found() {
    link_bug(142, "races");
}

#[test]
fn a_release_that_is_too_early_is_found() {
    link_bug(143, "races");
}

#[test]
fn a_post_that_releases_nothing_is_found() {
    link_bug(144, "races");
}

#[test]
fn a_wait_without_acquire_is_found() {
    link_bug(145, "races");
}

#[test]
fn a_credit_that_is_given_back_too_early_is_found() {
    link_bug(146, "races");
}

#[test]
fn a_credit_that_releases_nothing_is_found() {
    link_bug(147, "races");
}

#[test]
fn an_announcement_that_releases_nothing_is_found() {
    is_found(148, announced(ring(2, 1, 2, 3)), QUIET, "races");
}

#[test]
fn an_announcement_without_acquire_is_found() {
    is_found(149, announced(ring(2, 1, 2, 3)), QUIET, "races");
}

#[test]
fn a_neighbour_whose_end_is_passed_over_is_found() {
    let trouble = Trouble {
        dies: Some(1),
        late: true,
    };
    is_found(140, ring(3, 1, 2, 2), trouble, "nothing comes to its end");
}

#[test]
fn a_wait_without_deadline_is_found() {
    let trouble = Trouble {
        dies: Some(1),
        late: true,
    };
    is_found(141, ring(2, 1, 2, 2), trouble, "nothing comes to its end");
}

/// Each request is taken once, in order by replica, and read before it is written over: also where a replica claims more
/// while it still reads what it has.
#[test]
fn replicas_share_a_queue() {
    let actors = compiled(0);
    let sizes = [
        (queue(2, 1, 3, 1), 0),
        (queue(2, 1, 3, 1), 1),
        (queue(1, 2, 4, 2), 1),
        (queue(3, 1, 2, 1), 0),
        (queue(2, 2, 3, 1), 1),
    ];
    for (scenario, keeps) in sizes {
        holds(&actors, Scenario { keeps, ..scenario }, QUIET);
    }
    // Those that begin alike are claimed together.
    let run = |scenario| Scenario { run: 1, ..scenario };
    holds(&actors, run(queue(2, 2, 4, 1)), QUIET);
    holds(&actors, run(queue(2, 1, 3, 1)), QUIET);
}

/// Whoever dies holding a claim keeps what it claimed, and the others run the rest as far as there is room for it.
#[test]
fn a_dead_replica_holds_up_no_other() {
    let trouble = Trouble {
        dies: Some(0),
        late: false,
    };
    holds(&compiled(0), queue(2, 3, 3, 2), trouble);
}

#[test]
fn bugs_of_the_queue_are_found() {
    let bugs = [
        (150, "races"),       // the host looks at holds before claims
        (151, "races"),       // no acquire
        (152, "races"),       // holds what it has claimed already
        (153, "taken twice"), // claims by a load and a store
        (154, "races"),       // gives back what it may still be reading
        (155, "races"),       // tells of a claim without what was said before it
    ];
    for (bug, expected) in bugs {
        is_found(bug, queue(2, 2, 3, 2), QUIET, expected);
    }
    // Says what it will hold next, and hides what it has given back.
    is_found(156, queue(1, 2, 4, 2), QUIET, "races");
}
