//! Engines that run a model, with the points measured on each.

use super::around::{Runner, groups, phases_so_far, read_samples, watch};
use super::bare;
use super::routing;
use super::scored::Scored;
use super::sizes::Longest;
use super::work::{Running, Tried, Unit, Work};
use super::{Results, subject, time_left};
use crate::backend::LaunchWay;
use crate::backend::SharedSink;
use crate::bench::clock::Clocks;
use crate::bench::drive;
use crate::bench::gpu_state::Watch;
use crate::bench::metrics::figures;
use crate::bench::routing::Spread;
use crate::bench::row::{Startup, Verdict};
use crate::bench::traced::Life;
use crate::bench::workload::{self, Arrival, Random};
use crate::bench::{Kind, Point};
use crate::cli::args::bench::BenchArgs;
use crate::cli::interrupt;
use crate::cli::spec::spec;
use crate::command::values::Positions;
use crate::error::{Error, Result};
use crate::files::{Out, Unfinished, folder};
use crate::io::arrays::{self, Sample};
use crate::model::{Model, ModelSource};
use crate::plan::StepKind;
use crate::runtime::Logits;
use crate::session::opened::load;
use crate::session::{Opened, RunSpec, Target};
use crate::telemetry::say;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Warm-ups draw their prompts from repeats that never count.
const WARM_UP_INDEX: u64 = 1 << 32;

/// Measures all that `args` asks for, or what of it there was time for.
pub fn measure(args: &BenchArgs, interrupt: &AtomicBool) -> Result<Results> {
    let name = args.model.as_deref().unwrap_or_default();
    let source = ModelSource::parse(name)?;
    let (config, _) = source.config()?;
    let work = Work {
        args,
        config,
        lines: args
            .arrivals
            .as_deref()
            .map(workload::read_arrivals)
            .transpose()?,
        samples: args.input.as_deref().map(read_samples).transpose()?,
        interrupt,
    };
    let mut units = work.units(name)?;
    let gpus = units.first().map(|unit| unit.opened.targets());
    let gpus = gpus.into_iter().flatten();
    let gpus: Vec<String> = gpus.filter_map(|target| target.device().info()).collect();
    let gpu_info = (!gpus.is_empty()).then(|| gpus.join(" and "));
    if let Some(folder) = &args.trace {
        folder::make(folder)?;
        // Before the measuring: whether they could be written there.
        for (unit, repeat) in units
            .iter()
            .flat_map(|unit| (0..args.repeats as usize).map(move |repeat| (unit, repeat)))
        {
            Out::open(&folder.join(unit.trace_name(repeat)), Unfinished::Removed)?;
        }
    }
    let watch = watch(units.iter().take(1).flat_map(|unit| unit.opened.targets()));
    let subject = subject(args, Some(&source), gpu_info, &watch)?;
    let start = Instant::now();
    let model = load(&source)?;
    let model_ms = start.elapsed().as_secs_f64() * 1e3;
    interrupt::look();
    let mut interrupted = false;
    let (start, engines) = (Instant::now(), args.repeats as usize * units.len());
    'repeats: for repeat in 0..args.repeats as usize {
        for turn in 0..units.len() {
            let index = (turn + repeat) % units.len();
            if !args.quiet {
                let launch = units[index].way.map(|way| format!(" ({})", way.name()));
                say(&format!(
                    "repeat {} of {}: engine {} of {}{}{}",
                    repeat + 1,
                    args.repeats,
                    index + 1,
                    units.len(),
                    launch.unwrap_or_default(),
                    time_left(start, repeat * units.len() + turn, engines)
                ));
            }
            let whole = work.repeat(&mut units[index], &model, repeat, &watch);
            if !whole.map_err(|error| units[index].failed(error))? {
                // An engine's points are repeated together, and traced together.
                for tried in &mut units[index].points {
                    tried.repeats.truncate(repeat);
                }
                interrupted = true;
                break 'repeats;
            }
        }
    }
    interrupted = interrupted || !routing::count(&work, &mut units, &model)?;
    let cost_ns = drive::cost_ns();
    let mut results = Results {
        interrupted,
        ..Results::default()
    };
    for mut unit in units {
        for start in &mut unit.starts {
            start.startup_model_ms = Some(model_ms);
        }
        for tried in unit.points.iter().filter(|tried| tried.is_whole()) {
            results.disagreed |= tried.verdict.valid == Some(false);
            let row = work.row(&subject, &unit, tried, cost_ns)?;
            results.rows.push(json!(row));
        }
        let failed = unit.points.into_iter().find_map(|tried| tried.failed);
        results.failed = results.failed.or(failed);
    }
    Ok(results)
}

impl Work<'_> {
    /// The engines that are needed: one for each setting, and for `serve` and each batch, whose sequences it holds.
    fn units(&self, model: &str) -> Result<Vec<Unit>> {
        let points = self.points()?;
        let longest = self.longest(&points);
        let mut units = Vec::new();
        for (way, run) in self.args.settings() {
            let spec = spec(model, &run, &self.args.engine)?;
            for (max_seqs, points) in groups(self.args.kind, &points) {
                let number = units.len() + 1;
                let sizes = (max_seqs, &longest);
                units.push(self.unit(number, spec.clone(), way, sizes, &points)?);
            }
        }
        Ok(units)
    }

    fn unit(
        &self,
        number: usize,
        mut spec: RunSpec,
        way: Option<LaunchWay>,
        sizes: (Option<u32>, &Longest),
        points: &[Point],
    ) -> Result<Unit> {
        let kind = self.args.kind;
        if kind == Kind::Decode && !spec.replicas().is_empty() {
            return Err(Error::Usage(
                "bench decode: measures the steps of one device, expected --device with one, or `bench serve` with several".into(),
            ));
        }
        let target = Target::of(&spec)?;
        spec.limits = self.limits(&spec, points, sizes)?;
        let gpu = spec.device.launch().is_some();
        if self.args.logits_on_device && !gpu {
            return Err(Error::Usage(
                "--logits-on-device: expected --device cuda; on a CPU logits never leave its memory".into(),
            ));
        }
        let mut opened = Opened::on(target, spec, self.delivers())?;
        match self.args.kind {
            Kind::Prefill => opened.only(&[StepKind::Mixed]),
            Kind::Score => opened.only(&[self.args.logits.step_kind()]),
            Kind::Decode | Kind::Serve => {
                opened.only(&[StepKind::Decode, StepKind::Mixed]);
            }
        }
        if let Some(samples) = &self.samples
            && let Some(path) = &self.args.input
        {
            arrays::check(
                path,
                samples,
                self.config.vocab_size,
                opened.max_context() as usize,
            )?;
        }
        let tried = |&point: &Point| Tried {
            point,
            repeats: Vec::new(),
            vocabulary_share: 0.0,
            spread: Spread::default(),
            verdict: Verdict::default(),
            failed: None,
        };
        let shown = |file: Option<&Path>| file.map(|file| file.display().to_string());
        Ok(Unit {
            number,
            way: way.or(gpu.then_some(LaunchWay::DeviceGraph)),
            bucket_file: shown(opened.spec.bucket_file.as_deref()),
            kernel_file: shown(opened.spec.device.kernel_file()),
            opened,
            points: points.iter().map(tried).collect(),
            starts: vec![],
        })
    }

    /// What the lists ask for; of `score --input` what is in the file.
    fn points(&self) -> Result<Vec<Point>> {
        let mut points = self.args.points()?;
        if let Some(samples) = &self.samples {
            let longest = samples
                .iter()
                .map(|sample| sample.tokens.len() as u32)
                .max();
            for point in &mut points {
                point.batch = samples.len() as u32;
                point.prompt_tokens = longest.unwrap_or(0);
            }
        }
        Ok(points)
    }

    /// Starts the unit's engine and measures each of its points once. False: interrupted.
    fn repeat(
        &self,
        unit: &mut Unit,
        model: &Arc<Model>,
        repeat: usize,
        watch: &Watch,
    ) -> Result<bool> {
        let before = phases_so_far();
        let start = Instant::now();
        let scored = Arc::new(Scored::default());
        let sink: SharedSink = match self.delivers() {
            true => Some(scored.clone()),
            false => None,
        };
        let traced = self
            .args
            .trace
            .as_deref()
            .filter(|_| unit.way != Some(LaunchWay::Bare));
        let (mut running, bare) = bare::start(unit, model, &sink, traced.is_some())?;
        let header = match (traced, &running) {
            (Some(_), Running::One(engine)) => Some(unit.opened.header(engine)?),
            _ => None,
        };
        let engine_ms = start.elapsed().as_secs_f64() * 1e3;
        let mut startup = Startup::since(before, unit.opened.spec.device.launch().is_some());
        startup.startup_engine_ms = Some(engine_ms);
        let mut runner = Runner {
            engine: running.driven(),
            sent: 0,
            interrupt: self.interrupt,
            clocks: Clocks::unknown(),
            life: traced.map(|_| Life::default()),
        };
        let mut steps = vec![0..0; unit.points.len()];
        startup.startup_first_token_ms =
            match self.first_token(&mut runner, unit.points[0].point)? {
                None => return Ok(false),
                Some(first_ms) => first_ms,
            };
        unit.starts.push(startup);
        for warm_up in 0..u64::from(self.args.warm_up) {
            for tried in &unit.points {
                let arrivals = self.arrivals(&tried.point, WARM_UP_INDEX + warm_up);
                if runner.run(&tried.point, &arrivals)?.is_none() {
                    return Ok(false);
                }
            }
        }
        let expected = self.expected(&unit.opened);
        for turn in 0..unit.points.len() {
            let index = (turn + repeat) % unit.points.len();
            let tried = &mut unit.points[index];
            let arrivals = self.arrivals(&tried.point, repeat as u64);
            if !drive::idle(self.args.pause, self.interrupt) || !runner.compare_clocks()? {
                return Ok(false);
            }
            if let Some(expected) = &expected {
                scored.expect(runner.sent, expected)?;
            }
            if let Some(bare) = &bare {
                bare.begin(tried.point.batch);
            }
            let first = runner.next_step();
            let watching = watch.start();
            let Some(run) = runner.run(&tried.point, &arrivals)? else {
                return Ok(false);
            };
            let (joules, looks) = watching.end();
            steps[index] = first..runner.next_step();
            let came = match &bare {
                Some(bare) => bare.figures(&tried.point),
                None => figures(&tried.point, &run),
            };
            match came {
                Ok(mut figures) => {
                    figures.gpu = looks;
                    // What is counted of the bare graph is a part of the run.
                    figures.energy_j = joules.filter(|_| bare.is_none());
                    tried.repeats.push(figures);
                }
                Err(error) => tried.failed = Some(error),
            }
            tried.vocabulary_share =
                workload::vocabulary_share(&arrivals, self.config.vocab_size as u32);
            let verdict = scored.verdict();
            if tried.verdict.valid != Some(false) {
                tried.verdict = verdict.unwrap_or_default();
            }
        }
        let life = runner.life.take();
        if let (Some(folder), Some(mut life)) = (traced, life)
            && let (Running::One(engine), Some(header)) = (&mut running, header)
        {
            life.drain(engine)?;
            let path = folder.join(unit.trace_name(repeat));
            let found = life.write(&header, &path)?;
            for (tried, numbers) in unit.points.iter_mut().zip(steps) {
                if let Some(figures) = tried.repeats.last_mut() {
                    figures.traced_step_ms = found.whole_ms(tried.point.batch, numbers);
                }
            }
        }
        Ok(true)
    }

    /// Milliseconds of one short request, whose token is the engine's first. `None`: interrupted.
    fn first_token(&self, runner: &mut Runner<'_>, point: Point) -> Result<Option<Option<f64>>> {
        let alone = Point {
            kind: Kind::Serve,
            batch: 1,
            new_tokens: point.new_tokens.min(1),
            cpu_load: 0,
            ..point
        };
        let mut random = Random::new(self.args.seed, WARM_UP_INDEX - 1);
        let arrivals = workload::at_once(
            &alone,
            1,
            self.wanted(),
            self.config.vocab_size as u32,
            &mut random,
        );
        let Some(run) = runner.run(&alone, &arrivals)? else {
            return Ok(None);
        };
        let figures = figures(&alone, &run)?;
        // A scored prompt has no token; its end is what comes first.
        let first = figures.ttft_ms.first().or(figures.e2el_ms.first());
        Ok(Some(first.copied()))
    }

    /// Whether logits go from the device to the host.
    pub fn delivers(&self) -> bool {
        self.args.kind == Kind::Score && !self.args.logits_on_device
    }

    fn wanted(&self) -> Logits {
        match (self.args.kind, self.args.logits) {
            (Kind::Score, Positions::All) => Logits::All,
            (Kind::Score, Positions::Last) => Logits::Last,
            _ => Logits::None,
        }
    }

    /// The requests of a repeat.
    pub fn arrivals(&self, point: &Point, index: u64) -> Vec<Arrival> {
        let mut random = Random::new(self.args.seed, index);
        let vocabulary = self.config.vocab_size as u32;
        if let Some(samples) = &self.samples {
            let arrival = |sample: &Sample| Arrival {
                due: std::time::Duration::ZERO,
                request: workload::request(sample.tokens.clone(), 0, self.wanted()),
            };
            return samples.iter().map(arrival).collect();
        }
        if let Some(lines) = &self.lines {
            return workload::from_lines(lines, point, vocabulary, &mut random);
        }
        let count = match point.kind {
            Kind::Serve => self
                .args
                .num_prompts
                .unwrap_or(point.batch.saturating_mul(4)),
            _ => point.batch,
        };
        let mut arrivals = workload::at_once(point, count, self.wanted(), vocabulary, &mut random);
        if let Some(rate) = point.rate {
            workload::poisson(&mut arrivals, rate, &mut random);
        }
        arrivals
    }
}
