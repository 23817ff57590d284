//! What a template's expressions may be, and what they do with contents on the way.

use minijinja::machinery::ast::{BinOpKind, Call, CallArg, CompareOpKind, Expr, Map};

use super::super::shape::{Kind, Shapes};
use super::{Walk, is_name};

impl<'t, 's> Walk<'t, 's> {
    /// An expression that becomes a text.
    pub(super) fn as_text(&mut self, expr: &'t Expr<'s>) {
        let shapes = self.expr(expr);
        self.text(shapes);
    }

    pub(super) fn text(&mut self, shapes: Shapes) {
        self.uses.text |= shapes.is(Kind::Content);
        self.uses.item_text |= shapes.is(Kind::Part);
        self.show_whole(shapes);
        self.uses.unknown |= shapes.is_list_of(Kind::Content);
    }

    pub(super) fn expr(&mut self, expr: &'t Expr<'s>) -> Shapes {
        match expr {
            Expr::Var(node) => self.names.get(node.id),
            Expr::Const(_) => Shapes::NONE,
            Expr::UnaryOp(node) => {
                self.expr(&node.expr);
                Shapes::NONE
            }
            Expr::BinOp(node) => match node.op {
                BinOpKind::ScAnd | BinOpKind::ScOr => {
                    let left = self.expr(&node.left);
                    left.or(self.expr(&node.right))
                }
                BinOpKind::Add => self.sum(&node.left, &node.right),
                BinOpKind::In => self.contains(&node.left, &node.right),
                BinOpKind::Eq | BinOpKind::Ne => self.compared(&node.left, &node.right),
                BinOpKind::Lt | BinOpKind::Lte | BinOpKind::Gt | BinOpKind::Gte => {
                    self.expr(&node.left);
                    self.expr(&node.right);
                    Shapes::NONE
                }
                _ => {
                    self.as_text(&node.left);
                    self.as_text(&node.right);
                    Shapes::NONE
                }
            },
            Expr::Compare(node) => {
                let mut left = &node.expr;
                for op in &node.ops {
                    match op.op {
                        CompareOpKind::In | CompareOpKind::NotIn => self.contains(left, &op.expr),
                        _ => self.compared(left, &op.expr),
                    };
                    left = &op.expr;
                }
                Shapes::NONE
            }
            Expr::IfExpr(node) => {
                self.expr(&node.test_expr);
                let shapes = self.expr(&node.true_expr);
                let other = node.false_expr.as_ref().map(|expr| self.expr(expr));
                shapes.or(other.unwrap_or_default())
            }
            Expr::Filter(node) => self.filter(node),
            Expr::Test(node) => {
                let shapes = self.expr(&node.expr);
                let tells = matches!(node.name, "string" | "iterable" | "sequence" | "mapping");
                self.uses.tested |= tells && shapes.is(Kind::Content);
                self.uses.fields |= node.name == "mapping" && shapes.is(Kind::Part);
                for arg in &node.args {
                    let shapes = self.arg(arg);
                    if node.name == "in" {
                        self.text(shapes);
                    }
                }
                Shapes::NONE
            }
            Expr::GetAttr(node) => {
                if is_name(&node.expr, "loop") && matches!(node.name, "previtem" | "nextitem") {
                    return self.loops.last().map_or(Shapes::NONE, |&(_, item)| item);
                }
                let object = self.expr(&node.expr);
                let set = match &node.expr {
                    Expr::Var(object) => self.names.get(&format!("{}.{}", object.id, node.name)),
                    _ => Shapes::NONE,
                };
                set.or(self.field(object, Some(node.name)))
            }
            Expr::GetItem(node) => {
                let object = self.expr(&node.expr);
                match text_of(&node.subscript_expr) {
                    Some(name) => self.field(object, Some(name)),
                    None => {
                        self.expr(&node.subscript_expr);
                        self.field(object, None);
                        object.item()
                    }
                }
            }
            Expr::Slice(node) => {
                for bound in [&node.start, &node.stop, &node.step].into_iter().flatten() {
                    self.expr(bound);
                }
                self.expr(&node.expr)
            }
            Expr::Call(node) => self.call(node),
            Expr::List(node) => {
                let items = node.items.iter().map(|item| self.expr(item));
                items.fold(Shapes::NONE, Shapes::or).in_a_list()
            }
            Expr::Map(node) => self.map(node),
        }
    }

    /// A field by its name, or by one that only a rendering knows.
    pub(super) fn field(&mut self, object: Shapes, name: Option<&str>) -> Shapes {
        self.uses.fields |= object.is(Kind::Part);
        match name {
            Some("content") if object.is(Kind::Message) => Shapes::one(Kind::Content),
            Some(_) => Shapes::NONE,
            None => {
                if object.is(Kind::Message) {
                    self.lose(object);
                }
                Shapes::NONE
            }
        }
    }

    fn sum(&mut self, left: &'t Expr<'s>, right: &'t Expr<'s>) -> Shapes {
        let shapes = [self.expr(left), self.expr(right)];
        let lists = [left, right]
            .into_iter()
            .any(|expr| matches!(expr, Expr::List(_)));
        if !lists {
            for shapes in shapes {
                self.uses.text |= shapes.is(Kind::Content);
                self.uses.item_text |= shapes.is(Kind::Part);
            }
        }
        // Lists of messages, or messages beside a text, which is an error.
        let [left, right] = shapes;
        match lists || left.or(right).is_list_of(Kind::Message) {
            true => left.or(right),
            false => Shapes::NONE,
        }
    }

    /// `left in right`.
    fn contains(&mut self, left: &'t Expr<'s>, right: &'t Expr<'s>) -> Shapes {
        self.expr(left);
        let within = self.expr(right);
        self.uses.text |= within.is(Kind::Content);
        self.uses.item_text |= within.is(Kind::Part);
        Shapes::NONE
    }

    /// Whether two are the same. What is compared with a text is one, unless that is empty: `content != ''`.
    fn compared(&mut self, left: &'t Expr<'s>, right: &'t Expr<'s>) -> Shapes {
        for (value, other) in [(left, right), (right, left)] {
            let shapes = self.expr(value);
            if text_of(other).is_some_and(|text| !text.is_empty()) {
                self.uses.text |= shapes.is(Kind::Content);
                self.uses.item_text |= shapes.is(Kind::Part);
            }
        }
        Shapes::NONE
    }

    /// A message that the template makes has the content it is given.
    fn map(&mut self, node: &'t Map<'s>) -> Shapes {
        let mut made = Shapes::NONE;
        for (key, value) in node.keys.iter().zip(&node.values) {
            self.expr(key);
            made = made.or(self.entry(text_of(key), value));
        }
        made
    }

    fn entry(&mut self, name: Option<&str>, value: &'t Expr<'s>) -> Shapes {
        let shapes = self.expr(value);
        match name {
            Some("content") if shapes.is(Kind::Content) => return Shapes::one(Kind::Message),
            Some("text") => self.text(shapes),
            _ => self.lose(shapes),
        }
        Shapes::NONE
    }

    fn arg(&mut self, arg: &'t CallArg<'s>) -> Shapes {
        match arg {
            CallArg::Pos(expr)
            | CallArg::Kwarg(_, expr)
            | CallArg::PosSplat(expr)
            | CallArg::KwargSplat(expr) => self.expr(expr),
        }
    }

    pub(super) fn args(&mut self, args: &'t [CallArg<'s>]) -> Vec<Shapes> {
        args.iter().map(|arg| self.arg(arg)).collect()
    }

    /// An argument that goes where it cannot be followed.
    pub(super) fn untold(&mut self, arg: &'t CallArg<'s>) {
        let shapes = self.arg(arg);
        self.lose(shapes);
    }

    pub(super) fn call(&mut self, node: &'t Call<'s>) -> Shapes {
        match &node.expr {
            Expr::GetAttr(method) => {
                let object = self.expr(&method.expr);
                return self.method(object, method.name, &node.args);
            }
            Expr::Var(callee) => match (callee.id, node.args.first()) {
                // Its text is no prompt.
                ("raise_exception", _) => {
                    let uses = self.uses;
                    self.args(&node.args);
                    self.uses = uses;
                }
                ("range", _) => drop(self.args(&node.args)),
                ("dict", _) => {
                    let mut made = Shapes::NONE;
                    for arg in &node.args {
                        match arg {
                            CallArg::Kwarg(name, value) => {
                                made = made.or(self.entry(Some(name), value))
                            }
                            CallArg::Pos(value) => made = made.or(self.expr(value)),
                            other => self.untold(other),
                        }
                    }
                    return made;
                }
                ("loop", Some(arg)) => {
                    let list = self.arg(arg);
                    match self.loops.last() {
                        Some(&(target, _)) => self.iterate(target, list),
                        None => self.lose(list),
                    }
                }
                ("caller", _) => {
                    for block in self.names.call_blocks() {
                        self.pass(block, &node.args);
                    }
                }
                (name, _) => match self.names.macro_named(name) {
                    Some(callee) => self.pass(callee, &node.args),
                    None => node.args.iter().for_each(|arg| self.untold(arg)),
                },
            },
            callee => {
                self.expr(callee);
                node.args.iter().for_each(|arg| self.untold(arg));
            }
        }
        Shapes::NONE
    }

    /// Arguments to a macro's parameters.
    fn pass(&mut self, callee: &'t minijinja::machinery::ast::Macro<'s>, args: &'t [CallArg<'s>]) {
        for (place, arg) in args.iter().enumerate() {
            let parameter = match arg {
                CallArg::Pos(_) => callee.args.get(place).and_then(|arg| match arg {
                    Expr::Var(node) => Some(node.id),
                    _ => None,
                }),
                CallArg::Kwarg(name, _) => Some(*name),
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => None,
            };
            match parameter {
                Some(name) => {
                    let shapes = self.arg(arg);
                    self.names.set_parameter(callee, name, shapes);
                }
                None => self.untold(arg),
            }
        }
    }

    fn method(&mut self, object: Shapes, name: &str, args: &'t [CallArg<'s>]) -> Shapes {
        let shapes = self.args(args);
        if name == "get" {
            let key = match args.first() {
                Some(CallArg::Pos(key)) => text_of(key),
                _ => None,
            };
            let other = shapes.get(1).copied().unwrap_or_default();
            return self.field(object, key).or(other);
        }
        if name == "copy" {
            return object;
        }
        let of_mapping = matches!(name, "items" | "keys" | "values");
        if matches!(name, "items" | "values") {
            self.show_whole(object);
        }
        self.uses.fields |= object.is(Kind::Part) && of_mapping;
        if !of_mapping && !matches!(name, "count" | "index") {
            self.uses.text |= object.is(Kind::Content);
            self.uses.item_text |= object.is(Kind::Part);
        }
        for shapes in shapes {
            match name {
                "join" => self.joined(shapes),
                _ => self.text(shapes),
            }
        }
        Shapes::NONE
    }
}

pub(super) fn text_of<'e>(expr: &'e Expr<'_>) -> Option<&'e str> {
    match expr {
        Expr::Const(node) => node.value.as_str(),
        _ => None,
    }
}
