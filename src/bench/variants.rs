//! Which kernel variants of a bucket are worth measuring, and which of them is taken: without a GPU, so that it can be
//! tested. `tuning` measures.
//!
//! Families first, each with the parameters that it has nearby; then, of all that came near the fastest, one parameter
//! at a time, and once more around what that found. The fastest of all these meet again, for more rounds, and that decides: of so
//! many one may have been lucky, and a GPU at its limit of power takes what is quicker by less than a hundredth now for quicker and
//! now not.

use super::stats::{quantile, sorted};
use crate::backend::cuda::tuning::limits::SWAP_AB_ROWS;
use crate::backend::cuda::tuning::variants::{
    Entry, Experts, GROUPED_TILE_ROWS, Grouped, Products, Variant,
};

/// Where no entry has the family.
const FIRST_SKINNY_STAGES: u32 = 4;
const FIRST_GROUPED: Grouped = Grouped {
    tile_rows: 32,
    stages: 6,
    guess: false,
    prefetch_mib: 0,
};
/// Rings that are measured.
const SKINNY_STAGES: [u32; 6] = [2, 3, 4, 5, 6, 8];
const GROUPED_STAGES: [u32; 7] = [4, 5, 6, 7, 8, 10, 12];
/// Beside swap-AB products.
const PREFETCH_MIB: [u32; 5] = [0, 8, 16, 24, 32];
/// Up to so many times the fastest family's time others may still win with other parameters.
const NEAR: f64 = 1.1;
/// What is taken in the place of the current choice is quicker in the median by so much,
const QUICKER: f64 = 0.997;
/// ... and in so many of the rounds that it would be by chance once in 32 times at most: in all of five.
const CHANCE: f64 = 1.0 / 32.0;
/// Those that meet again, beside the current choice.
const FINALISTS: usize = 3;

/// A variant, and what its step took in each round, in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Timed {
    pub variant: Variant,
    pub ms: Vec<f64>,
}

impl Timed {
    pub fn median_ms(&self) -> f64 {
        quantile(&sorted(&self.ms), 0.5)
    }

    /// Whether the difference to `other`, measured in the same rounds, is none of chance.
    fn beats(&self, other: &Self) -> bool {
        let rounds = self.ms.iter().zip(&other.ms);
        let quicker = rounds.clone().filter(|(a, b)| a < b).count();
        quicker >= wins_needed(rounds.len()) && self.median_ms() < QUICKER * other.median_ms()
    }
}

/// The fewest of so many tosses of a coin that all of them, or more, come up heads with a probability of at most [`CHANCE`]; more than
/// there are where they are too few.
fn wins_needed(tosses: usize) -> usize {
    let mut exactly = 0.5f64.powi(tosses as i32);
    let mut at_least = 0.0;
    for wins in (0..=tosses).rev() {
        at_least += exactly;
        if at_least > CHANCE {
            return wins + 1;
        }
        exactly *= wins as f64 / (tosses - wins + 1) as f64;
    }
    0
}

/// The fastest of those that beat `timed[current]`, or that one: ties go to the current choice.
pub fn choose(timed: &[Timed], current: usize) -> usize {
    let beating = (0..timed.len()).filter(|&index| timed[index].beats(&timed[current]));
    let fastest = beating.min_by(|&a, &b| timed[a].median_ms().total_cmp(&timed[b].median_ms()));
    fastest.unwrap_or(current)
}

/// Every family of products with every family of experts that may be for so many rows, the current variant first: with its
/// parameters, or those of the entry next to `rows` that has the family.
pub fn families(current: Variant, entries: &[Entry], rows: u32) -> Vec<Variant> {
    let mut nearby: Vec<&Entry> = entries.iter().collect();
    nearby.sort_by_key(|entry| entry.rows.abs_diff(rows));
    let all = || std::iter::once(current).chain(nearby.iter().map(|entry| entry.variant));
    let stages = all().find_map(|variant| match variant.products {
        Products::Skinny { stages } => Some(stages),
        Products::SwapAb | Products::Persistent | Products::Tiled => None,
    });
    let grouped = all().find_map(|variant| match variant.experts {
        Experts::Grouped(grouped) => Some(grouped),
        Experts::Skinny | Experts::Fused | Experts::Persistent | Experts::Tiled => None,
    });
    let skinny = Products::Skinny {
        stages: stages.unwrap_or(FIRST_SKINNY_STAGES),
    };
    let grouped = Experts::Grouped(grouped.unwrap_or(FIRST_GROUPED));
    let (of_products, of_experts) = match rows <= SWAP_AB_ROWS {
        true => (
            &[skinny, Products::SwapAb, Products::Tiled][..],
            &[Experts::Skinny, Experts::Fused, grouped, Experts::Tiled][..],
        ),
        false => (
            &[Products::Persistent, Products::Tiled][..],
            &[grouped, Experts::Persistent, Experts::Tiled][..],
        ),
    };
    let mut found = vec![current];
    for &products in of_products {
        for experts in of_experts.iter().map(|experts| experts.beside(products)) {
            let variant = Variant { products, experts };
            let goes = !experts.follow_skinny() || products == skinny;
            if goes && !found.contains(&variant) {
                found.push(variant);
            }
        }
    }
    found
}

/// What came near the fastest, that one included.
pub fn near(timed: &[Timed]) -> Vec<Variant> {
    let medians = timed.iter().map(Timed::median_ms);
    let fastest = medians.fold(f64::INFINITY, f64::min);
    let close = timed
        .iter()
        .filter(|timed| timed.median_ms() <= NEAR * fastest);
    close.map(|timed| timed.variant).collect()
}

/// Those of all measured that decide it: `current` first, then the fastest others.
pub fn finalists(current: Variant, measured: &[Timed]) -> Vec<Variant> {
    let mut by_time: Vec<&Timed> = measured.iter().collect();
    by_time.sort_by(|a, b| a.median_ms().total_cmp(&b.median_ms()));
    let mut found = vec![current];
    for timed in by_time {
        if found.len() <= FINALISTS && !found.contains(&timed.variant) {
            found.push(timed.variant);
        }
    }
    found
}

/// `current` first, then all that differ from one of `around` in one parameter.
pub fn refined(current: Variant, around: &[Variant]) -> Vec<Variant> {
    let mut found = vec![current];
    let mut add = |variant| {
        if !found.contains(&variant) {
            found.push(variant);
        }
    };
    for &variant in around {
        add(variant);
        let Variant { products, experts } = variant;
        if let Products::Skinny { .. } = products {
            for stages in SKINNY_STAGES {
                let products = Products::Skinny { stages };
                add(Variant { products, experts });
            }
        }
        if let Experts::Grouped(grouped) = experts {
            let mut shaped = |grouped| {
                let experts = Experts::Grouped(grouped);
                add(Variant { products, experts });
            };
            for tile_rows in GROUPED_TILE_ROWS {
                shaped(Grouped {
                    tile_rows,
                    ..grouped
                });
            }
            for stages in GROUPED_STAGES {
                shaped(Grouped { stages, ..grouped });
            }
            for guess in [false, true] {
                shaped(Grouped { guess, ..grouped });
            }
            for prefetch_mib in PREFETCH_MIB {
                if matches!(products, Products::SwapAb | Products::Persistent) {
                    shaped(Grouped {
                        prefetch_mib,
                        ..grouped
                    });
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::tuning::variants::Architecture;
    use crate::model::DType;

    const SKINNY: Variant = Variant {
        products: Products::Skinny { stages: 3 },
        experts: Experts::Skinny,
    };

    fn grouped(tile_rows: u32) -> Grouped {
        Grouped {
            tile_rows,
            stages: 5,
            guess: false,
            prefetch_mib: 0,
        }
    }

    fn swap_ab(tile_rows: u32) -> Variant {
        Variant {
            products: Products::SwapAb,
            experts: Experts::Grouped(grouped(tile_rows)),
        }
    }

    fn timed<const ROUNDS: usize>(variant: Variant, ms: [f64; ROUNDS]) -> Timed {
        let ms = ms.to_vec();
        Timed { variant, ms }
    }

    #[test]
    fn ties_go_to_the_current_choice() {
        let current = timed(SKINNY, [2.0, 2.1, 2.0, 2.0, 2.0]);
        let with = |other: [f64; 5]| choose(&[current.clone(), timed(swap_ab(32), other)], 0);
        assert_eq!(with([1.9, 2.0, 1.9, 1.9, 1.9]), 1);
        assert_eq!(with([1.9, 2.2, 1.9, 1.9, 1.9]), 0, "not in every round");
        let a_little = [1.999, 2.099, 1.999, 1.999, 1.999];
        assert_eq!(with(a_little), 0, "too little");
        let fastest = timed(Variant::TILED, [1.0; 5]);
        let all = [current.clone(), timed(swap_ab(32), [1.5; 5]), fastest];
        assert_eq!(choose(&all, 0), 2);
        assert_eq!(choose(&all[..1], 0), 0);
    }

    #[test]
    fn of_many_rounds_not_all_need_be_quicker() {
        let needed = [0, 1, 4, 5, 6, 7, 8, 15].map(wins_needed);
        // 12 of 15: 576 of 32,768 tosses; 11: 1,941.
        assert_eq!(needed, [1, 2, 5, 5, 6, 7, 8, 12]);
        let quicker_in = |rounds: usize| -> [f64; 15] {
            std::array::from_fn(|round| if round < rounds { 1.9 } else { 2.1 })
        };
        let rounds = |quicker| timed(swap_ab(32), quicker_in(quicker));
        let current = timed(SKINNY, [2.0; 15]);
        assert_eq!(choose(&[current.clone(), rounds(12)], 0), 1);
        assert_eq!(choose(&[current, rounds(11)], 0), 0, "chance");
    }

    #[test]
    fn the_fastest_meet_again() {
        let of = |rows, ms| timed(swap_ab(rows), [ms; 3]);
        let measured = [
            of(8, 3.0),
            timed(SKINNY, [1.0; 3]),
            of(16, 1.5),
            of(32, 1.2),
        ];
        assert_eq!(
            finalists(SKINNY, &measured),
            [SKINNY, swap_ab(32), swap_ab(16), swap_ab(8)]
        );
        let again = [&measured[..], &[of(64, 1.1), of(64, 1.3), of(32, 1.25)]].concat();
        assert_eq!(
            finalists(SKINNY, &again),
            [SKINNY, swap_ab(64), swap_ab(32), swap_ab(16)],
            "each once"
        );
        assert_eq!(finalists(SKINNY, &measured[1..2]), [SKINNY]);
    }

    #[test]
    fn families_begin_with_what_is_nearby() {
        let entry = |rows, variant| Entry {
            rows,
            variant,
            ms: None,
        };
        let entries = [
            entry(1, SKINNY),
            entry(16, swap_ab(16)),
            entry(256, swap_ab(64)),
        ];
        let found = families(SKINNY, &entries, 8);
        assert_eq!(found[0], SKINNY);
        assert_eq!(found.len(), 8);
        assert!(found.contains(&swap_ab(16)), "{found:?}");
        let hybrid = Variant {
            products: SKINNY.products,
            experts: Experts::Grouped(grouped(16)),
        };
        assert!(found.contains(&hybrid) && found.contains(&Variant::TILED));
        let alone = |v: &Variant| v.experts.follow_skinny() && v.products != SKINNY.products;
        assert!(!found.iter().any(alone), "{found:?}");
        let prefetching = Variant {
            products: Products::SwapAb,
            experts: Experts::Grouped(Grouped {
                prefetch_mib: 16,
                ..grouped(64)
            }),
        };
        for variant in families(prefetching, &[], 256) {
            let checked = match variant.experts {
                Experts::Grouped(_) => variant.check(Architecture::Sm90, DType::BF16, 8),
                _ => Ok(()),
            };
            assert_eq!(checked, Ok(()), "{variant}");
        }
        let many = families(Variant::PERSISTENT, &entries, 512);
        assert_eq!((many[0], many.len()), (Variant::PERSISTENT, 6));
        let grouped_alone = Variant {
            products: Products::Persistent,
            ..swap_ab(64)
        };
        assert!(many.contains(&grouped_alone), "{many:?}");
        let without = families(Variant::TILED, &[], 8);
        assert_eq!((without[0], without.len()), (Variant::TILED, 8));
    }

    #[test]
    fn one_parameter_changes_at_a_time() {
        let found = refined(SKINNY, &[swap_ab(16)]);
        assert_eq!(found[0], SKINNY);
        for variant in &found[1..] {
            assert_eq!(variant.products, Products::SwapAb);
            let Experts::Grouped(shape) = variant.experts else {
                panic!("{variant:?}")
            };
            let Grouped {
                tile_rows,
                stages,
                guess,
                prefetch_mib,
            } = grouped(16);
            let changed = [
                shape.tile_rows != tile_rows,
                shape.stages != stages,
                shape.guess != guess,
                shape.prefetch_mib != prefetch_mib,
            ];
            assert!(changed.iter().filter(|&&c| c).count() <= 1, "{shape:?}");
        }
        assert!(found.contains(&swap_ab(8)) && found.contains(&swap_ab(64)));
        let prefetches = |variant: &&Variant| matches!(variant.experts, Experts::Grouped(grouped) if grouped.prefetch_mib > 0);
        assert_eq!(
            found.iter().filter(prefetches).count(),
            PREFETCH_MIB.len() - 1
        );
        let by_tiled = Variant {
            products: Products::Tiled,
            ..swap_ab(16)
        };
        let found = refined(by_tiled, &[by_tiled]);
        assert_eq!(found.iter().filter(prefetches).count(), 0, "nothing does");
        assert_eq!(
            refined(SKINNY, &[SKINNY]).len(),
            SKINNY_STAGES.len(),
            "the current one is among them"
        );
    }

    #[test]
    fn what_is_far_behind_is_left_alone() {
        let all = [
            timed(SKINNY, [1.0; 3]),
            timed(swap_ab(32), [1.05; 3]),
            timed(Variant::TILED, [2.0; 3]),
        ];
        assert_eq!(near(&all), [SKINNY, swap_ab(32)]);
    }
}
