//! Statements. Blocks that minijinja scopes otherwise than Jinja2 are written another way.

use minijinja::machinery::Span;
use minijinja::machinery::ast::{self, Expr, Spanned, Stmt};

use super::build::{constant, emit, filter, refuse, variable};
use super::{DROP, END_CAPTURE, Open, POP_FRAME, Rewriter};

impl<'s> Rewriter<'_, 's> {
    fn body(&mut self, stmts: &[Stmt<'s>]) -> Vec<Stmt<'s>> {
        let mut out = Vec::with_capacity(stmts.len());
        for stmt in stmts {
            self.stmt(stmt, &mut out);
        }
        out
    }

    pub(super) fn within(&mut self, open: Open, stmts: &[Stmt<'s>]) -> Vec<Stmt<'s>> {
        self.open.push(open);
        let out = self.body(stmts);
        self.open.pop();
        out
    }

    /// What is written to a filter or variable instead: names set in there end with it.
    fn captured(&mut self, stmts: &[Stmt<'s>], span: Span) -> Vec<Stmt<'s>> {
        self.open.push(Open::Capture);
        let body = self.within(Open::Frame, stmts);
        self.open.pop();
        let block = ast::WithBlock {
            assignments: Vec::new(),
            body,
        };
        vec![Stmt::WithBlock(Spanned::new(block, span))]
    }

    pub(super) fn stmt(&mut self, stmt: &Stmt<'s>, out: &mut Vec<Stmt<'s>>) {
        match stmt {
            Stmt::Template(template) => out.extend(self.body(&template.children)),
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
            Stmt::Macro(node) => out.push(Stmt::Macro(self.macro_(node))),
            Stmt::CallBlock(node) => out.push(self.call_block(node)),
            Stmt::Continue(node) => {
                self.leave_blocks(node.span(), out);
                out.push(Stmt::Continue(Spanned::new(ast::Continue, node.span())));
            }
            Stmt::Break(node) => {
                self.leave_blocks(node.span(), out);
                out.push(Stmt::Break(Spanned::new(ast::Break, node.span())));
            }
            // No template extends this one: a block is written where it stands, and what is set in it ends with it.
            Stmt::Block(node) if self.open.is_empty() && !node.required => {
                let block = ast::WithBlock {
                    assignments: Vec::new(),
                    body: self.within(Open::Frame, &node.body),
                };
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

    fn leave_blocks(&self, span: Span, out: &mut Vec<Stmt<'s>>) {
        let inner = self
            .open
            .iter()
            .rev()
            .take_while(|open| **open != Open::Loop);
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
    }

    fn for_loop(&mut self, node: &Spanned<ast::ForLoop<'s>>) -> Stmt<'s> {
        if node.recursive && node.filter_expr.is_some() {
            return refuse("a recursive loop with a condition", node.span());
        }
        let iter = self.expr(&node.iter);
        // A list of what Python would go through: characters, keys, items.
        let iter = filter("[iterate]", iter, Vec::new(), node.iter.span());
        Stmt::ForLoop(Spanned::new(
            ast::ForLoop {
                target: self.target(&node.target),
                iter,
                filter_expr: node.filter_expr.as_ref().map(|expr| self.expr(expr)),
                recursive: node.recursive,
                body: self.within(Open::Loop, &node.body),
                else_body: self.body(&node.else_body),
            },
            node.span(),
        ))
    }

    /// All values are computed before any name is set.
    fn with_block(&mut self, node: &Spanned<ast::WithBlock<'s>>) -> Stmt<'s> {
        let span = node.span();
        let (mut targets, mut values) = (Vec::new(), Vec::new());
        for (target, value) in &node.assignments {
            targets.push(self.target(target));
            values.push(self.expr(value));
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
                body: self.within(Open::Frame, &node.body),
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
            Expr::List(list) if list.items.iter().any(|item| !matches!(item, Expr::Var(_))) => {
                out.push(refuse(
                    "assigning to several names, of which one is an attribute or a tuple,",
                    span,
                ));
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
