//! What kernels are launched with: a few parameters, or one struct.

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
