//! `--expect FILE`: logits held against a file of logits, row by row as they come.
//!
//! VALID means: every top-1 token agrees, ties aside, and the relative error (norm of the differences over the
//! norm of what was expected, pooled over all prompts) is within the tolerance. A tie is a position whose
//! expected logits at the two tokens differ by no more than the tolerance times the largest expected
//! magnitude there; each is shown. Agreement and the KL divergence of what is found from what is expected are told by ranges of
//! positions: what other weights or types cost shows there.

use super::arrays::LogitsTarget;
use super::tensors::TensorFile;
use crate::error::{Error, Result};
use crate::model::{DType, WeightFormat};
use crate::quote;
use safetensors::Dtype;
use std::sync::Arc;

/// The relative error that is within the tolerance of a run in `dtype` where nobody says otherwise.
pub fn default_tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 1e-4,
        DType::BF16 | DType::F16 => 5e-2,
    }
}

/// What is expected of one request.
#[derive(Debug, Clone, Default)]
struct Prompt {
    name: String,
    /// Only the last position is compared.
    last_only: bool,
    /// The last position of the prompt.
    last: u32,
    compared: u64,
    difference_squared: f64,
    expected_squared: f64,
}

fn relative(difference_squared: f64, expected_squared: f64) -> f64 {
    if difference_squared == 0.0 {
        return 0.0;
    }
    (difference_squared / expected_squared).sqrt()
}

/// How far apart distributions are, over positions from `first` to twice that.
#[derive(Debug, Clone, Default)]
struct Divergence {
    first: u32,
    positions: u64,
    agreeing: u64,
    /// The sum of KL(expected, found), in nats.
    kl: f64,
}

impl Divergence {
    /// The first position of the range that `position` is in: 0 to 31, 32 to 63, 64 to 127 and so on.
    fn first_of(position: u32) -> u32 {
        match position.checked_ilog2() {
            Some(log) if log >= 5 => 1 << log,
            _ => 0,
        }
    }

    /// That of the range of `position`, among all, which are in the order of positions.
    fn at(all: &mut Vec<Self>, position: u32) -> &mut Self {
        let first = Self::first_of(position);
        let place = all.partition_point(|range| range.first < first);
        if all.get(place).is_none_or(|range| range.first != first) {
            let none = Self {
                first,
                ..Self::default()
            };
            all.insert(place, none);
        }
        &mut all[place]
    }

    /// The mean of `ranges`, as a report shows it.
    fn mean_kl(ranges: &[Self]) -> String {
        let kl: f64 = ranges.iter().map(|range| range.kl).sum();
        let positions: u64 = ranges.iter().map(|range| range.positions).sum();
        format!("mean KL divergence {:.3e} nats", kl / positions as f64)
    }
}

/// KL(expected, found) of the distributions that these logits are of, in nats.
fn kl_divergence(expected: &[f32], found: &[f32]) -> f64 {
    let [most_p, most_q] = [expected, found].map(|logits| f64::from(logits[top(logits)]));
    let (mut sum_p, mut sum_q, mut sum) = (0.0, 0.0, 0.0);
    for (&p, &q) in expected.iter().zip(found) {
        let (p, q) = (f64::from(p), f64::from(q));
        let weight = (p - most_p).exp();
        sum_p += weight;
        sum_q += (q - most_q).exp();
        sum += weight * (p - q);
    }
    let sum = sum / sum_p - (most_p + sum_p.ln()) + (most_q + sum_q.ln());
    // Rounding alone makes it negative. What is no number stays so.
    if sum < 0.0 { 0.0 } else { sum }
}

/// Positions where another token is on top than expected.
#[derive(Debug, Clone, Default)]
struct Disagreements {
    count: usize,
    /// The first of them, as a report shows them.
    shown: Vec<String>,
}

/// Lines of each kind of disagreement in a report.
const SHOWN_AT_MOST: usize = 20;

/// The comparison as far as it has come.
#[derive(Debug, Clone)]
pub struct Comparison {
    file: Arc<TensorFile>,
    tolerance: f64,
    prompts: Vec<Prompt>,
    /// By ranges of positions, in their order.
    divergences: Vec<Divergence>,
    ties: Disagreements,
    wrong: Disagreements,
    largest: Option<Largest>,
    /// Positions where either side has a NaN or an infinity.
    not_finite: u64,
}

#[derive(Debug, Clone)]
struct Largest {
    difference: f64,
    prompt: usize,
    position: u32,
    token: usize,
}

impl Comparison {
    /// `targets` in the order of submission; with `last_only` the run computes last positions only.
    ///
    /// # Errors
    /// A `logits.{i}` is missing or has a shape or type that cannot be compared.
    pub fn new(
        file: TensorFile,
        targets: &[LogitsTarget],
        vocab_size: usize,
        tolerance: f64,
        last_only: bool,
    ) -> Result<Self> {
        let prompts = targets
            .iter()
            .map(|target| expected_prompt(&file, target, vocab_size, last_only))
            .collect::<Result<_>>()?;
        Ok(Self {
            file: Arc::new(file),
            tolerance,
            prompts,
            divergences: Vec::new(),
            ties: Disagreements::default(),
            wrong: Disagreements::default(),
            largest: None,
            not_finite: 0,
        })
    }

    /// Compares the logits `[V]` of one position of request `request`.
    pub fn add(&mut self, request: usize, position: u32, logits: &[f32]) {
        let prompt = &mut self.prompts[request];
        if prompt.last_only && position != prompt.last {
            return;
        }
        let Some(array) = self.file.get(&prompt.name) else {
            return;
        };
        let all = self.file.bytes(array);
        // `[V]` holds the last row alone, `[T, V]` all of them.
        let (row, rows) = match array.shape[..] {
            [_] => (0, 1),
            _ => (position as usize, array.shape[0]),
        };
        let row_bytes = all.len() / rows;
        let expected = widen(array.dtype, &all[row * row_bytes..(row + 1) * row_bytes]);
        prompt.compared += 1;

        let mut finite = true;
        for (token, (&found, &wanted)) in logits.iter().zip(&expected).enumerate() {
            let difference = f64::from(found) - f64::from(wanted);
            finite &= difference.is_finite();
            prompt.difference_squared += difference * difference;
            prompt.expected_squared += f64::from(wanted) * f64::from(wanted);
            let difference = difference.abs();
            let largest = self.largest.as_ref();
            if difference.is_finite() && largest.is_none_or(|l| difference > l.difference) {
                self.largest = Some(Largest {
                    difference,
                    prompt: request,
                    position,
                    token,
                });
            }
        }
        self.not_finite += u64::from(!finite);
        let (found, wanted) = (top(logits), top(&expected));
        let divergence = Divergence::at(&mut self.divergences, position);
        divergence.positions += 1;
        divergence.kl += kl_divergence(&expected, logits);
        if found == wanted {
            divergence.agreeing += 1;
            return;
        }
        let scale = expected.iter().fold(0.0_f32, |a, &b| a.max(b.abs()));
        let gap = f64::from(expected[wanted]) - f64::from(expected[found]);
        // An infinite logit is as far from any as its own scale.
        let is_tie = gap.is_finite() && gap <= self.tolerance * f64::from(scale);
        let (kind, what) = if is_tie {
            (&mut self.ties, "tie")
        } else {
            (&mut self.wrong, "disagrees")
        };
        kind.count += 1;
        if kind.count <= SHOWN_AT_MOST {
            kind.shown.push(format!(
                "{what}: {} position {position}: expected token {wanted} ({}), found {found} ({})",
                prompt.name, expected[wanted], expected[found]
            ));
        }
    }

    /// Norm of all differences over the norm of all expected logits.
    pub fn relative(&self) -> f64 {
        let sum = |part: fn(&Prompt) -> f64| self.prompts.iter().map(part).sum::<f64>();
        relative(sum(|p| p.difference_squared), sum(|p| p.expected_squared))
    }

    /// Whether every position that was to be compared was, and none is further off than the tolerance allows.
    pub fn is_valid(&self) -> bool {
        let (compared, wanted) = (self.agreement().1, self.wanted());
        wanted > 0
            && compared == wanted
            && self.not_finite == 0
            && self.relative() <= self.tolerance
            && self.wrong.count == 0
    }

    /// Positions that are to be compared.
    fn wanted(&self) -> u64 {
        let wanted = |p: &Prompt| {
            if p.last_only {
                1
            } else {
                u64::from(p.last) + 1
            }
        };
        self.prompts.iter().map(wanted).sum()
    }

    /// Positions whose top-1 token is the expected one, and positions compared.
    pub fn agreement(&self) -> (u64, u64) {
        let agreeing = self.divergences.iter().map(|d| d.agreeing).sum();
        (agreeing, self.prompts.iter().map(|p| p.compared).sum())
    }

    /// The report, several lines, the verdict last.
    pub fn report(&self) -> String {
        let mut lines = Vec::new();
        for (what, kind) in [("tie", &self.ties), ("disagrees", &self.wrong)] {
            lines.extend(kind.shown.iter().cloned());
            if kind.count > SHOWN_AT_MOST {
                lines.push(format!("{what}: {} more", kind.count - SHOWN_AT_MOST));
            }
        }
        let (agreeing, positions) = self.agreement();
        let ties = self.ties.count;
        if self.divergences.len() > 1 {
            let range = |d: &Divergence| {
                let last = (2 * d.first).max(32) - 1;
                let kl = Divergence::mean_kl(std::slice::from_ref(d));
                format!(
                    "positions {} to {last}: top-1 agreement {}/{}, {kl}",
                    d.first, d.agreeing, d.positions
                )
            };
            lines.extend(self.divergences.iter().map(range));
        }
        lines.push(format!(
            "top-1 agreement {agreeing}/{positions}, ties {ties}"
        ));
        if positions > 0 {
            lines.push(Divergence::mean_kl(&self.divergences));
        }
        if let Some(l) = &self.largest {
            lines.push(format!(
                "largest absolute difference {:.3e} ({} position {} token {})",
                l.difference, self.prompts[l.prompt].name, l.position, l.token
            ));
        }
        let of_prompt = |p: &Prompt| {
            (
                relative(p.difference_squared, p.expected_squared),
                p.name.clone(),
            )
        };
        // What is no number is further off than all that are.
        let order = |relative: f64| {
            if relative.is_nan() {
                f64::INFINITY
            } else {
                relative
            }
        };
        let worst = self.prompts.iter().map(of_prompt);
        let worst = worst.max_by(|(a, _), (b, _)| order(*a).total_cmp(&order(*b)));
        let worst =
            worst.map(|(worst, name)| format!(" (largest of a prompt {worst:.3e}, {name})"));
        lines.push(format!(
            "relative difference {:.3e}{}",
            self.relative(),
            worst.unwrap_or_default()
        ));
        if self.not_finite > 0 {
            lines.push(format!(
                "positions with a NaN or an infinity: {}",
                self.not_finite
            ));
        }
        let wanted = self.wanted();
        if positions != wanted || wanted == 0 {
            lines.push(format!(
                "positions compared: {positions} of {wanted}, expected all of at least 1"
            ));
        }
        let verdict = if self.is_valid() { "VALID" } else { "INVALID" };
        lines.push(format!("{verdict} (tolerance {:e})\n", self.tolerance));
        lines.join("\n")
    }
}

/// The first of the largest.
fn top(logits: &[f32]) -> usize {
    let mut best = 0;
    for (token, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = token;
        }
    }
    best
}

fn widen(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let dtype = match dtype {
        Dtype::BF16 => WeightFormat::BF16,
        Dtype::F16 => WeightFormat::F16,
        _ => WeightFormat::F32,
    };
    let mut out = vec![0.0; bytes.len() / dtype.bytes()];
    crate::model::weights::widen(dtype, bytes, &mut out);
    out
}

fn expected_prompt(
    file: &TensorFile,
    target: &LogitsTarget,
    vocab_size: usize,
    last_only: bool,
) -> Result<Prompt> {
    let path = file.path();
    let name = format!("logits.{}", target.number);
    let Some(array) = file.get(&name) else {
        return Err(Error::file(
            path,
            format!("found no {name}, expected logits of every prompt"),
        ));
    };
    let tokens = target.tokens as usize;
    let shape_fits = array.shape == [tokens, vocab_size] || array.shape == [vocab_size];
    if !shape_fits || !matches!(array.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) {
        return Err(Error::file(
            path,
            format!(
                "{name}: found {:?} {}, expected f32, bf16 or f16 [{tokens}, {vocab_size}] or [{vocab_size}]",
                array.dtype,
                quote::text(format_args!("{:?}", array.shape))
            ),
        ));
    }
    Ok(Prompt {
        name,
        last_only: last_only || array.shape.len() == 1,
        last: target.tokens - 1,
        ..Prompt::default()
    })
}
