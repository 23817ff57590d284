//! What of a model decides which kernels serve it best, and by which kernel files have entries of its own.

use crate::model::ModelConfig;
use std::fmt;

/// Hidden size, experts, and the width of an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    pub hidden: usize,
    pub experts: usize,
    pub ffn: usize,
}

impl Shape {
    /// The shape of LFM2-8B-A1B, which a file's `[decode.TYPE]` is for.
    pub const BASE: Self = Self {
        hidden: 2048,
        experts: 32,
        ffn: 1792,
    };

    pub fn of(config: &ModelConfig) -> Self {
        Self {
            hidden: config.hidden_size,
            experts: config.num_experts,
            ffn: config.moe_intermediate_size,
        }
    }

    /// Reads what [`fmt::Display`] writes; `None` for all else.
    pub fn parse(name: &str) -> Option<Self> {
        let numbers = name.strip_prefix('h')?;
        let (hidden, rest) = numbers.split_once("-e")?;
        let (experts, ffn) = rest.split_once("-f")?;
        let number = |text: &str| text.parse().ok().filter(|&n: &usize| n > 0);
        let shape = Self {
            hidden: number(hidden)?,
            experts: number(experts)?,
            ffn: number(ffn)?,
        };
        (shape.to_string() == name).then_some(shape)
    }

    /// How much larger or smaller each of its sizes is, as ratios that are all added up: 0 where they are the same.
    pub fn distance(self, other: Self) -> f64 {
        let apart = |a: usize, b: usize| (a.max(1) as f64 / b.max(1) as f64).ln().abs();
        apart(self.hidden, other.hidden)
            + apart(self.experts, other.experts)
            + apart(self.ffn, other.ffn)
    }
}

/// Writes the shape's name in kernel files.
impl fmt::Display for Shape {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            hidden,
            experts,
            ffn,
        } = self;
        write!(out, "h{hidden}-e{experts}-f{ffn}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let shape = Shape::parse("h2048-e64-f1536").unwrap();
        assert_eq!((shape.hidden, shape.experts, shape.ffn), (2048, 64, 1536));
        assert_eq!(shape.to_string(), "h2048-e64-f1536");
        for wrong in [
            "",
            "h2048",
            "2048-e64-f1536",
            "h02048-e64-f1536",
            "h2048-e0-f1536",
            "h2048-e64-f1536-",
            "h-1-e64-f1536",
        ] {
            assert_eq!(Shape::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn nearer_is_less_of_a_change() {
        let at = |name| Shape::parse(name).unwrap();
        let other = at("h2048-e64-f1536");
        assert!(
            at("h2048-e48-f1536").distance(other) < at("h2048-e48-f1536").distance(Shape::BASE)
        );
        assert_eq!(other.distance(Shape::BASE), Shape::BASE.distance(other));
        assert_eq!(other.distance(other), 0.0);
    }
}
