//! The matcher alone: pieces of a text against a search of all of it.

use crate::common::random::Random;
use tailgraph::text::StopMatcher;

/// Start and end of the stop string that starts first, of those the one that ends first.
pub fn search(text: &str, stop: &[String]) -> Option<(usize, usize)> {
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
