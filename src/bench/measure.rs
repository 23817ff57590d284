//! The one drive of all kinds that run a model: opens the engines, runs every combination on them, and makes results of it.
//!
//! Each repeat starts every engine anew and goes through all combinations, in an order that turns by one from repeat
//! to repeat: whatever drifts (clocks, temperature, other work) meets all of them alike, and starting is measured as
//! often as running.

use super::args::{Measurement, MeasuringArgs, SharedArgs};
use super::drive::{self, Beside, Run};
use super::floors::{self, Rates};
use super::gpu_state::{Machine, Watch};
use super::host::Busy;
use super::metrics::{Figures, figures};
use super::over_bare::OverBare;
use super::over_bare::{Laps, RUNS, Stamped, over_bare};
use super::routing::{Counts, Spread};
use super::row::{Choice, Costs, Floored, Routing, Row, Setting, Startup, Subject, VERSION};
use super::workload::{self, Arrival, Random};
use super::{BUILD_PROFILE, Kind, Point, bare, host, now};
use crate::backend::device::{self, EngineSpec};
use crate::backend::timing::StepClock;
use crate::backend::{LaunchWay, RoutingSink, SharedSink, UnreadLogits};
use crate::command::args::RunArgs;
use crate::command::spec::spec;
use crate::command::{command_line, download, interrupt, shown};
use crate::error::{Error, Result};
use crate::model::tensors::{model_bytes, model_parameters};
use crate::model::{Model, ModelConfig, WeightsAs};
use crate::plan::StepKind;
use crate::plan::cost::distinct_experts;
use crate::plan::options::{check_context, check_seqs};
use crate::plan::{Limits, Prompts};
use crate::runtime::Engine;
use crate::session::opened::{Observe, load};
use crate::session::prefixes::Prefixes;
use crate::session::{Opened, RunSpec, Target};
use crate::telemetry::phases::{Phase, taken};
use crate::telemetry::{say, warn};
use crate::trace::offset::Offset;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Warm-ups draw their prompts from repeats that never count.
pub const WARM_UP_INDEX: u64 = 1 << 32;

/// What a measurement came to.
#[derive(Default)]
pub struct Results {
    pub rows: Vec<Value>,
    /// What each step took, of each row and repeat.
    pub steps: Vec<Value>,
    /// Why a point has no row, or what ended the measurement: rows are of the repeats that were whole.
    pub failed: Option<Error>,
}

/// What runs are made of, the same for all engines.
struct Work<'a> {
    of: &'a Measurement<'a>,
    args: &'a SharedArgs,
    config: ModelConfig,
    watch: Watch,
    interrupt: &'a AtomicBool,
}

/// An engine's setting, and what was measured with it.
struct Unit {
    opened: Opened,
    way: Option<LaunchWay>,
    choice: Choice,
    points: Vec<Tried>,
    /// One a repeat.
    starts: Vec<Startup>,
}

/// The model in each format that units have its weights in.
struct Models(Vec<Loaded>);

struct Loaded {
    weights: WeightsAs,
    model: Arc<Model>,
    /// What it took to load.
    ms: f64,
}

impl Models {
    fn load(units: &[Unit]) -> Result<Self> {
        let mut all = Self(vec![]);
        for spec in units.iter().map(|unit| &unit.opened.spec) {
            if all.0.iter().any(|loaded| loaded.weights == spec.weights) {
                continue;
            }
            let start = Instant::now();
            all.0.push(Loaded {
                weights: spec.weights,
                model: load(spec)?,
                ms: start.elapsed().as_secs_f64() * 1e3,
            });
        }
        Ok(all)
    }

    fn of(&self, unit: &Unit) -> &Loaded {
        let weights = unit.opened.spec.weights;
        let found = self.0.iter().find(|loaded| loaded.weights == weights);
        found.expect("one for each unit")
    }
}

/// A point and its repeats.
#[derive(Default)]
struct Tried {
    point: Point,
    repeats: Vec<Figures>,
    spread: Spread,
    over_bare: OverBare,
    /// Why this point alone came to nothing.
    failed: Option<Error>,
}

impl Unit {
    fn spec<'a>(&'a self, model: &'a Arc<Model>) -> EngineSpec<'a> {
        EngineSpec {
            model,
            plan: &self.opened.plan,
            options: &self.opened.options,
            sink: &None,
        }
    }

    /// What it failed by, with the way to launch named, if there is one.
    fn failed(&self, error: Error) -> Error {
        match (self.way, error) {
            (Some(way), Error::Runtime(message)) => {
                Error::Runtime(format!("--launch {}: {message}", way.name()))
            }
            (_, error) => error,
        }
    }
}

/// Measures all that `of` asks for, or what of it there was time for.
///
/// # Errors
/// What is asked for cannot be run, or an engine failed.
pub fn measure(of: &Measurement<'_>, interrupt: &AtomicBool) -> Result<Results> {
    let args = of.shared;
    let source = download::model(args.on.model())?;
    let (config, _) = source.config()?;
    let mut work = Work {
        of,
        args,
        config,
        watch: Watch::default(),
        interrupt,
    };
    let mut units = work.units()?;
    work.watch = Watch::new(units.iter().take(1).flat_map(|unit| unit.opened.targets()));
    let MeasuringArgs { warm_up, seed, .. } = args.measuring;
    let subject = Subject::new(&units[0].opened, &work.watch, warm_up, seed)?;
    let models = Models::load(&units)?;
    interrupt::look();
    let ended = match work.repeats(&mut units, &models) {
        Ok(()) => work
            .count_routing(&mut units, &models)
            .and_then(|()| work.hold_against_bare(&mut units, &models)),
        Err(Error::Interrupted) => Err(Error::Interrupted),
        Err(error) => return Err(error),
    };
    let cost_ns = drive::cost_ns();
    let mut results = Results {
        // What was timed is not lost where what is counted beside it fails.
        failed: ended.err(),
        ..Results::default()
    };
    for mut unit in units {
        let model_ms = models.of(&unit).ms;
        for start in &mut unit.starts {
            start.startup_model_ms = Some(model_ms);
        }
        for tried in &unit.points {
            if tried.failed.is_some() || tried.repeats.is_empty() {
                continue;
            }
            let row = work.row(&subject, &unit, tried, cost_ns)?;
            if of.steps_file.is_some() {
                results.steps.extend(row.steps(&tried.repeats));
            }
            results.rows.push(json!(row));
        }
        for failed in unit.points.into_iter().filter_map(|tried| tried.failed) {
            match results.failed {
                Some(_) => warn(&shown(&failed)),
                None => results.failed = Some(failed),
            }
        }
    }
    Ok(results)
}

impl Work<'_> {
    /// The engines that are needed: one for each setting and group of points.
    fn units(&self) -> Result<Vec<Unit>> {
        let mut units = Vec::new();
        for run in self.args.on.settings() {
            for (max_seqs, group) in self.groups() {
                let mut spec = self.spec(&run)?;
                let target = Target::of(&spec)?;
                spec.limits = self.limits(&spec, max_seqs, &group)?;
                units.push(self.unit(target, spec, &group)?);
            }
        }
        Ok(units)
    }

    /// Points that one engine serves, with the sequences that it is to hold. Prompts are scored as they come: how many at once
    /// is the engine's business.
    fn groups(&self) -> Vec<(Option<u32>, Vec<Point>)> {
        let points = &self.of.points;
        match self.of.kind {
            Kind::Score => vec![(None, points.clone())],
            Kind::Serve => points
                .chunk_by(|a, b| a.batch == b.batch)
                .map(|alike| (Some(alike[0].batch), alike.to_vec()))
                .collect(),
            Kind::Decode | Kind::Prefill => {
                let largest = points.iter().map(|point| point.batch).max();
                vec![(largest, points.clone())]
            }
        }
    }

    fn spec(&self, run: &RunArgs) -> Result<RunSpec> {
        let kind = self.of.kind;
        if run.launch == Some(LaunchWay::Bare) && kind != Kind::Decode {
            return Err(Error::Usage(format!(
                "--launch bare: a way of `bench decode`, found `bench {}`, which needs a scheduler",
                kind.name()
            )));
        }
        let spec = spec(self.args.on.model(), run, &self.args.engine)?;
        if kind == Kind::Decode && !spec.replicas().is_empty() {
            return Err(Error::Usage(
                "bench decode: measures the steps of one device, expected --device with one, or `bench serve` with several".into(),
            ));
        }
        if self.of.logits_on_device == Some(true) && spec.device.launch().is_none() {
            return Err(Error::Usage(
                "--logits-on-device: expected --device cuda; on a CPU logits never leave its memory".into(),
            ));
        }
        Ok(spec)
    }

    fn unit(&self, target: Target, spec: RunSpec, points: &[Point]) -> Result<Unit> {
        let way = spec.device.launch();
        let mut opened = Opened::on(target, spec, self.delivers())?;
        opened.only(&self.of.steps);
        let tried = |&point: &Point| Tried {
            point,
            ..Tried::default()
        };
        let shown = |file: Option<&Path>| file.map(|file| file.display().to_string());
        Ok(Unit {
            way,
            choice: Choice {
                launch: way.map(|way| way.name().to_owned()),
                dtype: opened.spec.device.dtype().name().to_owned(),
                weights: opened.spec.weights.chosen(),
                activations: opened.spec.device.activations().chosen(),
                bucket_file: shown(opened.spec.bucket_file.as_deref()),
                kernel_file: shown(opened.spec.device.kernel_file()),
            },
            opened,
            points: points.iter().map(tried).collect(),
            starts: vec![],
        })
    }

    /// The limits of an engine of `max_seqs` sequences and the longest one, where `spec`'s do not say otherwise.
    ///
    /// # Errors
    /// [`Error::Usage`]: the points are more than the model or the bucket sizes take.
    fn limits(&self, spec: &RunSpec, max_seqs: Option<u32>, points: &[Point]) -> Result<Limits> {
        let mut limits = spec.limits;
        let plan = spec.plan(&Arc::new(self.config.clone()))?;
        if let (None, Some(batch)) = (limits.max_seqs, max_seqs) {
            let of_one = batch.div_ceil(1 + spec.replicas().len() as u32);
            check_seqs(&plan, of_one, &format!("{of_one} sequences at once"))?;
            limits.max_seqs = Some(of_one);
        }
        limits.prompts = self.prompts(points);
        let begins = |point: &&Point| point.shared.map_or(0, |shared| shared.tokens);
        if let Some(point) = points
            .iter()
            .find(|point| begins(point) >= point.shortest_prompt())
        {
            return Err(Error::Usage(format!(
                "--shared-prefix: found {} tokens, expected fewer than the shortest prompt has (--prompt-len), {}",
                begins(&point),
                point.shortest_prompt()
            )));
        }
        // All engines of a measurement have room for the same.
        let longest = self.of.points.iter().max_by_key(|point| point.tokens());
        if let (None, Some(point)) = (limits.max_context, longest) {
            let named = format!(
                "--prompt-len {} and {} to generate, {} tokens",
                point.prompt_tokens,
                point.new_tokens,
                point.tokens()
            );
            check_context(&plan, point.tokens(), &named)?;
            limits.max_context = Some(point.tokens());
        }
        Ok(limits)
    }

    /// The prompts that `score` reads: of several points as many as the largest, and as short as the shortest.
    fn prompts(&self, points: &[Point]) -> Option<Prompts> {
        if self.of.kind != Kind::Score {
            return None;
        }
        let count = points.iter().map(|point| point.batch).max()?;
        let shortest = points.iter().map(Point::mean_prompt).min()?;
        Some(Prompts {
            count,
            tokens: u64::from(count) * u64::from(shortest),
            kind: self.of.steps[0],
        })
    }

    /// All repeats of all engines.
    fn repeats(&self, units: &mut [Unit], models: &Models) -> Result<()> {
        let repeats = self.args.measuring.repeats as usize;
        let (start, engines) = (Instant::now(), repeats * units.len());
        for repeat in 0..repeats {
            for turn in 0..units.len() {
                let index = (turn + repeat) % units.len();
                if !self.args.measuring.quiet {
                    let launch = units[index].way.map(|way| format!(" ({})", way.name()));
                    say(&format!(
                        "repeat {} of {repeats}: engine {} of {}{}{}",
                        repeat + 1,
                        index + 1,
                        units.len(),
                        launch.unwrap_or_default(),
                        time_left(start, repeat * units.len() + turn, engines)
                    ));
                }
                if let Err(error) = self.repeat(&mut units[index], models, repeat) {
                    // An engine's points are repeated together.
                    for tried in &mut units[index].points {
                        tried.repeats.truncate(repeat);
                    }
                    return Err(units[index].failed(error));
                }
            }
        }
        Ok(())
    }

    /// Starts the unit's engine and measures each of its points once.
    fn repeat(&self, unit: &mut Unit, models: &Models, repeat: usize) -> Result<()> {
        let [load, graphs] = [Phase::Load, Phase::Graphs].map(taken);
        let start = Instant::now();
        let (mut engine, bare) = unit.start(&models.of(unit).model, &self.sink())?;
        let since = |phase, before| (taken(phase) - before).as_secs_f64() * 1e3;
        let mut startup = Startup {
            startup_load_ms: Some(since(Phase::Load, load)),
            startup_graphs_ms: unit.way.map(|_| since(Phase::Graphs, graphs)),
            startup_engine_ms: Some(start.elapsed().as_secs_f64() * 1e3),
            ..Startup::default()
        };
        let engine = &mut *engine;
        let first = self.first_token(engine, unit.points[0].point)?;
        // A scored prompt has no token; its end is what comes first.
        let first_ms = first.ttft_ms.first().or(first.e2el_ms.first());
        startup.startup_first_token_ms = first_ms.copied();
        unit.starts.push(startup);
        let mut prefixes = Prefixes::of(&unit.opened.options);
        for warm_up in 0..u64::from(self.args.measuring.warm_up) {
            for tried in &unit.points {
                let mut arrivals = self.arrivals(&tried.point, WARM_UP_INDEX + warm_up);
                share(&mut prefixes, &tried.point, &mut arrivals);
                self.run(engine, Offset::default(), &tried.point, &arrivals)?;
            }
        }
        for turn in 0..unit.points.len() {
            let index = (turn + repeat) % unit.points.len();
            let tried = &mut unit.points[index];
            let mut arrivals = self.arrivals(&tried.point, repeat as u64);
            share(&mut prefixes, &tried.point, &mut arrivals);
            drive::idle(self.args.measuring.pause, self.interrupt)?;
            let offset = drive::compare_clocks(engine, self.interrupt)?;
            if let Some(bare) = &bare {
                bare.begin(tried.point.batch);
            }
            let watching = self.watch.start();
            let run = self.run(engine, offset, &tried.point, &arrivals)?;
            let seen = watching.end();
            let came = match &bare {
                Some(bare) => bare.figures(&tried.point),
                None => figures(&tried.point, &run),
            };
            match came {
                Ok(mut figures) => {
                    figures.gpu = seen.looks;
                    figures.outputs_sha256 = run.outputs_sha256();
                    // What is counted of the bare graph is a part of the run, by the thread that launches it.
                    if bare.is_none() {
                        figures.energy_j = seen.joules;
                        let looking_s = seen.processor.as_secs_f64();
                        figures.processor_s = (figures.processor_s - looking_s).max(0.0);
                    }
                    tried.repeats.push(figures);
                }
                Err(error) => tried.failed = Some(error),
            }
        }
        Ok(())
    }

    fn run(
        &self,
        engine: &mut dyn Engine,
        offset: Offset,
        point: &Point,
        arrivals: &[Arrival],
    ) -> Result<Run> {
        let beside = Beside {
            most_in_flight: point.most_in_flight,
            offset,
            busy: Busy::new(point.cpu_load)?,
            interrupt: self.interrupt,
        };
        drive::run(engine, arrivals, &beside, &mut |_| {})
    }

    /// One short request, whose token is the engine's first.
    fn first_token(&self, engine: &mut dyn Engine, point: Point) -> Result<Figures> {
        let alone = Point {
            kind: Kind::Serve,
            batch: 1,
            requests: 1,
            new_tokens: point.new_tokens.min(1),
            rate: None,
            ..point.idle()
        };
        let arrivals = self.arrivals(&alone, WARM_UP_INDEX - 1);
        let run = self.run(engine, Offset::default(), &alone, &arrivals)?;
        figures(&alone, &run)
    }

    /// Whether logits go from the device to the host.
    fn delivers(&self) -> bool {
        self.of.logits_on_device == Some(false)
    }

    fn sink(&self) -> SharedSink {
        self.delivers().then(|| Arc::new(UnreadLogits) as _)
    }

    fn arrivals(&self, point: &Point, index: u64) -> Vec<Arrival> {
        let mut random = Random::new(self.args.measuring.seed, index);
        let vocabulary = self.config.vocab_size as u32;
        workload::arrivals(point, self.of.wanted, vocabulary, &mut random)
    }

    /// Counts each point's routing once for each type, bucket and kernel file, after all that is timed, on engines of its own,
    /// as steps wait at every router: launch ways and busy threads choose no experts. The prompts are the first repeat's.
    fn count_routing(&self, units: &mut [Unit], models: &Models) -> Result<()> {
        if self.config.num_experts == 0 {
            return Ok(());
        }
        for index in 0..units.len() {
            let (before, rest) = units.split_at_mut(index);
            let unit = &mut rest[0];
            let typical = unit.points[0].point.typical();
            // Several devices' counts would be of one device's share of the work.
            if typical.is_none() || !unit.opened.spec.beside.is_empty() {
                continue;
            }
            let launched_alike = |unit: &Unit| Choice {
                launch: None,
                ..unit.choice.clone()
            };
            let choice = launched_alike(unit);
            if let Some(other) = before.iter().find(|other| launched_alike(other) == choice) {
                for (tried, other) in unit.points.iter_mut().zip(&other.points) {
                    tried.spread = other.spread;
                }
            } else {
                self.count_unit(unit, &models.of(unit).model)?;
            }
        }
        Ok(())
    }

    fn count_unit(&self, unit: &mut Unit, model: &Arc<Model>) -> Result<()> {
        if !self.args.measuring.quiet {
            say("counting which experts are chosen");
        }
        let (experts, chosen) = (self.config.num_experts, self.config.num_experts_per_tok);
        let counts = Arc::new(Counts::new(experts, chosen));
        let routing: Arc<dyn RoutingSink> = counts.clone();
        let sink = self.sink();
        let observe = Observe::through(device::Watch::Routing(&routing));
        let mut engine = unit.opened.engine(model, &sink, observe)?.engine;
        for index in 0..unit.points.len() {
            let (before, rest) = unit.points.split_at_mut(index);
            let tried = &mut rest[0];
            let point = tried.point.idle();
            if let Some(other) = before.iter().find(|other| other.point.idle() == point) {
                tried.spread = other.spread;
                continue;
            }
            counts.begin(point.typical());
            let arrivals = self.arrivals(&point, 0);
            self.run(&mut *engine, Offset::default(), &point, &arrivals)?;
            tried.spread = counts.end();
        }
        Ok(())
    }

    /// Holds the steps of each way to launch, where there are several, against the bare graph's, in runs of their own: each
    /// starts both engines anew, since where memory lies makes a difference too.
    fn hold_against_bare(&self, units: &mut [Unit], models: &Models) -> Result<()> {
        let same = units.iter().all(|unit| unit.way == units[0].way);
        if same || self.of.kind != Kind::Decode {
            return Ok(());
        }
        for unit in units {
            let (Some(way), Target::Gpu(device)) = (unit.way, &unit.opened.target) else {
                continue;
            };
            if !self.args.measuring.quiet {
                say(&format!("timing the kernels of {}", way.name()));
            }
            let model = &models.of(unit).model;
            let mut laps: Vec<[Vec<Laps>; 2]> = vec![Default::default(); unit.points.len()];
            for run in 0..RUNS {
                let (mut bare, timing, clock) = bare::engine(device, &unit.spec(model), true)?;
                let mut clock = clock.expect("stamps were asked for");
                bare.launch()?;
                for index in 0..unit.points.len() {
                    let point = unit.points[index].point.idle();
                    // Busy threads beside them are nothing to steps that are launched in a row.
                    let mut before = unit.points[..index].iter();
                    if let Some(same) = before.position(|other| other.point.idle() == point) {
                        laps[index][1] = laps[same][1].clone();
                        unit.points[index].over_bare = unit.points[same].over_bare.clone();
                        continue;
                    }
                    timing.begin(point.batch);
                    let ran = self.stamped(&mut bare, &mut *clock, &point, run)?;
                    laps[index][1].push(ran.bare_laps());
                    unit.points[index].over_bare.calls_sha256 = ran.calls_sha256();
                }
                drop((bare, clock));
                if way == LaunchWay::Bare {
                    break;
                }
                let (mut engine, mut clock) = unit.opened.engine_timed(model, None)?;
                for (tried, [way_laps, _]) in unit.points.iter_mut().zip(&mut laps) {
                    let ran = self.stamped(&mut *engine, &mut *clock, &tried.point, run)?;
                    way_laps.push(ran.laps(way));
                    tried.over_bare.calls_sha256 = ran.calls_sha256();
                }
            }
            for (tried, [way_laps, bare_laps]) in unit.points.iter_mut().zip(&laps) {
                tried.over_bare = OverBare {
                    calls_sha256: tried.over_bare.calls_sha256.take(),
                    ..over_bare(way, way_laps, bare_laps).unwrap_or_default()
                };
            }
        }
        Ok(())
    }

    /// A run of a point on an engine whose kernels leave stamps.
    fn stamped(
        &self,
        engine: &mut dyn Engine,
        clock: &mut dyn StepClock,
        point: &Point,
        run: u64,
    ) -> Result<Stamped> {
        let beside = Beside {
            busy: Busy::new(point.cpu_load)?,
            ..Beside::nothing(self.interrupt)
        };
        let arrivals = self.arrivals(point, run);
        let steps = (StepKind::Decode, point.batch);
        Stamped::run(engine, clock, &arrivals, &beside, steps)
    }

    /// The result of one point. `cost_ns`: what measuring adds for each token.
    fn row(&self, subject: &Subject, unit: &Unit, tried: &Tried, cost_ns: f64) -> Result<Row> {
        let (opened, point) = (&unit.opened, &tried.point);
        let precision = opened.precision()?;
        let measuring = &self.args.measuring;
        let gpu = opened.target.device().known();
        let rates = Rates::new(measuring.bandwidth, measuring.tflops, gpu, precision);
        // Floors are those of one device.
        let alike = opened.spec.beside.is_empty() && point.ragged_from.is_none();
        let by = rates.clone().unwrap_or_else(Rates::unlimited);
        let least = || floors::least(point, &opened.plan, &opened.options, precision, &by);
        let least = alike.then(least).flatten();
        // A step that reads prompts has as many rows as there are.
        let of_prompts = point.batch.saturating_mul(point.mean_prompt());
        let of_prompts = of_prompts.min(opened.options.step_tokens);
        let rows = point.typical().map(|(_, rows)| rows.unwrap_or(of_prompts));
        let mut row = Row::of(point, &tried.repeats, &unit.starts);
        row.workload.logits_on_device = self.of.logits_on_device;
        row.floor = Floored::of(rates.as_ref(), least, row.taken_ms());
        Ok(Row {
            subject: subject.clone(),
            choice: unit.choice.clone(),
            setting: Setting {
                kernel_variants: opened.kernel_variants.clone(),
                replicas: opened.targets().count(),
                stage_devices: opened.spec.devices().count() / opened.targets().count(),
                max_seqs: opened.options.max_seqs,
                max_context: opened.options.max_context,
                step_tokens: opened.options.step_tokens,
                chunk_tokens: opened.options.chunk_tokens,
                prefixes: opened.options.prefixes,
            },
            routing: Routing {
                experts_expected: rows.map(|rows| distinct_experts(&self.config, f64::from(rows))),
                spread: tried.spread,
            },
            costs: Costs::of(point.kind, &tried.repeats, unit.way.is_some(), cost_ns),
            over_bare: tried.over_bare.clone(),
            ..row
        })
    }
}

/// Finds what the prompts of a run have in common: with those of other runs nothing.
fn share(prefixes: &mut Prefixes, point: &Point, arrivals: &mut [Arrival]) {
    if point.shared.is_none() {
        return;
    }
    prefixes.clear();
    for arrival in &*arrivals {
        prefixes.expect(&arrival.request.prompt, 1);
    }
    for Arrival { request, .. } in arrivals {
        request.borders = prefixes.borders(&request.prompt);
    }
}

/// An engine and, where nobody is to schedule, what times its steps.
type Running = (Box<dyn Engine>, Option<Arc<bare::Timing>>);

impl Unit {
    /// Starts the engine.
    fn start(&self, model: &Arc<Model>, sink: &SharedSink) -> Result<Running> {
        let opened = &self.opened;
        if let (Some(LaunchWay::Bare), Target::Gpu(device)) = (self.way, &opened.target) {
            let (mut engine, timing, _) = bare::engine(device, &self.spec(model), false)?;
            engine.launch()?;
            return Ok((Box::new(engine), Some(timing)));
        }
        let started = opened.engine(model, sink, Observe::NOTHING)?;
        Ok((started.engine, None))
    }
}

impl Subject {
    /// What all results on engines as `opened` share.
    pub fn new(opened: &Opened, watch: &Watch, warm_up: u32, seed: u64) -> Result<Self> {
        let (model, config) = (&opened.spec.model, &opened.config);
        let gpus = opened.targets().filter_map(|target| target.device().info());
        let gpus: Vec<String> = gpus.collect();
        let gpu_info = (!gpus.is_empty()).then(|| gpus.join(" and "));
        Ok(Self {
            schema: VERSION,
            build_version: env!("CARGO_PKG_VERSION").to_owned(),
            build_commit: option_env!("TAILGRAPH_COMMIT").map(str::to_owned),
            build_profile: BUILD_PROFILE.to_owned(),
            command: command_line(),
            test_time: Some(now()),
            model_filename: model.to_string(),
            model_size: model_bytes(config, model.matrix_format(config)?) as u64,
            model_n_params: model_parameters(config) as u64,
            backends: if gpu_info.is_some() { "CUDA" } else { "CPU" }.to_owned(),
            cpu_info: host::processor(),
            gpu_info,
            host_cores: std::thread::available_parallelism().map_or(1, usize::from),
            warm_up,
            seed,
            machine: Machine::new(watch),
        })
    }
}

/// How long the rest may take after `done` of `all` alike since `start`, as a progress line ends; nothing before the first.
fn time_left(start: Instant, done: usize, all: usize) -> String {
    if done == 0 {
        return String::new();
    }
    let left = start.elapsed().mul_f64((all - done) as f64 / done as f64);
    format!(", about {} s left", left.as_secs().max(1))
}
