//! Random tokens of bytes against a search of their bytes, special tokens and broken characters among them.

use crate::cases::byte;
use crate::common::random::Random;
use tailgraph::text::{Progress, TextStream, Tokenizer};

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
