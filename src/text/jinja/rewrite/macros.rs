//! Macros and the blocks that call them.

use minijinja::machinery::ast::{self, Expr, Spanned, Stmt};

use super::build::{constant, filter, refuse, variable, wrapped};
use super::loops::parameters;
use super::{Open, Rewriter};
use crate::text::jinja::macros::{KWARGS, VARARGS};

/// Which arguments that have no names a macro's body reads.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spare {
    positional: bool,
    named: bool,
}

impl Spare {
    pub(super) fn read(&mut self, variable: &str) {
        self.positional |= variable == VARARGS;
        self.named |= variable == KWARGS;
    }

    fn or(&mut self, other: Self) {
        self.positional |= other.positional;
        self.named |= other.named;
    }

    fn names(self) -> impl Iterator<Item = &'static str> {
        let positional = self.positional.then_some(VARARGS);
        positional.into_iter().chain(self.named.then_some(KWARGS))
    }
}

fn has_parameter(node: &ast::Macro<'_>, name: &str) -> bool {
    let mut args = node.args.iter();
    args.any(|arg| matches!(arg, Expr::Var(parameter) if parameter.id == name))
}

impl<'s> Rewriter<'_, 's> {
    pub(super) fn macro_(&mut self, node: &Spanned<ast::Macro<'s>>) -> Spanned<ast::Macro<'s>> {
        let span = node.span();
        let outer = std::mem::take(&mut self.spare);
        let mut body = self.parameters(node);
        let loops = std::mem::take(&mut self.loops);
        self.open.push(Open::Macro);
        let names: Vec<&str> = node.args.iter().flat_map(parameters).collect();
        body.extend(self.scope(&names, &node.defaults, &node.body));
        self.open.pop();
        self.loops = loops;
        let spare = std::mem::replace(&mut self.spare, outer);
        // As in Jinja2, which looks for the names in all of the body.
        self.spare.or(spare);
        let named = spare.names().filter(|name| !has_parameter(node, name));
        let mut args: Vec<Expr<'s>> = node.args.iter().map(|arg| self.target(arg)).collect();
        args.extend(named.map(|name| variable(name, span)));
        Spanned::new(
            ast::Macro {
                name: node.name,
                args,
                defaults: Vec::new(),
                body,
            },
            span,
        )
    }

    /// The macro, and under its name what binds the arguments that it has no names for.
    pub(super) fn declare_macro(
        &mut self,
        node: &Spanned<ast::Macro<'s>>,
        out: &mut Vec<Stmt<'s>>,
    ) {
        let span = node.span();
        let made = self.macro_(node);
        let spare = made.args.len() - node.args.len();
        out.push(Stmt::Macro(made));
        if spare > 0 {
            let expr = filter(
                "[spare]",
                variable(node.name, span),
                vec![constant(spare, span)],
                span,
            );
            let target = variable(node.name, span);
            out.push(Stmt::Set(Spanned::new(ast::Set { target, expr }, span)));
        }
    }

    /// Sets each parameter to what was given, be that undefined, else to its default.
    fn parameters(&mut self, node: &Spanned<ast::Macro<'s>>) -> Vec<Stmt<'s>> {
        let span = node.span();
        let first = node.args.len() - node.defaults.len();
        let mut out = Vec::new();
        for (at, arg) in node.args.iter().enumerate() {
            let Expr::Var(parameter) = arg else {
                continue;
            };
            let read = || variable(parameter.id, span);
            let given = filter("[parameter]", read(), Vec::new(), span);
            let expr = match at.checked_sub(first).map(|at| &node.defaults[at]) {
                None => given,
                Some(default) => Expr::IfExpr(Spanned::new(
                    ast::IfExpr {
                        test_expr: Expr::Test(Spanned::new(
                            ast::Test {
                                name: "undefined",
                                expr: read(),
                                args: Vec::new(),
                            },
                            span,
                        )),
                        true_expr: self.expr(default),
                        false_expr: Some(given),
                    },
                    span,
                )),
            };
            out.push(Stmt::Set(Spanned::new(
                ast::Set {
                    target: read(),
                    expr,
                },
                span,
            )));
        }
        out
    }

    pub(super) fn call_block(&mut self, node: &Spanned<ast::CallBlock<'s>>) -> Stmt<'s> {
        let call = &node.call;
        if !matches!(call.expr, Expr::Var(_)) {
            return refuse("`call` of anything but a macro's name", node.span());
        }
        let args = self.args(&call.args).into_iter();
        let call = ast::Call {
            expr: self.expr(&call.expr),
            args: args.map(|arg| wrapped(arg, Some("[given]"))).collect(),
        };
        let macro_decl = self.macro_(&node.macro_decl);
        if macro_decl.args.len() > node.macro_decl.args.len() {
            return refuse("`varargs` or `kwargs` of a call block", node.span());
        }
        Stmt::CallBlock(Spanned::new(
            ast::CallBlock {
                call: Spanned::new(call, node.call.span()),
                macro_decl,
            },
            node.span(),
        ))
    }
}
