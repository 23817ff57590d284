//! The filters of Jinja2, and `tojson` of transformers. `operators` are what templates' own operators become.

mod lists;
mod numbers;
mod operators;
mod pprint;
mod select;
mod tags;
mod text;
mod wrap;

use minijinja::value::Rest;
use minijinja::{Environment, Error, State, Value};

use super::args::{Bound, bind};
use super::value::wrong;

/// Every filter of Jinja2, whether it is here or refused.
pub const NAMES: [&str; 54] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
];

pub fn add(environment: &mut Environment<'_>) {
    text::add(environment);
    numbers::add(environment);
    lists::add(environment);
    select::add(environment);
    operators::add(environment);
    filter(environment, "pprint", &[], pprint::pprint);
    filter(environment, "striptags", &[], tags::striptags);
    filter(
        environment,
        "wordwrap",
        &[
            "width",
            "break_long_words",
            "wrapstring",
            "break_on_hyphens",
        ],
        wrap::wordwrap,
    );
    for name in ["random", "urlize"] {
        environment.add_filter(
            name,
            move |_: &Value, _: Rest<Value>| -> Result<Value, Error> {
                Err(wrong(format!(
                    "the filter `{name}` is not supported here, though Jinja2 has it"
                )))
            },
        );
    }
}

/// A filter whose arguments after the value have these names.
fn filter(
    environment: &mut Environment<'_>,
    name: &'static str,
    names: &'static [&'static str],
    run: fn(&Value, &Bound) -> Result<Value, Error>,
) {
    environment.add_filter(name, move |value: &Value, rest: Rest<Value>| {
        run(value, &bind(name, names, &rest)?)
    });
}

/// A filter that takes any arguments and needs the others.
fn open_filter(
    environment: &mut Environment<'_>,
    name: &'static str,
    run: fn(&State, &Value, &[Value]) -> Result<Value, Error>,
) {
    environment.add_filter(
        name,
        move |state: &State, value: &Value, rest: Rest<Value>| run(state, value, &rest),
    );
}
