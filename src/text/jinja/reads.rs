//! What a template reads: whether it can show tools and calls, and whether it takes a message's content as a text or
//! as a list of parts. As vLLM does, this is told from the template's tree.

use std::collections::HashSet;

use minijinja::machinery::ast::Expr;

/// Names, attributes and texts of a template, and how it treats `content`.
#[derive(Debug, Default, Clone)]
pub struct Reads {
    variables: HashSet<String>,
    texts: HashSet<String>,
    /// Names that stand for a message's content.
    contents: HashSet<String>,
    iterates_content: bool,
    tests_content: bool,
    /// Whether a macro's body reads the arguments it has no names for.
    spare_arguments: bool,
}

impl Reads {
    /// Whether the template reads a variable of this name.
    pub fn has_variable(&self, name: &str) -> bool {
        self.variables.contains(name)
    }

    /// Whether it may read a message's field of this name.
    pub fn has_field(&self, name: &str) -> bool {
        self.texts.contains(name)
    }

    /// Whether it goes through the parts of a message's content.
    pub fn iterates_content(&self) -> bool {
        self.iterates_content
    }

    /// Whether it asks first whether content is a string, and so takes both.
    pub fn tests_content(&self) -> bool {
        self.tests_content
    }

    pub(super) fn variable(&mut self, name: &str) {
        self.spare_arguments |= matches!(name, "varargs" | "kwargs");
        self.variables.insert(name.to_owned());
    }

    pub(super) fn text(&mut self, text: &str) {
        if text.len() <= 64 {
            self.texts.insert(text.to_owned());
        }
    }

    /// `{% set name = … %}`.
    pub(super) fn assigned(&mut self, target: &Expr<'_>, value: &Expr<'_>) {
        if let (Expr::Var(target), true) = (target, self.is_content(value)) {
            self.contents.insert(target.id.to_owned());
        }
    }

    pub(super) fn iterated(&mut self, value: &Expr<'_>) {
        self.iterates_content |= self.is_content(value);
    }

    pub(super) fn tested(&mut self, test: &str, value: &Expr<'_>) {
        let tells = matches!(test, "string" | "iterable" | "sequence" | "mapping");
        self.tests_content |= tells && self.is_content(value);
    }

    pub(super) fn enter_macro(&mut self) -> bool {
        std::mem::take(&mut self.spare_arguments)
    }

    pub(super) fn spare_arguments(&self) -> bool {
        self.spare_arguments
    }

    pub(super) fn leave_macro(&mut self, outer: bool) {
        self.spare_arguments = outer;
    }

    /// `message.content`, `message['content']`, `message.get('content')`, a variable or parameter of that name or
    /// set from one, each perhaps with a filter or an alternative.
    fn is_content(&self, expr: &Expr<'_>) -> bool {
        const NAME: &str = "content";
        match expr {
            Expr::Var(node) => node.id == NAME || self.contents.contains(node.id),
            Expr::GetAttr(node) => node.name == NAME,
            Expr::GetItem(node) => is_text(&node.subscript_expr, NAME),
            Expr::Slice(node) => self.is_content(&node.expr),
            Expr::Call(node) => match (&node.expr, node.args.first()) {
                (Expr::GetAttr(method), Some(minijinja::machinery::ast::CallArg::Pos(key))) => {
                    method.name == "get" && is_text(key, NAME)
                }
                _ => false,
            },
            Expr::Filter(node) => node.expr.as_ref().is_some_and(|expr| self.is_content(expr)),
            Expr::BinOp(node) => {
                use minijinja::machinery::ast::BinOpKind::{ScAnd, ScOr};
                matches!(node.op, ScAnd | ScOr)
                    && (self.is_content(&node.left) || self.is_content(&node.right))
            }
            Expr::IfExpr(node) => {
                self.is_content(&node.true_expr)
                    || node
                        .false_expr
                        .as_ref()
                        .is_some_and(|expr| self.is_content(expr))
            }
            _ => false,
        }
    }
}

fn is_text(expr: &Expr<'_>, text: &str) -> bool {
    matches!(expr, Expr::Const(node) if node.value.as_str() == Some(text))
}
