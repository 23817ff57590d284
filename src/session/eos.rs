//! Which tokens end a row: never none without a word.
//!
//! generation_config.json's, else config.json's, else the tokenizer's `eos_token`, else the default that transformers'
//! class for this architecture has. The first two are advice that a checkpoint gives of its own; where neither says
//! anything, rows would go on to their limit.

use super::opened::Opened;
use crate::io::codec::Codec;
use crate::model::ModelSource;
use crate::telemetry::warn;
use indexmap::IndexSet;

/// `eos_token_id` of Lfm2MoeConfig in transformers 5.24.
const CLASS_DEFAULT: u32 = 2;

/// End-of-sequence ids of a model whose files are read; says so where they had to be looked for elsewhere.
pub(super) fn ids(opened: &Opened, codec: &Codec) -> Vec<u32> {
    let vocabulary = opened.config.vocab_size as u32;
    let advised = opened.generation.eos_token_ids.as_deref().unwrap_or(&[]);
    if let ModelSource::Dir(dir) = &opened.spec.model {
        for (file, ids) in files(advised, &opened.config.eos_token_ids, vocabulary) {
            if let Some(warning) = beyond(ids, vocabulary) {
                warn(&format!("{}: {warning}", dir.join(file).display()));
            }
        }
    }
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

/// The files whose ids count: generation_config.json's go before those that config.json has, unless none is a token.
fn files<'a>(
    advised: &'a [u32],
    configured: &'a [u32],
    vocabulary: u32,
) -> impl Iterator<Item = (&'static str, &'a [u32])> {
    let wins = advised.iter().any(|&id| id < vocabulary);
    let others = (!wins).then_some(("config.json", configured));
    std::iter::once(("generation_config.json", advised)).chain(others)
}

/// Ids that one file names, and that the model does not have: they are an error of the file, or it is another model's.
fn beyond(ids: &[u32], vocabulary: u32) -> Option<String> {
    let wrong: Vec<String> = ids
        .iter()
        .filter(|&&id| id >= vocabulary)
        .map(u32::to_string)
        .collect();
    let (first, more) = wrong.split_first()?;
    let more = match more.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "\"eos_token_id\": found {first}{more}, expected ids below {vocabulary}, the size of the vocabulary: no row ends with what is beyond"
    ))
}

/// What ends rows, and what to say of it.
fn choose(given: &[u32], of_tokenizer: Option<u32>, vocabulary: u32) -> (Vec<u32>, Option<String>) {
    let known = given.iter().copied().filter(|&id| id < vocabulary);
    let known: IndexSet<u32> = known.collect();
    if !known.is_empty() {
        return (known.into_iter().collect(), None);
    }
    let found = match given {
        [] => "found no eos_token_id in generation_config.json or config.json".to_owned(),
        ids => format!(
            "found {} as eos_token_id, none below {vocabulary}, the size of the vocabulary",
            match ids {
                [id] => id.to_string(),
                many => format!("{} ids", many.len()),
            }
        ),
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
    fn ids_beyond_the_vocabulary_are_said_with_their_file() {
        let said = |advised: &[u32], configured: &[u32]| -> Vec<(&str, Option<String>)> {
            let of = files(advised, configured, 64);
            of.map(|(file, ids)| (file, beyond(ids, 64))).collect()
        };
        let [(file, Some(found))] = &said(&[7, 900], &[999])[..] else {
            panic!("config.json's ids are not asked for")
        };
        assert_eq!(*file, "generation_config.json");
        assert!(
            found.contains("found 900, expected ids below 64"),
            "{found}"
        );
        let [(_, None), (file, Some(found))] = &said(&[], &[64, 65, 2])[..] else {
            panic!("config.json's ids count")
        };
        assert_eq!(*file, "config.json");
        assert!(found.contains("found 64 and 1 more"), "{found}");
        assert!(said(&[7], &[]).iter().all(|(_, found)| found.is_none()));
    }

    #[test]
    fn the_first_that_names_a_token_of_the_vocabulary_wins() {
        for (given, of_tokenizer, vocabulary, expected, said) in [
            (&[7, 2][..], Some(5), 64, &[7, 2][..], None),
            (&[7, 900, 7], Some(5), 64, &[7], None),
            (&[], Some(5), 64, &[5], Some("the tokenizer's eos_token")),
            (&[900], Some(5), 64, &[5], Some("found 900 as eos_token_id")),
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
