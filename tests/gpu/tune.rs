//! `tune` on a GPU: what it writes can be run by, and is right.

use crate::binary::path;
use crate::common::program::tailgraph;
use crate::goldens;
use std::path::Path;
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::cuda::tuning::{KernelChoice, Shape};
use tailgraph::model::{DType, ModelSource};

/// `random:tiny` has the shapes of the golden checkpoints.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_is_written_computes_what_transformers_does() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(folder.path(), "tuned.toml");
    let buckets = ["--bucket", "1,8", "--dtype", "f32,bf16", "--quiet"];
    let model = ["tune", "--model", "random:tiny", "--device", "cuda"];
    let table = tailgraph(&[&model[..], &buckets, &["-o", &file]].concat());
    println!("{table}");
    let choice = KernelChoice::open(Some(Path::new(&file))).unwrap();
    let gpu = OpenGpu::new(0).unwrap().served_by(choice);
    let read = gpu.kernel_file().unwrap();
    let (config, _) = ModelSource::parse("random:tiny").unwrap().config().unwrap();
    for dtype in [DType::F32, DType::BF16] {
        let shape = Shape::of(&config);
        assert!(
            read.origin(dtype, shape)
                .is_some_and(|at| at.own_gpu && at.own_shape)
        );
        for entry in read.choice(dtype, shape).entries {
            let timed = entry.ms.is_some_and(|ms| ms > 0.0 && ms < 100.0);
            assert_eq!(timed, [1, 8].contains(&entry.rows), "{entry:?}");
        }
    }
    goldens::f32_on(&gpu, "as tuned", &["a", "b"]);
}
