//! Which kernels serve a bucket's products and its experts, and how their launches are sized where more than one way makes
//! sense. Chosen by measurement, per architecture, type and bucket: [`super::kernel_file`] reads what `tune` writes. What a
//! kernel can serve at all is the backend's to say ([`Able`]).

mod choice;

pub use choice::{Able, Choice, Entry};

use super::arena::{FEW_ROWS, FUSED_ROWS};
use crate::model::DType;
use std::fmt;
use std::ops::RangeInclusive;

/// Rows of a bucket that the dense and the wide kernels take, at most.
pub const MOST_ROWS: u32 = 256;
/// Stages of a ring of the kernels for few rows: the least that overlap at all, and as many as barriers are there for.
pub const FEW_STAGES: RangeInclusive<u32> = 2..=16;
/// Of the wide kernel: one for each of the 3 warps that load rows at least (with fewer than 5 there are never 5 of them), and as
/// above.
pub const WIDE_STAGES: RangeInclusive<u32> = 3..=16;
/// Rows of an expert tile of the wide kernel, at most; with f32 rows up to [`WIDE_SPLIT_ROWS`]. Those above [`WIDE_LOW_ROWS`] have
/// a kernel of their own, of more loaders, and rings of [`WIDE_TALL_STAGES`] at least.
pub const WIDE_TILE_ROWS: [u32; 5] = [8, 16, 32, 64, 96];
pub const WIDE_SPLIT_ROWS: u32 = 32;
pub const WIDE_LOW_ROWS: u32 = 64;
pub const WIDE_TALL_STAGES: u32 = 5;

/// Of [`Wide::prefetch_mib`].
pub const MOST_PREFETCH_MIB: u32 = 256;

/// GPUs that share a file of variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Compute capability 8.x.
    Sm80,
    /// 9.0
    Sm90,
    /// 10.x
    Sm100,
}

impl Architecture {
    pub const ALL: [Self; 3] = [Self::Sm80, Self::Sm90, Self::Sm100];

    /// Of a compute capability; `None` for one that no kernel is built for.
    pub fn of((major, _): (u32, u32)) -> Option<Self> {
        match major {
            8 => Some(Self::Sm80),
            9 => Some(Self::Sm90),
            10 => Some(Self::Sm100),
            _ => None,
        }
    }

    /// As files name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sm80 => "sm_80",
            Self::Sm90 => "sm_90",
            Self::Sm100 => "sm_100",
        }
    }

    /// Bulk copies to shared memory, which the kernels for few rows are made of.
    pub fn has_bulk_copies(self) -> bool {
        self != Self::Sm80
    }

    /// Matrix instructions of warpgroups, which the dense and the wide kernels are made of.
    pub fn has_warpgroups(self) -> bool {
        self == Self::Sm90
    }
}

/// What does the products of a step but for the experts'.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Products {
    /// Those for few rows, with norms, convolution and router scores folded in: rings of up to so many stages.
    Few { stages: u32 },
    /// Those of warpgroups.
    Dense,
    /// Those for any number of rows.
    Linear,
}

/// What does the experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Experts {
    /// Those for few rows, which go on from the scores that [`Products::Few`] leaves, with rings as there.
    Few,
    /// Likewise of one row, gate, up and down in one kernel.
    Fused,
    /// One kernel that streams each expert's weights once.
    Wide(Wide),
    /// Those for any number of rows.
    Linear,
}

impl Experts {
    /// These, prefetching nothing where the products beside them do not.
    pub fn beside(self, products: Products) -> Self {
        match (self, products) {
            (Self::Wide(_), Products::Dense) => self,
            (Self::Wide(wide), _) => Self::Wide(Wide {
                prefetch_mib: 0,
                ..wide
            }),
            _ => self,
        }
    }

    /// Whether they go on from what [`Products::Few`] leave, and so serve with these alone.
    pub fn follow_few(self) -> bool {
        matches!(self, Self::Few | Self::Fused)
    }
}

/// A launch of the wide kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wide {
    /// Of an expert tile, at most.
    pub tile_rows: u32,
    /// Of the ring.
    pub stages: u32,
    /// Blocks guess which expert they will be given, and ask for its weights before the router has chosen.
    pub guess: bool,
    /// Of all experts' gates and ups, as much of each, what comes to the second-level cache while a conv layer's dense
    /// in-projection multiplies, in MiB: beside other products nothing.
    pub prefetch_mib: u32,
}

/// What serves a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Variant {
    pub products: Products,
    pub experts: Experts,
}

impl Variant {
    /// What serves every bucket.
    pub const LINEAR: Self = Self {
        products: Products::Linear,
        experts: Experts::Linear,
    };

    /// Whether a GPU of this architecture has it at all, for decode buckets of `rows` rows of this type.
    ///
    /// # Errors
    /// Why not, and what would do.
    pub fn check(self, architecture: Architecture, dtype: DType, rows: u32) -> Result<(), String> {
        let gpu = architecture.name();
        let few = "the kernels for few rows";
        let within = |kernels: &str, most: u32| match rows <= most {
            true => Ok(()),
            false => Err(format!(
                "{kernels} take buckets of up to {most} rows, expected another family"
            )),
        };
        let warpgroups = |kernels: &str| match architecture.has_warpgroups() {
            true => within(kernels, MOST_ROWS),
            false => Err(format!(
                "{gpu} has no {kernels}, which are sm_90's, expected few or linear"
            )),
        };
        match self.products {
            Products::Few { stages } => {
                if !architecture.has_bulk_copies() {
                    return Err(format!("{gpu} lacks what {few} need, expected linear"));
                }
                within(few, FEW_ROWS as u32)?;
                stages_within("few_stages", stages, FEW_STAGES)?;
            }
            Products::Dense => warpgroups("dense kernels")?,
            Products::Linear => {}
        }
        match (self.experts, self.products) {
            (Experts::Fused, Products::Few { .. }) if rows as usize > FUSED_ROWS => Err(
                "the fused experts take buckets of one row, expected few or another family"
                    .to_owned(),
            ),
            (Experts::Fused, Products::Few { .. }) => Ok(()),
            (Experts::Few, Products::Few { .. }) | (Experts::Linear, _) => Ok(()),
            (experts @ (Experts::Few | Experts::Fused), _) => Err(format!(
                "experts = \"{experts}\" go on from what products = \"few\" leave, expected both or another family of experts"
            )),
            (experts @ Experts::Wide(wide), products) => {
                warpgroups("wide kernels")?;
                if experts.beside(products) != experts {
                    return Err(format!(
                        "found prefetch_mib {}, expected products = \"dense\" beside it, which prefetch",
                        wide.prefetch_mib
                    ));
                }
                wide.check(dtype)
            }
        }
    }
}

impl Wide {
    fn check(self, dtype: DType) -> Result<(), String> {
        stages_within("wide_stages", self.stages, WIDE_STAGES)?;
        let most = match dtype {
            DType::F32 => WIDE_SPLIT_ROWS,
            _ => WIDE_TILE_ROWS[WIDE_TILE_ROWS.len() - 1],
        };
        if !WIDE_TILE_ROWS.contains(&self.tile_rows) || self.tile_rows > most {
            return Err(format!(
                "found tile_rows {}, expected 8, 16, 32, 64 or 96, at most {most} in this type",
                self.tile_rows
            ));
        }
        if self.tile_rows > WIDE_LOW_ROWS && self.stages < WIDE_TALL_STAGES {
            return Err(format!(
                "found wide_stages {}, expected at least {WIDE_TALL_STAGES} with tile_rows {}",
                self.stages, self.tile_rows
            ));
        }
        match self.prefetch_mib <= MOST_PREFETCH_MIB {
            true => Ok(()),
            false => Err(format!(
                "found prefetch_mib {}, expected up to {MOST_PREFETCH_MIB}",
                self.prefetch_mib
            )),
        }
    }
}

fn stages_within(key: &str, stages: u32, range: RangeInclusive<u32>) -> Result<(), String> {
    match range.contains(&stages) {
        true => Ok(()),
        false => Err(format!(
            "found {key} {stages}, expected {} to {}",
            range.start(),
            range.end()
        )),
    }
}

impl fmt::Display for Products {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Few { stages } => write!(out, "few ({stages} stages)"),
            Self::Dense => write!(out, "dense"),
            Self::Linear => write!(out, "linear"),
        }
    }
}

impl fmt::Display for Experts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Few => write!(out, "few"),
            Self::Fused => write!(out, "fused"),
            Self::Wide(wide) => {
                let guess = if wide.guess { ", guess" } else { "" };
                let prefetch = match wide.prefetch_mib {
                    0 => String::new(),
                    mib => format!(", {mib} MiB prefetched"),
                };
                let Wide {
                    tile_rows, stages, ..
                } = wide;
                write!(
                    out,
                    "wide (tiles of {tile_rows}, {stages} stages{guess}{prefetch})"
                )
            }
            Self::Linear => write!(out, "linear"),
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "products {}, experts {}", self.products, self.experts)
    }
}
