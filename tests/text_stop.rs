//! Stop strings against a search of the whole text.

mod common;

use common::random::Random;
use common::text::{load, read};
use tailgraph::text::{Progress, StopMatcher, TextStream, Tokenizer};

/// Start and end of the stop string that starts first, of those the one that ends first.
fn search(text: &str, stop: &[String]) -> Option<(usize, usize)> {
    stop.iter()
        .filter(|stop| !stop.is_empty())
        .filter_map(|stop| {
            text.find(stop.as_str())
                .map(|start| (start, start + stop.len()))
        })
        .min()
}

/// Where the first stop string starts that the text's end may be the beginning of; else the text's end.
fn pending(text: &str, stop: &[String]) -> usize {
    let is_begun = |&start: &usize| {
        text.is_char_boundary(start)
            && stop
                .iter()
                .any(|stop| stop.len() > text.len() - start && stop.starts_with(&text[start..]))
    };
    (0..text.len()).find(is_begun).unwrap_or(text.len())
}

#[test]
fn any_pieces_give_what_the_whole_text_gives() {
    let mut random = Random::new(3);
    let alphabet = ["a", "b", "é", "漢"];
    let (mut stops, mut waits, mut at_end) = (0, 0, 0);
    for _ in 0..60_000 {
        let mut string = |length: u32| -> String {
            (0..length)
                .map(|_| alphabet[random.below(4).min(random.below(4)) as usize])
                .collect()
        };
        let stop: Vec<String> = [0, 1, 2, 3, 5, 8].map(&mut string).to_vec();
        let text = string(30);
        let first = random.below(5) as usize;
        let last = first + 1 + random.below(6 - first as u32) as usize;
        let mut stop = stop[first..last].to_vec();
        if random.below(4) == 0 {
            // The text's end as the beginning of one and the end of another.
            let tail: String = text.chars().skip(26).collect();
            stop = vec![format!("{tail}a"), tail.chars().skip(2).collect()];
        }

        let mut matcher = StopMatcher::new(&stop);
        let mut fed = 0;
        let mut piece = 0;
        let mut pieces_end = Vec::new();
        let mut settled = None;
        while fed < text.len() && settled.is_none() {
            let mut end = fed + 1 + random.below(7) as usize;
            while !text.is_char_boundary(end.min(text.len())) {
                end += 1;
            }
            let end = end.min(text.len());
            settled = matcher.feed(&text.as_bytes()[fed..end], piece);
            (fed, piece) = (end, piece + 1);
            pieces_end.push(end);

            let so_far = &text[..fed];
            let found = search(so_far, &stop);
            let open = pending(so_far, &stop);
            match found {
                // Nothing before it can still become one: this must have been seen.
                Some((start, _)) if open >= start => {
                    assert!(settled.is_some(), "{so_far:?} {stop:?}")
                }
                Some(_) => {
                    waits += 1;
                    assert_eq!(
                        (settled, matcher.pending()),
                        (None, open),
                        "{so_far:?} {stop:?}"
                    );
                }
                None => assert_eq!(
                    (settled, matcher.pending()),
                    (None, open),
                    "{so_far:?} {stop:?}"
                ),
            }
        }
        let found = settled.or_else(|| matcher.found());
        let expected = search(&text[..fed], &stop);
        assert_eq!(
            found.map(|found| (found.start, found.end)),
            expected,
            "{text:?} {stop:?}"
        );
        // More text does not change it, unless it was only settled by the text's end.
        if settled.is_some() {
            stops += 1;
            assert_eq!(search(&text, &stop), expected, "{text:?} {stop:?}");
        } else if found.is_some() {
            at_end += 1;
        }
        if let Some(found) = found {
            let completed = pieces_end.iter().position(|&end| end >= found.end);
            assert_eq!(Some(found.piece), completed, "{text:?} {stop:?}");
        }
    }
    assert!(
        stops > 10_000 && waits > 500 && at_end > 100,
        "{stops} {waits} {at_end}"
    );
}

/// Ids, stop strings; the text and how many ids are left.
fn run(tokenizer: &Tokenizer, text: &str, stop: &[&str]) -> (String, usize, bool) {
    let stop: Vec<String> = stop.iter().map(|&s| s.to_owned()).collect();
    let mut stream = TextStream::new(tokenizer, &stop);
    for id in tokenizer.encode(text, false).unwrap() {
        let progress = stream.push(id);
        if progress == Progress::Stopped {
            assert_eq!(stream.push(id), Progress::Stopped);
            break;
        }
    }
    let end = stream.finish();
    (end.text, end.tokens, end.stopped)
}

#[test]
fn the_text_ends_before_the_stop_string_and_the_ids_with_it() {
    let bytes = Tokenizer::bytes();
    let run = |text: &str, stop: &[&str]| run(&bytes, text, stop);
    assert_eq!(run("one\n\ntwo", &["\n\n"]), ("one".into(), 5, true));
    assert_eq!(run("aaab", &["aab"]), ("a".into(), 4, true));
    assert_eq!(run("ababac", &["abac"]), ("ab".into(), 6, true));
    assert_eq!(run("x한y", &["한"]), ("x".into(), 4, true));
    assert_eq!(run("no stop", &["stops"]), ("no stop".into(), 7, false));
    assert_eq!(
        run("nothing to stop", &[]),
        ("nothing to stop".into(), 15, false)
    );
    assert_eq!(run("empty", &[""]), ("empty".into(), 5, false));
    // A prefix of another: it is complete first.
    assert_eq!(run("xabcd", &["abcd", "ab"]), ("x".into(), 3, true));
    // Inside another that starts first: wait, then whichever it turns out to be.
    assert_eq!(run("xabcdy", &["bc", "abcd"]), ("x".into(), 5, true));
    assert_eq!(run("xabcey", &["bc", "abcd"]), ("xa".into(), 4, true));
    assert_eq!(run("xabc", &["bc", "abcd"]), ("xa".into(), 4, true));
}

#[test]
fn a_stop_string_inside_one_token_ends_the_ids_with_that_token() {
    let tokenizer = load(read("byte_level_a")).unwrap();
    let text = "The scheduler lives on the device.";
    let ids = tokenizer.encode(text, false).unwrap();
    let stop = "edul";
    let (shown, tokens, stopped) = run(&tokenizer, text, &[stop]);
    assert_eq!((shown.as_str(), stopped), ("The sch", true));
    assert!(tokenizer.decode(&ids[..tokens], true).contains(stop));
    assert!(!tokenizer.decode(&ids[..tokens - 1], true).contains(stop));
}

#[test]
fn text_held_back_at_the_end_can_hold_the_stop_string() {
    // Byte tokens are certain only when their run ends, here with the last id.
    let tokenizer = load(read("byte_fallback")).unwrap();
    let text = "the 漢";
    let ids = tokenizer.encode(text, false).unwrap().len();
    assert_eq!(run(&tokenizer, text, &["漢"]), ("the ".into(), ids, true));
}

/// The byte tokenizer's id of a byte.
fn byte(byte: u8) -> u32 {
    8 + u32::from(byte)
}

/// Ids of a text of which special tokens are written out, then bytes as they are.
fn end(ids: &[u32], stop: &[&str]) -> (String, usize, bool) {
    let stop: Vec<String> = stop.iter().map(|&s| s.to_owned()).collect();
    let mut stream = TextStream::new(&Tokenizer::bytes(), &stop);
    for &id in ids {
        if stream.push(id) == Progress::Stopped {
            break;
        }
    }
    let end = stream.finish();
    (end.text, end.tokens, end.stopped)
}

#[test]
fn stop_strings_see_special_tokens_and_texts_do_not() {
    let bytes = Tokenizer::bytes();
    let run = |text: &str, stop: &[&str]| run(&bytes, text, stop);
    // One that is a special token, contains one, reaches into one, is inside one.
    assert_eq!(
        run("ab<|im_end|>cd", &["<|im_end|>"]),
        ("ab".into(), 3, true)
    );
    assert_eq!(
        run("ab<|im_end|>cd", &["b<|im_end|>c"]),
        ("a".into(), 4, true)
    );
    assert_eq!(run("ab<|im_end|>cd", &["b<|im"]), ("a".into(), 3, true));
    assert_eq!(run("ab<|im_end|>cd", &["end|>c"]), ("ab".into(), 4, true));
    assert_eq!(
        run("a<|im_end|><|im_end|>", &["<|im_end|><|im_end|>"]),
        ("a".into(), 3, true)
    );
    // One that a special token stands in the middle of: the text would hold it.
    assert_eq!(run("xa<|pad|><|pad|>bc", &["ab"]), ("x".into(), 5, true));
    assert_eq!(
        run("xa<|pad|>bc", &["a<|pad|>c", "abd"]),
        ("xabc".into(), 5, false)
    );
    // The first to start wins, whether it is written or shown, and waits for what may start before it.
    assert_eq!(
        run("xa<|pad|>bc", &["bc", "a<|pad|>b"]),
        ("x".into(), 4, true)
    );
    assert_eq!(run("xa<|pad|>bc", &["bc", "ab"]), ("x".into(), 4, true));
    assert_eq!(
        run("xa<|pad|>bcd", &["<|pad|>b", "abce"]),
        ("xa".into(), 4, true)
    );
}

#[test]
fn an_id_that_ends_a_sequence_may_complete_a_stop_string() {
    let tokenizer = Tokenizer::bytes();
    for (last, stop, text, stopped) in [
        (7, "b<|im_end|>", "a", true),
        (byte(b'c'), "bc", "a", true),
        (byte(b'c'), "cd", "ab", false),
    ] {
        let mut stream = TextStream::new(&tokenizer, &[stop.to_owned()]);
        stream.push(byte(b'a'));
        stream.push(byte(b'b'));
        stream.push_last(last);
        let end = stream.finish();
        assert_eq!(
            (end.text.as_str(), end.tokens, end.stopped),
            (text, 3, stopped)
        );
        assert_eq!(end.offsets.len(), 3);
    }
}

#[test]
fn broken_bytes_are_no_replacement_character() {
    // It shows as one, but nobody wrote it.
    assert_eq!(
        end(&[byte(0xc3), byte(b'x')], &["\u{fffd}"]),
        ("\u{fffd}x".into(), 2, false)
    );
    assert_eq!(
        end(&[byte(0xc3)], &["\u{fffd}"]),
        ("\u{fffd}".into(), 1, false)
    );
    let written = [byte(b'a'), byte(0xef), byte(0xbf), byte(0xbd), byte(b'x')];
    assert_eq!(end(&written, &["\u{fffd}"]), ("a".into(), 4, true));
    // A stop string behind a character that is never whole, and one in pieces behind another.
    assert_eq!(
        end(&[byte(0xc3), byte(b'x')], &["x"]),
        ("\u{fffd}".into(), 2, true)
    );
    let cut = [byte(0xe6), byte(0xc3), byte(0xa9), byte(b'x')];
    assert_eq!(end(&cut, &["é"]), ("\u{fffd}".into(), 3, true));
}

/// Bytes and the token that each came with.
type Bytes = Vec<(u8, usize)>;

/// Where the first stop string starts and which token completes it: (token, byte of it), token.
fn first(bytes: &Bytes, stop: &[String]) -> Option<((usize, usize), usize)> {
    let plain: Vec<u8> = bytes.iter().map(|&(byte, _)| byte).collect();
    let starts = |stop: &String| {
        plain
            .windows(stop.len())
            .position(|window| window == stop.as_bytes())
            .map(|start| (place(bytes, start), bytes[start + stop.len() - 1].1))
    };
    stop.iter().filter_map(starts).min()
}

fn place(bytes: &Bytes, at: usize) -> (usize, usize) {
    let token = bytes[at].1;
    let begins = bytes.iter().position(|&(_, other)| other == token).unwrap();
    (token, at - begins)
}

/// Where the end of the bytes may be the beginning of a stop string.
fn open(bytes: &Bytes, stop: &[String]) -> Option<(usize, usize)> {
    let plain: Vec<u8> = bytes.iter().map(|&(byte, _)| byte).collect();
    (0..plain.len())
        .find(|&at| {
            stop.iter().any(|stop| {
                stop.len() > plain.len() - at && stop.as_bytes().starts_with(&plain[at..])
            })
        })
        .map(|at| place(bytes, at))
}

/// A text of bytes, and for each character the token of its last byte.
fn lossy(bytes: &[(u8, usize)]) -> (String, Vec<usize>) {
    let plain: Vec<u8> = bytes.iter().map(|&(byte, _)| byte).collect();
    let (mut text, mut last, mut at) = (String::new(), Vec::new(), 0);
    for chunk in plain.utf8_chunks() {
        for c in chunk.valid().chars() {
            at += c.len_utf8();
            text.push(c);
            last.push(bytes[at - 1].1);
        }
        if !chunk.invalid().is_empty() {
            at += chunk.invalid().len();
            text.push('\u{fffd}');
            last.push(bytes[at - 1].1);
        }
    }
    (text, last)
}

#[test]
fn any_tokens_stop_where_a_search_of_their_bytes_says() {
    let specials = ["<|pad|>", "<|im_end|>"];
    let mut random = Random::new(17);
    let (mut stopped, mut through_special, mut inside, mut broken) = (0, 0, 0, 0);
    for _ in 0..30_000 {
        // Few kinds of bytes, so that stop strings are often there; pieces of é and 漢 among them.
        let kinds = [b'a', b'b', 0xc3, 0xa9, 0xe6, 0xbc, 0xa2, b'<', b'|'];
        let ids: Vec<u32> = (0..random.below(24))
            .map(|_| match random.below(6) {
                0 => 0,
                1 => 7,
                _ => byte(kinds[random.below(9).min(random.below(9)) as usize]),
            })
            .collect();
        let pieces = [
            "a",
            "b",
            "é",
            "漢",
            "<|pad|>",
            "<|im_end|>",
            "<|",
            "end|>",
            "\u{fffd}",
        ];
        let stop: Vec<String> = (0..1 + random.below(3))
            .map(|_| {
                (0..1 + random.below(3))
                    .map(|_| pieces[random.below(9).min(random.below(9)) as usize])
                    .collect()
            })
            .collect();
        let (mut written, mut shown) = (Bytes::new(), Bytes::new());
        let mut found = None;
        let mut taken = 0;
        for (token, &id) in ids.iter().enumerate() {
            taken = token + 1;
            let special = [0, 7].iter().position(|&special| special == id);
            let own: Vec<u8> = match special {
                Some(which) => specials[which].as_bytes().to_vec(),
                None => vec![(id - 8) as u8],
            };
            written.extend(own.iter().map(|&byte| (byte, token)));
            if special.is_none() {
                shown.extend(own.iter().map(|&byte| (byte, token)));
            }
            let best = [first(&written, &stop), first(&shown, &stop)]
                .into_iter()
                .flatten()
                .min();
            let waiting = [open(&written, &stop), open(&shown, &stop)]
                .into_iter()
                .flatten()
                .min();
            if best.is_some_and(|(start, _)| waiting.is_none_or(|waiting| waiting >= start)) {
                found = best;
                break;
            }
        }
        found = found.or_else(|| {
            [first(&written, &stop), first(&shown, &stop)]
                .into_iter()
                .flatten()
                .min()
        });
        let tokens = found.map_or(taken, |(_, last)| last + 1);
        let kept: Bytes = shown
            .iter()
            .copied()
            .filter(|&(_, token)| found.is_none_or(|(start, _)| token < start.0) && token < tokens)
            .collect();
        let (text, last) = lossy(&kept);
        let offsets: Vec<usize> = (0..tokens)
            .map(|token| last.iter().filter(|&&other| other < token).count())
            .collect();

        let mut stream = TextStream::new(&Tokenizer::bytes(), &stop);
        let settled = ids
            .iter()
            .position(|&id| stream.push(id) == Progress::Stopped);
        let end = stream.finish();
        assert_eq!(end.stopped, found.is_some(), "{ids:?} {stop:?}");
        assert_eq!(
            (end.text.as_str(), end.tokens),
            (text.as_str(), tokens),
            "{ids:?} {stop:?}"
        );
        assert_eq!(end.offsets, offsets, "{ids:?} {stop:?}");
        if let Some(settled) = settled {
            assert_eq!(settled + 1, taken, "{ids:?} {stop:?}");
        }
        stopped += usize::from(end.stopped);
        through_special += usize::from(end.stopped && ids[..end.tokens].iter().any(|&id| id < 8));
        inside += usize::from(found.is_some_and(|(start, _)| start.1 > 0));
        broken += usize::from(end.text.contains('\u{fffd}'));
    }
    assert!(
        stopped > 5000 && through_special > 1000 && inside > 200 && broken > 1000,
        "{stopped} {through_special} {inside} {broken}"
    );
}

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
    let files = common::text::TOKENIZERS.map(|name| (name, load(read(name)).unwrap()));
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

/// With least tokens: what an earlier piece completes is text, though it may begin there.
#[test]
fn what_completes_too_early_is_no_stop() {
    let mut random = Random::new(35);
    let mut string = |length: u32| -> String {
        (0..length)
            .map(|_| ["a", "b"][random.below(2) as usize])
            .collect()
    };
    let (mut found, mut passed_over) = (0, 0);
    for case in 0..2000usize {
        let text = string(12);
        let stop = [string(1 + case as u32 % 3), string(3)];
        let first = case % 9;
        let mut matcher = StopMatcher::new(&stop).from_piece(first);
        for (piece, byte) in text.bytes().enumerate() {
            matcher.feed(&[byte], piece);
        }
        let matches = stop.iter().flat_map(|stop| {
            let ends = stop.len()..=text.len();
            ends.filter(|&end| text[..end].ends_with(stop.as_str()))
                .map(|end| (end - stop.len(), end))
        });
        let all: Vec<(usize, usize)> = matches.collect();
        let expected = all.iter().copied().filter(|&(_, end)| end > first).min();
        let is = matcher.found().map(|found| (found.start, found.end));
        assert_eq!(is, expected, "{text} {stop:?} from {first}");
        found += usize::from(is.is_some());
        passed_over += usize::from(is != all.iter().copied().min());
    }
    assert!(found > 500 && passed_over > 500, "{found} {passed_over}");
}
