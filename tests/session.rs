//! The library's way in: a model opened by its spec, and answers to several questions as they come.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tailgraph::Error;
use tailgraph::io::answer::{Finish, Origin, Outcome};
use tailgraph::io::kept::Kept;
use tailgraph::io::lines::Lines;
use tailgraph::io::output::{Ordered, Output as Answers};
use tailgraph::io::row::{Ask, Code, Options, Prompt};
use tailgraph::io::rows::Rows;
use tailgraph::io::source::Source;
use tailgraph::session::job::{Job, Style};
use tailgraph::session::{Output, Progress, RunSpec, Session, Unanswered};
use tailgraph::text::Chat;

/// One comparison of 1.5 TB of text.
const HANGS: &str = "{% set a = 'x' * 5000000 %}{% if [a] * 300000 == [a] * 300000 %}y{% endif %}";

const LONG: Duration = Duration::from_secs(60);

fn open(defaults: Options) -> Session {
    let mut spec = RunSpec::new("random:tiny").unwrap();
    spec.defaults = defaults;
    Session::open(spec).unwrap()
}

fn tokens(most: u32) -> Options {
    Options {
        max_new_tokens: Some(most),
        ..Options::default()
    }
}

fn outcome(session: &mut Session, ask: &Ask) -> Outcome {
    session.ask(ask).unwrap().outcome().unwrap()
}

#[test]
fn pieces_are_the_text_and_each_question_is_alone() {
    let sampled = Options {
        temperature: Some(1.0),
        seed: Some(7),
        ..tokens(40)
    };
    let mut session = open(sampled);
    let asks = ["one", "two and more", "three"].map(Ask::text);
    let alone = asks.each_ref().map(|ask| {
        let mut answer = session.ask(ask).unwrap();
        let pieces: Vec<String> = answer.by_ref().map(Result::unwrap).collect();
        let outcome = answer.outcome().unwrap();
        assert_eq!(pieces.concat(), outcome.text);
        assert!(
            pieces.len() > 10,
            "a piece as soon as it is certain: {pieces:?}"
        );
        outcome
    });
    assert_ne!(alone[0].output_ids, alone[1].output_ids);

    // All at once: each as it was alone, token by token.
    let mut told: HashMap<u64, (String, Vec<u32>)> = HashMap::new();
    let requests = asks.each_ref().map(|ask| {
        let prepared = session.prepare(ask).unwrap();
        session.submit(&prepared).unwrap().unwrap()
    });
    let mut ended = 0;
    while ended < requests.len() {
        let output = session.next(LONG).unwrap().expect("an output");
        let (text, ids) = told.entry(output.request()).or_default();
        match output {
            Output::Token {
                id, text: piece, ..
            } => {
                ids.push(id);
                text.push_str(&piece);
            }
            Output::End {
                request,
                text: piece,
                outcome,
            } => {
                text.push_str(&piece);
                let outcome = outcome.unwrap();
                let place = requests.iter().position(|&other| other == request).unwrap();
                assert_eq!((&outcome.text, &outcome.output_ids), (&*text, &*ids));
                assert_eq!(outcome.output_ids, alone[place].output_ids);
                assert_eq!(
                    (outcome.finish, outcome.output_ids.len()),
                    (Finish::Length, 40)
                );
                ended += 1;
            }
        }
    }
    assert_eq!(session.next(Duration::from_millis(30)).unwrap(), None);
}

#[test]
fn generate_answers_the_same() {
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);
    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let sampled = Options {
        temperature: Some(0.8),
        logprobs: Some(2),
        ..tokens(24)
    };
    let prompts = ["alpha", "beta"];
    let mut asking = open(sampled.clone());
    let asked = prompts.map(|prompt| outcome(&mut asking, &Ask::text(prompt)));

    let mut session = open(sampled);
    let lines = Lines::arguments(prompts.map(str::to_owned).to_vec());
    let (rules, codec) = (session.rules().clone(), session.codec());
    let source = Source::new(lines, Kept::default(), 0, Box::new(|_| {}));
    let rows = Rows::start(source, rules, codec.clone(), session.threads()).unwrap();
    let (out, never) = (Shared::default(), AtomicBool::new(false));
    let job = Job {
        rows,
        codec: &codec,
        output: Answers::Stream(Ordered::new(Box::new(out.clone()), "out", "")),
        style: Style::Json,
        origin: Origin {
            model: "tiny".into(),
            created: 7,
        },
        window: 8,
        progress: Progress::new(true, None),
        interrupt: &never,
    };
    assert_eq!(session.run(job).unwrap().counts.rows, 2);
    let written = out.0.lock().unwrap().clone();
    let rows = String::from_utf8(written).unwrap();
    for (row, asked) in rows.lines().zip(&asked) {
        let row: serde_json::Value = serde_json::from_str(row).unwrap();
        assert_eq!(row["output_ids"], serde_json::json!(asked.output_ids));
        assert_eq!(row["text"], asked.text.as_str());
        let first = &asked.logprobs.as_ref().unwrap()[0];
        assert_eq!(
            row["logprobs"][0]["logprob"].as_f64().unwrap() as f32,
            first.logprob
        );
        assert_eq!(first.top.len(), 2);
    }
    assert_eq!(rows.lines().count(), 2);
    session.finish(true).unwrap();
}

#[test]
fn a_stop_string_is_in_no_piece() {
    let mut session = open(tokens(60));
    let whole = outcome(&mut session, &Ask::text("stop me")).text;
    let stop: String = whole.chars().skip(20).take(3).collect();
    let options = Options {
        stop: Some(vec![stop.clone()]),
        ..Options::default()
    };
    let ask = Ask::new(Prompt::Text("stop me".into()), options);
    let mut answer = session.ask(&ask).unwrap();
    let mut told = String::new();
    for piece in &mut answer {
        told += &piece.unwrap();
        assert!(!told.contains(&stop), "{told:?} {stop:?}");
    }
    let outcome = answer.outcome().unwrap();
    assert_eq!(outcome.finish, Finish::Stop);
    assert_eq!(told, whole[..whole.find(&stop).unwrap()]);
    assert_eq!(told, outcome.text);
}

#[test]
fn an_answer_that_nobody_waits_for_is_cancelled_and_not_told_of() {
    let mut session = open(tokens(4000));
    let prepared = session.prepare(&Ask::text("goes on")).unwrap();
    let mut answer = session.ask(&Ask::text("left")).unwrap();
    assert!(answer.next().unwrap().is_ok());
    drop(answer);
    let other = session.submit(&prepared).unwrap().unwrap();
    for _ in 0..20 {
        let output = session.next(LONG).unwrap().unwrap();
        assert_eq!(output.request(), other);
    }
    session.cancel(other);
    let end = loop {
        let output = session.next(LONG).unwrap().unwrap();
        assert_eq!(output.request(), other);
        if let Output::End { outcome, .. } = output {
            break outcome;
        }
    };
    assert_eq!(end.unwrap_err().code, Code::Cancelled);
    assert_eq!(session.next(Duration::from_millis(30)).unwrap(), None);
    session.cancel(other);
    // What an answer passes over while it waits is told afterwards.
    let first = session.submit(&prepared).unwrap().unwrap();
    let short = Ask::new(Prompt::Ids(vec![70]), tokens(3));
    assert_eq!(outcome(&mut session, &short).output_ids.len(), 3);
    let output = session.next(Duration::ZERO).unwrap().unwrap();
    assert_eq!(output.request(), first);
}

#[test]
fn a_question_that_cannot_be_answered_leaves_the_others_alone() {
    let mut session = open(tokens(4));
    let refused = |session: &mut Session, ask: &Ask| match session.ask(ask) {
        Err(Unanswered::Question(error)) => error,
        Err(Unanswered::Engine(error)) => panic!("{error}"),
        Ok(_) => panic!("an answer to {ask:?}"),
    };
    let long = Ask::text(&"x".repeat(5000));
    let error = refused(&mut session, &long);
    assert_eq!(error.code, Code::ContextLength, "{error}");
    let strange = Ask::new(Prompt::Ids(vec![1 << 20]), Options::default());
    let error = refused(&mut session, &strange);
    assert_eq!(error.code, Code::TokenOutOfRange, "{error}");
    let chat = Chat::new(
        serde_json::json!([{"role": "user", "content": "hello"}]),
        None,
    );
    assert_eq!(outcome(&mut session, &Ask::chat(chat)).output_ids.len(), 4);
}

#[test]
fn a_spec_that_cannot_be_names_the_option_and_its_value() {
    let failed = |change: fn(&mut RunSpec)| {
        let mut spec = RunSpec::new("random:tiny").unwrap();
        change(&mut spec);
        Session::open(spec).err().expect("an error")
    };
    let usage = |change, expected: &str| match failed(change) {
        Error::Usage(message) => assert!(message.contains(expected), "{message}"),
        other => panic!("{other:?}, expected wrong usage: {expected}"),
    };
    usage(|spec| spec.limits.max_seqs = Some(0), "--max-seqs 0");
    usage(
        |spec| spec.limits.page_tokens = Some(8),
        "--page-tokens 8: expected 16 to 256",
    );
    usage(|spec| spec.limits.stages = Some(99), "99");
    usage(
        |spec| (spec.limits.max_seqs, spec.limits.step_tokens) = (Some(64), Some(64)),
        "--step-tokens 64: expected at least 128 (64 sequences + chunks of 64 tokens)",
    );
    #[cfg(not(feature = "cuda"))]
    usage(
        |spec| {
            spec.device = tailgraph::session::DeviceSpec::Gpu(tailgraph::session::GpuSpec::new(3))
        },
        "--device cuda:3: this build has no kernels",
    );
    let memory = failed(|spec| spec.memory_limit = Some(1 << 20));
    assert!(matches!(memory, Error::Memory(_)), "{memory:?}");
    let file = failed(|spec| spec.bucket_file = Some("/nowhere/buckets.toml".into()));
    assert!(file.to_string().contains("/nowhere/buckets.toml"), "{file}");
}

/// A front end has a thread for the model and others that bring questions.
#[test]
fn a_session_goes_to_another_thread_and_its_codec_to_several() {
    let mut session = open(tokens(5));
    let (codec, rules) = (session.codec(), session.rules().clone());
    let ask = Ask::text("from elsewhere");
    let prepared = tailgraph::io::prepare::prepare(&rules, &codec, 0, &ask).unwrap();
    let thread = std::thread::spawn(move || {
        session.submit(&prepared).unwrap().unwrap();
        let mut ids = 0;
        loop {
            match session.next(LONG).unwrap().unwrap() {
                Output::Token { .. } => ids += 1,
                Output::End { outcome, .. } => return (ids, outcome.unwrap().output_ids.len()),
            }
        }
    });
    assert_eq!(thread.join().unwrap(), (5, 5));
}

/// The thread that hangs is left behind; the session serves on.
#[test]
fn a_question_whose_template_hangs_is_an_error_by_its_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("t.jinja");
    std::fs::write(&template, HANGS).unwrap();
    let mut spec = RunSpec::new("random:tiny").unwrap();
    spec.chat_template = Some(template);
    spec.text_timeout = Duration::from_millis(500);
    spec.defaults = tokens(2);
    let mut session = Session::open(spec).unwrap();
    let chat = Chat::new(serde_json::json!([{"role": "user", "content": "x"}]), None);
    match session.ask(&Ask::chat(chat)).map(drop) {
        Err(Unanswered::Question(error)) => {
            assert_eq!(error.code, Code::TextTimeout);
            let named = "the chat template is not done after 0.5 s";
            assert!(error.message.contains(named), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let ids = Ask::new(Prompt::Ids(vec![20, 30]), Options::default());
    assert_eq!(outcome(&mut session, &ids).output_ids.len(), 2);
}
