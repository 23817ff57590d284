//! Macros and the blocks that call them.

use minijinja::machinery::ast::{self, Expr, Spanned, Stmt};

use super::build::{filter, refuse, variable, wrapped};
use super::{Open, Rewriter};

impl<'s> Rewriter<'_, 's> {
    pub(super) fn macro_(&mut self, node: &Spanned<ast::Macro<'s>>) -> Spanned<ast::Macro<'s>> {
        let args = node.args.iter().map(|arg| self.target(arg)).collect();
        let outer = std::mem::take(&mut self.spare_arguments);
        let mut body = self.parameters(node);
        body.extend(self.within(Open::Macro, &node.body));
        if self.spare_arguments {
            body = vec![refuse("`varargs` or `kwargs` of a macro", node.span())];
        }
        self.spare_arguments = outer;
        Spanned::new(
            ast::Macro {
                name: node.name,
                args,
                defaults: Vec::new(),
                body,
            },
            node.span(),
        )
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
        Stmt::CallBlock(Spanned::new(
            ast::CallBlock {
                call: Spanned::new(call, node.call.span()),
                macro_decl: self.macro_(&node.macro_decl),
            },
            node.span(),
        ))
    }
}
