//! Every field that a request of the openai package may have is honoured, harmless or refused by name, as
//! fixtures/openai/request_fields.txt says; each is tried.

use crate::common::python::{ask, interpreter};
use crate::{answers, row};
use serde_json::Value;
use tailgraph::io::line::parse;

const TABLE: &str = include_str!("../fixtures/openai/request_fields.txt");

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Honoured,
    Harmless,
    Refused,
}

/// A line of the table.
struct Claim {
    fate: Fate,
    endpoint: &'static str,
    key: &'static str,
    beside: Option<Value>,
}

fn claims() -> Vec<Claim> {
    let lines = TABLE
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let claim = |line: &'static str| {
        let (claim, beside) = match line.split_once(" beside ") {
            Some((claim, beside)) => (claim, Some(serde_json::from_str(beside).unwrap())),
            None => (line, None),
        };
        let mut words = claim.split_whitespace();
        Claim {
            fate: match words.next() {
                Some("honoured") => Fate::Honoured,
                Some("harmless") => Fate::Harmless,
                Some("refused") => Fate::Refused,
                _ => panic!("{line}"),
            },
            endpoint: words.next().unwrap(),
            key: words.next().unwrap(),
            beside,
        }
    };
    lines.map(claim).collect()
}

/// What follows `pattern` in `key`, where it begins with that. `[*]` stands for any kind.
fn after<'k>(pattern: &str, key: &'k str) -> Option<&'k str> {
    let mut rest = key;
    for (place, piece) in pattern.split("[*]").enumerate() {
        if place > 0 {
            let (_, behind) = rest.strip_prefix('[')?.split_once(']')?;
            rest = behind;
        }
        rest = rest.strip_prefix(piece)?;
    }
    Some(rest)
}

impl Claim {
    fn fits(&self, endpoint: &str, key: &str) -> bool {
        let within = match self.fate {
            Fate::Refused => ['=', '.', '['].as_slice(),
            Fate::Honoured | Fate::Harmless => &['='],
        };
        (self.endpoint == endpoint || self.endpoint == "both")
            && after(self.key, key).is_some_and(|rest| rest.is_empty() || rest.starts_with(within))
    }

    /// What an error must name: the last field of the key and its value, or which kind of object it is.
    fn named(&self) -> Vec<&'static str> {
        let (path, value) = self.key.split_once('=').unwrap_or((self.key, ""));
        let last = path.rsplit(['.', '[']).next().unwrap();
        let path = match last {
            "]" => path.trim_end_matches("[]"),
            last => last.trim_end_matches(']'),
        };
        match value {
            "" | "[]" | "\"\"" => vec![path],
            // A list or an object is not shown in full.
            value if last == "]" || value.starts_with('{') => vec![path],
            value => vec![path, value],
        }
    }
}

/// A request with a field and one without, the claim of which is to be tried.
struct Trial<'c> {
    claim: &'c Claim,
    key: String,
    with: String,
    /// Rows that differ from it in this field alone.
    without: Vec<String>,
}

/// What a row asks, and what its answer repeats of it.
fn meant(line: &str) -> (Option<tailgraph::io::row::Ask>, String) {
    let row = parse(line.as_bytes(), 1);
    (row.ask.ok(), format!("{:?}", row.format))
}

#[test]
fn every_field_of_a_request_is_honoured_harmless_or_refused_by_name() {
    let Some(python) =
        interpreter("every_field_of_a_request_is_honoured_harmless_or_refused_by_name")
    else {
        return;
    };
    let said = ask(&python, "openai_fields.py", &Value::Null);
    let claims = claims();
    let nulls = Claim {
        fate: Fate::Harmless,
        endpoint: "both",
        key: "",
        beside: None,
    };
    let mut trials = Vec::new();
    let mut unknown = Vec::new();
    for (endpoint, url) in [("chat", "chat/completions"), ("completions", "completions")] {
        let requests = said[endpoint].as_array().unwrap();
        assert!(requests.len() > 50, "{}", requests.len());
        for request in requests {
            let key = request["key"].as_str().unwrap();
            let fits = claims.iter().filter(|claim| claim.fits(endpoint, key));
            let longest = fits.clone().map(|claim| claim.key.len()).max();
            let mut best: Vec<&Claim> = fits
                .filter(|claim| Some(claim.key.len()) == longest)
                .collect();
            if key.ends_with("=null") && !best.iter().any(|claim| claim.key.ends_with("=null")) {
                best = vec![&nulls];
            }
            if best.is_empty() {
                unknown.push(format!("{endpoint} {key}"));
            }
            for claim in best {
                let body = |given: &Value| {
                    let mut body = given.clone();
                    let beside = claim
                        .beside
                        .iter()
                        .flat_map(|beside| beside.as_object().unwrap());
                    for (name, value) in beside {
                        body[name] = value.clone();
                    }
                    // A few tokens will do.
                    if !key.starts_with("max_") {
                        body["max_tokens"] = 3.into();
                    }
                    body
                };
                let field = key.split(['.', '[', '=']).next().unwrap();
                let mut left_out = request["with"].clone();
                left_out.as_object_mut().unwrap().remove(field);
                let id = format!("{} {key}", trials.len());
                trials.push(Trial {
                    claim,
                    key: key.to_owned(),
                    with: row(&id, url, body(&request["with"])),
                    without: [&request["without"], &left_out]
                        .map(|given| row(&id, url, body(given)))
                        .into(),
                });
            }
        }
    }
    assert_eq!(
        unknown, [""; 0],
        "fields that no line of the table is about"
    );
    let used = |claim: &&Claim| trials.iter().any(|trial| std::ptr::eq(trial.claim, *claim));
    let unused: Vec<&str> = claims
        .iter()
        .filter(|claim| !used(claim))
        .map(|claim| claim.key)
        .collect();
    assert_eq!(
        unused, [""; 0],
        "lines of the table that are about no field"
    );

    let lines: Vec<String> = trials.iter().map(|trial| trial.with.clone()).collect();
    let mut faults = Vec::new();
    for (trial, answer) in trials.iter().zip(answers(&lines)) {
        let message = answer["error"]["message"].as_str();
        let answered = message.is_none() && answer["response"]["status_code"] == 200;
        let with = meant(&trial.with);
        let same = |line: &String| meant(line) == with;
        let right = match (trial.claim.fate, message) {
            // Without a value it is as if it were not there, be that right or wrong.
            (Fate::Harmless, _) if trial.key.ends_with("=null") => same(&trial.without[0]),
            (Fate::Harmless, _) => answered && trial.without.iter().any(same),
            (Fate::Honoured, _) => answered && !same(&trial.without[0]),
            (Fate::Refused, Some(message)) => trial
                .claim
                .named()
                .iter()
                .all(|name| message.contains(name)),
            (Fate::Refused, None) => false,
        };
        if !right {
            faults.push(format!(
                "{:?} {}\n  {}\n  {answer}",
                trial.claim.fate, trial.key, trial.with
            ));
        }
    }
    assert!(
        faults.is_empty(),
        "{} are not so:\n{}",
        faults.len(),
        faults.join("\n")
    );
    assert!(trials.len() > 400, "{}", trials.len());
}
