//! How rows spread over experts, counted from the routers' own choices in runs that nobody times.

use crate::backend::RoutingSink;
use crate::error::{Error, Result};
use crate::plan::StepKind;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
        let shares = choices.values().flat_map(|counts| {
            let all: u64 = counts.iter().sum();
            counts.iter().map(move |&count| count as f64 / all as f64)
        });
        let (least, most) = shares.fold((1.0_f64, 0.0_f64), |(least, most), share| {
            (least.min(share), most.max(share))
        });
        let sum: u64 = hit.iter().map(|&hit| u64::from(hit)).sum();
        let counted = |value: f64| (!hit.is_empty()).then_some(value);
        Spread {
            experts_hit_min: hit.iter().min().copied(),
            experts_hit_mean: counted(sum as f64 / hit.len() as f64),
            experts_hit_max: hit.iter().max().copied(),
            expert_share_min: counted(least),
            expert_share_mean: counted(1.0 / self.experts as f64),
            expert_share_max: counted(most),
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
        if !counted.of.is_some_and(counts) {
            return Ok(());
        }
        let choices = counted.choices.entry(layer);
        let choices = choices.or_insert_with(|| vec![0; self.experts]);
        let mut hit = vec![false; self.experts];
        for &expert in experts {
            let place = expert as usize;
            if place >= self.experts {
                return Err(Error::Runtime(format!(
                    "the router of layer {layer} chose expert {expert}, expected one below {}: this is a bug in tailgraph",
                    self.experts
                )));
            }
            choices[place] += 1;
            hit[place] = true;
        }
        let hit = hit.into_iter().filter(|&hit| hit).count() as u32;
        counted.hit.push(hit);
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
        // Of another kind, of another size.
        tell(StepKind::Mixed, 3, &[3, 3, 3, 3]);
        tell(StepKind::Decode, 3, &[1, 3]);
        let spread = counts.end();
        let hit = (spread.experts_hit_min, spread.experts_hit_max);
        assert_eq!(hit, (Some(2), Some(4)));
        assert_eq!(spread.experts_hit_mean, Some(3.0));
        // Layer 4 goes to 0 and 1 alone; layer 3 has 3, 2, 2 and 1 of 8.
        assert_eq!(
            (spread.expert_share_min, spread.expert_share_max),
            (Some(0.0), Some(0.5))
        );
        assert_eq!(spread.expert_share_mean, Some(0.25));
        assert_eq!(counts.end(), Spread::default(), "each point counts anew");
    }

    #[test]
    fn prompts_count_in_steps_of_any_size() {
        let counts = Counts::new(4, 1);
        counts.begin(Some((StepKind::Mixed, None)));
        for rows in [1, 3] {
            counts.routed(StepKind::Mixed, 0, &vec![2; rows]).unwrap();
        }
        assert_eq!(counts.end().expert_share_max, Some(1.0));
        counts.begin(None);
        counts.routed(StepKind::Mixed, 0, &[0]).unwrap();
        assert_eq!(counts.end(), Spread::default());
    }

    #[test]
    fn an_expert_that_there_is_not_is_an_error() {
        let counts = Counts::new(4, 1);
        counts.begin(Some((StepKind::Score, None)));
        let error = counts.routed(StepKind::Score, 7, &[4]).unwrap_err();
        assert!(
            error.to_string().contains("layer 7 chose expert 4"),
            "{error}"
        );
    }
}
