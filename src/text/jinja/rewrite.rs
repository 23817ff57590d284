//! A template's tree with Python's meaning: each operator, literal, attribute and method call becomes a filter of
//! ours (src/text/jinja/filters/operators.rs), since minijinja's own cannot be replaced, and blocks that it scopes
//! otherwise than Jinja2 are written another way. Control flow stays minijinja's.

use minijinja::Value;
use minijinja::machinery::ast::{
    self, BinOpKind, CallArg, CompareOpKind, Expr, Spanned, Stmt, UnaryOpKind,
};
use minijinja::machinery::{Instruction, Instructions, Span};

use super::globals;
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
        spare_arguments: false,
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
    /// Whether the macro that is rewritten reads the arguments it has no names for.
    spare_arguments: bool,
}

fn constant<'s>(value: impl Into<Value>, span: Span) -> Expr<'s> {
    Expr::Const(Spanned::new(
        ast::Const {
            value: value.into(),
        },
        span,
    ))
}

fn filter<'s>(name: &'s str, value: Expr<'s>, args: Vec<Expr<'s>>, span: Span) -> Expr<'s> {
    let args = args.into_iter().map(CallArg::Pos).collect();
    Expr::Filter(Spanned::new(
        ast::Filter {
            name,
            expr: Some(value),
            args,
        },
        span,
    ))
}

fn not(expr: Expr<'_>, span: Span) -> Expr<'_> {
    Expr::UnaryOp(Spanned::new(
        ast::UnaryOp {
            op: UnaryOpKind::Not,
            expr,
        },
        span,
    ))
}

fn variable<'s>(id: &'s str, span: Span) -> Expr<'s> {
    Expr::Var(Spanned::new(ast::Var { id }, span))
}

fn emit(expr: Expr<'_>, span: Span) -> Stmt<'_> {
    Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr }, span))
}

fn comparison(op: CompareOpKind) -> &'static str {
    match op {
        CompareOpKind::Eq => "==",
        CompareOpKind::Ne => "!=",
        CompareOpKind::Lt => "<",
        CompareOpKind::Lte => "<=",
        CompareOpKind::Gt => ">",
        CompareOpKind::Gte => ">=",
        CompareOpKind::In => "in",
        CompareOpKind::NotIn => "not in",
    }
}

fn operator(op: BinOpKind) -> &'static str {
    match op {
        BinOpKind::Eq => "==",
        BinOpKind::Ne => "!=",
        BinOpKind::Lt => "<",
        BinOpKind::Lte => "<=",
        BinOpKind::Gt => ">",
        BinOpKind::Gte => ">=",
        BinOpKind::Add => "+",
        BinOpKind::Sub => "-",
        BinOpKind::Mul => "*",
        BinOpKind::Div => "/",
        BinOpKind::FloorDiv => "//",
        BinOpKind::Rem => "%",
        BinOpKind::Pow => "**",
        BinOpKind::Concat => "~",
        BinOpKind::In => "in",
        BinOpKind::ScAnd | BinOpKind::ScOr => {
            unreachable!("these are no filters: they may skip an operand")
        }
    }
}

impl<'s> Rewriter<'_, 's> {
    fn body(&mut self, stmts: &[Stmt<'s>]) -> Vec<Stmt<'s>> {
        let mut out = Vec::with_capacity(stmts.len());
        for stmt in stmts {
            self.stmt(stmt, &mut out);
        }
        out
    }

    fn within(&mut self, open: Open, stmts: &[Stmt<'s>]) -> Vec<Stmt<'s>> {
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

    fn stmt(&mut self, stmt: &Stmt<'s>, out: &mut Vec<Stmt<'s>>) {
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
            Stmt::Block(node) => out.push(refuse("the tag `block`", node.span())),
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
    fn target(&self, target: &Expr<'s>) -> Expr<'s> {
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

    fn macro_(&mut self, node: &Spanned<ast::Macro<'s>>) -> Spanned<ast::Macro<'s>> {
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

    fn call_block(&mut self, node: &Spanned<ast::CallBlock<'s>>) -> Stmt<'s> {
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

    fn expr(&mut self, expr: &Expr<'s>) -> Expr<'s> {
        let span = expr.span();
        match expr {
            Expr::Var(node) => {
                self.spare_arguments |= matches!(node.id, "varargs" | "kwargs");
                self.reads.variable(node.id);
                variable(node.id, span)
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

    fn items(&mut self, name: &'static str, list: &Spanned<ast::List<'s>>) -> Expr<'s> {
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
                    // A loop's own call: its argument is what the next level goes through.
                    let wrapper = match callee {
                        Expr::Var(var) if var.id == "loop" => Some("[iterate]"),
                        Expr::Var(var) if globals::NAMES.contains(&var.id) => None,
                        // A macro, perhaps.
                        _ => Some("[given]"),
                    };
                    let (callee, negations) = self.operand(callee, span);
                    let args = self.args(&node.args).into_iter();
                    let args = args.map(|arg| wrapped(arg, wrapper)).collect();
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
            expr => (self.expr(expr), 0),
        }
    }

    fn args(&mut self, args: &[CallArg<'s>]) -> Vec<CallArg<'s>> {
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

    fn follows(&self, span: Span, c: char) -> bool {
        let before = self.source.get(..span.start_offset as usize);
        before.is_some_and(|before| before.trim_end().ends_with(c))
    }

    fn starts_with(&self, span: Span, text: &str) -> bool {
        let rest = self.source.get(span.start_offset as usize..);
        rest.is_some_and(|rest| rest.starts_with(text))
    }
}

/// An argument with a filter around its value.
fn wrapped<'s>(arg: CallArg<'s>, name: Option<&'static str>) -> CallArg<'s> {
    let Some(name) = name else {
        return arg;
    };
    let around = |expr: Expr<'s>| {
        let span = expr.span();
        filter(name, expr, Vec::new(), span)
    };
    match arg {
        CallArg::Pos(expr) => CallArg::Pos(around(expr)),
        CallArg::Kwarg(name, expr) => CallArg::Kwarg(name, around(expr)),
        splat => splat,
    }
}

/// A statement that fails when it is reached, as Jinja2's own would or because minijinja's would differ.
fn refuse<'s>(what: &str, span: Span) -> Stmt<'s> {
    let message = format!("{what} is not supported here");
    emit(
        filter("[refuse]", constant(message, span), Vec::new(), span),
        span,
    )
}
