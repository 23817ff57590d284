//! Broken tokenizers and templates: an error on one line or a result, never a panic. Runs for
//! TAILGRAPH_FUZZ_SECONDS (2 unless set), from the same seed every time.

mod common;

use std::time::{Duration, Instant};

use common::random::Random;
use common::text::{TOKENIZERS, load, load_both, read, templates};
use serde_json::{Value, json};
use tailgraph::io::row::Prompt;
use tailgraph::text::TextStream;

fn time() -> Duration {
    common::fuzz::time(2.0)
}

/// A few bytes changed, dropped, doubled or moved.
fn mutate(source: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = source.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len() as u32) as usize;
        let length = (random.below(12) as usize).min(bytes.len() - at);
        match random.below(5) {
            0 => bytes[at] = random.below(256) as u8,
            1 => bytes[at] = b"{}[]\",:0-9e.nt%|'"[random.below(17) as usize],
            2 => drop(bytes.drain(at..at + length)),
            3 => {
                let copy = bytes[at..at + length].to_vec();
                let to = random.below(bytes.len() as u32) as usize;
                bytes.splice(to..to, copy);
            }
            _ if random.below(20) == 0 => bytes.truncate(at),
            _ => bytes[at] ^= 1 << random.below(8),
        }
        if bytes.is_empty() {
            bytes.push(b'{');
        }
    }
    bytes
}

/// The head and tail of a tokenizer.json: what is not its vocabulary. Mutations there matter most.
fn without_most_of_the_vocabulary(name: &str) -> String {
    let mut source: Value = serde_json::from_str(&read(name)).unwrap();
    if name.starts_with("byte_level") || name == "split_regex" {
        source["model"]["merges"]
            .as_array_mut()
            .unwrap()
            .truncate(3);
        let vocab = source["model"]["vocab"].as_object_mut().unwrap();
        vocab.retain(|_, id| id.as_u64().unwrap() < 270);
    }
    source.to_string()
}

#[test]
fn mutated_tokenizers_load_or_say_why_not() {
    let sources = TOKENIZERS.map(without_most_of_the_vocabulary);
    for source in &sources {
        load(source).unwrap();
    }
    let mut random = Random::new(4);
    let (mut loaded, mut refused) = (0, 0);
    let end = Instant::now() + time();
    while Instant::now() < end {
        let source = &sources[random.below(sources.len() as u32) as usize];
        match load(mutate(source.as_bytes(), &mut random)) {
            Err(error) => {
                refused += 1;
                assert!(
                    error.contains("tokenizer.json: ") && !error.contains('\n'),
                    "{error}"
                );
            }
            Ok(tokenizer) => {
                loaded += 1;
                for text in ["", "the 한 é\n 12!", "<|im_start|><s>\u{0}"] {
                    if let Err(error) = tokenizer.encode(text, true) {
                        assert!(!error.to_string().contains('\n'), "{error}");
                    }
                }
                let mut stream = TextStream::new(&tokenizer, &["ab".to_owned()]);
                for _ in 0..20 {
                    stream.push(random.below(300));
                }
                stream.finish();
            }
        }
    }
    assert!(
        loaded > 10 && refused > 10,
        "{loaded} loaded, {refused} refused"
    );
}

/// Templates, broken or not, in each form that tokenizer_config.json has for them, with rows of the OpenAI format that
/// are broken in the same ways.
#[test]
fn mutated_templates_and_rows_render_or_say_why_not() {
    let conversations: Value =
        serde_json::from_str(include_str!("fixtures/text/conversations.json")).unwrap();
    let conversations = conversations.as_array().unwrap();
    let templates = templates();
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random::new(6);
    let (mut rendered, mut refused) = (0, 0);
    let end = Instant::now() + time();
    while Instant::now() < end {
        let mut template = templates[random.below(templates.len() as u32) as usize].clone();
        if random.below(2) == 0 {
            let mutated = mutate(template.as_bytes(), &mut random);
            template = String::from_utf8_lossy(&mutated).into_owned();
        }
        let config = match random.below(4) {
            0 => json!({"chat_template": [{"name": "default", "template": template}]}),
            1 => json!({"chat_template": {"default": template}, "bos_token": {"content": "<s>"}}),
            _ => json!({"chat_template": template}),
        };
        let mut config = config.to_string().into_bytes();
        if random.below(4) == 0 {
            config = mutate(&config, &mut random);
        }
        std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
        let body = &conversations[random.below(conversations.len() as u32) as usize];
        let row = json!({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body});
        let mut row = row.to_string().into_bytes();
        if random.below(2) == 0 {
            row = mutate(&row, &mut random);
        }
        let start = Instant::now();
        let result = match tailgraph::io::line::parse(&row, 1).ask {
            Err(error) => Err(error.to_string()),
            Ok(ask) => match (ask.prompt, load_both(dir.path())) {
                (Prompt::Messages(chat), Ok((_, Some(template)))) => {
                    assert!(template.doubts(&chat).len() < 50);
                    let rendered = template.render(&template.fit(*chat));
                    rendered.map_err(|error| error.to_string())
                }
                (_, Err(error)) => Err(error),
                _ => Ok(String::new()),
            },
        };
        assert!(start.elapsed() < Duration::from_secs(10));
        match result {
            Ok(_) => rendered += 1,
            Err(error) => {
                refused += 1;
                assert!(
                    !error.contains('\n') && !error.contains("panicked"),
                    "{error}"
                );
            }
        }
    }
    assert!(
        rendered > 5 && refused > 5,
        "{rendered} rendered, {refused} refused"
    );
    common::memory::assert_peak_below_a_gib();
}
