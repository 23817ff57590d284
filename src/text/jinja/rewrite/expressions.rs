//! Expressions: operators, literals, attributes and calls become filters of ours.

use minijinja::machinery::Span;
use minijinja::machinery::ast::{self, BinOpKind, CallArg, Expr, Spanned, UnaryOpKind};

use super::Rewriter;
use super::build::{comparison, constant, filter, not, operator, refused, variable, wrapped};
use crate::text::jinja::globals;

impl<'s> Rewriter<'_, 's> {
    pub(super) fn expr(&mut self, expr: &Expr<'s>) -> Expr<'s> {
        let span = expr.span();
        match expr {
            Expr::Var(node) => {
                self.spare.read(node.id);
                self.reads.variable(node.id);
                match node.id {
                    "loop" => self.loop_itself(span, true),
                    // Jinja2 makes it itself, of the template's blocks.
                    "self" => refused("the variable `self`", span),
                    id => variable(id, span),
                }
            }
            Expr::Const(node) => {
                if let Some(text) = node.value.as_str() {
                    self.reads.text(text);
                }
                constant(node.value.clone(), span)
            }
            Expr::UnaryOp(node) => match node.op {
                UnaryOpKind::Not => not(self.expr(&node.expr), span),
                UnaryOpKind::Neg => filter("unary-", self.expr(&node.expr), Vec::new(), span),
            },
            Expr::BinOp(node) => self.binary(node),
            Expr::Compare(node) => {
                let first = self.expr(&node.expr);
                let rest = node.ops.iter().flat_map(|op| {
                    let operand = self.expr(&op.expr);
                    [constant(comparison(op.op), span), operand]
                });
                let rest = rest.collect();
                filter("[compare]", first, rest, span)
            }
            Expr::IfExpr(node) => Expr::IfExpr(Spanned::new(
                ast::IfExpr {
                    test_expr: self.expr(&node.test_expr),
                    true_expr: self.expr(&node.true_expr),
                    false_expr: node.false_expr.as_ref().map(|expr| self.expr(expr)),
                },
                span,
            )),
            Expr::Filter(node) => Expr::Filter(Spanned::new(
                ast::Filter {
                    name: node.name,
                    expr: node.expr.as_ref().map(|expr| self.expr(expr)),
                    args: self.args(&node.args),
                },
                span,
            )),
            Expr::Test(node) => Expr::Test(Spanned::new(
                ast::Test {
                    name: node.name,
                    expr: self.expr(&node.expr),
                    args: self.args(&node.args),
                },
                span,
            )),
            Expr::GetAttr(_) | Expr::GetItem(_) | Expr::Slice(_) | Expr::Call(_) => {
                let (inner, negations) = self.postfix(expr);
                (0..negations).fold(inner, |inner, _| filter("unary-", inner, Vec::new(), span))
            }
            Expr::List(node) => {
                let name = match self.starts_with(span, "(") {
                    true => "[tuple]",
                    false => "[list]",
                };
                self.items(name, node)
            }
            Expr::Map(node) => {
                let pairs = node.keys.iter().zip(&node.values);
                let items = pairs.flat_map(|(key, value)| [self.expr(key), self.expr(value)]);
                let items = items.collect();
                filter("[dict]", constant((), span), items, span)
            }
        }
    }

    pub(super) fn items(&mut self, name: &'static str, list: &Spanned<ast::List<'s>>) -> Expr<'s> {
        let items = list.items.iter().map(|item| self.expr(item)).collect();
        filter(name, constant((), list.span()), items, list.span())
    }

    fn binary(&mut self, node: &Spanned<ast::BinOp<'s>>) -> Expr<'s> {
        let span = node.span();
        let (left, right) = (self.expr(&node.left), self.expr(&node.right));
        match node.op {
            BinOpKind::ScAnd | BinOpKind::ScOr => {
                // Of two constants minijinja itself makes one, and not Python's.
                let left = match left {
                    Expr::Const(_) => filter("[same]", left, Vec::new(), span),
                    left => left,
                };
                Expr::BinOp(Spanned::new(
                    ast::BinOp {
                        op: node.op,
                        left,
                        right,
                    },
                    span,
                ))
            }
            op => filter(operator(op), left, vec![right], span),
        }
    }

    /// An attribute, item, slice or call, and how many minus signs before it are still to be done: minijinja reads
    /// `-a.b` as `(-a).b`, Jinja2 as `-(a.b)`.
    fn postfix(&mut self, expr: &Expr<'s>) -> (Expr<'s>, usize) {
        let span = expr.span();
        match expr {
            Expr::GetAttr(node) => {
                self.reads.text(node.name);
                let (object, negations) = self.operand(&node.expr, span);
                (
                    filter(".", object, vec![constant(node.name, span)], span),
                    negations,
                )
            }
            Expr::GetItem(node) => {
                let (object, negations) = self.operand(&node.expr, span);
                let key = self.expr(&node.subscript_expr);
                (filter("[]", object, vec![key], span), negations)
            }
            Expr::Slice(node) => {
                let (object, negations) = self.operand(&node.expr, span);
                let bounds = [&node.start, &node.stop, &node.step].map(|bound| match bound {
                    Some(bound) => self.expr(bound),
                    None => constant((), span),
                });
                (filter("[:]", object, bounds.into(), span), negations)
            }
            Expr::Call(node) => match &node.expr {
                Expr::GetAttr(method) => {
                    self.reads.text(method.name);
                    let (object, negations) = self.operand(&method.expr, method.span());
                    let mut args = vec![CallArg::Pos(constant(method.name, span))];
                    args.extend(self.args(&node.args));
                    let call = ast::Filter {
                        name: ".()",
                        expr: Some(object),
                        args,
                    };
                    (Expr::Filter(Spanned::new(call, span)), negations)
                }
                callee => {
                    let wrapper = match callee {
                        Expr::Var(var) if globals::NAMES.contains(&var.id) => None,
                        // A macro, perhaps.
                        _ => Some("[given]"),
                    };
                    let args = match callee {
                        Expr::Var(var) if var.id == "loop" => self.recursion(&node.args),
                        _ => {
                            let args = self.args(&node.args).into_iter();
                            args.map(|arg| wrapped(arg, wrapper)).collect()
                        }
                    };
                    let (callee, negations) = self.operand(callee, span);
                    let call = ast::Call { expr: callee, args };
                    (Expr::Call(Spanned::new(call, span)), negations)
                }
            },
            _ => (self.expr(expr), 0),
        }
    }

    /// What a postfix stands behind, without the minus signs that stand before both.
    fn operand(&mut self, expr: &Expr<'s>, outer: Span) -> (Expr<'s>, usize) {
        match expr {
            Expr::UnaryOp(node)
                if matches!(node.op, UnaryOpKind::Neg) && self.starts_with(outer, "-") =>
            {
                let (inner, negations) = self.operand(&node.expr, node.span());
                (inner, negations + 1)
            }
            Expr::GetAttr(_) | Expr::GetItem(_) | Expr::Slice(_) | Expr::Call(_) => {
                self.postfix(expr)
            }
            Expr::Var(node) if node.id == "loop" => (self.loop_itself(node.span(), false), 0),
            expr => (self.expr(expr), 0),
        }
    }

    pub(super) fn args(&mut self, args: &[CallArg<'s>]) -> Vec<CallArg<'s>> {
        let one = |arg: &CallArg<'s>| match arg {
            CallArg::Pos(expr) => CallArg::Pos(self.expr(expr)),
            CallArg::Kwarg(name, expr) => CallArg::Kwarg(name, self.expr(expr)),
            CallArg::PosSplat(expr) => {
                let span = expr.span();
                CallArg::PosSplat(filter("[iterate]", self.expr(expr), Vec::new(), span))
            }
            CallArg::KwargSplat(expr) => CallArg::KwargSplat(self.expr(expr)),
        };
        args.iter().map(one).collect()
    }

    pub(super) fn follows(&self, span: Span, c: char) -> bool {
        let before = self.source.get(..span.start_offset as usize);
        before.is_some_and(|before| before.trim_end().ends_with(c))
    }

    fn starts_with(&self, span: Span, text: &str) -> bool {
        let rest = self.source.get(span.start_offset as usize..);
        rest.is_some_and(|rest| rest.starts_with(text))
    }
}
