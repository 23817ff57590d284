//! What `/metrics` shows, in the OpenMetrics format.

use crate::runtime::EngineStatus;
use crate::session::recording::StepTime;
use crate::session::{Opened, Output, Told};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};
use std::sync::Arc;
use std::time::Instant;

type Labels<const N: usize> = [(&'static str, String); N];

/// All that is counted.
pub struct Metrics {
    registry: Registry,
    requests: Family<Labels<2>, Counter>,
    sequences: Family<Labels<1>, Counter>,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    new_tokens: Counter,
    first_token: Histogram,
    between_tokens: Histogram,
    steps: Family<Labels<2>, Histogram, fn() -> Histogram>,
    running: Gauge,
    waiting: Gauge,
    pages: Gauge,
    free_pages: Gauge,
}

/// From 0.1 ms in steps of 1.5: to 3.4 minutes.
fn times() -> Histogram {
    Histogram::new(exponential_buckets(1e-4, 1.5, 37))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut all = Registry::with_prefix("tailgraph");
        let a = &mut all;
        let (counter, gauge) = (Counter::default, Gauge::default);
        Self {
            requests: add(a, "requests", "Requests", Family::default()),
            sequences: add(a, "sequences", "Ended sequences", Family::default()),
            prompt_tokens: add(a, "prompt_tokens", "Tokens of answered prompts", counter()),
            cached_tokens: add(a, "cached_tokens", "Of these, computed once", counter()),
            new_tokens: add(a, "generation_tokens", "Generated tokens", counter()),
            running: add(a, "sequences_running", "Sequences in a slot", gauge()),
            waiting: add(a, "sequences_waiting", "Waiting sequences", gauge()),
            pages: add(a, "pages", "Pages of keys and values", gauge()),
            free_pages: add(a, "pages_free", "Pages that nobody has", gauge()),
            first_token: add(a, "time_to_first_token_seconds", "By sequence", times()),
            between_tokens: add(a, "inter_token_latency_seconds", "By sequence", times()),
            steps: add(
                a,
                "step_seconds",
                "Steps by kind and bucket",
                Family::new_with_constructor(times as fn() -> _),
            ),
            registry: all,
        }
    }
}

fn add<M: Metric + Clone>(to: &mut Registry, name: &str, help: &str, metric: M) -> M {
    to.register(name, help, metric.clone());
    metric
}

impl Metrics {
    pub fn request(&self, route: &str, status: u16) {
        let labels = [("route", route.to_owned()), ("status", status.to_string())];
        self.requests.get_or_create(&labels).inc();
    }

    pub fn step(&self, step: &StepTime) {
        let labels = [
            ("kind", step.kind.name().to_owned()),
            ("bucket", step.bucket.to_string()),
        ];
        let histogram = self.steps.get_or_create(&labels);
        histogram.observe(step.took.as_secs_f64());
    }

    /// What measures a sequence of a request that came at `came`.
    pub fn sequence(self: &Arc<Self>, came: Instant) -> Meter {
        Meter {
            metrics: self.clone(),
            came,
            last: None,
        }
    }

    /// All of it, with what is in flight; `None` where the engine has ended.
    pub fn page(&self, opened: &Opened, status: Option<EngineStatus>) -> String {
        let status = status.unwrap_or_default();
        let pages = i64::from(opened.options.pages) * opened.targets().count() as i64;
        self.running.set(status.running.into());
        self.waiting.set(status.waiting.into());
        self.free_pages.set(status.free_pages.into());
        self.pages.set(pages);
        let mut page = String::new();
        encode(&mut page, &self.registry).expect("a string takes all text");
        page
    }
}

/// Measures a sequence as the session's thread tells of it.
pub struct Meter {
    metrics: Arc<Metrics>,
    came: Instant,
    last: Option<Instant>,
}

impl Meter {
    pub fn told(&mut self, told: &Told) {
        let metrics = &self.metrics;
        let why = match told {
            Ok(Output::Prompt(_)) => return,
            Ok(Output::Token { .. }) => {
                let now = Instant::now();
                let (histogram, since) = match self.last.replace(now) {
                    None => (&metrics.first_token, self.came),
                    Some(last) => (&metrics.between_tokens, last),
                };
                histogram.observe((now - since).as_secs_f64());
                metrics.new_tokens.inc();
                return;
            }
            Ok(Output::End { outcome, .. }) => match outcome {
                Ok(outcome) => {
                    metrics.prompt_tokens.inc_by(outcome.prompt_tokens as u64);
                    let cached = &metrics.cached_tokens;
                    cached.inc_by(outcome.timing.cached_tokens.into());
                    serde_json::to_value(outcome.finish).unwrap_or_default()
                }
                Err(error) => error.code.as_str().into(),
            },
            Err(_) => "device".into(),
        };
        let why = why.as_str().unwrap_or_default().to_owned();
        metrics.sequences.get_or_create(&[("end", why)]).inc();
    }
}
