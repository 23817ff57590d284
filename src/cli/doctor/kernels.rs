//! What `doctor` says of the kernels that serve decode steps on a GPU: whose entries these are, and what `tune` would measure.

use super::{Check, Status};
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::tuning::gpu::Gpu;
use crate::backend::cuda::tuning::kernel_file::Measured;
use crate::backend::cuda::tuning::{GpuClass, Origin, Shape, Variant};
use crate::cli::table::Table;
use crate::error::Result;
use crate::model::DType;
use crate::model::ModelConfig;
use serde_json::{Value, json};
use std::io::{self, Write};

/// Which entries of a kernel file serve a GPU and a model, or why nobody knows.
pub type Found = Result<Kernels>;

#[derive(Debug)]
pub struct Kernels {
    /// The file, and what of it serves this GPU.
    pub file: String,
    pub name: String,
    pub gpu: GpuClass,
    /// Of the model; without one, those of LFM2-8B-A1B.
    pub shape: Shape,
    pub types: Vec<OfType>,
    /// Where the times of the GPU's own entries come from.
    pub measured: Vec<Measured>,
    /// The options of `tune` that are this GPU and this model.
    pub tune: String,
}

#[derive(Debug)]
pub struct OfType {
    pub dtype: DType,
    /// `None`: there are no entries, and what takes any step serves.
    pub origin: Option<Origin>,
    pub buckets: Vec<OfBucket>,
}

#[derive(Debug)]
pub struct OfBucket {
    pub rows: u32,
    pub variant: Variant,
    /// As `tune` measured it on this GPU, with a model of these shapes.
    pub ms: Option<f64>,
    /// The least that a step of the measured model needs, where that and the GPU are known.
    pub least_ms: Option<f64>,
}

impl OfType {
    fn is_own(&self) -> bool {
        self.origin.is_some_and(|at| at.own_gpu && at.own_shape)
    }
}

/// On this GPU, for the model that the user has named so.
pub(super) fn found(gpu: &OpenGpu, model: Option<(&str, &ModelConfig)>) -> Found {
    let served = gpu.kernel_file()?;
    let shape = model.map_or(Shape::BASE, |(_, config)| Shape::of(config));
    let measured = served.file.measured(gpu.info.class).to_vec();
    let of_type = |dtype: DType| {
        let origin = served.origin(dtype, shape);
        let own = origin.is_some_and(|at| at.own_gpu && at.own_shape);
        let least = least::Least::new(&measured, model, Gpu::of_driver(&gpu.info.name), dtype);
        let entries = served.choice(dtype, shape).entries.iter();
        let buckets = entries.map(|entry| {
            let ms = entry.ms.filter(|_| own);
            OfBucket {
                rows: entry.rows,
                variant: entry.variant,
                ms,
                least_ms: ms.and(least.as_ref()).map(|least| least.ms(entry.rows)),
            }
        });
        OfType {
            dtype,
            origin,
            buckets: buckets.collect(),
        }
    };
    let device = match gpu.info.ordinal {
        0 => String::new(),
        ordinal => format!(" --device cuda:{ordinal}"),
    };
    Ok(Kernels {
        file: served.file.path.display().to_string(),
        name: served.name(),
        gpu: gpu.info.class,
        shape,
        types: [DType::BF16, DType::F16, DType::F32].map(of_type).into(),
        tune: format!(
            "--model {}{device}",
            model.map_or("MODEL", |(name, _)| name)
        ),
        measured,
    })
}

/// The least time of the steps that `tune` has measured.
mod least {
    use crate::backend::cuda::tuning::gpu::Gpu;
    use crate::backend::cuda::tuning::kernel_file::Measured;
    use crate::bench::floors::Rates;
    use crate::cli::tune::PROMPT_TOKENS;
    use crate::model::{DType, ModelConfig, ModelSource, WeightFormat};
    use crate::plan::cost::Precision;
    use crate::plan::{GraphFile, Limits, Plan, StepKind, StepShape};
    use std::sync::Arc;

    pub struct Least {
        plan: Plan,
        precision: Precision,
        rates: Rates,
    }

    impl Least {
        /// Of the model that was measured, which is a preset with a name or the one that is asked about: no other is looked for.
        pub fn new(
            measured: &[Measured],
            asked: Option<(&str, &ModelConfig)>,
            gpu: Option<&Gpu>,
            dtype: DType,
        ) -> Option<Self> {
            let (_, model) = measured.iter().find(|(name, _)| name == "model")?;
            let config = match asked {
                Some((name, config)) if name == model => config.clone(),
                _ => ModelSource::preset(model)?.config().ok()?.0,
            };
            // Checkpoints are of 16-bit weights, and stay so beside f32 rows.
            let precision = Precision::new(dtype, WeightFormat::BF16);
            let plan = GraphFile::built_in().ok()?;
            Some(Self {
                plan: plan.plan(Arc::new(config), &Limits::default()).ok()?,
                precision,
                rates: Rates::new(None, None, gpu, precision)?,
            })
        }

        /// A decode step right behind the prompts.
        pub fn ms(&self, rows: u32) -> f64 {
            let shape = StepShape {
                kind: StepKind::Decode,
                rows,
                context: PROMPT_TOKENS + 1,
            };
            let costs = self.plan.costs(&shape, self.precision);
            self.rates.least(costs).us() / 1e3
        }
    }
}

/// What there is to say, and what could be measured.
pub(super) fn check(found: &Found) -> Check {
    let kernels = match found {
        Ok(kernels) => kernels,
        Err(why) => {
            let advice = "name another file with --kernel-file, or none";
            return Check::not_ok("kernels", Status::Problem, why.to_string(), advice);
        }
    };
    let mut origins: Vec<(Option<Origin>, Vec<&str>)> = vec![];
    for of_type in &kernels.types {
        let name = of_type.dtype.name();
        match origins.iter_mut().find(|(at, _)| *at == of_type.origin) {
            Some((_, types)) => types.push(name),
            None => origins.push((of_type.origin, vec![name])),
        }
    }
    let said = origins.iter().map(|(origin, types)| {
        let types = types.join(", ");
        match origin {
            Some(origin) => format!("{types}: entries {origin}"),
            None => format!("{types}: no entries, the kernels for any step serve"),
        }
    });
    let said: Vec<String> = said.collect();
    let Kernels {
        file,
        name,
        gpu,
        shape,
        tune,
        ..
    } = kernels;
    let borrowed = kernels.types.iter().filter(|of_type| !of_type.is_own());
    let types: Vec<&str> = borrowed.map(|of_type| of_type.dtype.name()).collect();
    let advice = (!types.is_empty()).then(|| {
        format!(
            "`tailgraph tune {tune} --dtype {} -o FILE` measures which kernels serve {shape} best on this GPU, in 5 to 10 s for each type and \
             bucket, and --kernel-file FILE runs by them; what that brings nobody knows before",
            types.join(",")
        )
    });
    Check {
        advice,
        ..Check::ok(
            "kernels",
            format!("{file} as {gpu} goes by it, {name}; {}", said.join("; ")),
        )
    }
}

/// The times in the file that are of this GPU and these shapes, if any are.
pub(super) fn text(kernels: &Kernels, out: &mut dyn Write) -> io::Result<()> {
    let timed = |of_type: &&OfType| of_type.buckets.iter().any(|bucket| bucket.ms.is_some());
    if !kernels.types.iter().any(|of_type| timed(&of_type)) {
        return Ok(());
    }
    let measured = kernels.measured.iter();
    let measured =
        measured.filter(|(name, _)| ["model", "gpu", "date", "commit"].contains(&&name[..]));
    let measured: Vec<String> = measured
        .map(|(name, text)| format!("{name} {text}"))
        .collect();
    writeln!(
        out,
        "\nkernels: bare decode steps as `tune` measured them ({}), and the least time of their bytes and FLOPs",
        measured.join(", ")
    )?;
    let mut table = Table::new(&[0, 5]);
    table.row(["type", "rows", "ms", "least ms", "least of it", "by"]);
    for of_type in kernels.types.iter().filter(timed) {
        for bucket in &of_type.buckets {
            let (ms, least, share) = match (bucket.ms, bucket.least_ms) {
                (None, _) => ("not measured".to_owned(), String::new(), String::new()),
                (Some(ms), None) => (format!("{ms:.3}"), "not known".to_owned(), String::new()),
                (Some(ms), Some(least)) => (
                    format!("{ms:.3}"),
                    format!("{least:.3}"),
                    format!("{:.1}%", 100.0 * least / ms),
                ),
            };
            table.row([
                of_type.dtype.name().to_owned(),
                bucket.rows.to_string(),
                ms,
                least,
                share,
                bucket.variant.to_string(),
            ]);
        }
    }
    table.write("  ", out)
}

pub(super) fn json_object(kernels: &Kernels) -> Value {
    let bucket = |bucket: &OfBucket| {
        json!({
            "rows": bucket.rows,
            "products": bucket.variant.products.to_string(),
            "experts": bucket.variant.experts.to_string(),
            "ms": bucket.ms,
            "least_ms": bucket.least_ms,
        })
    };
    let of_type = |of_type: &OfType| {
        json!({
            "dtype": of_type.dtype.name(),
            "entries": of_type.origin.map(Origin::json),
            "buckets": of_type.buckets.iter().map(bucket).collect::<Vec<_>>(),
        })
    };
    let measured = kernels.measured.iter();
    let measured = measured.map(|(name, text)| (name.clone(), json!(text)));
    json!({
        "file": kernels.file,
        "kernel_variants": kernels.name,
        "gpu": kernels.gpu.to_string(),
        "shape": kernels.shape.to_string(),
        "types": kernels.types.iter().map(of_type).collect::<Vec<_>>(),
        "measured": Value::Object(measured.collect()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: GpuClass = GpuClass {
        multiprocessors: 132,
        gb_per_s: 3352,
    };

    fn of_type(dtype: DType, own: bool, ms: Option<f64>, least_ms: Option<f64>) -> OfType {
        let other = GpuClass {
            gb_per_s: 4800,
            ..HERE
        };
        OfType {
            dtype,
            origin: Some(Origin {
                gpu: Some(if own { HERE } else { other }),
                own_gpu: own,
                gpu_ratio: Some(other.distance(HERE).exp()),
                shape: Shape::BASE,
                own_shape: true,
                shape_ratio: 1.0,
            }),
            buckets: vec![OfBucket {
                rows: 8,
                variant: Variant::TILED,
                ms,
                least_ms,
            }],
        }
    }

    fn kernels(types: Vec<OfType>) -> Kernels {
        let noted = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        Kernels {
            file: "mine.toml".into(),
            name: "sm_90-0".into(),
            gpu: HERE,
            shape: Shape::BASE,
            types,
            measured: vec![noted("model", "random:tiny"), noted("driver", "x")],
            tune: "--model M".into(),
        }
    }

    #[test]
    fn what_is_borrowed_is_said_with_what_measures_it() {
        let types = vec![
            of_type(DType::BF16, true, None, None),
            of_type(DType::F16, false, None, None),
            of_type(DType::F32, false, None, None),
        ];
        let found = check(&Ok(kernels(types)));
        assert_eq!(found.status, Status::Ok);
        for part in [
            "mine.toml as m132-b3352 goes by it, sm_90-0; bf16: entries this GPU's (m132-b3352)",
            "f16, f32: entries those of m132-b4800, the nearest GPU, 1.43 times apart",
        ] {
            assert!(found.detail.contains(part), "{}", found.detail);
        }
        let advice = found.advice.unwrap();
        assert!(
            advice.contains("`tailgraph tune --model M --dtype f16,f32 -o FILE`"),
            "{advice}"
        );
        let own = kernels(vec![of_type(DType::BF16, true, None, None)]);
        assert_eq!(check(&Ok(own)).advice, None);
        let none = OfType {
            origin: None,
            ..of_type(DType::BF16, true, None, None)
        };
        assert!(
            check(&Ok(kernels(vec![none])))
                .detail
                .contains("bf16: no entries")
        );
    }

    #[test]
    fn times_are_shown_where_there_are_any() {
        let shown = |types| {
            let mut out = vec![];
            text(&kernels(types), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(shown(vec![of_type(DType::F16, true, None, None)]), "");
        let timed = shown(vec![
            of_type(DType::BF16, true, Some(2.0), Some(1.5)),
            of_type(DType::F16, true, Some(2.0), None),
            of_type(DType::F32, true, None, None),
        ]);
        assert!(timed.contains("(model random:tiny)"), "{timed}");
        let lines: Vec<_> = timed.lines().skip(3).collect();
        let words = |line: &str| {
            line.split_whitespace()
                .take(5)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(words(lines[0]), "bf16 8 2.000 1.500 75.0%");
        assert!(
            words(lines[1]).starts_with("f16 8 2.000 not known"),
            "{timed}"
        );
        assert_eq!(lines.len(), 2, "{timed}");
    }
}
