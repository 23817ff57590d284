//! Tokenizers of every kind of decoder: where a text is cut, and what of it is certain before its end.

use crate::common::random::Random;
use crate::common::text::{load, read};
use crate::matcher::search;
use tailgraph::text::{Progress, TextStream, Tokenizer};

#[test]
fn a_text_is_cut_inside_a_token_and_the_places_with_it() {
    for name in ["byte_level_a", "split_regex"] {
        let tokenizer = load(read(name)).unwrap();
        let mut random = Random::new(23);
        let mut inside = 0;
        for _ in 0..2000 {
            let words = [
                "The ",
                "scheduler",
                " naïve",
                "漢字",
                " 🎈",
                "<|im_end|>",
                "\n\n",
                "...",
                "12",
            ];
            let text: String = (0..6).map(|_| words[random.below(9) as usize]).collect();
            let ids = tokenizer.encode(&text, false).unwrap();
            let letters: Vec<char> = text.chars().collect();
            let from = random.below(letters.len() as u32) as usize;
            let stop: String = letters[from..]
                .iter()
                .take(1 + random.below(5) as usize)
                .collect();
            let mut stream = TextStream::new(&tokenizer, std::slice::from_ref(&stop));
            ids.iter().any(|&id| stream.push(id) == Progress::Stopped);
            let end = stream.finish();
            assert!(end.stopped, "{text:?} {stop:?}");
            let before = text.find(&stop).unwrap();
            // Either as it is written, or earlier in the text without special tokens.
            let plain = text.replace("<|im_end|>", "");
            let bare = text[..before].replace("<|im_end|>", "");
            let partial = text
                .match_indices("<|im_end|>")
                .any(|(at, token)| at < before && before < at + token.len());
            if !partial {
                let earliest = plain
                    .find(&stop)
                    .map_or(bare.len(), |at| at.min(bare.len()));
                assert_eq!(end.text, plain[..earliest], "{text:?} {stop:?}");
            }
            let characters = end.text.chars().count();
            assert!(end.offsets.is_sorted() && end.offsets.iter().all(|&at| at <= characters));
            // Each token's text stands where its place says, as far as the text goes.
            let written: Vec<char> = end.text.chars().collect();
            for (&id, &at) in ids.iter().zip(&end.offsets) {
                let own = tokenizer.token_bytes(id).unwrap();
                if let Ok(own) = std::str::from_utf8(&own)
                    && !tokenizer.is_special(id)
                {
                    let there: String = written[at..].iter().take(own.chars().count()).collect();
                    assert!(
                        own.starts_with(&there),
                        "{text:?} {stop:?} {own:?} {there:?}"
                    );
                }
            }
            let start = tokenizer.encode(&end.text, false).unwrap().len();
            inside += usize::from(
                start > 0 && !ids.starts_with(&tokenizer.encode(&end.text, false).unwrap()),
            );
        }
        assert!(inside > 100, "{inside}");
    }
}

/// A tokenizer.json without a decoder: its tokens are joined by spaces, which belong to none of them.
fn spaced() -> Tokenizer {
    let vocab: Vec<&str> = vec!["a", "b", "ab", "<e>", "é"];
    let ids: serde_json::Map<String, serde_json::Value> = vocab
        .iter()
        .enumerate()
        .map(|(id, &word)| (word.to_owned(), id.into()))
        .collect();
    let file = serde_json::json!({
        "version": "1.0",
        "added_tokens": [{
            "id": 3, "content": "<e>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true,
        }],
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": "a"},
    });
    load(file.to_string()).unwrap()
}

#[test]
fn spaces_between_tokens_are_part_of_what_stops() {
    let tokenizer = spaced();
    assert_eq!(tokenizer.decode(&[0, 1, 3, 4], true), "a b é");
    assert_eq!(tokenizer.decode(&[0, 3, 1], false), "a <e> b");
    let stops = [
        "a b", "ab", " ", "b ", " a", "b a b", "a <e>", "<e> b", "<e> ", "é", "b é a", "bb",
    ];
    let mut random = Random::new(31);
    let mut stopped = 0;
    for _ in 0..20_000 {
        // 9 is no token.
        let ids: Vec<u32> = (0..random.below(8))
            .map(|_| [0, 1, 2, 3, 4, 9][random.below(6) as usize])
            .collect();
        let stop: Vec<String> = (0..1 + random.below(2))
            .map(|_| stops[random.below(stops.len() as u32) as usize].to_owned())
            .collect();
        let mut stream = TextStream::new(&tokenizer, &stop);
        for &id in &ids {
            stream.push(id);
        }
        let end = stream.finish();
        let what = format!("{ids:?} {stop:?} {end:?}");

        let texts = |end: usize| [true, false].map(|skip| tokenizer.decode(&ids[..end], skip));
        let holds = |texts: [String; 2]| texts.iter().any(|text| search(text, &stop).is_some());
        assert_eq!(end.stopped, holds(texts(ids.len())), "{what}");
        assert!(search(&end.text, &stop).is_none(), "{what}");
        let [shown, _] = texts(ids.len());
        assert!(shown.starts_with(&end.text), "{what}");
        if !end.stopped {
            assert_eq!(
                (end.text.as_str(), end.tokens),
                (shown.as_str(), ids.len()),
                "{what}"
            );
        } else {
            stopped += 1;
            assert!(holds(texts(end.tokens)), "{what}");
        }
        // Without special tokens the text ends right before what a search of it finds.
        if !ids.contains(&3)
            && let Some((start, _)) = search(&shown, &stop)
        {
            assert_eq!(end.text, shown[..start], "{what}");
        }
        // Each token begins where the text before it and a space end, or at the end of what is left.
        for (at, &offset) in end
            .offsets
            .iter()
            .enumerate()
            .filter(|&(at, _)| ids[at] < 9 && ids[at] != 3)
        {
            let before = tokenizer.decode(&ids[..at], true).chars().count();
            let place = before + usize::from(before > 0);
            assert_eq!(offset, place.min(end.text.chars().count()), "{what} {at}");
        }
    }
    assert!(stopped > 5_000, "{stopped}");
}

/// Tokenizers of every kind of decoder: bytes, byte-level, byte fallback with strips, and tokens with spaces between them.
fn tokenizers() -> Vec<(&'static str, Tokenizer)> {
    let files = crate::common::text::TOKENIZERS.map(|name| (name, load(read(name)).unwrap()));
    let words = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1, "b": 2, "ab": 3, "ba": 4}, "unk_token": "<unk>"},
    });
    let mut all = vec![
        ("bytes", Tokenizer::bytes()),
        ("words", load(words.to_string()).unwrap()),
    ];
    all.extend(files);
    all
}

#[test]
fn text_told_as_it_becomes_certain_is_never_taken_back() {
    let mut random = Random::new(29);
    let (mut early, mut stopped, mut held) = (0, 0, 0);
    for (name, tokenizer) in tokenizers() {
        let mut pool = tokenizer
            .encode("a b ab ba é漢字 <|im_end|>\n the scheduler", false)
            .unwrap();
        pool.extend(0..300);
        for _ in 0..2_000 {
            let ids: Vec<u32> = (0..1 + random.below(24))
                .map(|_| pool[random.below(pool.len() as u32) as usize])
                .collect();
            let whole: Vec<char> = tokenizer.decode(&ids, false).chars().collect();
            let mut stop = Vec::new();
            for _ in 0..random.below(3) {
                let start = random.below(whole.len().max(1) as u32) as usize;
                let end = (start + 1 + random.below(4) as usize).min(whole.len());
                stop.extend(whole.get(start..end).map(|part| part.iter().collect()));
            }
            let mut stream = TextStream::new(&tokenizer, &stop);
            let mut told = String::new();
            for &id in &ids {
                let progress = stream.push(id);
                if random.below(3) > 0 {
                    told += &stream.certain();
                }
                if progress == Progress::Stopped {
                    break;
                }
            }
            told += &stream.certain();
            assert_eq!(stream.certain(), "", "{name} {ids:?}: told once");
            let end = stream.finish();
            assert!(
                end.text.starts_with(&told),
                "{name} {ids:?} {stop:?}: told {told:?} of {:?}",
                end.text
            );
            early += usize::from(!told.is_empty());
            held += usize::from(told.len() < end.text.len());
            stopped += usize::from(end.stopped);
            if stop.is_empty() && name == "words" {
                // Nothing is held back where nothing can change.
                assert_eq!(told, end.text);
            }
        }
    }
    assert!(
        early > 8_000 && stopped > 4_000 && held > 1_000,
        "{early} {stopped} {held}"
    );
}
