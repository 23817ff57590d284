//! The build script's reader of ptxas and nvlink output: a spill it overlooks is one nobody hears of.

#[path = "../kernels/build/ptxas.rs"]
mod ptxas;

/// One unit on two architectures with a spilling kernel `k2`, and a device function that is called and so
/// stays a function, printed by ptxas before the first kernel says which architecture it is.
const COMPILED: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Function properties for _Z1fPii
    168 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compile time = 13.909 ms
ptxas info    : Compiling entry function 'k2' for 'sm_80'
ptxas info    : Function properties for k2
    632 bytes stack frame, 1288 bytes spill stores, 1368 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 360 bytes cmem[0]
ptxas info    : 0 bytes gmem
ptxas info    : Function properties for _Z1fPii
    168 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Compiling entry function 'k2' for 'sm_90a'
ptxas info    : Function properties for k2
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers
";

const LINKED: &str = "\
nvlink info    : 0 bytes gmem (target: sm_80)
nvlink info    : Function properties for 'k2': (target: sm_80)
nvlink info    : used 32 registers, used 0 barriers, 632 stack, 32 bytes smem, 360 bytes cmem[0], 0 bytes lmem (target: sm_80)
nvlink info    : 0 bytes gmem (target: sm_90a)
nvlink info    : Function properties for 'k2': (target: sm_90a)
nvlink info    : used 40 registers, used 0 barriers, 168 stack, 1056 bytes smem, 536 bytes cmem[0], 0 bytes lmem (target: sm_90a)
";

fn usage(table: &ptxas::Table, name: &str, arch: &str) -> ptxas::Usage {
    table[&(name.to_owned(), arch.to_owned())].clone()
}

#[test]
fn joins_what_both_tools_say() {
    let table = ptxas::parse(COMPILED, LINKED).unwrap();
    assert_eq!(table.len(), 4);
    let ampere = usage(&table, "k2", "sm_80");
    assert_eq!((ampere.registers, ampere.shared_bytes), (32, 32));
    assert_eq!(ampere.stack_bytes, 632);
    assert_eq!(
        (ampere.spill_store_bytes, ampere.spill_load_bytes),
        (1288, 1368)
    );
    assert!(ampere.spills());
    let hopper = usage(&table, "k2", "sm_90a");
    assert_eq!((hopper.registers, hopper.shared_bytes), (40, 1056));
    assert_eq!(hopper.stack_bytes, 168, "the stack of what it calls counts");
    assert!(!hopper.spills());
}

#[test]
fn a_device_function_counts_for_its_own_architecture() {
    let table = ptxas::parse(COMPILED, LINKED).unwrap();
    assert!(!usage(&table, "_Z1fPii", "sm_80").spills());
    assert!(usage(&table, "_Z1fPii", "sm_90a").spills());
}

#[test]
fn refuses_what_it_does_not_understand() {
    let cases = [
        (
            COMPILED.replace("spill loads", "loads spilt"),
            LINKED.to_owned(),
        ),
        (
            COMPILED
                .replace("'sm_80'", "'sm_80' 'sm_80'")
                .replace("Compiling entry function 'k2'", "k2"),
            LINKED.to_owned(),
        ),
        (COMPILED.to_owned(), LINKED.replace(" registers", "")),
        (COMPILED.to_owned(), LINKED.replace("target: ", "")),
        (
            COMPILED.replacen("ptxas info    : 0 bytes gmem\n", "", 2),
            LINKED.to_owned(),
        ),
    ];
    for (compiled, linked) in cases {
        let error = ptxas::parse(&compiled, &linked).unwrap_err();
        assert!(error.contains("CUDA 13.0"), "{error}");
    }
}

#[test]
fn arguments_are_what_follows_the_drivers_own() {
    let found = |linked: &str| {
        let table = ptxas::parse(COMPILED, linked).unwrap();
        ptxas::argument_bytes(&table)
    };
    assert_eq!(found(LINKED).unwrap()["k2"], 8);
    // A tensor map has them begin at a multiple of 128, which is 384 and 640.
    let map =
        (LINKED.replace("360 bytes cmem", "524 bytes cmem")).replace("536 bytes", "780 bytes");
    let bytes = found(&map).unwrap();
    assert_eq!(bytes["k2"], 140);
    let json: serde_json::Value = serde_json::from_str(&ptxas::arguments_to_json(&bytes)).unwrap();
    assert_eq!(json, serde_json::json!({ "k2": 140 }));
    for other in ["352 bytes cmem", "540 bytes cmem"] {
        let error = found(&LINKED.replace("536 bytes cmem", other)).unwrap_err();
        assert!(error.contains("k2"), "{error}");
    }
}

#[test]
fn writes_json() {
    let table = ptxas::parse(COMPILED, LINKED).unwrap();
    let json: serde_json::Value = serde_json::from_str(&ptxas::to_json(&table)).unwrap();
    let kernels = json.as_array().unwrap();
    assert_eq!(kernels.len(), 4);
    let k2 = kernels
        .iter()
        .find(|k| k["name"] == "k2" && k["arch"] == "sm_80")
        .unwrap();
    assert_eq!(k2["spill_load_bytes"], 1368);
    assert_eq!(k2["shared_bytes"], 32);
    assert_eq!(ptxas::to_json(&ptxas::Table::new()).trim(), "[\n]");
}

/// Parameters that a kernel may have; more of them are a struct (kernels/README.md, "Adding a kernel").
const MOST_PARAMETERS: usize = 7;

/// What stands in the first parentheses of `text`, and what follows them.
fn in_parentheses(text: &str) -> (&str, &str) {
    let start = text.find('(').expect("parentheses") + 1;
    let mut depth = 1;
    let end = text[start..].find(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0
    });
    let end = start + end.expect("parentheses that end");
    (&text[start..end], &text[end + 1..])
}

/// The parameters of each kernel of a source, without its comments.
fn parameters(source: &str) -> Vec<usize> {
    let source = source.replace("\\\n", " ");
    let mut code = String::new();
    for part in source.split("/*") {
        code += part.split_once("*/").map_or(part, |(_, code)| code);
    }
    let mut found = vec![];
    for mut kernel in code.split("__global__").skip(1) {
        for bounds in ["__launch_bounds__", "__maxnreg__"] {
            let before = &kernel[..kernel.find('{').unwrap_or(kernel.len())];
            if before.contains(bounds) {
                kernel = in_parentheses(kernel).1;
            }
        }
        let (list, _) = in_parentheses(kernel);
        found.push(list.split(',').filter(|one| !one.trim().is_empty()).count());
    }
    found
}

#[test]
fn long_lists_of_arguments_are_structs() {
    assert_eq!(
        parameters(
            "__global__ void /* a, b */ __launch_bounds__(8, (f<T, D>(1))) k(int a, \\\n int b) {} __global__ void l() {}"
        ),
        [2, 0]
    );
    let (mut kernels, mut longest) = (0, 0);
    for family in std::fs::read_dir("kernels").unwrap().flatten() {
        let Ok(files) = std::fs::read_dir(family.path()) else {
            continue;
        };
        for file in files.flatten().map(|file| file.path()) {
            if !file
                .extension()
                .is_some_and(|kind| kind == "cu" || kind == "cuh")
            {
                continue;
            }
            for count in parameters(&std::fs::read_to_string(&file).unwrap()) {
                assert!(
                    count <= MOST_PARAMETERS,
                    "{}: {count} parameters",
                    file.display()
                );
                (kernels, longest) = (kernels + 1, longest.max(count));
            }
        }
    }
    assert!(kernels > 50 && longest > 1, "{kernels} kernels");
}
