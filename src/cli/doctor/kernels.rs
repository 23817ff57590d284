//! What `doctor` says of the kernels that serve decode steps on a GPU: whose entries these are, and what `tune` would measure.

use super::{Check, Status};
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::tuning::{GpuClass, Origin, Shape};
use crate::cli::shown;
use crate::error::Result;
use crate::model::{DType, ModelConfig};
use serde_json::{Value, json};

/// Which entries of a kernel file serve a GPU and a model.
pub struct Kernels {
    /// The file, and what of it serves this GPU.
    file: String,
    name: String,
    gpu: GpuClass,
    /// The model's; without one, that of LFM2-8B-A1B.
    shape: Shape,
    /// Where each type's entries are from; `None`: there are none, and what takes any step serves.
    types: Vec<(DType, Option<Origin>)>,
    /// The options of `tune` that are this GPU and this model.
    tune: String,
}

/// On this GPU, for the model that the user has named so.
pub(super) fn found(gpu: &OpenGpu, model: Option<(&str, &ModelConfig)>) -> Result<Kernels> {
    let served = gpu.kernel_file()?;
    let shape = model.map_or(Shape::BASE, |(_, config)| Shape::of(config));
    let types = [DType::BF16, DType::F16, DType::F32];
    let types = types.map(|dtype| (dtype, served.origin(dtype, shape)));
    let device = match gpu.info.ordinal {
        0 => String::new(),
        ordinal => format!(" --device cuda:{ordinal}"),
    };
    let name = model.map_or("MODEL", |(name, _)| name);
    Ok(Kernels {
        file: served.file.path.display().to_string(),
        name: served.name(),
        gpu: gpu.info.class,
        shape,
        types: types.into(),
        tune: format!("--model {name}{device}"),
    })
}

/// What there is to say, and what could be measured.
pub(super) fn check(found: &Result<Kernels>) -> Check {
    let kernels = match found {
        Ok(kernels) => kernels,
        Err(why) => {
            let advice = "name another file with --kernel-file, or none";
            return Check::not_ok("kernels", Status::Problem, shown(why), advice);
        }
    };
    let mut origins: Vec<(Option<Origin>, Vec<&str>)> = vec![];
    for &(dtype, origin) in &kernels.types {
        match origins.iter_mut().find(|(at, _)| *at == origin) {
            Some((_, types)) => types.push(dtype.name()),
            None => origins.push((origin, vec![dtype.name()])),
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
    let is_own = |origin: Option<Origin>| origin.is_some_and(|at| at.own_gpu && at.own_shape);
    let borrowed = kernels.types.iter().filter(|(_, origin)| !is_own(*origin));
    let types: Vec<&str> = borrowed.map(|(dtype, _)| dtype.name()).collect();
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

pub(super) fn json_object(kernels: &Kernels) -> Value {
    let of_type = |(dtype, origin): &(DType, Option<Origin>)| json!({"dtype": dtype.name(), "entries": origin.map(Origin::json)});
    json!({
        "file": kernels.file,
        "kernel_variants": kernels.name,
        "gpu": kernels.gpu.to_string(),
        "shape": kernels.shape.to_string(),
        "types": kernels.types.iter().map(of_type).collect::<Vec<_>>(),
    })
}
