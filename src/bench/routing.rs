//! How rows spread over experts, counted from the routers' own choices in runs that nobody times.

use super::stats::sorted;
use crate::backend::RoutingSink;
use crate::error::Result;
use crate::plan::StepKind;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};

/// Where rows went in all steps of a point's kind and all layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Spread {
    /// Experts that at least one row of a step goes to, in one layer: whose weights the step reads.
    pub experts_hit_min: Option<u32>,
    pub experts_hit_mean: Option<f64>,
    pub experts_hit_max: Option<u32>,
    /// The share of a layer's choices over the run that are one expert's: the least and the most chosen one of any layer, and what
    /// each would have were all chosen alike.
    pub expert_share_min: Option<f64>,
    pub expert_share_mean: Option<f64>,
    pub expert_share_max: Option<f64>,
}

/// Counts the steps of one point after the other.
pub struct Counts {
    experts: usize,
    /// Experts that a row chooses.
    chosen: usize,
    counted: Mutex<Counted>,
}

#[derive(Default)]
struct Counted {
    /// Which steps count: of this kind, and of so many rows where that matters.
    of: Option<(StepKind, Option<u32>)>,
    /// By layer and expert.
    choices: BTreeMap<usize, Vec<u64>>,
    /// Experts that were hit in each layer of each step.
    hit: Vec<u32>,
}

impl Counts {
    /// For layers of `experts` experts of which each row goes to `chosen`.
    pub fn new(experts: usize, chosen: usize) -> Self {
        Self {
            experts,
            chosen,
            counted: Mutex::default(),
        }
    }

    /// Counts the steps of a kind, and of so many rows where that matters.
    pub fn begin(&self, of: Option<(StepKind, Option<u32>)>) {
        *self.counted.lock() = Counted {
            of,
            ..Counted::default()
        };
    }

    /// What it came to; nothing where no step counted.
    pub fn end(&self) -> Spread {
        let Counted { choices, hit, .. } = std::mem::take(&mut *self.counted.lock());
        if hit.is_empty() {
            return Spread::default();
        }
        let shares = choices.values().flat_map(|counts| {
            let all: u64 = counts.iter().sum();
            counts.iter().map(move |&count| count as f64 / all as f64)
        });
        let shares = sorted(&shares.collect::<Vec<_>>());
        let sum: u64 = hit.iter().map(|&hit| u64::from(hit)).sum();
        Spread {
            experts_hit_min: hit.iter().min().copied(),
            experts_hit_mean: Some(sum as f64 / hit.len() as f64),
            experts_hit_max: hit.iter().max().copied(),
            expert_share_min: shares.first().copied(),
            expert_share_mean: Some(1.0 / self.experts as f64),
            expert_share_max: shares.last().copied(),
        }
    }
}

impl RoutingSink for Counts {
    fn routed(&self, kind: StepKind, layer: usize, experts: &[u32]) -> Result<()> {
        let mut counted = self.counted.lock();
        let rows = experts.len() / self.chosen;
        let counts = |(of, size): (StepKind, Option<u32>)| {
            of == kind && rows > 0 && size.is_none_or(|size| size as usize == rows)
        };
        if counted.of.is_some_and(counts) {
            let none = || vec![0; self.experts];
            let choices = counted.choices.entry(layer).or_insert_with(none);
            for &expert in experts {
                choices[expert as usize] += 1;
            }
            let hit: HashSet<_> = experts.iter().collect();
            counted.hit.push(hit.len() as u32);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_of_known_steps() {
        let counts = Counts::new(4, 2);
        counts.begin(Some((StepKind::Decode, Some(2))));
        let tell = |kind, layer, experts: &[u32]| counts.routed(kind, layer, experts).unwrap();
        tell(StepKind::Decode, 3, &[0, 1, 0, 2]);
        tell(StepKind::Decode, 4, &[0, 1, 0, 1]);
        tell(StepKind::Decode, 3, &[0, 3, 1, 2]);
        // Steps of another kind, and of another size, do not count.
        tell(StepKind::Mixed, 3, &[3, 3, 3, 3]);
        tell(StepKind::Decode, 3, &[1, 3]);
        // Layer 4 goes to 0 and 1 alone; layer 3 has 3, 2, 2 and 1 of 8.
        let expected = Spread {
            experts_hit_min: Some(2),
            experts_hit_mean: Some(3.0),
            experts_hit_max: Some(4),
            expert_share_min: Some(0.0),
            expert_share_mean: Some(0.25),
            expert_share_max: Some(0.5),
        };
        assert_eq!(counts.end(), expected);
        // Prompts count in steps of any size; each point counts anew, or not at all.
        counts.begin(Some((StepKind::Mixed, None)));
        tell(StepKind::Mixed, 0, &[2, 3]);
        tell(StepKind::Mixed, 0, &[2, 3, 2, 3]);
        assert_eq!(counts.end().expert_share_max, Some(0.5));
        counts.begin(None);
        tell(StepKind::Mixed, 0, &[0, 1]);
        assert_eq!(counts.end(), Spread::default());
    }
}
