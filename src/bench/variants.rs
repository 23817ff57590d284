//! Which kernel variants of a bucket are worth measuring, and which of them is taken: without a GPU, so that it can be
//! tested. `tuning` measures.
//!
//! Families first, each with the parameters that it has nearby; then, of all that came near the fastest, one parameter
//! at a time, and once more around what that found. The fastest of all these meet again, for more rounds, and that decides: of so
//! many one may have been lucky, and a GPU at its limit of power takes what is quicker by less than a hundredth now for quicker and
//! now not.

use super::stats::summary;
use crate::backend::cuda::tuning::limits::SWAP_AB_ROWS;
use crate::backend::cuda::tuning::variants::{
    Entry, Experts, GROUPED_TILE_ROWS, Grouped, Linear, Variant,
};
use indexmap::IndexSet;
use statrs::distribution::{Binomial, DiscreteCDF};

/// Where no entry has the family.
const FIRST_SKINNY: Linear = Linear::Skinny { stages: 4 };
const FIRST_GROUPED: Experts = Experts::Grouped(Grouped {
    tile_rows: 32,
    stages: 6,
    predict: false,
    prefetch_mib: 0,
});
/// Rings that are measured.
const SKINNY_STAGES: [u32; 6] = [2, 3, 4, 5, 6, 8];
const GROUPED_STAGES: [u32; 7] = [4, 5, 6, 7, 8, 10, 12];
/// Beside swap-AB products.
const PREFETCH_MIB: [u32; 5] = [0, 8, 16, 24, 32];
/// Up to so many times the fastest family's time others may still win with other parameters.
const NEAR: f64 = 1.1;
/// What is taken in the place of the current choice is quicker in the median by so much, and in so many of the rounds that a coin
/// tossed as often comes up heads as often with at most this probability: in all of five, in 12 of 15.
const QUICKER: f64 = 0.997;
const CHANCE: f64 = 0.032;
/// Variants that meet again, beside the current choice.
const FINALISTS: usize = 3;

/// A variant, and what its step took in each round, in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Timed {
    pub variant: Variant,
    pub ms: Vec<f64>,
}

impl Timed {
    pub fn median_ms(&self) -> f64 {
        summary(&self.ms).map_or(f64::INFINITY, |ms| ms.median)
    }

    /// Whether the difference to `other`, measured in the same rounds, is none of chance.
    fn beats(&self, other: &Self) -> bool {
        let rounds = self.ms.iter().zip(&other.ms);
        let slower = rounds.filter(|(a, b)| a >= b).count() as u64;
        let tossed = Binomial::new(0.5, self.ms.len() as u64);
        tossed.is_ok_and(|tossed| tossed.cdf(slower) <= CHANCE)
            && self.median_ms() < QUICKER * other.median_ms()
    }
}

/// The fastest of those that beat the first, which is the current choice, or that one: ties go to it.
pub fn choose(timed: &[Timed]) -> &Timed {
    let beating = timed.iter().filter(|one| one.beats(&timed[0]));
    let fastest = beating.min_by(|a, b| a.median_ms().total_cmp(&b.median_ms()));
    fastest.unwrap_or(&timed[0])
}

/// Every family of products with every family of experts that may be for so many rows, the current variant first: with its
/// parameters, or those of the entry next to `rows` that has the family.
pub fn families(current: Variant, entries: &[Entry], rows: u32) -> Vec<Variant> {
    let mut nearby: Vec<&Entry> = entries.iter().collect();
    nearby.sort_by_key(|entry| entry.rows.abs_diff(rows));
    let all = || std::iter::once(current).chain(nearby.iter().map(|entry| entry.variant));
    let mut linear = all().map(|variant| variant.linear);
    let skinny = linear.find(|linear| matches!(linear, Linear::Skinny { .. }));
    let skinny = skinny.unwrap_or(FIRST_SKINNY);
    let mut experts = all().map(|variant| variant.experts);
    let grouped = experts.find(|experts| matches!(experts, Experts::Grouped(_)));
    let grouped = grouped.unwrap_or(FIRST_GROUPED);
    let (of_linear, of_experts) = if rows <= SWAP_AB_ROWS {
        (
            &[skinny, Linear::SwapAb, Linear::Tiled][..],
            &[Experts::Skinny, Experts::Fused, grouped, Experts::Tiled][..],
        )
    } else {
        (
            &[Linear::Persistent, Linear::Tiled][..],
            &[grouped, Experts::Persistent, Experts::Tiled][..],
        )
    };
    let mut found = IndexSet::from([current]);
    for &linear in of_linear {
        let experts = of_experts.iter().map(|experts| experts.beside(linear));
        let goes = experts.filter(|experts| !experts.follow_skinny() || linear == skinny);
        found.extend(goes.map(|experts| Variant { linear, experts }));
    }
    Vec::from_iter(found)
}

/// What came near the fastest, that one included.
pub fn near(timed: &[Timed]) -> Vec<Variant> {
    let medians = timed.iter().map(Timed::median_ms);
    let fastest = medians.fold(f64::INFINITY, f64::min);
    let close = timed.iter();
    let close = close.filter(|timed| timed.median_ms() <= NEAR * fastest);
    close.map(|timed| timed.variant).collect()
}

/// The variants that decide it, of all measured: `current` first, then the fastest others.
pub fn finalists(current: Variant, measured: &[Timed]) -> Vec<Variant> {
    let mut by_time: Vec<&Timed> = measured.iter().collect();
    by_time.sort_by(|a, b| a.median_ms().total_cmp(&b.median_ms()));
    let mut found = IndexSet::from([current]);
    found.extend(by_time.iter().map(|timed| timed.variant));
    found.into_iter().take(1 + FINALISTS).collect()
}

/// `current` first, then all that differ from one of `around` in one parameter.
pub fn refined(current: Variant, around: &[Variant]) -> Vec<Variant> {
    let mut found = IndexSet::from([current]);
    for &Variant { linear, experts } in around {
        let mut add = |linear, experts| found.insert(Variant { linear, experts });
        add(linear, experts);
        if let Linear::Skinny { .. } = linear {
            for stages in SKINNY_STAGES {
                add(Linear::Skinny { stages }, experts);
            }
        }
        let Experts::Grouped(grouped) = experts else {
            continue;
        };
        let mut add = |change: &dyn Fn(&mut Grouped)| {
            let mut changed = grouped;
            change(&mut changed);
            add(linear, Experts::Grouped(changed));
        };
        for tile_rows in GROUPED_TILE_ROWS {
            add(&|grouped| grouped.tile_rows = tile_rows);
        }
        for stages in GROUPED_STAGES {
            add(&|grouped| grouped.stages = stages);
        }
        add(&|grouped| grouped.predict = !grouped.predict);
        if matches!(linear, Linear::SwapAb | Linear::Persistent) {
            for prefetch_mib in PREFETCH_MIB {
                add(&|grouped| grouped.prefetch_mib = prefetch_mib);
            }
        }
    }
    Vec::from_iter(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::tuning::variants::Architecture;
    use crate::model::DType;

    const SKINNY: Variant = Variant {
        linear: Linear::Skinny { stages: 3 },
        experts: Experts::Skinny,
    };

    fn grouped(tile_rows: u32) -> Grouped {
        Grouped {
            tile_rows,
            stages: 5,
            predict: false,
            prefetch_mib: 0,
        }
    }

    fn swap_ab(tile_rows: u32) -> Variant {
        Variant {
            linear: Linear::SwapAb,
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
        let with = |ms: [f64; 5]| choose(&[current.clone(), timed(swap_ab(32), ms)]).variant;
        assert_eq!(with([1.9, 2.0, 1.9, 1.9, 1.9]), swap_ab(32));
        let in_four = [1.9, 2.2, 1.9, 1.9, 1.9];
        let a_little = [1.999, 2.099, 1.999, 1.999, 1.999];
        assert_eq!([in_four, a_little].map(with), [SKINNY; 2]);
        let fastest = timed(Variant::TILED, [1.0; 5]);
        let all = [current.clone(), timed(swap_ab(32), [1.5; 5]), fastest];
        assert_eq!(choose(&all).variant, Variant::TILED);
        assert_eq!(choose(&all[..1]).variant, SKINNY);
        // Not all of many rounds need be quicker: 576 of 32,768 tosses have 12 heads and more of 15, 1,941 have 11.
        let quicker_in = |wins: usize| {
            let ms = |round| if round < wins { 1.9 } else { 2.1 };
            let other: [f64; 15] = std::array::from_fn(ms);
            choose(&[timed(SKINNY, [2.0; 15]), timed(swap_ab(32), other)]).variant
        };
        assert_eq!([12, 11].map(quicker_in), [swap_ab(32), SKINNY]);
    }

    #[test]
    fn the_fastest_go_on() {
        let of = |rows, ms| timed(swap_ab(rows), [ms; 3]);
        let skinny = timed(SKINNY, [1.0; 3]);
        let measured = [
            of(8, 3.0),
            skinny,
            of(16, 1.5),
            of(32, 1.2),
            of(32, 1.25),
            of(64, 1.05),
        ];
        assert_eq!(near(&measured), [SKINNY, swap_ab(64)]);
        let found = finalists(SKINNY, &measured);
        assert_eq!(
            found,
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
        assert_eq!((found[0], found.len()), (SKINNY, 8));
        let hybrid = Variant {
            linear: SKINNY.linear,
            ..swap_ab(16)
        };
        for variant in [swap_ab(16), hybrid, Variant::TILED] {
            assert!(found.contains(&variant), "{variant} in {found:?}");
        }
        let alone = |v: &Variant| v.experts.follow_skinny() && v.linear != SKINNY.linear;
        assert!(!found.iter().any(alone), "{found:?}");
        let many = families(Variant::PERSISTENT, &entries, 512);
        assert_eq!((many[0], many.len()), (Variant::PERSISTENT, 6));
        let grouped_alone = Variant {
            linear: Linear::Persistent,
            ..swap_ab(64)
        };
        assert!(many.contains(&grouped_alone), "{many:?}");
        // What only some products can prefetch stays with these.
        let prefetching = Variant {
            experts: Experts::Grouped(Grouped {
                prefetch_mib: 16,
                ..grouped(64)
            }),
            ..swap_ab(64)
        };
        let found = families(prefetching, &[], 256);
        for variant in found
            .iter()
            .filter(|v| matches!(v.experts, Experts::Grouped(_)))
        {
            let checked = variant.check(Architecture::Sm90, DType::BF16, 8);
            assert_eq!(checked, Ok(()), "{variant}");
        }
    }

    #[test]
    fn one_parameter_changes_at_a_time() {
        let found = refined(SKINNY, &[swap_ab(16)]);
        let at = grouped(16);
        let changes = |variant: &Variant| match variant.experts {
            Experts::Grouped(shape) if variant.linear == Linear::SwapAb => {
                u32::from(shape.tile_rows != at.tile_rows)
                    + u32::from(shape.stages != at.stages)
                    + u32::from(shape.predict != at.predict)
                    + u32::from(shape.prefetch_mib != at.prefetch_mib)
            }
            _ => panic!("{variant:?}"),
        };
        assert!(found[1..].iter().all(|variant| changes(variant) <= 1));
        assert_eq!(found[0], SKINNY);
        assert!(found.contains(&swap_ab(8)) && found.contains(&swap_ab(64)));
        let prefetching = |found: &[Variant]| {
            let texts = found.iter().map(Variant::to_string);
            texts.filter(|text| text.contains("prefetched")).count()
        };
        assert_eq!(prefetching(&found), PREFETCH_MIB.len() - 1);
        let by_tiled = Variant {
            linear: Linear::Tiled,
            ..swap_ab(16)
        };
        assert_eq!(prefetching(&refined(by_tiled, &[by_tiled])), 0);
        // The current one is among them.
        assert_eq!(refined(SKINNY, &[SKINNY]).len(), SKINNY_STAGES.len());
    }
}
