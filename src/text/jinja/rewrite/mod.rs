//! A template's tree with Python's meaning: each operator, literal, attribute and method call becomes a filter of
//! ours (src/text/jinja/filters/operators.rs), since minijinja's own cannot be replaced, and blocks that it scopes
//! otherwise than Jinja2 are written another way. Control flow stays minijinja's.
//!
//! - `statements`, `loops`, `macros`, `expressions`: what becomes of each
//! - `scopes`: which names a scope sets later than something in it reads them
//! - `build`: small trees

mod build;
mod expressions;
mod loops;
mod macros;
mod scopes;
mod statements;

use minijinja::machinery::ast::Stmt;
use minijinja::machinery::{Instruction, Instructions};

use super::reads::Reads;

/// Written before a `break` or `continue`, one for each block it leaves: `settle` makes instructions of them.
/// minijinja itself would leave these blocks open. Nothing else becomes an instruction that writes raw text.
const POP_FRAME: &str = "pop frame";
const END_CAPTURE: &str = "end capture";
const DROP: &str = "drop";

/// The tree of `source` rewritten.
pub fn rewrite<'s>(source: &'s str, tree: &Stmt<'s>, reads: &mut Reads) -> Vec<Stmt<'s>> {
    let mut rewriter = Rewriter {
        source,
        open: Vec::new(),
        reads,
        spare: macros::Spare::default(),
        loops: Vec::new(),
        scopes: scopes::Scopes::default(),
        undefined: Vec::new(),
    };
    let mut out = Vec::new();
    rewriter.stmt(tree, &mut out);
    out
}

/// Puts instructions in place of the marks before `break` and `continue`.
pub fn settle(instructions: &mut Instructions<'_>) {
    for at in 0..instructions.len() as u32 {
        let Some(instruction) = instructions.get_mut(at) else {
            continue;
        };
        if let Instruction::EmitRaw(mark) = instruction {
            *instruction = match *mark {
                POP_FRAME => Instruction::PopFrame,
                END_CAPTURE => Instruction::EndCapture,
                _ => Instruction::DiscardTop,
            };
        }
    }
}

/// What a `break` has to leave on its way out of the innermost loop.
#[derive(Clone, Copy, PartialEq)]
enum Open {
    Loop,
    Frame,
    Capture,
    /// A macro's body: no loop outside of it can be left.
    Macro,
}

struct Rewriter<'r, 's> {
    source: &'s str,
    open: Vec<Open>,
    reads: &'r mut Reads,
    /// What the macro that is rewritten reads of the arguments it has no names for.
    spare: macros::Spare,
    /// The loops around this place.
    loops: Vec<loops::Source>,
    /// The scopes around it, as Jinja2 has them.
    scopes: scopes::Scopes<'s>,
    /// Names of the whole template's scope that are undefined where it begins.
    undefined: Vec<&'s str>,
}
