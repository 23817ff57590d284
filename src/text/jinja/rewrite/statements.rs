//! Statements. Blocks that minijinja scopes otherwise than Jinja2 are written another way.

use minijinja::Value;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{self, Expr, Spanned, Stmt};

use super::build::{constant, emit, filter, refuse, variable};
use super::loops::parameters;
use super::scopes::everything;
use super::{DROP, END_CAPTURE, Open, POP_FRAME, Rewriter};

impl<'s> Rewriter<'_, 's> {
    pub(super) fn body(&mut self, stmts: &[Stmt<'s>]) -> Vec<Stmt<'s>> {
        let mut out = Vec::with_capacity(stmts.len());
        for stmt in stmts {
            self.stmt(stmt, &mut out);
        }
        out
    }

    /// The statements of a scope that begins with `parameters` set.
    pub(super) fn within(
        &mut self,
        open: Open,
        parameters: &[&'s str],
        stmts: &[Stmt<'s>],
    ) -> Vec<Stmt<'s>> {
        self.open.push(open);
        let out = self.scope(parameters, &[], stmts);
        self.open.pop();
        out
    }

    /// The same, where `defaults` are read before the statements.
    pub(super) fn scope(
        &mut self,
        parameters: &[&'s str],
        defaults: &[Expr<'s>],
        stmts: &[Stmt<'s>],
    ) -> Vec<Stmt<'s>> {
        let parameters = parameters.iter().copied();
        let undefined = self.scopes.enter(parameters, defaults, stmts);
        if self.open.is_empty() {
            self.undefined.clone_from(&undefined);
        }
        let undefine = |name| {
            let span = Span::default();
            let (target, expr) = (variable(name, span), constant(Value::UNDEFINED, span));
            Stmt::Set(Spanned::new(ast::Set { target, expr }, span))
        };
        let mut out: Vec<Stmt<'s>> = undefined.into_iter().map(undefine).collect();
        out.extend(self.body(stmts));
        self.scopes.leave();
        out
    }

    /// What is written to a filter or variable instead: names set in there end with it.
    fn captured(&mut self, stmts: &[Stmt<'s>], span: Span) -> Vec<Stmt<'s>> {
        self.open.push(Open::Capture);
        let body = self.within(Open::Frame, &[], stmts);
        self.open.pop();
        let block = ast::WithBlock {
            assignments: Vec::new(),
            body,
        };
        vec![Stmt::WithBlock(Spanned::new(block, span))]
    }

    pub(super) fn stmt(&mut self, stmt: &Stmt<'s>, out: &mut Vec<Stmt<'s>>) {
        match stmt {
            Stmt::Template(template) => out.extend(self.scope(&[], &[], &template.children)),
            Stmt::EmitExpr(node) => {
                let expr = self.expr(&node.expr);
                out.push(emit(expr, node.span()));
            }
            // Through the formatter, like all that is written: it counts the bytes.
            Stmt::EmitRaw(node) => out.push(emit(constant(node.raw, node.span()), node.span())),
            Stmt::ForLoop(node) => out.push(self.for_loop(node)),
            Stmt::IfCond(node) => out.push(Stmt::IfCond(Spanned::new(
                ast::IfCond {
                    expr: self.expr(&node.expr),
                    true_body: self.body(&node.true_body),
                    false_body: self.body(&node.false_body),
                },
                node.span(),
            ))),
            Stmt::WithBlock(node) => out.push(self.with_block(node)),
            Stmt::Set(node) => {
                let expr = match &node.expr {
                    // `{% set x = 1, 2 %}` is a tuple too: what stands before the list is then a comma.
                    Expr::List(list) if self.follows(list.span(), ',') => {
                        self.items("[tuple]", list)
                    }
                    expr => self.expr(expr),
                };
                self.assign(&node.target, expr, node.span(), out);
            }
            Stmt::SetBlock(node) => self.set_block(node, out),
            Stmt::FilterBlock(node) => out.push(Stmt::FilterBlock(Spanned::new(
                ast::FilterBlock {
                    filter: self.expr(&node.filter),
                    body: self.captured(&node.body, node.span()),
                },
                node.span(),
            ))),
            Stmt::Macro(node) => self.declare_macro(node, out),
            Stmt::CallBlock(node) => out.push(self.call_block(node)),
            Stmt::Continue(node) => {
                let stmt = Stmt::Continue(Spanned::new(ast::Continue, node.span()));
                self.leave_loop(stmt, node.span(), out);
            }
            Stmt::Break(node) => {
                let stmt = Stmt::Break(Spanned::new(ast::Break, node.span()));
                self.leave_loop(stmt, node.span(), out);
            }
            // No template extends this one: a block is written where it stands, and what is set in it ends with it.
            Stmt::Block(node) if self.open.is_empty() && !node.required => {
                let mut early = None;
                everything(stmt, &mut |name| {
                    early = early.or(self.undefined.contains(&name).then_some(name));
                });
                if let Some(name) = early {
                    // It would see no variable from outside, as the scopes around it must not.
                    let what = format!(
                        "a block with `{name}`, which is set behind a place that reads it,"
                    );
                    out.push(refuse(&what, node.span()));
                    return;
                }
                let around = std::mem::take(&mut self.scopes);
                let block = ast::WithBlock {
                    assignments: Vec::new(),
                    body: self.within(Open::Frame, &[], &node.body),
                };
                self.scopes = around;
                out.push(Stmt::WithBlock(Spanned::new(block, node.span())));
            }
            // It would not see the names of what is around it.
            Stmt::Block(node) => out.push(refuse(
                "the tag `block` inside another block, a loop or a macro",
                node.span(),
            )),
            Stmt::Import(node) => out.push(refuse("the tag `import`", node.span())),
            Stmt::FromImport(node) => out.push(refuse("the tag `from`", node.span())),
            Stmt::Extends(node) => out.push(refuse("the tag `extends`", node.span())),
            Stmt::Include(node) => out.push(refuse("the tag `include`", node.span())),
            Stmt::AutoEscape(node) => out.push(refuse("the tag `autoescape`", node.span())),
            Stmt::Do(node) => out.push(refuse("the tag `do`", node.span())),
        }
    }

    /// `break` or `continue`, after what ends the blocks within the loop.
    fn leave_loop(&self, stmt: Stmt<'s>, span: Span, out: &mut Vec<Stmt<'s>>) {
        let around = self.open.iter().rev();
        let inner = around.take_while(|open| **open != Open::Loop);
        if inner.clone().any(|open| *open == Open::Macro) {
            out.push(refuse("`break` or `continue` outside of a loop", span));
            return;
        }
        for open in inner {
            let marks: &[&str] = match open {
                Open::Frame => &[POP_FRAME],
                Open::Capture => &[END_CAPTURE, DROP],
                Open::Loop | Open::Macro => &[],
            };
            for raw in marks {
                out.push(Stmt::EmitRaw(Spanned::new(ast::EmitRaw { raw }, span)));
            }
        }
        out.push(stmt);
    }

    /// All values are computed before any name is set.
    fn with_block(&mut self, node: &Spanned<ast::WithBlock<'s>>) -> Stmt<'s> {
        let span = node.span();
        let (mut targets, mut values, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for (target, value) in &node.assignments {
            targets.push(self.target(target));
            names.extend(parameters(target));
            let value = self.expr(value);
            values.push(match target {
                Expr::List(list) => {
                    filter("[unpack]", value, vec![constant(shape(list), span)], span)
                }
                _ => value,
            });
        }
        let assignments = match targets.len() {
            0 => Vec::new(),
            _ => vec![(
                Expr::List(Spanned::new(ast::List { items: targets }, span)),
                filter("[list]", constant((), span), values, span),
            )],
        };
        Stmt::WithBlock(Spanned::new(
            ast::WithBlock {
                assignments,
                body: self.within(Open::Frame, &names, &node.body),
            },
            span,
        ))
    }

    fn set_block(&mut self, node: &Spanned<ast::SetBlock<'s>>, out: &mut Vec<Stmt<'s>>) {
        let span = node.span();
        let filter = node.filter.as_ref().map(|filter| self.expr(filter));
        let body = self.captured(&node.body, span);
        // A name that no template can write.
        const CAPTURED: &str = "(captured)";
        out.push(Stmt::SetBlock(Spanned::new(
            ast::SetBlock {
                target: variable(CAPTURED, span),
                filter,
                body,
            },
            span,
        )));
        self.assign(&node.target, variable(CAPTURED, span), span, out);
    }

    /// `target = value`; attributes of namespaces are set by a filter.
    fn assign(&mut self, target: &Expr<'s>, value: Expr<'s>, span: Span, out: &mut Vec<Stmt<'s>>) {
        const DONE: &str = "(done)";
        let set = |target: Expr<'s>, expr: Expr<'s>| {
            Stmt::Set(Spanned::new(ast::Set { target, expr }, span))
        };
        match target {
            Expr::GetAttr(node) => {
                let args = vec![constant(node.name, node.span()), value];
                let object = self.expr(&node.expr);
                out.push(set(variable(DONE, span), filter(".=", object, args, span)));
            }
            Expr::List(list) if !only_names(list) => {
                out.push(refuse(
                    "assigning to several names, of which one is an attribute,",
                    span,
                ));
            }
            Expr::List(list) => {
                let value = filter("[unpack]", value, vec![constant(shape(list), span)], span);
                out.push(set(self.target(target), value));
            }
            target => out.push(set(self.target(target), value)),
        }
    }

    /// Names to assign to, as they are.
    pub(super) fn target(&self, target: &Expr<'s>) -> Expr<'s> {
        match target {
            Expr::List(list) => {
                let items = list.items.iter().map(|item| self.target(item)).collect();
                Expr::List(Spanned::new(ast::List { items }, list.span()))
            }
            Expr::Var(node) => variable(node.id, node.span()),
            other => filter(
                "[same]",
                constant((), other.span()),
                Vec::new(),
                other.span(),
            ),
        }
    }
}

fn only_names(list: &ast::List<'_>) -> bool {
    list.items.iter().all(|item| match item {
        Expr::List(inner) => only_names(inner),
        item => matches!(item, Expr::Var(_)),
    })
}

/// Which of the names that are assigned to stand for several: for each of those a list, for others none.
fn shape(list: &ast::List<'_>) -> Value {
    let items = list.items.iter().map(|item| match item {
        Expr::List(inner) => shape(inner),
        _ => Value::from(()),
    });
    items.collect()
}
