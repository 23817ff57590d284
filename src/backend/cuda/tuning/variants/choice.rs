//! Which entry of a file serves a bucket.

use super::{Experts, Linear, Variant};
use crate::error::{Error, Result};
use std::path::Path;

/// What the kernels of a GPU can do for a model, whose shapes and types they know.
pub trait Able {
    /// Whether they do a variant's products in a decode bucket of `rows` rows.
    ///
    /// # Errors
    /// Why not.
    fn linear(&self, variant: Variant, rows: u32) -> std::result::Result<(), String>;

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
#[derive(Debug, Clone)]
pub struct Choice<'a> {
    pub entries: &'a [Entry],
    /// The name of their table in the file, such as `decode.bf16`.
    pub table: String,
    /// The file that somebody has named, which is taken at its word; `None` for what is built in.
    pub named: Option<&'a Path>,
}

impl Choice<'_> {
    /// What serves a decode bucket of `rows` rows: the entry of the smallest bucket that holds it. Where a built-in entry asks
    /// for what does not serve this model, its products or its experts are those of the next larger bucket whose do;
    /// after the last entry, what serves many rows best.
    ///
    /// # Errors
    /// [`Error::File`]: a file that was named asks for what cannot be served.
    pub fn decode(&self, rows: u32, able: &dyn Able) -> Result<Variant> {
        let mut larger = self.entries.iter().filter(|entry| entry.rows >= rows);
        if let Some(path) = self.named {
            let Some(entry) = larger.next() else {
                return Ok(self.many(rows, able));
            };
            let refused = |why: String| {
                let (table, key) = (&self.table, entry.rows);
                Error::file(
                    path,
                    format!(
                        "{table}.{key} is asked for the decode bucket of {rows} tokens and cannot serve it: {why}; name another family \
                         there, or run without the file"
                    ),
                )
            };
            able.linear(entry.variant, rows).map_err(refused)?;
            able.experts(entry.variant, rows).map_err(refused)?;
            return Ok(entry.variant);
        }
        let larger: Vec<Variant> = larger
            .map(|entry| entry.variant)
            .chain([self.many(rows, able)])
            .collect();
        let linear = larger
            .iter()
            .find(|&&variant| able.linear(variant, rows).is_ok());
        let linear = linear.map_or(Linear::Tiled, |variant| variant.linear);
        let experts = larger.iter().find(|&&variant| {
            let fits = !variant.experts.follow_skinny() || variant.linear == linear;
            fits && able.experts(variant, rows).is_ok()
        });
        Ok(Variant {
            linear,
            experts: experts.map_or(Experts::Tiled, |variant| variant.experts_beside(linear)),
        })
    }

    /// What serves a bucket with prompts in it. Entries are for decode steps: taken from them are swap-AB products, and grouped
    /// experts, the first at or above `rows` that there are; else what serves many rows best.
    pub fn prompts(&self, rows: u32, able: &dyn Able) -> Variant {
        let larger = self.entries.iter().filter(|entry| entry.rows >= rows);
        let larger: Vec<Variant> = larger.map(|entry| entry.variant).collect();
        let many = self.many(rows, able);
        let swap_ab = larger.iter().find(|&&variant| {
            variant.linear == Linear::SwapAb && able.linear(variant, rows).is_ok()
        });
        let linear = swap_ab.map_or(many.linear, |variant| variant.linear);
        let grouped = larger.iter().find(|&&variant| {
            matches!(variant.experts, Experts::Grouped(_)) && able.experts(variant, rows).is_ok()
        });
        Variant {
            linear,
            experts: grouped.map_or(many.experts, |variant| match linear {
                // A convolution of chunks is no part of a product, so nothing prefetches.
                Linear::SwapAb => variant.experts_beside(Linear::Tiled),
                others => variant.experts_beside(others),
            }),
        }
    }

    /// What serves buckets larger than those of all entries: [`Variant::PERSISTENT`], or of it what there is.
    fn many(&self, rows: u32, able: &dyn Able) -> Variant {
        let Variant { linear, experts } = Variant::PERSISTENT;
        Variant {
            linear: match able.linear(Variant::PERSISTENT, rows) {
                Ok(()) => linear,
                Err(_) => Linear::Tiled,
            },
            experts: match able.experts(Variant::PERSISTENT, rows) {
                Ok(()) => experts,
                Err(_) => Experts::Tiled,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Grouped;
    use super::*;

    const GROUPED: Experts = Experts::Grouped(Grouped {
        tile_rows: 32,
        stages: 6,
        predict: false,
        prefetch_mib: 0,
    });
    const PREFETCHING: Experts = Experts::Grouped(Grouped {
        tile_rows: 32,
        stages: 6,
        predict: false,
        prefetch_mib: 16,
    });
    const SKINNY: Linear = Linear::Skinny { stages: 4 };
    const MANY: (Linear, Experts) = (Linear::Persistent, Experts::Persistent);
    const TILED: (Linear, Experts) = (Linear::Tiled, Experts::Tiled);

    fn entry(rows: u32, linear: Linear, experts: Experts) -> Entry {
        let variant = Variant { linear, experts };
        Entry {
            rows,
            variant,
            ms: None,
        }
    }

    fn entries() -> Vec<Entry> {
        vec![
            entry(2, SKINNY, Experts::Skinny),
            entry(8, SKINNY, GROUPED),
            entry(64, Linear::SwapAb, PREFETCHING),
        ]
    }

    /// All but some families.
    struct Without(&'static [&'static str]);

    impl Without {
        fn has(&self, family: &str) -> std::result::Result<(), String> {
            if self.0.iter().any(|lacking| family.starts_with(lacking)) {
                Err(format!("{family} is lacking"))
            } else {
                Ok(())
            }
        }
    }

    impl Able for Without {
        fn linear(&self, variant: Variant, _: u32) -> std::result::Result<(), String> {
            if variant.experts == Experts::Skinny {
                self.has(&variant.experts.to_string())?;
            }
            self.has(&variant.linear.to_string())
        }

        fn experts(&self, variant: Variant, _: u32) -> std::result::Result<(), String> {
            self.has(&variant.experts.to_string())
        }
    }

    fn choose(rows: u32, without: &'static [&'static str]) -> (Linear, Experts) {
        let entries = entries();
        let choice = Choice {
            entries: &entries,
            table: "decode.bf16".to_owned(),
            named: None,
        };
        let Variant { linear, experts } = choice.decode(rows, &Without(without)).unwrap();
        (linear, experts)
    }

    #[test]
    fn the_next_larger_entry_serves() {
        assert_eq!(choose(1, &[]), (SKINNY, Experts::Skinny));
        assert_eq!(choose(3, &[]), (SKINNY, GROUPED));
        assert_eq!(choose(64, &[]), (Linear::SwapAb, PREFETCHING));
        assert_eq!(choose(65, &[]), MANY);
        assert_eq!(choose(65, &["persistent"]), TILED);
    }

    #[test]
    fn what_a_model_does_not_fit_goes_to_what_it_does() {
        assert_eq!(choose(1, &["skinny"]), (Linear::SwapAb, GROUPED));
        assert_eq!(choose(8, &["grouped"]), (SKINNY, Experts::Persistent));
        let experts = choose(1, &["skinny", "grouped", "persistent"]).1;
        assert_eq!(experts, Experts::Tiled);
        let no_prefetch = (Linear::Persistent, GROUPED);
        assert_eq!(choose(64, &["swap_ab"]), no_prefetch, "nothing prefetches");
        let nothing = &["skinny", "grouped", "swap_ab", "persistent"];
        assert_eq!(choose(1, nothing), TILED);
    }

    #[test]
    fn a_named_file_is_taken_at_its_word() {
        let entries = entries();
        let choice = Choice {
            entries: &entries,
            table: "decode.f32".to_owned(),
            named: Some(Path::new("mine.toml")),
        };
        let error = choice.decode(5, &Without(&["grouped"])).unwrap_err();
        for part in ["mine.toml", "decode.f32.8", "5 tokens", "grouped"] {
            assert!(error.to_string().contains(part), "{error} lacks {part}");
        }
        let fits = choice.decode(5, &Without(&["swap_ab"])).unwrap();
        assert_eq!((fits.linear, fits.experts), (SKINNY, GROUPED));
        let beyond = choice.decode(100, &Without(&[])).unwrap();
        assert_eq!(beyond, Variant::PERSISTENT);
    }

    #[test]
    fn prompts_take_neither_what_convolves_nor_what_is_for_few_rows() {
        let entries = entries();
        let choice = Choice {
            entries: &entries,
            table: "decode.bf16".to_owned(),
            named: None,
        };
        let chosen = |rows| choice.prompts(rows, &Without(&[]));
        assert_eq!(chosen(1).linear, Linear::SwapAb);
        assert_eq!(chosen(1).experts, GROUPED);
        assert_eq!(chosen(64).experts, GROUPED, "nothing prefetches");
        assert_eq!(chosen(100), Variant::PERSISTENT);
    }
}
