//! Finds nvcc and compiles kernels/*/*.cu into one image for the GPUs we run on.

use std::env;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

/// Families lie in folders of this one, and include each other's headers by their paths from here.
const KERNELS: &str = "kernels";

/// Real architectures only: no PTX survives the device link. A cubin also runs on later parts of its
/// generation (sm_80 on 8.6 and 8.9, sm_100 on 10.3), but sm_90a, which wgmma needs, on 9.0 alone.
const ARCHITECTURES: [&str; 3] = ["80", "90a", "100"];

/// What came of compiling and linking; the images are `tailgraph.fatbin` in the output folder and, with the feature `lab`, `lab.fatbin` and
/// `launching.fatbin` beside it.
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
/// TAILGRAPH_KERNEL_OBJECTS names, which builds may share, or in `out_dir`.
pub fn build(nvcc: &Path, out_dir: &Path) -> Result<Built, String> {
    let folder = env::var_os("TAILGRAPH_KERNEL_OBJECTS").map_or(out_dir.to_owned(), PathBuf::from);
    std::fs::create_dir_all(&folder).map_err(|error| said(&folder, &error))?;
    let mut units = units(Path::new(KERNELS))?;
    units.retain(|unit| cfg!(feature = "lab") || !is_of_lab(unit));
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
                    let result = compile(nvcc, unit, &folder);
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
    forget_old(&folder);
    let by_unit = || units.iter().zip(&objects);
    let main = by_unit().filter(|(unit, _)| !is_of_lab(unit));
    let mut link_log = link(nvcc, main, &out_dir.join("tailgraph.fatbin"), &[])?;
    if cfg!(feature = "lab") {
        let lab = by_unit().filter(|(unit, _)| is_of_lab(unit) && !launches_kernels(unit));
        link_log.push_str(&link(nvcc, lab, &out_dir.join("lab.fatbin"), &[])?);
        let with_runtime = by_unit().filter(|(unit, _)| launches_kernels(unit) || is_shared(unit));
        let runtime = runtime(nvcc)?;
        let image = out_dir.join("launching.fatbin");
        let linked = link(nvcc, with_runtime, &image, &[&runtime, "-lcudadevrt"])?;
        link_log.push_str(&of_ours(&linked));
    }
    Ok(Built {
        compile_log,
        link_log,
        objects,
    })
}

/// Whether a unit is of the laboratory (profiles/lab).
fn is_of_lab(unit: &Path) -> bool {
    unit.starts_with(Path::new(KERNELS).join("ways")) || launches_kernels(unit)
}

/// Kernels that launch kernels need the device runtime, and stand in an image of their own, so that nothing else does.
fn launches_kernels(unit: &Path) -> bool {
    unit.starts_with(Path::new(KERNELS).join("cdp"))
}

/// What these launch, which is in the other image too.
fn is_shared(unit: &Path) -> bool {
    unit == Path::new(KERNELS).join("ways/step.cu")
}

/// Where nvcc's device runtime lies, as an option: the wheels have `lib`, nvcc looks in `lib64`.
fn runtime(nvcc: &Path) -> Result<String, String> {
    let root = nvcc.parent().and_then(Path::parent).unwrap_or(nvcc);
    let folders = ["lib", "lib64", "targets/x86_64-linux/lib"].map(|folder| root.join(folder));
    let found = folders
        .iter()
        .find(|folder| folder.join("libcudadevrt.a").is_file());
    found
        .map(|folder| format!("-L{}", folder.display()))
        .ok_or(format!(
            "{}: found no libcudadevrt.a in lib, lib64 or targets/x86_64-linux/lib, expected it beside nvcc: run kernels/toolchain",
            root.display()
        ))
}

/// Links objects for the device; gives what was printed.
fn link<'a>(
    nvcc: &Path,
    objects: impl Iterator<Item = (&'a PathBuf, &'a PathBuf)>,
    image: &Path,
    more: &[&str],
) -> Result<String, String> {
    let mut link = Command::new(nvcc);
    link.args(["-dlink", "-fatbin", "-Xnvlink", "-v"])
        .args(targets())
        .args(objects.map(|(_, object)| object))
        .args(more)
        .arg("-o")
        .arg(image);
    run(&mut link)
}

/// What nvlink printed of our kernels: the device runtime has functions of its own.
fn of_ours(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let pairs = lines.windows(2);
    pairs
        .filter(|pair| pair[0].contains("Function properties for 'tg_"))
        .fold(String::new(), |text, pair| {
            text + pair[0] + "\n" + pair[1] + "\n"
        })
}

/// One unit for all architectures: its object and what was printed. Both are named by what they are made from, so that a unit is
/// compiled again only where that has changed, and builds that share a folder never take each other's.
fn compile(nvcc: &Path, unit: &Path, folder: &Path) -> Result<(PathBuf, String), String> {
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
        .arg(unit);
    let mut made_from = DefaultHasher::new();
    made_from.write(format!("{command:?} {}", size_and_age(nvcc)).as_bytes());
    for source in sources(unit)? {
        made_from.write(source.as_os_str().as_encoded_bytes());
        made_from.write(&std::fs::read(&source).map_err(|error| said(&source, &error))?);
    }
    // Families have units of the same name: norm.cu, conv.cu.
    let place = unit.strip_prefix(KERNELS).unwrap_or(unit);
    let name = place.with_extension("").to_string_lossy().replace('/', "-");
    let object = folder.join(format!("{name}.{:016x}.o", made_from.finish()));
    let log = object.with_extension("log");
    if object.is_file()
        && let Ok(printed) = std::fs::read_to_string(&log)
    {
        used_now(&log)?;
        return Ok((object, printed));
    }
    // Another build may be at the same: each makes its own, and the name is there only when all of it is.
    let unfinished = object.with_extension(format!("{}.o", std::process::id()));
    let printed = run(command.arg("-o").arg(&unfinished))?;
    std::fs::rename(&unfinished, &object).map_err(|error| said(&object, &error))?;
    std::fs::write(&log, &printed).map_err(|error| said(&log, &error))?;
    Ok((object, printed))
}

/// The unit, and what it includes of ours, wherever it does.
fn sources(unit: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = vec![unit.to_owned()];
    let mut at = 0;
    while at < found.len() {
        let text = std::fs::read_to_string(&found[at]).map_err(|error| said(&found[at], &error))?;
        let names = text.lines().filter_map(|line| {
            line.trim_start()
                .strip_prefix("#include \"")?
                .split('"')
                .next()
        });
        for name in names {
            let path = Path::new(KERNELS).join(name);
            if !found.contains(&path) {
                found.push(path);
            }
        }
        at += 1;
    }
    Ok(found)
}

/// How long an object is kept that no build has used.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Notes that what was compiled before has served again.
fn used_now(log: &Path) -> Result<(), String> {
    std::fs::File::options()
        .append(true)
        .open(log)
        .and_then(|file| file.set_modified(SystemTime::now()))
        .map_err(|error| said(log, &error))
}

/// Removes what no build has used for long: each change of a kernel leaves an object, and a build that was killed an unfinished one.
fn forget_old(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let age = path.metadata().and_then(|data| data.modified());
        let age = age.ok().and_then(|used| used.elapsed().ok());
        let name = path.file_name().and_then(|name| name.to_str());
        if age <= Some(KEPT) || !name.is_some_and(is_ours) {
            continue;
        }
        // Another build may have removed them.
        let _ = std::fs::remove_file(&path);
        if path.extension().is_some_and(|found| found == "log") {
            let _ = std::fs::remove_file(path.with_extension("o"));
        }
    }
}

/// `NAME.HASH.log`, whose age is its object's too, or `NAME.HASH.PROCESS.o`: nothing else in the folder is ours to remove.
fn is_ours(name: &str) -> bool {
    let is_hash =
        |part: &str| part.len() == 16 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut parts = name.rsplit('.');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("log"), Some(hash), Some(_)) => is_hash(hash),
        (Some("o"), Some(process), Some(hash)) => {
            process.bytes().all(|byte| byte.is_ascii_digit())
                && is_hash(hash)
                && parts.next().is_some()
        }
        _ => false,
    }
}

fn said(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// A compiler in another's place is another one.
fn size_and_age(file: &Path) -> String {
    let found = file
        .metadata()
        .map(|data| (data.len(), data.modified().ok()));
    format!("{found:?}")
}

/// Units below `folder`, sorted.
fn units(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder).map_err(|error| said(folder, &error))?;
    for entry in entries {
        let path = entry.map_err(|error| said(folder, &error))?.path();
        if path.is_dir() {
            found.extend(units(&path)?);
        } else if path.extension().is_some_and(|found| found == "cu") {
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
