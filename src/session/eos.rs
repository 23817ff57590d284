//! Which tokens end a row: never none without a word.
//!
//! generation_config.json's, else config.json's, else the tokenizer's `eos_token`, else the default that transformers'
//! class for this architecture has. The first two are advice that a checkpoint gives of its own; where neither says
//! anything, rows would go on to their limit.

use super::codec::ModelCodec;
use super::opened::Opened;
use crate::model::ModelSource;
use crate::telemetry::warn;

/// `eos_token_id` of Lfm2MoeConfig in transformers 5.24.
const CLASS_DEFAULT: u32 = 2;

/// End-of-sequence ids of a model whose files are read; says so where they had to be looked for elsewhere.
pub(super) fn ids(opened: &Opened, codec: &ModelCodec) -> Vec<u32> {
    let vocabulary = opened.config.vocab_size as u32;
    let (ids, warning) = choose(
        &opened.config.eos_token_ids,
        codec.named_id("eos_token"),
        vocabulary,
    );
    if let (Some(warning), ModelSource::Dir(dir)) = (warning, &opened.spec.model) {
        warn(&format!("{}: {warning}", dir.display()));
    }
    ids
}

/// What ends rows, and what to say of it.
fn choose(given: &[u32], of_tokenizer: Option<u32>, vocabulary: u32) -> (Vec<u32>, Option<String>) {
    let known: Vec<u32> = given
        .iter()
        .copied()
        .filter(|&id| id < vocabulary)
        .collect();
    if !known.is_empty() {
        return (known, None);
    }
    let found = match given {
        [] => "found no eos_token_id in generation_config.json or config.json".to_owned(),
        ids => format!("found eos_token_id {ids:?}, beyond the vocabulary of {vocabulary}"),
    };
    let (id, whose) = match of_tokenizer.filter(|&id| id < vocabulary) {
        Some(id) => (id, "the tokenizer's eos_token"),
        None => (CLASS_DEFAULT, "the default of Lfm2MoeConfig"),
    };
    if id >= vocabulary {
        return (
            Vec::new(),
            Some(format!("{found}: rows end at their limits alone")),
        );
    }
    let warning = format!("{found}: rows end with {id}, {whose}");
    (vec![id], Some(warning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_names_a_token_of_the_vocabulary_wins() {
        for (given, of_tokenizer, vocabulary, expected, said) in [
            (&[7, 2][..], Some(5), 64, &[7, 2][..], None),
            (&[7, 900], Some(5), 64, &[7], None),
            (&[], Some(5), 64, &[5], Some("the tokenizer's eos_token")),
            (&[900], Some(5), 64, &[5], Some("found eos_token_id [900]")),
            (&[], None, 64, &[2], Some("the default of Lfm2MoeConfig")),
            (
                &[],
                Some(64),
                64,
                &[2],
                Some("the default of Lfm2MoeConfig"),
            ),
            (&[], None, 2, &[], Some("at their limits alone")),
        ] {
            let (ids, warning) = choose(given, of_tokenizer, vocabulary);
            assert_eq!(ids, expected, "{given:?} {of_tokenizer:?}");
            assert_eq!(warning.is_some(), said.is_some());
            assert!(
                warning
                    .unwrap_or_default()
                    .contains(said.unwrap_or_default())
            );
        }
    }
}
