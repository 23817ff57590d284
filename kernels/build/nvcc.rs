//! Finds nvcc and compiles kernels/*/*.cu into one image for the GPUs we run on.

use std::env;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Families lie in folders of this one, and include each other's headers by their paths from here.
const KERNELS: &str = "kernels";

/// Real architectures only: no PTX survives the device link. A cubin also runs on later parts of its
/// generation (sm_80 on 8.6 and 8.9, sm_100 on 10.3), but sm_90a, which wgmma needs, on 9.0 alone.
const ARCHITECTURES: [&str; 3] = ["80", "90a", "100"];

/// What came of compiling and linking; the image itself is `tailgraph.fatbin` in the output folder.
pub struct Built {
    /// What the compiler printed, `ptxas -v` included: one unit after the other.
    pub compile_log: String,
    pub link_log: String,
    /// One a unit.
    pub objects: Vec<PathBuf>,
}

/// nvcc by its real path: it finds its own parts relative to how it was called, and a link leads it astray.
///
/// NVCC or CUDA_HOME decide where they are set; else the pinned toolchain in .cuda, which someone put there
/// for this; else whatever the machine has.
pub fn find() -> Result<PathBuf, String> {
    let found = if let Some(nvcc) = env::var_os("NVCC") {
        existing(PathBuf::from(&nvcc)).ok_or(format!(
            "NVCC is {nvcc:?}, and no such file exists: name nvcc itself, or unset it"
        ))?
    } else if let Some(home) = env::var_os("CUDA_HOME") {
        existing(Path::new(&home).join("bin/nvcc")).ok_or(format!(
            "CUDA_HOME is {home:?}, which has no bin/nvcc: name a CUDA 13 toolkit, or unset it"
        ))?
    } else {
        wheels()
            .into_iter()
            .chain(env::split_paths(&env::var_os("PATH").unwrap_or_default()).map(|dir| dir.join("nvcc")))
            .chain([PathBuf::from("/usr/local/cuda/bin/nvcc")])
            .find_map(existing)
            .ok_or("no nvcc found by NVCC, CUDA_HOME, .cuda, PATH or /usr/local/cuda: run kernels/toolchain, which installs it into .cuda without root")?
    };
    let version = run(Command::new(&found).arg("--version"))?;
    let release = version
        .split("release ")
        .nth(1)
        .and_then(|rest| rest.split(',').next());
    match release {
        Some(release) if release.starts_with("13.") => Ok(found),
        other => Err(format!(
            "{} is of CUDA {}, and the kernels need 13: run kernels/toolchain and unset NVCC and CUDA_HOME, or point them at a CUDA 13 toolkit",
            found.display(),
            other.unwrap_or("an unknown release")
        )),
    }
}

/// Where kernels/toolchain puts nvcc; the folder is named after the Python that made it.
fn wheels() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(".cuda/lib") else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|entry| entry.path().join("site-packages/nvidia/cu13/bin/nvcc"))
        .collect()
}

fn existing(path: PathBuf) -> Option<PathBuf> {
    path.canonicalize().ok().filter(|path| path.is_file())
}

/// Compiles every unit, as many at a time as cargo allows, and links them for the device. Objects lie in the folder that
/// TAILGRAPH_KERNEL_OBJECTS names, for builds that share them one after the other, or in `out_dir`.
pub fn build(nvcc: &Path, out_dir: &Path) -> Result<Built, String> {
    let folder = env::var_os("TAILGRAPH_KERNEL_OBJECTS").map_or(out_dir.to_owned(), PathBuf::from);
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let sources = digest(&files(Path::new(KERNELS), &["cuh", "h", "c"])?)?;
    let units = files(Path::new(KERNELS), &["cu"])?;
    let jobs: usize = env::var("NUM_JOBS")
        .ok()
        .and_then(|jobs| jobs.parse().ok())
        .unwrap_or(1);
    let waiting = Mutex::new(units.iter().enumerate());
    let done = Mutex::new(vec![None; units.len()]);
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(units.len()) {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("no compiling thread panics").next();
                    let Some((index, unit)) = next else { break };
                    let result = compile(nvcc, unit, sources, &folder);
                    done.lock().expect("no compiling thread panics")[index] = Some(result);
                }
            });
        }
    });
    let mut objects = Vec::new();
    let mut compile_log = String::new();
    for result in done
        .into_inner()
        .expect("no compiling thread panics")
        .into_iter()
        .flatten()
    {
        let (object, log) = result?;
        objects.push(object);
        compile_log.push_str(&log);
    }
    let image = out_dir.join("tailgraph.fatbin");
    let mut link = Command::new(nvcc);
    link.args(["-dlink", "-fatbin", "-Xnvlink", "-v"])
        .args(targets())
        .args(&objects)
        .arg("-o")
        .arg(&image);
    let link_log = run(&mut link)?;
    Ok(Built {
        compile_log,
        link_log,
        objects,
    })
}

/// One unit for all architectures: its object and what was printed. Kept beside the object, with what they were made from, so
/// that a unit is compiled again only where that has changed.
fn compile(
    nvcc: &Path,
    unit: &Path,
    sources: u64,
    folder: &Path,
) -> Result<(PathBuf, String), String> {
    // Families have units of the same name: norm.cu, conv.cu.
    let place = unit.strip_prefix(KERNELS).unwrap_or(unit);
    let name = place.to_string_lossy().replace('/', "-");
    let object = folder.join(name).with_extension("o");
    let mut command = Command::new(nvcc);
    command
        .args([
            "-rdc=true",
            "-O3",
            "-std=c++17",
            "-lineinfo",
            "-Xptxas",
            "-v",
            "-I",
            KERNELS,
        ])
        .args(targets())
        .arg("-c")
        .arg(unit)
        .arg("-o")
        .arg(&object);
    let text = |path: &Path| std::fs::read_to_string(path);
    let (log, key) = (object.with_extension("log"), object.with_extension("key"));
    let made_from = format!(
        "{command:?} {:x} {sources:x} {}",
        digest(&[unit.to_owned()])?,
        size_and_age(nvcc)
    );
    if object.is_file()
        && let (Ok(log), Ok(before)) = (text(&log), text(&key))
        && before == made_from
    {
        return Ok((object, log));
    }
    let _ = std::fs::remove_file(&key);
    let printed = run(&mut command)?;
    let kept = std::fs::write(&log, &printed).and_then(|()| std::fs::write(&key, made_from));
    kept.map_err(|error| format!("{}: {error}", key.display()))?;
    Ok((object, printed))
}

/// Of the files' contents, in order.
fn digest(files: &[PathBuf]) -> Result<u64, String> {
    let mut hasher = DefaultHasher::new();
    for file in files {
        let bytes = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
        hasher.write(&bytes);
    }
    Ok(hasher.finish())
}

/// A compiler in another's place is another one.
fn size_and_age(file: &Path) -> String {
    let found = file
        .metadata()
        .map(|data| (data.len(), data.modified().ok()));
    format!("{found:?}")
}

/// Files below `folder` with one of these extensions, sorted.
fn files(folder: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let entries =
        std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            found.extend(files(&path, extensions)?);
        } else if path
            .extension()
            .is_some_and(|found| extensions.iter().any(|&extension| found == extension))
        {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn targets() -> impl Iterator<Item = String> {
    ARCHITECTURES
        .iter()
        .map(|arch| format!("-gencode=arch=compute_{arch},code=sm_{arch}"))
}

/// Runs a command to its end and gives what it printed; a failure gives it as the error.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(printed.into_owned()),
        false => Err(format!(
            "{command:?} failed ({}):\n{printed}",
            output.status
        )),
    }
}
