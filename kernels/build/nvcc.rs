//! Finds nvcc and compiles kernels/*/*.cu into an image for each unit and GPU that we run on.

use crate::cubin;
use fs_err as fs;
use rayon::prelude::*;
use std::env;
use std::error::Error;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Families lie in folders of this one, and include each other's headers by their paths from here.
const KERNELS: &str = "kernels";

/// Real architectures only: no PTX is in an image. A cubin also runs on later parts of its
/// generation (sm_80 on 8.6 and 8.9, sm_100 on 10.3), but sm_90a, which wgmma needs, on 9.0 alone.
pub const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90a", "sm_100"];

/// How an image is packed: as small as it gets.
const PACKED: [&str; 2] = ["-64", "--compress-mode=size"];

/// A unit's image for one architecture: a folder with the cubin, the fat binary that holds it compressed, and what was printed.
#[derive(Debug, Clone)]
pub struct Image {
    pub architecture: &'static str,
    folder: PathBuf,
}

impl Image {
    /// `cubin`, `fatbin`, or `log`, which is what the compiler printed.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// nvcc by its real path: it finds its own parts relative to how it was called, and a link leads it astray.
///
/// NVCC or CUDA_HOME decide where they are set; else the pinned toolchain in .cuda, which someone put there
/// for this; else whatever the machine has.
pub fn find() -> Result<PathBuf> {
    let found = if let Some(nvcc) = env::var_os("NVCC") {
        existing(PathBuf::from(&nvcc)).ok_or(format!(
            "NVCC is {nvcc:?}, and no such file exists: name nvcc itself, or unset it"
        ))?
    } else if let Some(home) = env::var_os("CUDA_HOME") {
        existing(Path::new(&home).join("bin/nvcc")).ok_or(format!(
            "CUDA_HOME is {home:?}, which has no bin/nvcc: name a CUDA 13 toolkit, or unset it"
        ))?
    } else {
        files(WHEELS)
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
        Some(release) if release.starts_with("13.") => {
            println!("cargo::rustc-env=TAILGRAPH_CUDA_TOOLKIT={release}");
            Ok(found)
        }
        other => Err(format!(
            "{} is of CUDA {}, and the kernels need 13: run kernels/toolchain and unset NVCC and CUDA_HOME, or point them at a CUDA 13 toolkit",
            found.display(),
            other.unwrap_or("an unknown release")
        ))?,
    }
}

/// Where kernels/toolchain puts nvcc; a folder is named after the Python that made it.
const WHEELS: &str = ".cuda/lib/*/site-packages/nvidia/cu13/bin/nvcc";

/// Files whose paths match, sorted.
fn files(pattern: &str) -> Vec<PathBuf> {
    let found = glob::glob(pattern).expect("patterns are right");
    found.flatten().collect()
}

fn existing(path: PathBuf) -> Option<PathBuf> {
    path.canonicalize().ok().filter(|path| path.is_file())
}

/// Architectures to build for: all, or those that TAILGRAPH_ARCH names.
pub fn architectures() -> Result<Vec<&'static str>> {
    let Ok(asked) = env::var("TAILGRAPH_ARCH") else {
        return Ok(ARCHITECTURES.to_vec());
    };
    let known = |name: &str| ARCHITECTURES.into_iter().find(|known| *known == name);
    let found: Option<Vec<_>> = asked.split(',').map(known).collect();
    Ok(found.ok_or(format!(
        "TAILGRAPH_ARCH is {asked:?}, expected some of {}, with commas between them",
        ARCHITECTURES.join(", ")
    ))?)
}

/// Types of rows, and of those with weights in 8 bits, and what leaves out the others in a unit (kernels/common/launch.cuh).
const TYPES: [(&str, &[&str]); 5] = [
    ("bf16", &["-DTG_NO_F16", "-DTG_NO_F32", "-DTG_NO_E4M3"]),
    ("f16", &["-DTG_NO_BF16", "-DTG_NO_F32", "-DTG_NO_E4M3"]),
    ("f32", &["-DTG_NO_BF16", "-DTG_NO_F16", "-DTG_NO_E4M3"]),
    ("bf16-e4m3", &["-DTG_NO_F32", "-DTG_E4M3_ALONE"]),
    ("f32-e4m3", &["-DTG_NO_BF16", "-DTG_E4M3_ALONE"]),
];
/// How many of them a unit has that says `types` alone.
const PLAIN_TYPES: usize = 3;

/// How a unit is compiled, by the words behind `// build:` in its first line: the architectures that its kernels have a body for, where
/// these are not all; `types`, once for each type of rows, so that a run loads no other type's kernels, and `e4m3`, also for weights in 8
/// bits; `rdc`, as relocatable device code, which kernels that launch kernels or graphs must be, and a library for that.
fn recipe(unit: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(unit)?;
    let first = text.lines().next().unwrap_or_default();
    let words = first.strip_prefix("// build: ").unwrap_or_default();
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let is_known = |word: &str| {
        ARCHITECTURES.contains(&word)
            || ["types", "e4m3", "rdc"].contains(&word)
            || word.starts_with("-l")
    };
    match words.iter().find(|word| !is_known(word)) {
        None => Ok(words),
        Some(word) => Err(format!(
            "{}: its first line asks for {word:?}, expected an architecture ({}), types, e4m3, rdc or a library (-lNAME)",
            unit.display(),
            ARCHITECTURES.join(", ")
        ))?,
    }
}

/// Makes the image of every unit for every architecture that it is for, as many at a time as cargo allows. Images lie in the folder that
/// TAILGRAPH_KERNEL_OBJECTS names, which builds may share, or in `out_dir`.
pub fn build(nvcc: &Path, out_dir: &Path) -> Result<Vec<Image>> {
    let folder = env::var_os("TAILGRAPH_KERNEL_OBJECTS").map_or(out_dir.to_owned(), PathBuf::from);
    fs::create_dir_all(&folder)?;
    let architectures = architectures()?;
    let mut wanted = vec![];
    for unit in files(&format!("{KERNELS}/**/*.cu")) {
        if cfg!(feature = "lab") || !is_of_lab(&unit) {
            let recipe = recipe(&unit)?;
            let says = |word: &str| recipe.iter().any(|said| said == word);
            let types = match (says("types"), says("e4m3")) {
                (false, true) => Err(format!(
                    "{}: its first line asks for e4m3, which goes with types",
                    unit.display()
                ))?,
                (false, false) => vec![None],
                (true, false) => TYPES[..PLAIN_TYPES].iter().map(Some).collect(),
                (true, true) => TYPES.iter().map(Some).collect(),
            };
            let is_for_all = recipe.iter().all(|word| !word.starts_with("sm_"));
            let is_for = |name: &&&str| is_for_all || recipe.iter().any(|word| word == **name);
            for name in architectures.iter().filter(is_for) {
                let of_types = types.iter();
                wanted
                    .extend(of_types.map(|of| (unit.clone(), recipe.clone(), of.copied(), *name)));
            }
        }
    }
    let jobs = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok());
    let pool = rayon::ThreadPoolBuilder::new().num_threads(jobs.unwrap_or(1));
    pool.build()?.install(|| {
        let made = wanted.into_par_iter().with_max_len(1);
        made.map(|(unit, recipe, of, name)| make(nvcc, &unit, &recipe, of, name, &folder))
            .collect()
    })
}

/// Whether a unit is of the laboratory (profiles/lab).
fn is_of_lab(unit: &Path) -> bool {
    unit.starts_with("kernels/ways") || unit.starts_with("kernels/cdp")
}

/// Where nvcc's libraries for the device lie: the wheels have `lib`, others `lib64`.
fn libraries(nvcc: &Path) -> Result<PathBuf> {
    let root = nvcc.parent().and_then(Path::parent).unwrap_or(nvcc);
    let folders = ["lib", "lib64", "targets/x86_64-linux/lib"].map(|folder| root.join(folder));
    let found = folders
        .into_iter()
        .find(|folder| folder.join("libcudadevrt.a").is_file());
    Ok(found.ok_or(format!(
        "{}: found no libcudadevrt.a in lib, lib64 or targets/x86_64-linux/lib, expected it beside nvcc: run kernels/toolchain",
        root.display()
    ))?)
}

/// One unit's image for one architecture. It is named by what it is made from, so that a unit is compiled again only where that has
/// changed, and builds that share a folder never take each other's.
fn make(
    nvcc: &Path,
    unit: &Path,
    recipe: &[String],
    of_type: Option<(&str, &[&str])>,
    architecture: &'static str,
    folder: &Path,
) -> Result<Image> {
    let is_relocatable = recipe.iter().any(|word| word == "rdc");
    let mut options = vec!["-O3", "-std=c++17", "-lineinfo", "-I", KERNELS];
    // A kernel that asks for no number of blocks on an SM (__launch_bounds__) has the registers that it needs for one of them: left
    // to itself, ptxas spills some so that more blocks fit.
    options.extend(["-Xptxas", "-warn-spills,-minnctapersm=1"]);
    if is_relocatable {
        options.push("-rdc=true");
    }
    // Families have units of the same name: norm.cu, conv.cu.
    let place = unit.strip_prefix(KERNELS).unwrap_or(unit);
    let mut name = place.with_extension("").to_string_lossy().replace('/', "-");
    if let Some((of_type, without)) = of_type {
        name = format!("{name}-{of_type}");
        options.extend(without);
    }
    let number = architecture.trim_start_matches("sm_");
    let target = format!("-gencode=arch=compute_{number},code={architecture}");

    let mut made_from = DefaultHasher::new();
    made_from.write(concat!(include_str!("nvcc.rs"), include_str!("cubin.rs")).as_bytes());
    // A compiler in another's place is another one.
    let (size, age) = (fs::metadata(nvcc)?.len(), fs::metadata(nvcc)?.modified()?);
    made_from.write(format!("{options:?} {target} {PACKED:?} {size} {age:?}").as_bytes());
    for source in sources(unit)? {
        made_from.write(source.as_os_str().as_encoded_bytes());
        made_from.write(&fs::read(&source)?);
    }
    let name = format!("{name}.{architecture}.{:016x}", made_from.finish());
    let image = Image {
        architecture,
        folder: folder.join(&name),
    };
    if image.folder.is_dir() {
        return Ok(image);
    }

    // Another build may be at the same: each makes its own, and the name is there only when all of it is.
    let unfinished = Image {
        folder: folder.join(format!("{name}.{}", std::process::id())),
        ..image
    };
    fs::create_dir_all(&unfinished.folder)?;
    let object = unfinished.folder.join("object.cubin"); // nvlink knows files by their endings
    let compiled = if is_relocatable {
        &object
    } else {
        &unfinished.file("cubin")
    };
    let mut compile = Command::new(nvcc);
    compile.args(&options).arg(&target).arg("-cubin").arg(unit);
    let log = run(compile.arg("-o").arg(compiled))?;
    if is_relocatable {
        let mut link = Command::new(nvcc.with_file_name("nvlink"));
        link.arg(format!("-arch={architecture}"))
            .arg("-L")
            .arg(libraries(nvcc)?);
        link.args(recipe.iter().filter(|word| word.starts_with("-l")));
        run(link.arg(&object).arg("-o").arg(unfinished.file("cubin")))?;
    }
    let cubin = unfinished.file("cubin");
    let mut bytes = fs::read(&cubin)?;
    cubin::clear_ptx(&mut bytes).map_err(|error| format!("{}: {error}", cubin.display()))?;
    fs::write(&cubin, bytes)?;
    run(Command::new(nvcc.with_file_name("fatbinary"))
        .args(PACKED)
        .arg(format!("--create={}", unfinished.file("fatbin").display()))
        .arg(format!(
            "--image3=kind=elf,sm={number},file={}",
            cubin.display()
        )))?;
    fs::write(unfinished.file("log"), &log)?;
    match fs::rename(&unfinished.folder, &image.folder) {
        Err(error) if !image.folder.is_dir() => Err(error)?,
        _ => Ok(image),
    }
}

/// The unit, and what it includes of ours, wherever it does.
fn sources(unit: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![unit.to_owned()];
    let mut at = 0;
    while at < found.len() {
        let text = fs::read_to_string(&found[at])?;
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

/// Runs a command to its end and gives what it printed; a failure gives it as the error.
fn run(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(printed.into_owned())
    } else {
        Err(format!(
            "{command:?} failed ({}):\n{printed}",
            output.status
        ))?
    }
}
