//! Mixed texts and lists of ids, the same in each run.

use crate::common::random::Random;

/// What texts are made of; `{n}` pieces are filled in by `piece`.
const PIECES: &[&str] = &[
    "the quick brown fox",
    "Don't I'LL we'Ve SHE'S",
    "naïve café ÀÉÎ ß ſ ŉ",
    "한국어 다음 토큰",
    "漢字かな交じり文",
    "Ελληνικά Ωμέγα",
    "العربية ١٢٣٤",
    "עברית",
    "हिन्दी देवनागरी",
    "ไทย",
    "русский текст Ёж",
    "🎈🎉",
    "👩‍👩‍👧‍👦",
    "🏳️‍🌈",
    "👍🏽",
    "e\u{301}a\u{308}",
    "q\u{323}\u{307}",
    "\u{fffd}",
    "\u{feff}",
    "\u{200b}\u{200d}",
    "\u{1}\u{7f}\u{0}",
    "\u{85}\u{a0}\u{2003}\u{3000}",
    "½ ² ⅷ ①",
    "ﬁ ﬀ ㎏ ℌ",
    "1234567890",
    "3.14159e-10",
    "1,000,000",
    "fn main() { let x = &mut y[0..n]; }",
    "def f(x):\n\treturn x ** 2  # é",
    "<html><body class=\"a\">&amp;</body>",
    "{\"key\": [1, null, true]}",
    "https://example.org/?q=a%20b#c",
    "\n",
    "\r\n",
    "\n\n\n",
    "\t",
    " ",
    "  ",
    "    ",
    "!!!",
    "...",
    "?!",
    "—",
    "“”",
    "_x_",
    "a_b-c",
    "\\n",
    "'s",
    "'S",
    "''",
    "I",
    "Mathias",
    "python",
    "İ i̇ I ı",
    "ΣΊΣΥΦΟΣ ς",
    "Ǆ ǅ",
    "𝔘𝔫𝔦",
    "\u{10ffff}",
    "\u{e000}",
    "x\u{ad}y",
    "▁",
    "▁the",
    "Ġ",
    "Ċ",
    "<0xE5>",
    "##ing",
    "</w>",
];

/// How special tokens are written, and how they are almost.
const SPECIALS: &[&str] = &[
    "<|pad|>",
    "<|startoftext|>",
    "<|endoftext|>",
    "<|fim_pre|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|im_start",
    "|im_end|>",
    "<|IM_END|>",
    "<s>",
    "</s>",
    "<unk>",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "<mask>",
    "<new>",
    "<New>",
    "<extra_0>",
    "<extra_1>",
    "<image>",
    "<ｎｅｗ>",
    "word",
    "Word",
    "caf\u{e9}s",
    "cafe\u{301}s",
];

/// `count` texts.
pub fn texts(random: &mut Random, count: usize) -> Vec<String> {
    let mut all = vec![String::new(), " ".to_owned(), "\n".to_owned()];
    while all.len() < count {
        let mut text = String::new();
        for _ in 0..1 + random.below(12) {
            match random.below(16) {
                0..=2 => {
                    spaces(random, &mut text);
                    text.push_str(pick(random, SPECIALS));
                    spaces(random, &mut text);
                }
                3 => {
                    let c = char::from_u32(random.below(0x11_0000));
                    text.extend(c);
                }
                4 => (0..random.below(20))
                    .for_each(|_| text.extend(char::from_u32(random.below(0x3000)))),
                5 => {
                    let c = ["a", " ", "\n", "0", "漢", "é", "!", "🎈"][random.below(8) as usize];
                    text.push_str(&c.repeat(1 + random.below(40) as usize));
                }
                6 => {
                    // A very long word.
                    let longest = if random.below(10) == 0 { 3000 } else { 60 };
                    let length = random.below(longest);
                    (0..length).for_each(|_| text.push(char::from(b'a' + random.below(26) as u8)));
                }
                7 => spaces(random, &mut text),
                _ => text.push_str(pick(random, PIECES)),
            }
        }
        all.push(text);
    }
    all
}

fn spaces(random: &mut Random, text: &mut String) {
    let space = [" ", "\t", "\n", "\u{a0}", "\u{2003}", "\r"]
        [random.below(6).min(random.below(6)) as usize];
    text.push_str(&space.repeat(random.below(3) as usize));
}

fn pick<'a>(random: &mut Random, from: &[&'a str]) -> &'a str {
    from[random.below(from.len() as u32) as usize]
}

/// `count` lists of ids below `end`, then every id below `singles` alone.
pub fn ids(random: &mut Random, count: usize, end: u32, singles: u32) -> Vec<Vec<u32>> {
    let list = |random: &mut Random| {
        let low = random.below(2) == 0;
        (0..random.below(40))
            .map(|_| random.below(if low { end.min(600) } else { end }))
            .collect()
    };
    let mut all: Vec<Vec<u32>> = (0..count).map(|_| list(random)).collect();
    all.extend((0..singles).map(|id| vec![id]));
    all
}
