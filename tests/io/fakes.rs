//! A small codec, and a device whose output is easy to foretell.

use crate::common::text::load_both;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tailgraph::Result;
use tailgraph::io::Codec;
use tailgraph::io::answer::{Finish, Outcome};
use tailgraph::runtime::{
    EndReason, Engine, EngineStatus, Event, Request, Timing, TokenLogprobs, Waker,
};
use tailgraph::text::StopMatcher;

/// The tokens behind the bytes. BOS is written as `\u{100}`; two are written `<end>`, and one looks like a spelled byte.
pub const BOS: u32 = 256;
pub const ENDS: [u32; 2] = [300, 301];
pub const SPELLED: u32 = 302;
/// Special tokens.
pub const CALL_START: u32 = 303;
pub const CALL_END: u32 = 304;
pub const THINK: u32 = 305;
pub const THOUGHT: u32 = 306;

/// Token = byte, and the ones above; other ids have no token. The template joins the contents and the tools.
pub static CODEC: LazyLock<Arc<Codec>> = LazyLock::new(|| {
    let printable = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..);
    let others: Vec<u8> = (0..=255).filter(|byte| !printable(byte)).collect();
    // GPT-2 spells bytes so.
    let spelled = |byte: u8| match others.iter().position(|&other| other == byte) {
        None => char::from(byte).to_string(),
        Some(place) => char::from_u32(256 + place as u32).unwrap().to_string(),
    };
    let bos: String = "\u{100}".bytes().map(spelled).collect();
    let markers = [
        ("<|tool_call_start|>", CALL_START),
        ("<|tool_call_end|>", CALL_END),
        ("<think>", THINK),
        ("</think>", THOUGHT),
    ];
    let more = [
        (bos.as_str(), BOS),
        ("<end>", ENDS[0]),
        ("<end>1", ENDS[1]),
        (r"bytes:\xc3", SPELLED),
    ];
    let bytes = (0..=255).map(|byte| (spelled(byte), json!(byte)));
    let others = more.iter().chain(&markers);
    let others = others.map(|&(token, id)| (token.to_owned(), json!(id)));
    let vocab: serde_json::Map<String, Value> = bytes.chain(others).collect();
    let added = |&(content, id): &(&str, u32)| {
        json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false})
    };
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": markers.iter().map(added).collect::<Vec<_>>(),
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
            {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": false},
        ]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {bos.clone(): {"id": bos, "ids": [BOS], "tokens": [bos]}},
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": ">1"}, "content": ">"},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        ]},
    });
    let template = "{% for message in messages %}{{ message.content }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}";
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("tokenizer.json", &tokenizer.to_string());
    write("chat_template.jinja", template);
    let (tokenizer, template) = load_both(dir.path()).unwrap();
    Arc::new(Codec::new(Some(tokenizer), template))
});

/// What a sequence of these tokens comes to, without log-probabilities.
pub fn outcome(output_ids: Vec<u32>, finish: Finish) -> Outcome {
    let mut text = CODEC.stream(StopMatcher::new(&[]), false).unwrap();
    for &id in &output_ids {
        text.push(id);
    }
    let end = text.finish();
    Outcome {
        output_ids,
        text: end.text,
        text_offsets: end.offsets,
        finish,
        prompt_tokens: 1,
        logprobs: None,
        echo: None,
        timing: Timing::default(),
    }
}

struct Running {
    number: u64,
    request: Request,
    tokens: u32,
    cancelled: bool,
}

/// Says the prompt again and again, one token of each running request a round, the newest first.
#[derive(Default)]
pub struct Echo {
    pub slots: usize,
    running: Vec<Running>,
    events: VecDeque<Event>,
    submitted: u64,
    /// Fails once this many tokens are out.
    pub fail_after: Option<u64>,
    /// Sets the flag once this many tokens are out.
    pub interrupt_after: Option<(u64, Arc<AtomicBool>)>,
    tokens: u64,
    pub most_running: usize,
}

impl Echo {
    pub fn new(slots: usize) -> Self {
        Self {
            slots,
            ..Self::default()
        }
    }

    fn round(&mut self) {
        for running in self.running.iter_mut().rev() {
            let mut end = None;
            if running.cancelled {
                end = Some(EndReason::Cancelled);
            } else if running.request.timeout.is_some() && running.tokens == 2 {
                end = Some(EndReason::Timeout);
            } else {
                let prompt = &running.request.prompt;
                let token = prompt[running.tokens as usize % prompt.len()];
                let logprobs = running.request.sampling.logprobs.map(|n| TokenLogprobs {
                    logprob: -0.5,
                    top: (0..n).map(|i| (i + 65, -1.0 - i as f32)).collect(),
                });
                self.events.push_back(Event::Token {
                    request: running.number,
                    token,
                    index: running.tokens,
                    logprobs,
                });
                running.tokens += 1;
                self.tokens += 1;
                if running.request.stop_ids.contains(&token) {
                    end = Some(EndReason::Stop);
                } else if running.tokens == running.request.max_new_tokens {
                    end = Some(EndReason::Length);
                }
            }
            if let Some(reason) = end {
                self.events.push_back(Event::End {
                    request: running.number,
                    reason,
                    tokens: running.tokens,
                    timing: Timing::default(),
                });
                running.tokens = u32::MAX;
            }
        }
        self.running.retain(|running| running.tokens != u32::MAX);
    }
}

impl Engine for Echo {
    fn try_submit_all(
        &mut self,
        requests: &mut dyn Iterator<Item = &Request>,
    ) -> Result<Range<u64>> {
        let first = self.submitted;
        for request in requests.take(self.slots - self.running.len()) {
            self.running.push(Running {
                number: self.submitted,
                request: request.clone(),
                tokens: 0,
                cancelled: false,
            });
            self.submitted += 1;
        }
        self.most_running = self.most_running.max(self.running.len());
        Ok(first..self.submitted)
    }

    fn cancel(&mut self, request: u64) -> bool {
        for running in &mut self.running {
            running.cancelled |= running.number == request;
        }
        true
    }

    fn next_stamped(&mut self, _: Duration) -> Result<Option<(u64, Event)>> {
        if self.fail_after.is_some_and(|n| self.tokens >= n) {
            return Err(tailgraph::Error::Runtime("stage 0 caught fire".into()));
        }
        if self.events.is_empty() {
            self.round();
        }
        if let Some((tokens, flag)) = &self.interrupt_after
            && self.tokens >= *tokens
        {
            flag.store(true, Ordering::SeqCst);
        }
        Ok(self.events.pop_front().map(|event| (0, event)))
    }

    fn drain(&mut self) {}

    fn waker(&self) -> Waker {
        Waker::default()
    }

    fn status(&self) -> EngineStatus {
        EngineStatus::default()
    }
}
