//! Which methods Python's types have, and which of them we have.

use crate::text::jinja::value::Type;

const STRING: [&str; 41] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "title",
];
const MORE_STRING: [&str; 3] = ["swapcase", "upper", "zfill"];
const DICT: [&str; 5] = ["copy", "get", "items", "keys", "values"];
const MUTATING_DICT: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
const MUTATING_LIST: [&str; 8] = [
    "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort",
];

/// Whether a value of this type has such a method, and we too.
pub fn exists(kind: Type, name: &str) -> bool {
    match kind {
        Type::Str => STRING.contains(&name) || MORE_STRING.contains(&name),
        Type::Dict => DICT.contains(&name),
        Type::List => matches!(name, "copy" | "count" | "index"),
        Type::Tuple | Type::Range => matches!(name, "count" | "index"),
        _ => false,
    }
}

/// Methods that would change a value: the sandbox of transformers shows them as undefined.
pub fn is_mutating(kind: Type, name: &str) -> bool {
    match kind {
        Type::Dict => MUTATING_DICT.contains(&name),
        Type::List => MUTATING_LIST.contains(&name),
        _ => false,
    }
}

/// What Python's types have beside these, and no template needs.
pub fn is_rare(kind: Type, name: &str) -> bool {
    match kind {
        Type::Str => matches!(name, "encode" | "maketrans" | "translate"),
        Type::Dict => name == "fromkeys",
        Type::Int | Type::Bool => matches!(
            name,
            "as_integer_ratio"
                | "bit_count"
                | "bit_length"
                | "conjugate"
                | "denominator"
                | "from_bytes"
                | "imag"
                | "numerator"
                | "real"
                | "to_bytes"
        ),
        Type::Float => matches!(
            name,
            "as_integer_ratio" | "conjugate" | "fromhex" | "hex" | "imag" | "is_integer" | "real"
        ),
        Type::View => matches!(name, "isdisjoint" | "mapping"),
        Type::Range => matches!(name, "start" | "step" | "stop"),
        Type::Generator => matches!(name, "close" | "send" | "throw"),
        _ => false,
    }
}

/// Python's own attributes, `__class__` and the like: the sandbox shows them as undefined.
pub fn is_internal(name: &str) -> bool {
    name.starts_with("__") && name.ends_with("__")
}
