//! A tensor as a family of models declares it.

use super::weights::WeightFormat;
use std::ops::Range;

/// A tensor of an operation, or one for each expert, as a family declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// The published name, in which `{}` is an expert's number.
    pub name: &'static str,
    pub role: Role,
    /// Row-major; one expert's.
    pub shape: Vec<usize>,
    pub each_expert: Option<EachExpert>,
}

/// There is one for each expert, or, in newer exports, one for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EachExpert {
    pub experts: usize,
    /// The name of the one for all.
    pub fused: &'static str,
    /// Which part of an expert's rows there it is, and of how many.
    pub part: Range<usize>,
}

/// What a tensor is for: it decides how random presets fill it, and which type it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Embedding,
    Norm,
    /// A projection: rows are outputs.
    Matrix,
    /// A matrix as well, an untied head.
    Head,
    /// A matrix as well, whose products choose experts.
    Router,
    ConvTaps,
    Bias,
    /// Added to the router's scores to choose experts, not to weigh them.
    ExpertBias,
}

impl Role {
    /// How the published layout stores it.
    pub fn published_format(self) -> WeightFormat {
        self.stored(WeightFormat::BF16)
    }

    /// How a checkpoint stores it whose matrices are of `matrices`. Only projections are in 8 bits.
    pub fn stored(self, matrices: WeightFormat) -> WeightFormat {
        match self {
            Self::ExpertBias => WeightFormat::F32,
            Self::Matrix => matrices,
            _ if matrices == WeightFormat::E4M3 => WeightFormat::BF16,
            _ => matrices,
        }
    }
}

impl Declared {
    pub fn new(name: &'static str, role: Role, shape: &[usize]) -> Self {
        Self {
            name,
            role,
            shape: shape.to_vec(),
            each_expert: None,
        }
    }

    /// One for each of `experts`, in one tensor `fused` of which it is part `part.start` of `part.end`.
    #[must_use]
    pub fn of_each(self, experts: usize, fused: &'static str, part: Range<usize>) -> Self {
        let each_expert = Some(EachExpert {
            experts,
            fused,
            part,
        });
        Self {
            each_expert,
            ..self
        }
    }

    /// The shape of all experts' together.
    pub fn whole_shape(&self) -> Vec<usize> {
        let experts = self.each_expert.iter().map(|each| each.experts);
        experts.chain(self.shape.iter().copied()).collect()
    }

    /// How a GPU keeps it beside matrices of `matrices`: whatever is no matrix, and the router, in f32.
    pub fn kept(&self, matrices: WeightFormat) -> WeightFormat {
        match self.role {
            Role::Matrix | Role::Head | Role::Embedding => self.role.stored(matrices),
            _ => WeightFormat::F32,
        }
    }

    /// How many there are: one for each expert, or one.
    pub fn copies(&self) -> usize {
        self.each_expert.as_ref().map_or(1, |each| each.experts)
    }

    /// Rows of the matrix that it is, one expert's, and elements of each.
    pub fn matrix(&self) -> (usize, usize) {
        let columns = self
            .shape
            .iter()
            .skip(1)
            .fold(1, |n: usize, &d| n.saturating_mul(d));
        (self.shape[0], columns)
    }

    /// Elements of all experts' together.
    pub fn elements(&self) -> f64 {
        self.whole_shape().iter().map(|&n| n as f64).product()
    }

    /// Bytes of these in a checkpoint whose matrices are of `matrices`: in 8 bits with a scale for each row, in f32.
    pub fn bytes(&self, matrices: WeightFormat) -> f64 {
        let format = self.role.stored(matrices);
        let scales = match format {
            WeightFormat::E4M3 => self.elements() / self.matrix().1 as f64,
            _ => 0.0,
        };
        self.elements() * format.bytes() as f64 + scales * WeightFormat::F32.bytes() as f64
    }
}
