//! Chat templates rendered as in transformers, which runs them through Python's Jinja2. minijinja parses them and
//! runs their control flow; what values mean is Python's and lies here.
//!
//! - `source`: the text, before minijinja parses it
//! - `rewrite`, `reads`: the tree: operators become filters of ours; what the template reads
//! - `value`, `ops`, `compare`, `access`, `print`, `methods`, `characters`, `format`, `spec`: Python's values and what can be done with them
//! - `macros`: arguments of macros where minijinja's differ
//! - `filters`, `checks`, `globals`, `args`, `strftime`: what Jinja2 and transformers give templates
//! - `meter`: a bound on what a rendering makes
//!
//! A template is untrusted. Its size, its nesting, its instructions and bytes are bounded, its time by
//! [`super::Threads`]; parsing and rendering run on a thread with a stack for the deepest that these bounds allow. What is not as in Jinja2 is an
//! error that quotes the expression: `random`, `lipsum`, `urlize`, `autoescape`, `self`, integers of more than 128 bits,
//! `include` and the like (for which transformers has no loader either), printing what Python shows as an address.

mod access;
mod args;
mod characters;
mod checks;
mod compare;
mod filters;
mod format;
mod globals;
mod macros;
mod meter;
mod methods;
mod ops;
mod print;
mod reads;
mod rewrite;
mod source;
mod spec;
mod strftime;
mod value;

use super::{Unrendered, threads};
use crate::quote;
use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::machinery::{self, CodeGenerator, Instructions, Vm, WhitespaceConfig};
use minijinja::value::Rest;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};
use self_cell::self_cell;
use serde_json::Map;

pub use characters::is_space;
pub use reads::{Reads, Takes};
pub use source::MAX_SOURCE_BYTES;
pub use strftime::{Clock, parse_time};

/// Instructions of one rendering. The longest conversations take some hundred thousand.
const FUEL: u64 = 20_000_000;
/// Nested macro calls and scopes.
const RECURSION_LIMIT: usize = 500;

struct Program<'source> {
    instructions: Instructions<'source>,
    blocks: BTreeMap<&'source str, Instructions<'source>>,
}

self_cell!(
    struct Compiled {
        owner: String,
        #[covariant]
        dependent: Program,
    }
);

/// One template, ready to be rendered.
pub struct Template {
    compiled: Compiled,
    reads: Reads,
}

impl Template {
    /// # Errors
    /// The line of the template and what is wrong there; or there was no thread.
    pub fn compile(source: &str) -> Result<Self, Unrendered> {
        let source = source::prepare(source)?;
        on_a_deep_stack(|| {
            let mut reads = Reads::default();
            let compiled = Compiled::try_new(source, |source| compile(source, &mut reads))?;
            Ok(Self { compiled, reads })
        })
    }

    /// What it reads.
    pub fn reads(&self) -> &Reads {
        &self.reads
    }

    /// # Errors
    /// The line of the template, the expression, and what it has against the variables; or there was no thread.
    pub fn render(
        &self,
        environment: &Environment<'static>,
        variables: &Map<String, serde_json::Value>,
    ) -> Result<String, Unrendered> {
        on_a_deep_stack(|| {
            let rendered = meter::metered(|| self.run(environment, variables));
            value::empty_namespaces();
            rendered.map_err(|error| describe(&error, self.compiled.borrow_owner()))
        })
    }

    fn run(
        &self,
        environment: &Environment<'static>,
        variables: &Map<String, serde_json::Value>,
    ) -> Result<String, Error> {
        let variables = variables
            .iter()
            .map(|(name, value)| Ok((name.as_str(), value::from_json(value)?)))
            .collect::<Result<Vec<_>, Error>>()?;
        let root = Value::from_iter(variables);
        let program = self.compiled.borrow_dependent();
        let mut out = String::new();
        let mut output = machinery::make_string_output(&mut out);
        run(environment, program, root, &mut output)?;
        Ok(out)
    }
}

fn run<'a>(
    environment: &'a Environment<'a>,
    program: &'a Program<'a>,
    root: Value,
    output: &mut minijinja::Output<'_>,
) -> Result<(), Error> {
    let vm = Vm::new(environment);
    vm.eval(
        &program.instructions,
        root,
        &program.blocks,
        output,
        AutoEscape::None,
    )
    .map(drop)
}

fn compile<'s>(source: &'s str, reads: &mut Reads) -> Result<Program<'s>, String> {
    let whitespace = WhitespaceConfig {
        keep_trailing_newline: true,
        lstrip_blocks: true,
        trim_blocks: true,
    };
    let describe = |error: Error| describe(&error, source);
    let tree =
        machinery::parse(source, "template", Default::default(), whitespace).map_err(describe)?;
    *reads = Reads::of(&tree);
    let mut generator = CodeGenerator::new("template", source);
    for stmt in rewrite::rewrite(source, &tree, reads) {
        generator.compile_stmt(&stmt);
    }
    let (mut instructions, mut blocks) = generator.finish();
    rewrite::settle(&mut instructions);
    blocks.values_mut().for_each(rewrite::settle);
    Ok(Program {
        instructions,
        blocks,
    })
}

/// Everything that templates find beside their variables. `strftime_now` shows the time of `clock`.
pub fn environment(clock: Arc<Clock>) -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_fuel(Some(FUEL));
    environment.set_formatter(|out, _, value| {
        let text = print::str(value)?;
        meter::charge(text.len())?;
        Ok(out.write_str(&text)?)
    });
    filters::add(&mut environment);
    checks::add(&mut environment);
    globals::add(&mut environment);
    environment.add_function("strftime_now", move |args: Rest<Value>| {
        let args = args::bind("strftime_now", &["format"], &args)?;
        let format = args.required_text(0)?;
        meter::charge(format.len().saturating_mul(32))?;
        Ok::<_, Error>(strftime::strftime(clock.read(), format))
    });
    environment
}

/// Runs `work` where the stack is deep enough for it.
fn on_a_deep_stack<T: Send>(
    work: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, Unrendered> {
    let ran = threads::on_a_deep_stack(|| super::guarded("minijinja", work));
    Ok(ran.map_err(Unrendered::NoThread)??)
}

/// A template's error on one line, with the template's line and the expression.
fn describe(error: &Error, source: &str) -> String {
    let message = match error.kind() {
        ErrorKind::OutOfFuel => {
            format!("the template takes more than {FUEL} steps, expected at most that a rendering")
        }
        kind => quote::message(error.detail().unwrap_or(&kind.to_string())),
    };
    let Some(line) = error.line() else {
        return message;
    };
    let quoted = error
        .range()
        .and_then(|range| source.get(range))
        .map(|text| quote::text(quote::message(text)));
    match quoted.filter(|quoted| !quoted.is_empty()) {
        Some(quoted) => format!("line {line}: `{quoted}`: {message}"),
        None => format!("line {line}: {message}"),
    }
}
