//! Small trees that rewriting puts together.

use minijinja::Value;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{
    self, BinOpKind, CallArg, CompareOpKind, Expr, Spanned, Stmt, UnaryOpKind,
};

pub fn constant<'s>(value: impl Into<Value>, span: Span) -> Expr<'s> {
    Expr::Const(Spanned::new(
        ast::Const {
            value: value.into(),
        },
        span,
    ))
}

pub fn filter<'s>(name: &'s str, value: Expr<'s>, args: Vec<Expr<'s>>, span: Span) -> Expr<'s> {
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

pub fn not(expr: Expr<'_>, span: Span) -> Expr<'_> {
    Expr::UnaryOp(Spanned::new(
        ast::UnaryOp {
            op: UnaryOpKind::Not,
            expr,
        },
        span,
    ))
}

pub fn variable<'s>(id: &'s str, span: Span) -> Expr<'s> {
    Expr::Var(Spanned::new(ast::Var { id }, span))
}

pub fn emit(expr: Expr<'_>, span: Span) -> Stmt<'_> {
    Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr }, span))
}

pub fn comparison(op: CompareOpKind) -> &'static str {
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

pub fn operator(op: BinOpKind) -> &'static str {
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

/// An argument with a filter around its value.
pub fn wrapped<'s>(arg: CallArg<'s>, name: Option<&'static str>) -> CallArg<'s> {
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

/// An expression that fails when it is reached, as Jinja2's own would or because minijinja's would differ.
pub fn refused<'s>(what: &str, span: Span) -> Expr<'s> {
    let message = format!("{what} is not supported here");
    filter("[refuse]", constant(message, span), Vec::new(), span)
}

/// A statement that fails when it is reached.
pub fn refuse<'s>(what: &str, span: Span) -> Stmt<'s> {
    emit(refused(what, span), span)
}
