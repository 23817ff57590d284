//! Streams of tokens, case by case: where text and ids end.

use crate::common::text::{load, read};
use tailgraph::text::{Progress, TextStream, Tokenizer};

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
pub fn byte(byte: u8) -> u32 {
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
