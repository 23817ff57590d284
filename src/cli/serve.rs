//! The `serve` command.

use super::args::ServeArgs;
use super::paths::Files;
use super::spec::spec;
use super::{Exit, interrupt};
use crate::error::{Error, Result};
use crate::server::{Metrics, Options, Stopper, serve};
use crate::session::recording::Keep;
use crate::session::{Opened, RunSpec, Session, Texts};
use crate::telemetry::say;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

pub fn run(args: ServeArgs) -> Result<Exit> {
    let address = SocketAddr::new(args.host, args.port);
    let bind = || {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    // Before the model: what cannot be is said at once.
    let (listener, address) = bind().map_err(|error: std::io::Error| {
        Error::Usage(format!(
            "--host {} --port {}: {error}, expected an address of this machine and a port that is free",
            args.host, args.port
        ))
    })?;
    let opened = Opened::to_answer(run_spec(&args)?)?;
    let replicas = opened.targets().count();
    let record = args.record.record.as_deref();
    Files::default()
        .reads("--chat-template", args.chat_template.as_deref())
        .runs(&opened.spec.model, &args.run.buckets)
        .writes_each("--record", record, replicas)?
        .keep_apart()?;
    let texts = Texts::of(&opened)?;
    let metrics = Arc::new(Metrics::default());
    let mut keep = Keep::recording(record, replicas)?;
    let steps = metrics.clone();
    keep.steps = Some(Box::new(move |step| steps.step(&step)));
    let session = Session::start(opened, texts, keep)?;
    let stopper = Stopper::default();
    interrupt::call(stopper.signal());
    say(&format!(
        "tailgraph: serving {} at http://{address}",
        session.opened().spec.model
    ));
    let options = Options {
        api_key: args.api_key,
        max_queue: args.max_queue,
        drain: args.drain_timeout,
        batches: args.batches,
        strict: args.strict,
    };
    let drained = serve(listener, session.clone(), metrics, options, stopper)?;
    if drained {
        session.finish(true)?;
        return Ok(Exit::Done);
    }
    say("tailgraph: answers that were under way have been cut off");
    Ok(Exit::Interrupted)
}

fn run_spec(args: &ServeArgs) -> Result<RunSpec> {
    Ok(RunSpec {
        defaults: args.sampling.options()?,
        seed: args.sampling.seed,
        prompt_logprobs: args.sampling.prompt_logprobs,
        chat_template: args.chat_template.clone(),
        now: args.clock.now,
        text_timeout: args.text.timeout(),
        ..spec(&args.model.model, &args.run, &args.engine)?
    })
}
