//! Loops. One that calls itself is a function in Jinja2, with its condition and its `else`: minijinja jumps back to the
//! loop alone, past both.

use minijinja::machinery::Span;
use minijinja::machinery::ast::{self, CallArg, Expr, Spanned, Stmt};

use super::build::{constant, emit, filter, refused, variable};
use super::scopes::names_of;
use super::{Open, Rewriter};

/// Names that no template can write: an item before it has its own, the macro that is a loop's condition, and what the
/// loop's names stood for before it.
const ITEM: &str = "(item)";
const CONDITION: &str = "(condition)";
const BEFORE: &str = "(before)";

/// What a loop does with what it is to go through, in a call of itself too.
#[derive(Clone, Copy, Default)]
pub(super) struct Source {
    calls_itself: bool,
    has_condition: bool,
    has_else: bool,
    /// This place is in its `else`, where `loop` is not this loop.
    is_else: bool,
}

impl Source {
    /// A list of what Python would go through: characters, keys, items. Of a loop that calls itself, what its
    /// condition keeps, or one mark where that is nothing and there is an `else`.
    pub(super) fn list<'s>(self, iter: Expr<'s>, span: Span) -> Expr<'s> {
        let mut list = filter("[iterate]", iter, Vec::new(), span);
        if self.has_condition {
            list = filter("[kept]", list, vec![variable(CONDITION, span)], span);
        }
        if self.has_else {
            list = filter("[orelse]", list, Vec::new(), span);
        }
        list
    }
}

impl<'s> Rewriter<'_, 's> {
    pub(super) fn for_loop(&mut self, node: &Spanned<ast::ForLoop<'s>>) -> Stmt<'s> {
        if node.recursive {
            return self.recursive_loop(node);
        }
        let source = Source::default();
        let iter = source.list(self.expr(&node.iter), node.iter.span());
        let filter_expr = node.filter_expr.as_ref().map(|expr| self.expr(expr));
        self.loops.push(source);
        let names = parameters(&node.target);
        let body = self.within(Open::Loop, &names, &node.body);
        self.loops.pop();
        Stmt::ForLoop(Spanned::new(
            ast::ForLoop {
                target: self.target(&node.target),
                iter,
                filter_expr,
                recursive: false,
                body,
                else_body: self.else_body(&node.else_body, node.span()),
            },
            node.span(),
        ))
    }

    /// A scope of its own, as the body is.
    fn else_body(&mut self, stmts: &[Stmt<'s>], span: Span) -> Vec<Stmt<'s>> {
        if stmts.is_empty() {
            return Vec::new();
        }
        let block = ast::WithBlock {
            assignments: Vec::new(),
            body: self.within(Open::Frame, &[], stmts),
        };
        vec![Stmt::WithBlock(Spanned::new(block, span))]
    }

    fn recursive_loop(&mut self, node: &Spanned<ast::ForLoop<'s>>) -> Stmt<'s> {
        let span = node.span();
        let source = Source {
            calls_itself: true,
            has_condition: node.filter_expr.is_some(),
            has_else: !node.else_body.is_empty(),
            is_else: false,
        };
        let iter = source.list(self.expr(&node.iter), node.iter.span());
        // What the loop sets is not there yet where it calls itself: what these names stood for before the loop is.
        let mut names = Vec::new();
        assigned(&node.body, &mut names);
        names.extend(parameters(&node.target));
        names.sort_unstable();
        names.dedup();
        let variables = || names.iter().map(|name| variable(name, span)).collect();
        let list = |items| Expr::List(Spanned::new(ast::List { items }, span));
        let mut around = vec![set(
            variable(BEFORE, span),
            filter("[list]", constant((), span), variables(), span),
            span,
        )];
        if let Some(condition) = &node.filter_expr {
            let condition = self.expr(condition);
            around.push(self.condition(&node.target, condition, span));
        }
        self.loops.push(source);
        let mut inner = vec![set(self.target(&node.target), variable(ITEM, span), span)];
        inner.extend(self.within(Open::Loop, &parameters(&node.target), &node.body));
        self.loops.pop();
        let mut body = vec![set(list(variables()), variable(BEFORE, span), span)];
        match source.has_else {
            true => body.push(self.or_else(inner, node)),
            false => body.extend(inner),
        }
        around.push(Stmt::ForLoop(Spanned::new(
            ast::ForLoop {
                target: variable(ITEM, span),
                iter,
                filter_expr: None,
                recursive: true,
                body,
                else_body: Vec::new(),
            },
            span,
        )));
        let block = ast::WithBlock {
            assignments: Vec::new(),
            body: around,
        };
        Stmt::WithBlock(Spanned::new(block, span))
    }

    /// A macro that writes something for an item that the condition keeps.
    fn condition(&self, target: &Expr<'s>, condition: Expr<'s>, span: Span) -> Stmt<'s> {
        let kept = ast::IfCond {
            expr: condition,
            true_body: vec![emit(constant("kept", span), span)],
            false_body: Vec::new(),
        };
        Stmt::Macro(Spanned::new(
            ast::Macro {
                name: CONDITION,
                args: vec![variable(ITEM, span)],
                defaults: Vec::new(),
                body: vec![
                    set(self.target(target), variable(ITEM, span), span),
                    Stmt::IfCond(Spanned::new(kept, span)),
                ],
            },
            span,
        ))
    }

    /// The loop's body, or its `else` where the item is the mark that there was none.
    fn or_else(&mut self, body: Vec<Stmt<'s>>, node: &Spanned<ast::ForLoop<'s>>) -> Stmt<'s> {
        self.loops.push(Source {
            is_else: true,
            ..Source::default()
        });
        let else_body = self.within(Open::Macro, &[], &node.else_body);
        self.loops.pop();
        let span = node.span();
        let choice = ast::IfCond {
            expr: filter("[iselse]", variable(ITEM, span), Vec::new(), span),
            true_body: else_body,
            false_body: body,
        };
        Stmt::IfCond(Spanned::new(choice, span))
    }

    /// `loop(…)`, which goes through its argument as the loop itself does.
    pub(super) fn recursion(&mut self, args: &[CallArg<'s>]) -> Vec<CallArg<'s>> {
        let source = self.loops.last().copied().unwrap_or_default();
        let args = self.args(args).into_iter();
        args.map(|arg| match arg {
            CallArg::Pos(expr) => {
                let span = expr.span();
                CallArg::Pos(source.list(expr, span))
            }
            other => other,
        })
        .collect()
    }

    /// `loop`: with its attributes or called, or as a value that may be called by another name.
    pub(super) fn loop_itself(&self, span: Span, as_value: bool) -> Expr<'s> {
        let source = self.loops.last().copied().unwrap_or_default();
        match (as_value && source.calls_itself) || source.is_else {
            true => refused("this use of the `loop` of a recursive loop", span),
            false => variable("loop", span),
        }
    }
}

fn set<'s>(target: Expr<'s>, expr: Expr<'s>, span: Span) -> Stmt<'s> {
    Stmt::Set(Spanned::new(ast::Set { target, expr }, span))
}

/// The names that `target` sets.
pub(super) fn parameters<'s>(target: &Expr<'s>) -> Vec<&'s str> {
    let mut names = Vec::new();
    names_of(target, &mut |name| names.push(name));
    names
}

/// Every name that is set anywhere within `stmts`.
fn assigned<'s>(stmts: &[Stmt<'s>], names: &mut Vec<&'s str>) {
    for stmt in stmts {
        match stmt {
            Stmt::Template(node) => assigned(&node.children, names),
            Stmt::Set(node) => names.extend(parameters(&node.target)),
            Stmt::SetBlock(node) => {
                names.extend(parameters(&node.target));
                assigned(&node.body, names);
            }
            Stmt::ForLoop(node) => {
                names.extend(parameters(&node.target));
                assigned(&node.body, names);
                assigned(&node.else_body, names);
            }
            Stmt::IfCond(node) => {
                assigned(&node.true_body, names);
                assigned(&node.false_body, names);
            }
            Stmt::WithBlock(node) => {
                let targets = node.assignments.iter().map(|(target, _)| target);
                targets.for_each(|target| names.extend(parameters(target)));
                assigned(&node.body, names);
            }
            Stmt::FilterBlock(node) => assigned(&node.body, names),
            Stmt::Block(node) => assigned(&node.body, names),
            Stmt::Macro(node) => names.push(node.name),
            _ => {}
        }
    }
}
