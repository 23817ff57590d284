//! minijinja set up so that chat templates render as they do in transformers, which runs them through
//! Python's Jinja2: values print as in Python, strings and dicts have Python's methods, filters and tests
//! follow Jinja2 where minijinja's own differ.
//!
//! Two differences stay. `~` joins values as minijinja writes them (`true`, `none`), since operators cannot
//! be replaced; strings and numbers, which is what templates join, come out the same. And there are no
//! tuples: where Python prints one, a list is printed.

mod filters;
mod methods;
mod python;
mod source;
mod strftime;

pub use source::prepare;
pub use strftime::strftime;

use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};

/// An environment with all of it but `strftime_now`, which needs a clock.
pub fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_formatter(|out, _, value| Ok(out.write_str(&python::str(value))?));
    environment.set_unknown_method_callback(methods::call);
    environment.add_function(
        "raise_exception",
        |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        },
    );
    filters::add(&mut environment);
    environment
}
