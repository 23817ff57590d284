//! `--expect FILE`: logits held against a file of logits, row by row as they come.
//!
//! VALID means: every top-1 token agrees, ties aside, and the relative error (norm of the differences over the
//! norm of what was expected, pooled over all prompts) is within the tolerance. A tie is a position whose
//! expected logits at the two tokens differ by no more than the tolerance times the largest expected
//! magnitude there; each is shown.

use super::target::LogitsTarget;
use super::tensors::TensorFile;
use crate::error::{Error, Result};
use crate::model::DType;
use crate::quote;
use safetensors::Dtype;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// The relative error that is within the tolerance of a run in `dtype` where nobody says otherwise.
pub fn default_tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 1e-4,
        DType::BF16 | DType::F16 => 5e-2,
    }
}

/// What is expected of one request.
#[derive(Debug, Clone, Default, PartialEq)]
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

impl Prompt {
    fn relative(&self) -> f64 {
        relative(self.difference_squared, self.expected_squared)
    }

    /// As [`Self::relative`], to order by: what is no number is further off than all that are.
    fn furthest(&self) -> f64 {
        match self.relative() {
            relative if relative.is_nan() => f64::INFINITY,
            relative => relative,
        }
    }

    /// Positions that are to be compared.
    fn wanted(&self) -> u64 {
        match self.last_only {
            true => 1,
            false => u64::from(self.last) + 1,
        }
    }
}

fn relative(difference_squared: f64, expected_squared: f64) -> f64 {
    if difference_squared == 0.0 {
        return 0.0;
    }
    (difference_squared / expected_squared).sqrt()
}

/// A position where another token is on top than expected.
#[derive(Debug, Clone, PartialEq)]
struct Disagreement {
    prompt: usize,
    position: u32,
    expected: usize,
    found: usize,
    /// Expected logits at both tokens.
    expected_logits: (f32, f32),
    tie: bool,
}

/// The comparison as far as it has come.
#[derive(Debug, Clone)]
pub struct Comparison {
    file: Arc<TensorFile>,
    tolerance: f64,
    prompts: Vec<Prompt>,
    agreeing: u64,
    disagreements: Vec<Disagreement>,
    largest: Option<Largest>,
    /// Positions where either side has a NaN or an infinity.
    not_finite: u64,
}

#[derive(Debug, Clone, PartialEq)]
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
        let path = file.path().to_owned();
        let prompts = targets
            .iter()
            .map(|target| expected_prompt(&file, &path, target, vocab_size, last_only))
            .collect::<Result<_>>()?;
        Ok(Self {
            file: Arc::new(file),
            tolerance,
            prompts,
            agreeing: 0,
            disagreements: Vec::new(),
            largest: None,
            not_finite: 0,
        })
    }

    /// Compares the logits `[V]` of one position of request `request`.
    pub fn add(&mut self, request: usize, target: &LogitsTarget, position: u32, logits: &[f32]) {
        let prompt = &mut self.prompts[request];
        if prompt.last_only && position != prompt.last {
            return;
        }
        let Some(array) = self.file.get(&prompt.name) else {
            return;
        };
        // `[V]` holds the last row alone, `[T, V]` all of them.
        let row = if array.shape.len() == 1 {
            0
        } else {
            position as usize
        };
        let width = if array.dtype == Dtype::F32 { 4 } else { 2 };
        let row_bytes = logits.len() * width;
        let bytes = &self.file.bytes(array)[row * row_bytes..(row + 1) * row_bytes];
        let expected = widen(array.dtype, bytes);
        prompt.compared += 1;
        debug_assert!(position < target.tokens);

        let mut finite = true;
        for (token, (&found, &wanted)) in logits.iter().zip(&expected).enumerate() {
            let difference = f64::from(found) - f64::from(wanted);
            finite &= difference.is_finite();
            prompt.difference_squared += difference * difference;
            prompt.expected_squared += f64::from(wanted) * f64::from(wanted);
            let difference = difference.abs();
            let larger = self
                .largest
                .as_ref()
                .is_none_or(|l| difference > l.difference);
            if difference.is_finite() && larger {
                self.largest = Some(Largest {
                    difference,
                    prompt: request,
                    position,
                    token,
                });
            }
        }
        if !finite {
            self.not_finite += 1;
        }
        let (found, wanted) = (top(logits), top(&expected));
        if found == wanted {
            self.agreeing += 1;
            return;
        }
        let scale = expected.iter().fold(0.0_f32, |a, &b| a.max(b.abs()));
        let gap = f64::from(expected[wanted]) - f64::from(expected[found]);
        self.disagreements.push(Disagreement {
            prompt: request,
            position,
            expected: wanted,
            found,
            expected_logits: (expected[wanted], expected[found]),
            // An infinite logit is as far from any as its own scale.
            tie: gap.is_finite() && gap <= self.tolerance * f64::from(scale),
        });
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
            && self.disagreements.iter().all(|d| d.tie)
    }

    /// Positions that are to be compared.
    fn wanted(&self) -> u64 {
        self.prompts.iter().map(Prompt::wanted).sum()
    }

    /// Positions whose top-1 token is the expected one, and positions compared.
    pub fn agreement(&self) -> (u64, u64) {
        (self.agreeing, self.prompts.iter().map(|p| p.compared).sum())
    }

    /// The report, several lines, the verdict last.
    pub fn report(&self) -> String {
        let mut out = String::new();
        let mut line = |text: String| {
            out.push_str(&text);
            out.push('\n');
        };
        let (agreeing, positions) = self.agreement();
        let (ties, wrong): (Vec<_>, Vec<_>) = self.disagreements.iter().partition(|d| d.tie);
        for (what, list) in [("tie", &ties), ("disagrees", &wrong)] {
            for d in list.iter().take(SHOWN_AT_MOST) {
                line(self.describe(what, d));
            }
            if list.len() > SHOWN_AT_MOST {
                line(format!("{what}: {} more", list.len() - SHOWN_AT_MOST));
            }
        }
        line(format!(
            "top-1 agreement {agreeing}/{positions}, ties {}",
            ties.len()
        ));
        if let Some(l) = &self.largest {
            line(format!(
                "largest absolute difference {:.3e} ({} position {} token {})",
                l.difference, self.prompts[l.prompt].name, l.position, l.token
            ));
        }
        let mut relative = format!("relative difference {:.3e}", self.relative());
        if let Some(worst) = self
            .prompts
            .iter()
            .max_by(|a, b| a.furthest().total_cmp(&b.furthest()))
        {
            // Writing to a string cannot fail.
            let _ = write!(
                relative,
                " (largest of a prompt {:.3e}, {})",
                worst.relative(),
                worst.name
            );
        }
        line(relative);
        if self.not_finite > 0 {
            line(format!(
                "positions with a NaN or an infinity: {}",
                self.not_finite
            ));
        }
        let wanted = self.wanted();
        if positions != wanted || wanted == 0 {
            line(format!(
                "positions compared: {positions} of {wanted}, expected all of at least 1"
            ));
        }
        let verdict = if self.is_valid() { "VALID" } else { "INVALID" };
        line(format!("{verdict} (tolerance {:e})", self.tolerance));
        out
    }

    fn describe(&self, what: &str, d: &Disagreement) -> String {
        format!(
            "{what}: {} position {}: expected token {} ({}), found {} ({})",
            self.prompts[d.prompt].name,
            d.position,
            d.expected,
            d.expected_logits.0,
            d.found,
            d.expected_logits.1
        )
    }
}

/// Lines of each kind of disagreement in a report.
const SHOWN_AT_MOST: usize = 20;

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
        Dtype::BF16 => crate::model::WeightFormat::BF16,
        Dtype::F16 => crate::model::WeightFormat::F16,
        _ => crate::model::WeightFormat::F32,
    };
    let mut out = vec![0.0; bytes.len() / dtype.bytes()];
    crate::model::weights::widen(dtype, bytes, &mut out);
    out
}

fn expected_prompt(
    file: &TensorFile,
    path: &Path,
    target: &LogitsTarget,
    vocab_size: usize,
    last_only: bool,
) -> Result<Prompt> {
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
