//! Which kernels serve a bucket's products and its experts, and how their launches are sized where more than one way makes
//! sense. Chosen by measurement, per architecture, type and bucket: [`super::kernel_file`] reads what `tune` writes. What a
//! kernel can serve at all is the backend's to say ([`Able`]).

use super::arena::FEW_ROWS;
use crate::error::{Error, Result};
use crate::model::DType;
use std::fmt;
use std::path::Path;

/// Rows of a bucket that the dense and the wide kernels take, at most.
pub const MOST_ROWS: u32 = 256;
/// Stages of a ring of the kernels for few rows: the least that overlap at all, and as many as barriers are there for.
pub const FEW_STAGES: std::ops::RangeInclusive<u32> = 2..=16;
/// Of the wide kernel: one for each warp that loads rows at least, and as above.
pub const WIDE_STAGES: std::ops::RangeInclusive<u32> = 3..=16;
/// Rows of an expert tile of the wide kernel, at most; with f32 rows up to [`WIDE_SPLIT_ROWS`].
pub const WIDE_TILE_ROWS: [u32; 4] = [8, 16, 32, 64];
pub const WIDE_SPLIT_ROWS: u32 = 32;

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
    /// One kernel that streams each expert's weights once.
    Wide(Wide),
    /// Those for any number of rows.
    Linear,
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
    pub fn check(
        self,
        architecture: Architecture,
        dtype: DType,
        rows: u32,
    ) -> std::result::Result<(), String> {
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
            (Experts::Few, Products::Few { .. }) | (Experts::Linear, _) => Ok(()),
            (Experts::Few, _) => Err(
                "experts = \"few\" go on from what products = \"few\" leave, expected both or another family of experts"
                    .to_owned(),
            ),
            (Experts::Wide(wide), _) => {
                warpgroups("wide kernels")?;
                wide.check(dtype)
            }
        }
    }
}

impl Wide {
    fn check(self, dtype: DType) -> std::result::Result<(), String> {
        stages_within("wide_stages", self.stages, WIDE_STAGES)?;
        let most = match dtype {
            DType::F32 => WIDE_SPLIT_ROWS,
            _ => WIDE_TILE_ROWS[WIDE_TILE_ROWS.len() - 1],
        };
        if !WIDE_TILE_ROWS.contains(&self.tile_rows) || self.tile_rows > most {
            return Err(format!(
                "found tile_rows {}, expected 8, 16, 32 or 64, at most {most} in this type",
                self.tile_rows
            ));
        }
        Ok(())
    }
}

fn stages_within(
    key: &str,
    stages: u32,
    range: std::ops::RangeInclusive<u32>,
) -> std::result::Result<(), String> {
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
            Self::Wide(wide) => {
                let guess = if wide.guess { ", guess" } else { "" };
                let Wide {
                    tile_rows, stages, ..
                } = wide;
                write!(out, "wide (tiles of {tile_rows}, {stages} stages{guess})")
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

/// What the kernels of a GPU can do for a model, whose shapes and types they know.
pub trait Able {
    /// Whether they do a variant's products in a decode bucket of `rows` rows.
    ///
    /// # Errors
    /// Why not.
    fn products(&self, variant: Variant, rows: u32) -> std::result::Result<(), String>;

    /// Whether they do a variant's experts.
    ///
    /// # Errors
    /// Why not.
    fn experts(&self, variant: Variant, rows: u32) -> std::result::Result<(), String>;
}

/// What serves one decode bucket, and all smaller ones down to the next entry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    pub rows: u32,
    pub variant: Variant,
    /// A step's bare graph, as `tune` measured it.
    pub ms: Option<f64>,
}

/// The entries of one type, ascending in rows, and who answers for them.
#[derive(Debug, Clone, Copy)]
pub struct Choice<'a> {
    pub entries: &'a [Entry],
    pub dtype: DType,
    /// The file that somebody has named, which is taken at its word; `None` for what is built in.
    pub named: Option<&'a Path>,
}

impl Choice<'_> {
    /// What serves a decode bucket of `rows` rows: the entry of the smallest bucket that holds it. Where a built-in entry asks
    /// for what does not serve this model, its products or its experts are those of the next larger bucket whose do;
    /// after the last entry, [`Variant::LINEAR`].
    ///
    /// # Errors
    /// [`Error::File`]: a file that was named asks for what cannot be served.
    pub fn decode(&self, rows: u32, able: &dyn Able) -> Result<Variant> {
        let mut larger = self.entries.iter().filter(|entry| entry.rows >= rows);
        if let Some(path) = self.named {
            let Some(entry) = larger.next() else {
                return Ok(Variant::LINEAR);
            };
            let refused = |why: String| {
                let (dtype, key) = (format!("{:?}", self.dtype).to_lowercase(), entry.rows);
                Error::file(
                    path,
                    format!(
                        "decode.{dtype}.{key} is asked for the decode bucket of {rows} rows and cannot serve it: {why}; name another family \
                         there, or run without the file"
                    ),
                )
            };
            able.products(entry.variant, rows).map_err(refused)?;
            able.experts(entry.variant, rows).map_err(refused)?;
            return Ok(entry.variant);
        }
        let larger: Vec<Variant> = larger.map(|entry| entry.variant).collect();
        let products = larger
            .iter()
            .find(|&&variant| able.products(variant, rows).is_ok());
        let products = products.map_or(Products::Linear, |variant| variant.products);
        let experts = larger.iter().find(|&&variant| {
            let fits = variant.experts != Experts::Few || variant.products == products;
            fits && able.experts(variant, rows).is_ok()
        });
        Ok(Variant {
            products,
            experts: experts.map_or(Experts::Linear, |variant| variant.experts),
        })
    }

    /// What serves a bucket with prompts in it: entries are for decode steps, so only wide experts are taken from them, the
    /// first at or above `rows` that there are.
    pub fn prompts(&self, rows: u32, able: &dyn Able) -> Variant {
        let larger = self.entries.iter().filter(|entry| entry.rows >= rows);
        let wide = larger
            .map(|entry| entry.variant)
            .filter(|variant| matches!(variant.experts, Experts::Wide(_)))
            .find(|&variant| able.experts(variant, rows).is_ok());
        Variant {
            experts: wide.map_or(Experts::Linear, |variant| variant.experts),
            ..Variant::LINEAR
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: Experts = Experts::Wide(Wide {
        tile_rows: 32,
        stages: 6,
        guess: false,
    });
    const FEW: Products = Products::Few { stages: 4 };

    fn entry(rows: u32, products: Products, experts: Experts) -> Entry {
        let variant = Variant { products, experts };
        Entry {
            rows,
            variant,
            ms: None,
        }
    }

    fn entries() -> Vec<Entry> {
        vec![
            entry(2, FEW, Experts::Few),
            entry(8, FEW, WIDE),
            entry(64, Products::Dense, WIDE),
        ]
    }

    /// All but some families.
    struct Without(&'static [&'static str]);

    impl Without {
        fn has(&self, family: &str) -> std::result::Result<(), String> {
            match self.0.iter().any(|lacking| family.starts_with(lacking)) {
                true => Err(format!("{family} is lacking")),
                false => Ok(()),
            }
        }
    }

    impl Able for Without {
        fn products(&self, variant: Variant, _: u32) -> std::result::Result<(), String> {
            if variant.experts == Experts::Few {
                self.has(&variant.experts.to_string())?;
            }
            self.has(&variant.products.to_string())
        }

        fn experts(&self, variant: Variant, _: u32) -> std::result::Result<(), String> {
            self.has(&variant.experts.to_string())
        }
    }

    fn choose(rows: u32, without: &'static [&'static str]) -> (Products, Experts) {
        let entries = entries();
        let choice = Choice {
            entries: &entries,
            dtype: DType::BF16,
            named: None,
        };
        let Variant { products, experts } = choice.decode(rows, &Without(without)).unwrap();
        (products, experts)
    }

    #[test]
    fn the_next_larger_entry_serves() {
        assert_eq!(choose(1, &[]), (FEW, Experts::Few));
        assert_eq!(choose(3, &[]), (FEW, WIDE));
        assert_eq!(choose(64, &[]), (Products::Dense, WIDE));
        assert_eq!(choose(65, &[]), (Products::Linear, Experts::Linear));
    }

    #[test]
    fn what_a_model_does_not_fit_goes_to_what_it_does() {
        assert_eq!(choose(1, &["few"]), (Products::Dense, WIDE));
        assert_eq!(choose(8, &["wide"]), (FEW, Experts::Linear));
        assert_eq!(choose(1, &["few", "wide"]).1, Experts::Linear);
        let nothing = &["few", "wide", "dense"];
        assert_eq!(choose(1, nothing), (Products::Linear, Experts::Linear));
    }

    #[test]
    fn a_named_file_is_taken_at_its_word() {
        let entries = entries();
        let choice = Choice {
            entries: &entries,
            dtype: DType::F32,
            named: Some(Path::new("mine.toml")),
        };
        let error = choice.decode(5, &Without(&["wide"])).unwrap_err();
        for part in ["mine.toml", "decode.f32.8", "5 rows", "wide"] {
            assert!(error.to_string().contains(part), "{error} lacks {part}");
        }
        let fits = choice.decode(5, &Without(&["dense"])).unwrap();
        assert_eq!((fits.products, fits.experts), (FEW, WIDE));
        let beyond = choice.decode(100, &Without(&[])).unwrap();
        assert_eq!(beyond, Variant::LINEAR);
    }

    #[test]
    fn prompts_take_wide_experts_alone() {
        let entries = entries();
        let choice = Choice {
            entries: &entries,
            dtype: DType::BF16,
            named: None,
        };
        let chosen = |rows| choice.prompts(rows, &Without(&[]));
        assert_eq!(chosen(1).products, Products::Linear);
        assert_eq!(chosen(1).experts, WIDE);
        assert_eq!(chosen(100), Variant::LINEAR);
    }
}
