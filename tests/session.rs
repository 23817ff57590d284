//! The library's way in: a model opened by its spec, and answers to several questions as they come.

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
use tailgraph::session::prefixes::Prefixes;
use tailgraph::session::recording::Keep;
use tailgraph::session::{Answer, Opened, Output, Progress, RunSpec, Session, Texts, Unanswered};
use tailgraph::text::Chat;

/// One comparison of 1.5 TB of text.
const HANGS: &str = "{% set a = 'x' * 5000000 %}{% if [a] * 300000 == [a] * 300000 %}y{% endif %}";

fn spec(defaults: Options) -> RunSpec {
    let mut spec = RunSpec::new("random:tiny").unwrap();
    spec.defaults = defaults;
    spec
}

fn open(defaults: Options) -> Session {
    Session::open(spec(defaults)).unwrap()
}

fn tokens(most: u32) -> Options {
    Options {
        max_new_tokens: Some(most),
        ..Options::default()
    }
}

fn outcome(session: &Session, ask: &Ask) -> Outcome {
    session.ask(ask).unwrap().outcome().unwrap()
}

#[test]
fn pieces_are_the_text_and_each_question_is_alone() {
    let sampled = Options {
        temperature: Some(1.0),
        seed: Some(7),
        ..tokens(40)
    };
    let session = open(sampled);
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
    let answers = asks
        .each_ref()
        .map(|ask| session.submit(session.prepare(ask).unwrap()));
    for (mut answer, alone) in answers.into_iter().zip(alone) {
        let (mut told, mut ids) = (String::new(), vec![]);
        let end = loop {
            match answer.output().expect("an output") {
                Output::Token { id, text, .. } => {
                    ids.push(id);
                    told.push_str(&text);
                }
                Output::End { text, outcome } => {
                    told.push_str(&text);
                    break outcome.unwrap();
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((&end.text, &end.output_ids), (&told, &ids));
        assert_eq!(end.output_ids, alone.output_ids);
        assert_eq!((end.finish, end.output_ids.len()), (Finish::Length, 40));
        assert_eq!(answer.output(), None);
    }
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
    let asking = open(sampled.clone());
    let asked = prompts.map(|prompt| outcome(&asking, &Ask::text(prompt)));

    let opened = Opened::new(spec(sampled), false).unwrap();
    let texts = Texts::of(&opened).unwrap();
    let mut engine = opened.start(&None, Keep::default()).unwrap();
    let lines = Lines::arguments(prompts.map(str::to_owned).to_vec());
    let codec = texts.codec;
    let source = Source::new(lines, Kept::default(), 0, Box::new(|_| {}));
    let rows = Rows::start(source, texts.rules, codec.clone(), texts.threads).unwrap();
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
        in_order: false,
        prefixes: Prefixes::none(),
        progress: Progress::new(true, None),
        interrupt: &never,
    };
    assert_eq!(job.run(&mut engine).unwrap().counts.rows, 2);
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
    engine.finish(true).unwrap();
}

#[test]
fn a_stop_string_is_in_no_piece() {
    let session = open(tokens(60));
    let whole = outcome(&session, &Ask::text("stop me")).text;
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

/// One slot: a question is answered once those before it have ended.
#[test]
fn a_cancelled_question_makes_room_for_the_others() {
    let mut of_one = spec(tokens(4000));
    of_one.limits.max_seqs = Some(1);
    let session = Session::open(of_one).unwrap();
    let ask = |most| session.ask(&Ask::new(Prompt::Ids(vec![70]), tokens(most)));
    let code = |answer: Answer| match answer.outcome() {
        Err(Unanswered::Question(error)) => error.code,
        other => panic!("{other:?}"),
    };
    // One runs, and others wait behind it.
    let (mut running, waiting, dropped) =
        (ask(4000).unwrap(), ask(4000).unwrap(), ask(4000).unwrap());
    let last = ask(3).unwrap();
    assert!(running.next().unwrap().is_ok());
    waiting.cancel();
    assert_eq!(code(waiting), Code::Cancelled);
    drop(dropped);
    running.cancel();
    assert_eq!(code(running), Code::Cancelled);
    assert_eq!(last.outcome().unwrap().output_ids.len(), 3);
    // Dropping one that runs is enough: the next one does not wait for its 4,000 tokens.
    let mut left = ask(4000).unwrap();
    assert!(left.next().unwrap().is_ok());
    drop(left);
    let next = ask(3).unwrap().outcome().unwrap();
    assert_eq!(next.output_ids.len(), 3);
    let whole = ask(4000).unwrap().outcome().unwrap();
    let (waited, takes) = (next.timing.queue, whole.timing.total);
    assert!(waited < takes / 4, "waited {waited:?} of {takes:?}");
}

/// The rings could never hold it, which `prepare` does not know.
#[test]
fn a_question_that_the_engine_refuses_leaves_the_others_alone() {
    let session = open(tokens(30));
    let mut running = session.ask(&Ask::text("goes on")).unwrap();
    assert!(running.next().unwrap().is_ok());
    let mut prepared = session.prepare(&Ask::text("too long")).unwrap();
    prepared.request.prompt = vec![70; 1 << 20];
    match session.submit(prepared).outcome() {
        Err(Unanswered::Question(error)) => assert_eq!(error.code, Code::InvalidRequest),
        other => panic!("{other:?}"),
    }
    assert_eq!(running.outcome().unwrap().output_ids.len(), 30);
}

#[test]
fn a_question_that_cannot_be_answered_leaves_the_others_alone() {
    let session = open(tokens(4));
    let refused = |ask: &Ask| session.ask(ask).err().expect("a question that is refused");
    let long = Ask::text(&"x".repeat(5000));
    let error = refused(&long);
    assert_eq!(error.code, Code::ContextLength, "{error}");
    let strange = Ask::new(Prompt::Ids(vec![1 << 20]), Options::default());
    let error = refused(&strange);
    assert_eq!(error.code, Code::TokenOutOfRange, "{error}");
    let chat = Chat::new(
        serde_json::json!([{"role": "user", "content": "hello"}]),
        None,
    );
    assert_eq!(outcome(&session, &Ask::chat(chat)).output_ids.len(), 4);
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
    usage(|spec| spec.limits.max_seqs = Some(0), "`max_seqs` 0");
    usage(
        |spec| spec.limits.page_tokens = Some(8),
        "`page_tokens` 8: expected 16 to 256",
    );
    usage(|spec| spec.limits.stages = Some(99), "99");
    usage(
        |spec| (spec.limits.max_seqs, spec.limits.step_tokens) = (Some(64), Some(64)),
        "`step_tokens` 64: expected at least 128 (64 sequences + chunks of 64 tokens)",
    );
    #[cfg(not(feature = "cuda"))]
    usage(
        |spec| {
            spec.device = tailgraph::session::DeviceSpec::Gpu(tailgraph::session::GpuSpec::new(3))
        },
        "`device` cuda:3: this build has no kernels",
    );
    let memory = failed(|spec| spec.memory_limit = Some(1 << 20));
    assert!(matches!(memory, Error::Memory(_)), "{memory:?}");
    let file = failed(|spec| spec.bucket_file = Some("/nowhere/buckets.toml".into()));
    assert!(file.to_string().contains("/nowhere/buckets.toml"), "{file}");
}

/// Each thread's answers are those that it would have alone, also once the first handle is gone.
#[test]
fn four_threads_ask_one_session() {
    let session = open(tokens(12));
    let texts = ["one", "two", "three", "four"];
    let alone = texts.map(|text| outcome(&session, &Ask::text(text)).output_ids);
    let threads = texts.map(|text| {
        let session = session.clone();
        std::thread::spawn(move || {
            (0..8)
                .map(|_| outcome(&session, &Ask::text(text)).output_ids)
                .collect::<Vec<_>>()
        })
    });
    drop(session);
    for (thread, alone) in threads.into_iter().zip(alone) {
        let answers = thread.join().unwrap();
        assert_eq!(answers, vec![alone; 8]);
    }
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
    let session = Session::open(spec).unwrap();
    let chat = Chat::new(serde_json::json!([{"role": "user", "content": "x"}]), None);
    let error = session
        .ask(&Ask::chat(chat))
        .err()
        .expect("no text in time");
    assert_eq!(error.code, Code::TextTimeout);
    let named = "the chat template is not done after 0.5 s";
    assert!(error.message.contains(named), "{error}");
    let ids = Ask::new(Prompt::Ids(vec![20, 30]), Options::default());
    assert_eq!(outcome(&session, &ids).output_ids.len(), 2);
}
