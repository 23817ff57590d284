//! The type that a run computes in.

use super::weights::WeightFormat;

/// The type of activations: of matrix inputs, keys and values, and convolution state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    F32,
    BF16,
    F16,
}

impl From<DType> for WeightFormat {
    /// Plain elements of that type.
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self::F32,
            DType::BF16 => Self::BF16,
            DType::F16 => Self::F16,
        }
    }
}

impl DType {
    pub const ALL: [Self; 3] = [Self::BF16, Self::F16, Self::F32];

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        WeightFormat::from(self).bytes()
    }

    /// Its name, as `--dtype` and kernels spell it.
    pub fn name(self) -> &'static str {
        WeightFormat::from(self).name()
    }

    /// The one of that [`DType::name`].
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Whether matrix units multiply its rows as they are. Those of f32 are multiplied as three bf16 parts each.
    pub fn is_half(self) -> bool {
        self != Self::F32
    }
}
