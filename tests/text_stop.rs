//! Stop strings against a search of the whole text.

mod text_common;

use tailgraph::text::{Progress, StopMatcher, TextStream, Tokenizer};
use text_common::{Random, load, read};

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
            settled = matcher.feed(&text[fed..end], piece);
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
                Some((start, _)) => {
                    waits += 1;
                    assert_eq!(
                        (settled, matcher.safe()),
                        (None, open.min(start)),
                        "{so_far:?} {stop:?}"
                    );
                }
                None => assert_eq!(
                    (settled, matcher.safe()),
                    (None, open),
                    "{so_far:?} {stop:?}"
                ),
            }
        }
        let found = settled.or_else(|| matcher.finish());
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
    let mut shown = String::new();
    for id in tokenizer.encode(text, false).unwrap() {
        let progress = stream.push(id);
        assert!(stream.safe_text().starts_with(&shown));
        shown = stream.safe_text().to_owned();
        if progress == Progress::Stopped {
            assert_eq!(stream.push(id), Progress::Stopped);
            break;
        }
    }
    let end = stream.finish();
    assert!(end.text.starts_with(&shown));
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
    // An incomplete character is U+FFFD, which may be asked for too.
    let mut stream = TextStream::new(&Tokenizer::bytes(), &["\u{fffd}".to_owned()]);
    assert_eq!(stream.push(8 + 0xc3), Progress::Continue);
    let end = stream.finish();
    assert_eq!((end.text.as_str(), end.tokens, end.stopped), ("", 1, true));
}
