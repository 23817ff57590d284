//! Which kernels serve a bucket's products and its experts, and how their launches are sized where more than one way makes
//! sense. Chosen by measurement, per architecture, type and bucket: [`super::kernel_file`] reads what `tune` writes. What a
//! kernel can serve at all is the backend's to say ([`Able`]).

mod choice;

pub use choice::{Able, Choice, Entry};

use crate::backend::cuda::tuning::limits::{FUSED_ROWS, SKINNY_ROWS, SWAP_AB_ROWS, grouped_rows};
use crate::model::DType;
use crate::sys::abi;
use serde::{Serialize, Serializer};
use std::fmt;
use std::ops::RangeInclusive;

/// Stages of a ring of the skinny kernels: the least that overlap at all, and as many as barriers are there for.
pub const SKINNY_STAGES: RangeInclusive<u32> = 2..=abi::TG_SKINNY_MOST_STAGES;
/// Stages of the grouped kernel's ring: one for each of the 3 warps that load rows at least (with fewer than 5 there are never 5
/// of them), and as many as barriers are there for.
pub const GROUPED_STAGES: RangeInclusive<u32> = 3..=abi::TG_GROUPED_MOST_STAGES;
/// Rows of an expert tile of the grouped kernel, at most; with f32 rows fewer. Those above `GROUPED_LOW_ROWS`, and
/// buckets of more than `GROUPED_FEW_ROWS` rows, have kernels of their own, of five loaders, each with a stage of the ring: but for tiles
/// above `GROUPED_TALL_ROWS`, whose sums leave registers for three.
pub const GROUPED_TILE_ROWS: [u32; 6] = [8, 16, 32, 64, 96, 128];
const GROUPED_LOW_ROWS: u32 = 64;
const GROUPED_FEW_ROWS: u32 = 256;
const GROUPED_TALL_ROWS: u32 = 96;
const GROUPED_TALL_STAGES: u32 = 5;

/// The largest value of [`Grouped::prefetch_mib`].
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

    /// The architecture for a compute capability; `None` for one that no kernel is built for.
    pub fn of((major, _): (u32, u32)) -> Option<Self> {
        match major {
            8 => Some(Self::Sm80),
            9 => Some(Self::Sm90),
            10 => Some(Self::Sm100),
            _ => None,
        }
    }

    /// The architecture's name in kernel files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sm80 => "sm_80",
            Self::Sm90 => "sm_90",
            Self::Sm100 => "sm_100",
        }
    }

    /// Bulk copies to shared memory, which the skinny kernels are made of.
    pub fn has_bulk_copies(self) -> bool {
        self != Self::Sm80
    }

    /// Kernels that start while those ahead of them end (programmatic dependent launch).
    pub fn overlaps_launches(self) -> bool {
        self != Self::Sm80
    }

    /// Rows of a decode bucket of this type up to which there is a choice of kernels: more have those for any number.
    pub fn chosen_rows(self, dtype: DType) -> u32 {
        if self.has_warpgroups() {
            SWAP_AB_ROWS.max(grouped_rows(dtype))
        } else {
            SWAP_AB_ROWS
        }
    }

    /// Matrix instructions of warpgroups, which the swap-AB and the grouped kernels are made of.
    pub fn has_warpgroups(self) -> bool {
        self == Self::Sm90
    }
}

/// What does the linear layers of a step but for the experts'.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Linear {
    /// The kernels for few rows, with norms, convolution and router scores folded in: rings of up to so many stages.
    Skinny { stages: u32 },
    /// The kernels of warpgroups, for up to [`SWAP_AB_ROWS`] rows.
    SwapAb,
    /// The kernels for many rows, of blocks that stay; of fewer rows than that those of [`Linear::SwapAb`].
    Persistent,
    /// The kernels for any number of rows.
    Tiled,
}

/// What does the experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Experts {
    /// The kernels for few rows, which go on from the scores that [`Linear::Skinny`] leaves, with rings of as many stages.
    Skinny,
    /// The kernel for one row, gate, up and down in one, which goes on from these scores too.
    Fused,
    /// One kernel that streams each expert's weights once.
    Grouped(Grouped),
    /// The kernels for many rows, of blocks that stay.
    Persistent,
    /// The kernels for any number of rows.
    Tiled,
}

impl Experts {
    /// These experts, prefetching nothing where the linear layers beside them do not.
    pub fn beside(self, linear: Linear) -> Self {
        match (self, linear) {
            (Self::Grouped(_), Linear::SwapAb | Linear::Persistent) => self,
            (Self::Grouped(grouped), _) => Self::Grouped(Grouped {
                prefetch_mib: 0,
                ..grouped
            }),
            _ => self,
        }
    }

    /// Whether they go on from what [`Linear::Skinny`] leave, and so serve with these alone.
    pub fn follow_skinny(self) -> bool {
        matches!(self, Self::Skinny | Self::Fused)
    }
}

/// A launch of the grouped kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grouped {
    /// Rows of an expert tile, at most.
    pub tile_rows: u32,
    /// Stages of the ring.
    pub stages: u32,
    /// Blocks predict which expert they will be given, and load its weights before the router has chosen.
    pub predict: bool,
    /// How much of the gates, and as much of the ups, of all experts is prefetched into L2 while a conv layer's in-projection by
    /// the swap-AB kernels multiplies, or a layer's out-projection by the persistent ones, in MiB; nothing beside other products.
    pub prefetch_mib: u32,
}

/// What serves a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Variant {
    #[serde(rename = "products")]
    pub linear: Linear,
    pub experts: Experts,
}

impl Variant {
    /// Its experts beside these products: what is prefetched is meant for its own.
    fn experts_beside(&self, linear: Linear) -> Experts {
        if self.linear == linear {
            self.experts
        } else {
            self.experts.beside(Linear::Tiled)
        }
    }

    /// What serves every bucket.
    pub const TILED: Self = Self {
        linear: Linear::Tiled,
        experts: Experts::Tiled,
    };

    /// What serves many rows best, where a GPU has it.
    pub const PERSISTENT: Self = Self {
        linear: Linear::Persistent,
        experts: Experts::Persistent,
    };

    /// Whether a GPU of this architecture has it at all, for decode buckets of `rows` rows of this type.
    ///
    /// # Errors
    /// Why not, and what would do.
    pub fn check(self, architecture: Architecture, dtype: DType, rows: u32) -> Result<(), String> {
        let gpu = architecture.name();
        let skinny = "the skinny kernels";
        let within = |kernels: &str, most: u32| {
            if rows <= most {
                Ok(())
            } else {
                Err(format!(
                    "{kernels} take buckets of up to {most} tokens, expected another family"
                ))
            }
        };
        let has_warpgroups = |kernels: &str| {
            if architecture.has_warpgroups() {
                Ok(())
            } else {
                Err(format!(
                    "{gpu} lacks {kernels}, which are sm_90's, expected skinny or tiled"
                ))
            }
        };
        let warpgroups = |kernels: &str, most: u32| {
            has_warpgroups(kernels)?;
            within(kernels, most)
        };
        match self.linear {
            Linear::Skinny { stages } => {
                if !architecture.has_bulk_copies() {
                    return Err(format!("{gpu} lacks what {skinny} need, expected tiled"));
                }
                within(skinny, SKINNY_ROWS as u32)?;
                stages_within("skinny_stages", stages, SKINNY_STAGES)?;
            }
            Linear::SwapAb => warpgroups("the swap-AB kernels", SWAP_AB_ROWS)?,
            Linear::Persistent => has_warpgroups("the persistent kernels")?,
            Linear::Tiled => {}
        }
        match (self.experts, self.linear) {
            (Experts::Fused, Linear::Skinny { .. }) if rows as usize > FUSED_ROWS => Err(
                "the fused experts take buckets of one token, expected skinny or another family"
                    .to_owned(),
            ),
            (Experts::Fused, Linear::Skinny { .. }) => Ok(()),
            (Experts::Skinny, Linear::Skinny { .. }) | (Experts::Tiled, _) => Ok(()),
            (experts @ (Experts::Skinny | Experts::Fused), _) => Err(format!(
                "experts = \"{experts}\" go on from what products = \"skinny\" leave, expected both or another family of experts"
            )),
            (Experts::Persistent, _) => has_warpgroups("the persistent kernels"),
            (experts @ Experts::Grouped(grouped), linear) => {
                warpgroups("the grouped kernels", grouped_rows(dtype))?;
                if experts.beside(linear) != experts {
                    return Err(format!(
                        "found prefetch_mib {}, expected products = \"swap_ab\" or \"persistent\" beside it, which prefetch",
                        grouped.prefetch_mib
                    ));
                }
                grouped.check(dtype, rows)
            }
        }
    }
}

impl Grouped {
    fn check(self, dtype: DType, rows: u32) -> Result<(), String> {
        stages_within("grouped_stages", self.stages, GROUPED_STAGES)?;
        let most = match dtype {
            DType::F32 => abi::TG_GROUPED_BF16X3_ROWS,
            _ => GROUPED_TILE_ROWS[GROUPED_TILE_ROWS.len() - 1],
        };
        if !GROUPED_TILE_ROWS.contains(&self.tile_rows) || self.tile_rows > most {
            return Err(format!(
                "found tile_rows {}, expected 8, 16, 32, 64, 96 or 128, at most {most} in this type",
                self.tile_rows
            ));
        }
        let many = self.tile_rows > GROUPED_LOW_ROWS || rows > GROUPED_FEW_ROWS;
        if many && self.tile_rows <= GROUPED_TALL_ROWS && self.stages < GROUPED_TALL_STAGES {
            return Err(format!(
                "found grouped_stages {}, expected at least {GROUPED_TALL_STAGES} with tile_rows {} in buckets of {rows} tokens",
                self.stages, self.tile_rows
            ));
        }
        if self.prefetch_mib <= MOST_PREFETCH_MIB {
            Ok(())
        } else {
            Err(format!(
                "found prefetch_mib {}, expected up to {MOST_PREFETCH_MIB}",
                self.prefetch_mib
            ))
        }
    }
}

fn stages_within(key: &str, stages: u32, range: RangeInclusive<u32>) -> Result<(), String> {
    if range.contains(&stages) {
        Ok(())
    } else {
        Err(format!(
            "found {key} {stages}, expected {} to {}",
            range.start(),
            range.end()
        ))
    }
}

impl fmt::Display for Linear {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Skinny { stages } => write!(out, "skinny ({stages} stages)"),
            Self::SwapAb => write!(out, "swap_ab"),
            Self::Persistent => write!(out, "persistent"),
            Self::Tiled => write!(out, "tiled"),
        }
    }
}

impl fmt::Display for Experts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Skinny => write!(out, "skinny"),
            Self::Fused => write!(out, "fused"),
            Self::Persistent => write!(out, "persistent"),
            Self::Grouped(grouped) => {
                let guess = if grouped.predict { ", guess" } else { "" };
                let prefetch = match grouped.prefetch_mib {
                    0 => String::new(),
                    mib => format!(", {mib} MiB prefetched"),
                };
                let Grouped {
                    tile_rows, stages, ..
                } = grouped;
                write!(
                    out,
                    "grouped (tiles of {tile_rows}, {stages} stages{guess}{prefetch})"
                )
            }
            Self::Tiled => write!(out, "tiled"),
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "products {}, experts {}", self.linear, self.experts)
    }
}

impl Serialize for Linear {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl Serialize for Experts {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}
