use super::*;
use crate::io::hash::mix64;

struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 += 1;
        mix64(self.0)
    }
}

/// So many tokens that are `seed`'s own.
fn text(seed: u32, tokens: usize) -> Vec<u32> {
    (0..tokens as u32)
        .map(|at| 1000 * seed + at % 900)
        .collect()
}

fn joined(parts: &[&[u32]]) -> Vec<u32> {
    parts.concat()
}

fn tree(prompts: &[Vec<u32>]) -> Prefixes {
    let mut tree = Prefixes::holding(MOST);
    for prompt in prompts {
        tree.expect(prompt, 1);
    }
    tree
}

fn tokens(borders: &[Border]) -> Vec<u32> {
    borders.iter().map(|border| border.tokens).collect()
}

#[test]
fn nested_prefixes_each_have_a_border() {
    let (a, b, c) = (text(1, 40), text(2, 30), text(3, 20));
    let ends: Vec<Vec<u32>> = (10..17).map(|seed| text(seed, 25)).collect();
    let prompts = [
        joined(&[&a, &ends[0]]),
        joined(&[&a, &ends[1]]),
        joined(&[&a, &b, &ends[2]]),
        joined(&[&a, &b, &ends[3]]),
        joined(&[&a, &b, &c, &ends[4]]),
        joined(&[&a, &b, &c, &ends[5]]),
    ];
    let mut tree = tree(&prompts);
    let of = prompts.each_ref().map(|prompt| tree.borders(prompt));
    assert_eq!(tokens(&of[0]), [40]);
    assert_eq!(tokens(&of[2]), [40, 70]);
    assert_eq!(tokens(&of[4]), [40, 70, 90]);
    assert_eq!(of[4], tree.borders(&prompts[5]));
    assert_eq!((&of[4][..1], &of[4][..2]), (&of[1][..], &of[3][..]));
    let numbers: Vec<u32> = of[4].iter().map(|border| border.prefix).collect();
    assert_eq!(numbers, [1, 2, 3]);
    // One that nobody told of begins as the others do.
    assert_eq!(tree.borders(&joined(&[&a, &b, &ends[6]])), of[2]);
    assert_eq!(tree.borders(&text(7, 100)), []);
}

#[test]
fn a_prefix_that_shows_later_leaves_the_others_their_numbers() {
    let a = text(1, 100);
    let mut tree = tree(&[joined(&[&a, &text(2, 9)])]);
    let second = joined(&[&a, &text(3, 9)]);
    assert_eq!(tree.borders(&second), []);
    tree.expect(&second, 1);
    let whole = tree.borders(&second);
    assert_eq!(tokens(&whole), [100]);
    let shorter = joined(&[&a[..50], &text(4, 9)]);
    tree.expect(&shorter, 1);
    assert_eq!(tokens(&tree.borders(&shorter)), [50]);
    let both = tree.borders(&second);
    assert_eq!(tokens(&both), [50, 100]);
    assert_eq!((both[1], both[0].prefix), (whole[0], 2));
}

#[test]
fn groups_may_alternate() {
    let prompts: Vec<Vec<u32>> = (0..60)
        .map(|row| joined(&[&text(row % 3, 30), &text(10 + row, 5)]))
        .collect();
    let mut tree = tree(&prompts);
    for (row, prompt) in prompts.iter().enumerate() {
        let prefix = row as u32 % 3 + 1;
        assert_eq!(tree.borders(prompt), [Border { prefix, tokens: 30 }]);
    }
}

#[test]
fn the_last_token_is_nobody_elses() {
    let a = text(1, 50);
    // The same prompt three times; prompts that differ in the last token alone.
    let mut same = Prefixes::holding(MOST);
    same.expect(&a, 3);
    assert_eq!(tokens(&same.borders(&a)), [49]);
    let last = [7, 8].map(|last| joined(&[&a[..49], &[last]]));
    assert_eq!(tokens(&tree(&last).borders(&last[1])), [49]);
    // A prompt that is another's beginning.
    let begun = [a[..30].to_vec(), a.clone()];
    let mut tree = tree(&begun);
    assert_eq!(tokens(&tree.borders(&begun[0])), [29]);
    assert_eq!(tokens(&tree.borders(&begun[1])), [29]);
    assert_eq!(tree.borders(&a[..1]), []);
    assert_eq!(tree.borders(&[]), []);
}

#[test]
fn few_tokens_have_no_border_of_their_own() {
    let prompts: Vec<Vec<u32>> = [15, 16, 31, 32]
        .iter()
        .flat_map(|&alike| (0..2).map(move |n| (alike, n)))
        .map(|(alike, n)| joined(&[&text(1, 60)[..alike], &text(100 + alike as u32 + n, 20)]))
        .collect();
    let mut tree = tree(&prompts);
    // Each has the first 15 at least.
    assert_eq!(tokens(&tree.borders(&prompts[0])), [] as [u32; 0]);
    assert_eq!(tokens(&tree.borders(&prompts[2])), [16]);
    assert_eq!(tokens(&tree.borders(&prompts[4])), [16]);
    assert_eq!(tokens(&tree.borders(&prompts[6])), [16, 32]);
}

#[test]
fn the_borders_that_save_most_are_kept() {
    let a = text(1, 400);
    // So many prompts go another way at each of these.
    let ways = [(20, 1), (100, 90), (120, 1), (200, 50), (220, 1), (300, 9)];
    let mut tree = tree(&[a.clone(), a.clone()]);
    for (at, count) in ways {
        tree.expect(&joined(&[&a[..at], &text(at as u32, 9)]), count);
    }
    assert_eq!(tokens(&tree.borders(&a)), [100, 200, 300, 399]);
}

#[test]
fn the_oldest_prompts_are_forgotten() {
    let a = text(1, 100);
    let prompts: Vec<Vec<u32>> = (2..102)
        .map(|seed| joined(&[&a, &text(seed, 50)]))
        .collect();
    // Room for the tokens of four, their nodes and the common one.
    let mut tree = Prefixes::holding(99 + 4 * 50 + 9 * OVERHEAD);
    let mut numbers = Vec::new();
    for prompt in &prompts {
        tree.expect(prompt, 1);
        numbers.extend(tree.borders(prompt));
        assert!(tree.held() <= tree.most);
        assert!(tree.prompts.len() <= 4);
        assert!(tree.nodes.len() < 10, "{}", tree.nodes.len());
    }
    // The common one was there all the time.
    let prefix = Border {
        prefix: 1,
        tokens: 100,
    };
    assert_eq!(numbers, vec![prefix; 99]);
    tree.clear();
    assert_eq!((tree.held(), tree.children.len()), (0, 0));
    // It begins anew, with numbers of its own.
    tree.expect(&prompts[0], 2);
    assert_eq!(
        tree.borders(&prompts[0]),
        [Border {
            prefix: 2,
            tokens: 149
        }]
    );
}

#[test]
fn text_of_prompts_that_went_is_not_kept() {
    let mut tree = Prefixes::holding(1 << 16);
    for seed in 1..200 {
        let long = text(seed, 10_000);
        tree.expect(&long, 1);
        tree.expect(&long[..30], 1);
        tree.expect(&long[..6000], 1);
        let mut texts = HashMap::new();
        for node in &tree.nodes {
            texts.insert(Arc::as_ptr(&node.text).cast::<u32>(), node.text.len());
        }
        let kept: usize = texts.values().sum();
        assert!(kept <= 2 * tree.tokens, "{kept} for {}", tree.tokens);
    }
}

/// Prompts that go on from the beginnings of earlier ones.
fn random_prompts(random: &mut Random, count: usize) -> Vec<Vec<u32>> {
    let mut below = |bound: u64| (random.bits() % bound) as usize;
    let mut prompts: Vec<Vec<u32>> = Vec::new();
    for _ in 0..count {
        let mut prompt = Vec::new();
        if !prompts.is_empty() && below(5) > 0 {
            let earlier = &prompts[below(prompts.len() as u64)];
            prompt.extend(&earlier[..below(earlier.len() as u64 + 1)]);
        }
        let more = 1 + below(60);
        prompt.extend((0..more).map(|_| below(3) as u32));
        prompts.push(prompt);
    }
    prompts
}

/// What [`Prefixes::borders`] should choose, by comparing `prompt` with each one.
fn naive(prompt: &[u32], prompts: &[Vec<u32>]) -> Vec<u32> {
    let alike = |other: &Vec<u32>| {
        let both = shareable(prompt).iter().zip(shareable(other));
        both.take_while(|(a, b)| a == b).count()
    };
    let lengths: Vec<usize> = prompts.iter().map(alike).collect();
    let mut ends: Vec<usize> = lengths.clone();
    ends.sort_unstable();
    ends.dedup();
    let mut chosen = Vec::new();
    for tokens in ends {
        let count = lengths.iter().filter(|&&length| length >= tokens).count() as u64;
        if count >= 2 {
            let node = tokens as u32;
            choose(
                &mut chosen,
                Found {
                    node,
                    tokens,
                    count,
                },
            );
        }
    }
    chosen.into_iter().map(|found| found.node).collect()
}

#[test]
fn random_prompts_have_the_borders_of_a_comparison_with_each() {
    let mut random = Random(11 << 32);
    let (mut checked, mut shared) = (0, 0);
    for _ in 0..100 {
        let prompts = random_prompts(&mut random, 100);
        let mut tree = Prefixes::holding(MOST);
        let mut texts: HashMap<u32, &[u32]> = HashMap::new();
        let mut numbers: HashMap<&[u32], u32> = HashMap::new();
        for (at, prompt) in prompts.iter().enumerate() {
            tree.expect(prompt, 1);
            // Any of those that are known.
            let prompt = &prompts[random.bits() as usize % (at + 1)];
            let borders = tree.borders(prompt);
            assert_eq!(tokens(&borders), naive(prompt, &prompts[..=at]));
            for Border { prefix, tokens } in borders {
                let text = &prompt[..tokens as usize];
                assert!(text.len() < prompt.len());
                assert_eq!(*texts.entry(prefix).or_insert(text), text);
                assert_eq!(*numbers.entry(text).or_insert(prefix), prefix);
                shared += 1;
            }
            checked += 1;
        }
    }
    assert!(checked == 10_000 && shared > 5000, "{checked} {shared}");
}

#[test]
fn numbers_stay_those_of_their_tokens_where_prompts_are_forgotten() {
    let mut random = Random(12 << 32);
    let prompts = random_prompts(&mut random, 5000);
    let mut tree = Prefixes::holding(5000);
    let mut texts: HashMap<u32, &[u32]> = HashMap::new();
    for prompt in &prompts {
        tree.expect(prompt, 1 + random.bits() as usize % 3);
        for Border { prefix, tokens } in tree.borders(prompt) {
            let text = &prompt[..tokens as usize];
            assert_eq!(*texts.entry(prefix).or_insert(text), text);
        }
        assert!(tree.held() <= tree.most);
    }
    assert!(
        tree.prompts.len() < 200 && texts.len() > 1000,
        "{}",
        texts.len()
    );
    tree.clear();
    assert_eq!((tree.held(), tree.children.len()), (0, 0));
    assert_eq!(tree.free.len() + 1, tree.nodes.len());
}
