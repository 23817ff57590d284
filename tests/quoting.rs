//! Names and values that nobody has checked, quoted by errors: with line ends, terminal controls, marks of direction or ten
//! thousand characters in any place of a row, a template or a file, a message is one printable line that is not long.

mod common;

use common::text::{load_both, load_template};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use tailgraph::backend::cuda::tuning::KernelFile;
use tailgraph::io::line;
use tailgraph::io::record::Reader;
use tailgraph::model::{Model, ModelSource};
use tailgraph::plan::GraphFile;
use tailgraph::report::input;
use tailgraph::text::Chat;

fn hostile() -> String {
    "h\n\u{1b}[2J\r\u{85}\u{2028}\u{202e}`".to_owned() + &"é".repeat(10_000)
}

/// What was said about spoiled input.
#[derive(Default)]
struct Said {
    all: usize,
    /// Messages that show the hostile text.
    quoted: usize,
}

impl Said {
    #[track_caller]
    fn hear(&mut self, message: &str) {
        let unseen = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202e}');
        assert!(
            !message.contains(unseen) && message.chars().count() <= 1_200,
            "{message:?}"
        );
        self.all += 1;
        self.quoted += usize::from(
            ["h\\n", "\\u{1b}"]
                .iter()
                .any(|part| message.contains(part)),
        );
    }

    #[track_caller]
    fn hear_error<T>(&mut self, result: Result<T, impl std::fmt::Display>) {
        if let Err(error) = result {
            self.hear(&error.to_string());
        }
    }

    /// There were errors, and some of them quote what was put in.
    #[track_caller]
    fn has_heard(&self, least: usize) {
        assert!(self.quoted >= least, "{} of {}", self.quoted, self.all);
    }
}

/// `value` with hostile text in each of its places in turn: as a value, within one, and as a name.
fn spoiled(value: &Value) -> Vec<Value> {
    let mut all = vec![
        hostile().into(),
        json!([hostile()]),
        json!({ hostile(): hostile() }),
        json!({ "type": hostile(), "content": hostile() }),
    ];
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let with = |name: &str, field| {
                    let mut fields = fields.clone();
                    fields.insert(name.to_owned(), field);
                    Value::Object(fields)
                };
                all.extend(spoiled(field).into_iter().map(|field| with(name, field)));
                all.push(with(&hostile(), field.clone()));
                let renamed = |(other, field): (&String, &Value)| {
                    let other = if other == name {
                        hostile()
                    } else {
                        other.clone()
                    };
                    (other, field.clone())
                };
                all.push(Value::Object(fields.iter().map(renamed).collect()));
            }
        }
        // One item stands for its like.
        Value::Array(items) if !items.is_empty() => {
            for item in spoiled(&items[0]) {
                let mut items = items.clone();
                items[0] = item;
                all.push(items.into());
            }
        }
        _ => {}
    }
    all
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/goldens/lfm2moe-tiny-a")
        .join(name)
}

fn golden(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(name)).unwrap()).unwrap()
}

#[test]
fn rows() {
    let sampling = json!({"temperature": 1, "top_k": 2, "top_p": 1, "min_p": 0, "repetition_penalty": 1, "seed": 1,
        "stop": ["a"], "ignore_eos": true, "timeout_ms": 5, "logprobs": 1});
    let chat = json!({
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "function",
                "function": {"name": "f", "arguments": "{}"}}], "audio": null},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "tool_choice": "auto",
        "chat_template_kwargs": {"documents": [{"title": "a"}]}, "continue_final_message": false,
    });
    let merged = |parts: &[&Value]| -> Value {
        let fields = parts
            .iter()
            .flat_map(|part| part.as_object().unwrap().clone());
        Value::Object(fields.collect::<Map<_, _>>())
    };
    let body = merged(&[
        &chat,
        &json!({"model": "m", "max_tokens": 5, "n": 1, "response_format": {"type": "text"}}),
    ]);
    let mut said = Said::default();
    for row in [
        merged(&[
            &json!({"id": "a", "prompt": "b", "max_new_tokens": 5, "stop_ids": [1]}),
            &sampling,
        ]),
        merged(&[&json!({"id": "a"}), &chat]),
        json!({"id": "a", "input_ids": [1, 2]}),
        json!({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}),
        json!({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": merged(&[&json!({"prompt": [1]}), &sampling])}),
    ] {
        for line in spoiled(&row) {
            let row = line::parse(line.to_string().as_bytes(), 1);
            said.hear_error(row.ask);
            row.ignored.iter().for_each(|name| said.hear(name));
        }
    }
    said.has_heard(100);
}

#[test]
fn templates() {
    let chat = || Chat::new(json!([{"role": "user", "content": hostile()}]), None);
    let word = "n".repeat(10_000);
    let text = serde_json::to_string(&hostile()).unwrap();
    let mut said = Said::default();
    for source in [
        "{{ raise_exception(@) }}",
        "{{ raise_exception(messages[0].content) }}",
        "{{ messages | map(attribute=@) | list | first + 1 }}",
        "{{ messages | groupby(@) | list }}",
        "{{ messages | selectattr(@, @) | list }}",
        "{{ messages | map(@) | list }}",
        "{{ messages | tojson(indent=@) }}",
        "{{ '{!' ~ @ ~ '}' }}{{ ('{0!' ~ @ ~ '}').format(1) }}",
        "{{ ('{0:' ~ @ ~ '}').format(1) }}",
        "{{ ('%' ~ @) % 1 }}",
        "{{ 1 + @ }}",
        "{{ {}[@].x }}",
        "{{ (messages | attr(@)).x }}",
        "{{ @ | int(base=@) }}",
        "{{ @ | round }}{{ 'a'.center(@) }}",
        "{{ @ is sameas @ }}{{ @ < 1 }}",
        "{{ namespace(**{@: 1}) }}{{ range(@) }}",
        "{% macro m(a) %}{% endmacro %}{{ m(**{@: 1}) }}",
        "{{ dict(**{@: 1}) }}{{ cycler(@).go() }}",
        "{{ @ @ }}",
        "{% if @ % }",
        "{{ #.# }}",
        "{{ ''.#() }}",
        "{{ ''|# }}",
        "{{ 1 is # }}",
        "{{ range(#=1) }}",
        "{{ cycler(1).#() }}",
        "{% # %}",
        "{% macro #(#) %}{% endmacro %}{{ #(1, 2) }}{{ #(b=1) }}",
        "{% macro m(a) %}{% endmacro %}{{ m(#=1) }}",
        "{% set #, # = 1 %}",
        "{% generation # %}",
        "{% block # %}{% block # %}{% endblock %}{% endblock %}",
        "{% raw %}#",
        "{# #",
    ] {
        for source in [
            source.replace('@', &text).replace('#', &word),
            source
                .replace('@', "messages[0].content")
                .replace('#', &word),
        ] {
            let rendered = load_template(&source).and_then(|template| {
                let rendered = template.render(&chat());
                rendered.map(drop).map_err(|error| error.to_string())
            });
            said.hear_error(rendered);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    for templates in spoiled(&json!([{"name": "default", "template": "{{ 1 }}"}])) {
        let config = json!({"chat_template": templates}).to_string();
        std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
        match load_both(folder.path()) {
            Ok((_, Some(template))) => said.hear_error(template.render(&chat())),
            result => said.hear_error(result),
        }
    }
    assert!(said.all > 50, "{}", said.all);
    // minijinja's own messages quote little, and a tag that holds all of the hostile text is refused by its size.
    said.has_heard(1);
}

#[test]
fn a_checkpoints_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let shard = "model-00001-of-00001.safetensors";
    std::fs::write(path(shard), b"").unwrap();
    // The tokenizer has a small vocabulary; all else in it is that of the goldens.
    let mut tokenizer = golden("tokenizer.json");
    for (name, list) in [
        ("vocab", json!({"a": 0, "b": 1, "ab": 2})),
        ("merges", json!(["a b"])),
    ] {
        tokenizer["model"][name] = list;
    }
    tokenizer["added_tokens"]
        .as_array_mut()
        .unwrap()
        .truncate(1);
    let mut config = golden("tokenizer_config.json");
    config["added_tokens_decoder"] = json!({"5": {"content": "<a>", "special": true}});
    config["extra_special_tokens"] = json!({"image_token": "<i>"});
    let mut said = Said::default();
    let files = [
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", config),
        (
            "special_tokens_map.json",
            json!({"eos_token": "<a>", "additional_special_tokens": ["<b>"]}),
        ),
        ("added_tokens.json", json!({"<c>": 7})),
    ];
    for (name, whole) in &files {
        std::fs::write(path(name), whole.to_string()).unwrap();
    }
    load_both(folder.path()).unwrap();
    for (name, whole) in files {
        for spoiled in spoiled(&whole) {
            std::fs::write(path(name), spoiled.to_string()).unwrap();
            said.hear_error(load_both(folder.path()));
        }
        std::fs::write(path(name), whole.to_string()).unwrap();
    }
    said.has_heard(20);

    let mut said = Said::default();
    std::fs::copy(fixture("config.json"), path("config.json")).unwrap();
    let source = ModelSource::parse(folder.path().to_str().unwrap()).unwrap();
    let index =
        json!({"metadata": {"total_size": 1}, "weight_map": {"model.embed_tokens.weight": shard}});
    for (name, whole) in [
        ("config.json", golden("config.json")),
        ("generation_config.json", golden("generation_config.json")),
        ("model.safetensors.index.json", index),
    ] {
        for spoiled in spoiled(&whole) {
            std::fs::write(path(name), spoiled.to_string()).unwrap();
            said.hear_error(Model::load(&source));
        }
        std::fs::write(path(name), whole.to_string()).unwrap();
    }
    said.has_heard(20);
}

#[test]
fn headers_of_weights() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "generation_config.json"] {
        std::fs::copy(fixture(name), folder.path().join(name)).unwrap();
    }
    let source = ModelSource::parse(folder.path().to_str().unwrap()).unwrap();
    let header = json!({
        "__metadata__": {"format": "pt"},
        "model.embed_tokens.weight": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]},
    });
    let mut said = Said::default();
    let long = json!({"dtype": "F32", "shape": vec![1; 10_000], "data_offsets": [0, 32]});
    let mut headers = spoiled(&header);
    headers.push(json!({"model.embed_tokens.weight": long, hostile(): long}));
    for spoiled in headers {
        let header = spoiled.to_string();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&[0; 32]);
        std::fs::write(folder.path().join("model.safetensors"), &bytes).unwrap();
        said.hear_error(Model::load(&source));
        let tokens = folder.path().join("tokens.safetensors");
        std::fs::write(&tokens, &bytes).unwrap();
        said.hear_error(tailgraph::io::arrays::safetensors(&tokens));
    }
    said.has_heard(5);
}

#[test]
fn bucket_and_kernel_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.toml");
    let mut said = Said::default();
    let buckets = json!({"buckets": {"decode": [1, 2]}, "stages": {"2": [3]}});
    let kernels = include_str!("../graphs/sm_90.toml");
    let kernels: toml::Table = kernels.parse().unwrap();
    let mut kernels = serde_json::to_value(kernels).unwrap();
    // One entry stands for its like.
    for entries in kernels["decode"].as_object_mut().unwrap().values_mut() {
        let first = entries.as_object().unwrap().iter().next().unwrap();
        *entries = json!({ first.0: first.1 });
    }
    for spoiled in spoiled(&buckets).iter().chain(&spoiled(&kernels)) {
        let Ok(text) = toml::to_string(spoiled) else {
            continue;
        };
        std::fs::write(&path, text).unwrap();
        said.hear_error(GraphFile::read(&path));
        said.hear_error(KernelFile::read(&path));
    }
    std::fs::write(&path, hostile()).unwrap();
    said.hear_error(GraphFile::read(&path));
    said.has_heard(20);
}

#[test]
fn recordings_and_results() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.json");
    let mut said = Said::default();
    let results = json!([{"schema": 1, "kind": "decode", "model": "m", "device": "d"}]);
    let trace = json!({"traceEvents": [{"name": "a", "ph": "X", "ts": 1}], "otherData": {"a": 1}});
    for whole in [results, trace, json!({"a": 1})] {
        for spoiled in spoiled(&whole) {
            std::fs::write(&path, spoiled.to_string()).unwrap();
            said.hear_error(input::read(&path, "file".to_owned()).map(drop));
            said.hear_error(tailgraph::bench::row::read(&path).map(drop));
            said.hear_error(Reader::open(&path).map(drop));
        }
    }
    said.has_heard(1);
}
