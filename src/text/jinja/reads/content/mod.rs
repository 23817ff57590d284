//! Follows messages through a template's statements and notes what is done with their contents.

use minijinja::machinery::ast::{CallArg, Expr, ForLoop, Macro, Stmt};

use super::Takes;
use super::names::Names;
use super::shape::{Kind, Shapes};

mod expressions;
mod filters;

/// Times a template is walked through until nothing new is learnt of its names. More than 2 or 3 are needed only where
/// names stand for each other in many steps.
const PASSES: usize = 10;

/// The form in which the template takes contents, and whether messages are used as a whole: then any of their fields
/// may be read.
pub fn follow(tree: &Stmt<'_>) -> (Takes, bool) {
    let mut walk = Walk::default();
    let mut settled = false;
    for _ in 0..PASSES {
        walk.stmt(tree);
        settled = !walk.names.grew();
        if settled {
            break;
        }
    }
    walk.uses.unknown |= !settled;
    walk.uses.whole |= !settled;
    (walk.uses.takes(), walk.uses.whole)
}

/// What is done with contents somewhere in a template.
#[derive(Debug, Clone, Copy, Default)]
struct Uses {
    /// Printed, joined, given to what takes a text.
    text: bool,
    /// Gone through.
    iterated: bool,
    /// A part's fields are read, or a filter goes through parts by their fields.
    fields: bool,
    /// An item of it is itself a text: a character.
    item_text: bool,
    /// Asked whether it is a text.
    tested: bool,
    /// What cannot be followed.
    unknown: bool,
    /// Messages are shown whole, or go where they cannot be followed.
    whole: bool,
}

impl Uses {
    fn takes(self) -> Takes {
        let by_character = self.iterated && self.item_text && !self.fields;
        let parts = self.fields || self.iterated && !by_character;
        let text = self.text || by_character;
        match (parts, text) {
            (true, false) if !self.tested && !self.unknown => Takes::Parts,
            (false, true) if !self.unknown => Takes::Text,
            (true, _) => Takes::Both,
            (false, _) => Takes::Unknown,
        }
    }
}

#[derive(Default)]
struct Walk<'t, 's> {
    names: Names<'t, 's>,
    /// Each loop around this place: the name of its items, and what they are.
    loops: Vec<(&'t Expr<'s>, Shapes)>,
    uses: Uses,
}

impl<'t, 's> Walk<'t, 's> {
    fn body(&mut self, stmts: &'t [Stmt<'s>]) {
        stmts.iter().for_each(|stmt| self.stmt(stmt));
    }

    fn stmt(&mut self, stmt: &'t Stmt<'s>) {
        match stmt {
            Stmt::Template(node) => self.body(&node.children),
            Stmt::EmitExpr(node) => self.as_text(&node.expr),
            Stmt::ForLoop(node) => self.for_loop(node),
            Stmt::IfCond(node) => {
                self.expr(&node.expr);
                self.body(&node.true_body);
                self.body(&node.false_body);
            }
            Stmt::WithBlock(node) => {
                for (target, value) in &node.assignments {
                    self.assign(target, value);
                }
                self.body(&node.body);
            }
            Stmt::Set(node) => self.assign(&node.target, &node.expr),
            // What the body writes is a text.
            Stmt::SetBlock(node) => {
                if let Some(filter) = &node.filter {
                    self.expr(filter);
                }
                self.body(&node.body);
            }
            Stmt::FilterBlock(node) => {
                self.expr(&node.filter);
                self.body(&node.body);
            }
            Stmt::Macro(node) => {
                self.names.declare_macro(node);
                self.macro_(node);
            }
            Stmt::CallBlock(node) => {
                self.names.declare_call_block(&node.macro_decl);
                self.call(&node.call);
                self.macro_(&node.macro_decl);
            }
            Stmt::Block(node) => self.body(&node.body),
            Stmt::AutoEscape(node) => self.body(&node.body),
            Stmt::Do(node) => {
                self.call(&node.call);
            }
            Stmt::EmitRaw(_)
            | Stmt::Continue(_)
            | Stmt::Break(_)
            | Stmt::Import(_)
            | Stmt::FromImport(_)
            | Stmt::Extends(_)
            | Stmt::Include(_) => {}
        }
    }

    fn macro_(&mut self, node: &'t Macro<'s>) {
        let first = node.args.len().saturating_sub(node.defaults.len());
        for (parameter, default) in node.args[first..].iter().zip(&node.defaults) {
            let shapes = self.expr(default);
            if let Expr::Var(name) = parameter {
                self.names.set_parameter(node, name.id, shapes);
            }
        }
        self.names.enter(node);
        let loops = std::mem::take(&mut self.loops);
        self.body(&node.body);
        self.loops = loops;
        self.names.leave();
    }

    fn for_loop(&mut self, node: &'t ForLoop<'s>) {
        let list = self.expr(&node.iter);
        self.iterate(&node.target, list);
        self.loops.push((&node.target, list.item()));
        if let Some(condition) = &node.filter_expr {
            self.expr(condition);
        }
        self.body(&node.body);
        self.loops.pop();
        self.body(&node.else_body);
    }

    fn iterate(&mut self, target: &'t Expr<'s>, list: Shapes) {
        self.uses.iterated |= list.is(Kind::Content);
        self.bind(target, list.item());
    }

    /// `target` may be this from now on.
    fn bind(&mut self, target: &'t Expr<'s>, shapes: Shapes) {
        match target {
            Expr::Var(node) => self.names.set(node.id, shapes),
            Expr::GetAttr(node) => {
                if let Expr::Var(object) = &node.expr {
                    self.names
                        .set(&format!("{}.{}", object.id, node.name), shapes);
                }
            }
            _ => self.lose(shapes),
        }
    }

    /// What goes where it cannot be followed.
    fn lose(&mut self, shapes: Shapes) {
        self.uses.unknown |= !shapes.is_none();
        self.uses.whole |= shapes.holds(Kind::Message);
    }

    /// Whole messages, with their contents in whatever form, where this is one or a list of them.
    fn show_whole(&mut self, shapes: Shapes) {
        if shapes.holds(Kind::Message) {
            self.lose(shapes);
        }
    }

    /// `target = value`.
    fn assign(&mut self, target: &'t Expr<'s>, value: &'t Expr<'s>) {
        match (target, value) {
            (Expr::List(targets), Expr::List(values)) => {
                for (target, value) in targets.items.iter().zip(&values.items) {
                    self.assign(target, value);
                }
            }
            (Expr::Var(object), Expr::Call(call)) if is_name(&call.expr, "namespace") => {
                for arg in &call.args {
                    match arg {
                        CallArg::Kwarg(name, value) => {
                            let shapes = self.expr(value);
                            self.names.set(&format!("{}.{name}", object.id), shapes);
                        }
                        other => self.untold(other),
                    }
                }
            }
            (target, value) => {
                let shapes = self.expr(value);
                self.bind(target, shapes);
            }
        }
    }
}

fn is_name(expr: &Expr<'_>, name: &str) -> bool {
    matches!(expr, Expr::Var(node) if node.id == name)
}
