//! Which names are undefined where a scope begins, though the scope sets them further down. Jinja2 makes a name a scope's
//! own where the scope sets it before it reads it. A block or macro within the scope then finds that name, undefined until
//! it is set, and never a variable of the same name from outside; minijinja looks for the name each time anew.
//!
//! This is `jinja2.idtracking`, in as far as it decides this.

use std::collections::{HashMap, HashSet};

use minijinja::machinery::ast::{CallArg, Expr, IfCond, Stmt};

/// What Jinja2 gives to a template: no scope's own.
const GIVEN: [&str; 5] = ["loop", "self", "caller", "varargs", "kwargs"];

/// What a scope's own name stands for where the scope begins.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Begins {
    /// What it stands for outside.
    Outer,
    Undefined,
}

/// The names that the scopes around a place have.
#[derive(Default)]
pub struct Scopes<'s>(Vec<HashSet<&'s str>>);

impl<'s> Scopes<'s> {
    /// Goes into a scope of `stmts` whose `parameters` are set as it begins. The names that are undefined there and that
    /// something within reads, or may.
    pub fn enter(
        &mut self,
        parameters: impl IntoIterator<Item = &'s str>,
        defaults: &[Expr<'s>],
        stmts: &[Stmt<'s>],
    ) -> Vec<&'s str> {
        let mut names = Names {
            around: &self.0,
            begins: HashMap::new(),
            sets: HashSet::new(),
        };
        for parameter in parameters.into_iter().chain(GIVEN) {
            names.begins.insert(parameter, Begins::Outer);
        }
        defaults.iter().for_each(|expr| names.read(expr));
        names.stmts(stmts);
        let begins = names.begins.iter();
        let undefined = begins.filter(|(_, begins)| **begins == Begins::Undefined);
        let mut undefined: Vec<&str> = undefined.map(|(name, _)| *name).collect();
        let all = names.begins.into_keys().collect();
        self.0.push(all);
        if !undefined.is_empty() {
            let early = read_before_set(stmts);
            undefined.retain(|name| early.contains(name));
            undefined.sort_unstable();
        }
        undefined
    }

    pub fn leave(&mut self) {
        self.0.pop();
    }
}

/// A scope's own names, as its statements are gone through.
struct Names<'a, 's> {
    around: &'a [HashSet<&'s str>],
    begins: HashMap<&'s str, Begins>,
    sets: HashSet<&'s str>,
}

impl<'s> Names<'_, 's> {
    fn is_around(&self, name: &str) -> bool {
        self.around.iter().any(|names| names.contains(name))
    }

    fn read(&mut self, expr: &Expr<'s>) {
        variables(expr, &mut |name| {
            if !self.is_around(name) {
                self.begins.entry(name).or_insert(Begins::Outer);
            }
        });
    }

    fn set(&mut self, name: &'s str) {
        self.sets.insert(name);
        let begins = match self.is_around(name) {
            true => Begins::Outer,
            false => Begins::Undefined,
        };
        self.begins.entry(name).or_insert(begins);
    }

    fn assign(&mut self, target: &Expr<'s>) {
        match target {
            // Of an attribute the namespace is read.
            Expr::GetAttr(_) => self.read(target),
            _ => names_of(target, &mut |name| self.set(name)),
        }
    }

    fn stmts(&mut self, stmts: &[Stmt<'s>]) {
        for stmt in stmts {
            match stmt {
                Stmt::Template(node) => self.stmts(&node.children),
                Stmt::EmitExpr(node) => self.read(&node.expr),
                Stmt::ForLoop(node) => self.read(&node.iter),
                Stmt::IfCond(node) => self.branches(node),
                Stmt::WithBlock(node) => {
                    let values = node.assignments.iter().map(|(_, value)| value);
                    values.for_each(|value| self.read(value));
                }
                Stmt::Set(node) => {
                    self.read(&node.expr);
                    self.assign(&node.target);
                }
                Stmt::SetBlock(node) => self.assign(&node.target),
                Stmt::FilterBlock(node) => self.read(&node.filter),
                Stmt::Macro(node) => self.set(node.name),
                Stmt::CallBlock(node) => {
                    self.read(&node.call.expr);
                    args(&node.call.args).for_each(|arg| self.read(arg));
                }
                _ => {}
            }
        }
    }

    /// What a branch sets may be what it is outside, since another may be taken.
    fn branches(&mut self, node: &IfCond<'s>) {
        self.read(&node.expr);
        let before = self.sets.clone();
        let begins = self.begins.clone();
        self.stmts(&node.true_body);
        let taken = std::mem::replace(&mut self.begins, begins);
        let sets = std::mem::replace(&mut self.sets, before.clone());
        self.stmts(&node.false_body);
        self.begins.extend(taken);
        self.sets.extend(sets);
        let new = self.sets.difference(&before);
        self.begins.extend(new.map(|name| (*name, Begins::Outer)));
    }
}

/// The names that a scope within `stmts` reads before a statement of them has set it.
fn read_before_set<'s>(stmts: &[Stmt<'s>]) -> HashSet<&'s str> {
    let (mut set, mut early) = (HashSet::new(), HashSet::new());
    for stmt in stmts {
        // Nothing calls a macro before it is there.
        if let Stmt::Macro(node) = stmt {
            set.insert(node.name);
        }
        inner(std::slice::from_ref(stmt), &mut |name| {
            if !set.contains(name) {
                early.insert(name);
            }
        });
        match stmt {
            Stmt::Set(node) => names_of(&node.target, &mut |name| _ = set.insert(name)),
            Stmt::SetBlock(node) => names_of(&node.target, &mut |name| _ = set.insert(name)),
            _ => {}
        }
    }
    early
}

/// Every name that `target` sets.
pub fn names_of<'s>(target: &Expr<'s>, found: &mut impl FnMut(&'s str)) {
    match target {
        Expr::Var(node) => found(node.id),
        Expr::List(list) => list.items.iter().for_each(|item| names_of(item, found)),
        _ => {}
    }
}

/// Every variable in the scopes within `stmts`, blocks aside: those have none around them.
fn inner<'s>(stmts: &[Stmt<'s>], found: &mut impl FnMut(&'s str)) {
    for stmt in stmts {
        match stmt {
            Stmt::Template(node) => inner(&node.children, found),
            Stmt::IfCond(node) => {
                inner(&node.true_body, found);
                inner(&node.false_body, found);
            }
            Stmt::ForLoop(_)
            | Stmt::WithBlock(_)
            | Stmt::SetBlock(_)
            | Stmt::FilterBlock(_)
            | Stmt::Macro(_)
            | Stmt::CallBlock(_) => everything(stmt, found),
            _ => {}
        }
    }
}

/// Every variable in `stmt`.
pub fn everything<'s>(stmt: &Stmt<'s>, found: &mut impl FnMut(&'s str)) {
    let (mut exprs, mut bodies): (Vec<&Expr<'s>>, Vec<&[Stmt<'s>]>) = (Vec::new(), Vec::new());
    match stmt {
        Stmt::Template(node) => bodies.push(&node.children),
        Stmt::EmitExpr(node) => exprs.push(&node.expr),
        Stmt::ForLoop(node) => {
            exprs.push(&node.iter);
            exprs.extend(&node.filter_expr);
            bodies.extend([&*node.body, &node.else_body]);
        }
        Stmt::IfCond(node) => {
            exprs.push(&node.expr);
            bodies.extend([&*node.true_body, &node.false_body]);
        }
        Stmt::WithBlock(node) => {
            exprs.extend(node.assignments.iter().map(|(_, value)| value));
            bodies.push(&node.body);
        }
        Stmt::Set(node) => {
            exprs.push(&node.expr);
            // An attribute of a namespace.
            exprs.extend(matches!(node.target, Expr::GetAttr(_)).then_some(&node.target));
        }
        Stmt::SetBlock(node) => {
            exprs.extend(&node.filter);
            bodies.push(&node.body);
        }
        Stmt::FilterBlock(node) => {
            exprs.push(&node.filter);
            bodies.push(&node.body);
        }
        Stmt::Block(node) => bodies.push(&node.body),
        Stmt::Macro(node) => {
            exprs.extend(&node.defaults);
            bodies.push(&node.body);
        }
        Stmt::CallBlock(node) => {
            exprs.push(&node.call.expr);
            exprs.extend(args(&node.call.args));
            exprs.extend(&node.macro_decl.defaults);
            bodies.push(&node.macro_decl.body);
        }
        _ => {}
    }
    exprs.into_iter().for_each(|expr| variables(expr, found));
    for stmt in bodies.into_iter().flatten() {
        everything(stmt, found);
    }
}

fn args<'a, 's>(args: &'a [CallArg<'s>]) -> impl Iterator<Item = &'a Expr<'s>> {
    args.iter().map(|arg| match arg {
        CallArg::Pos(expr)
        | CallArg::Kwarg(_, expr)
        | CallArg::PosSplat(expr)
        | CallArg::KwargSplat(expr) => expr,
    })
}

/// Every variable in `expr`.
fn variables<'s>(expr: &Expr<'s>, found: &mut impl FnMut(&'s str)) {
    let mut parts: Vec<&Expr<'s>> = Vec::new();
    match expr {
        Expr::Var(node) => found(node.id),
        Expr::Const(_) => {}
        Expr::Slice(node) => {
            parts.push(&node.expr);
            parts.extend([&node.start, &node.stop, &node.step].into_iter().flatten());
        }
        Expr::UnaryOp(node) => parts.push(&node.expr),
        Expr::BinOp(node) => parts.extend([&node.left, &node.right]),
        Expr::Compare(node) => {
            parts.push(&node.expr);
            parts.extend(node.ops.iter().map(|op| &op.expr));
        }
        Expr::IfExpr(node) => {
            parts.extend([&node.test_expr, &node.true_expr]);
            parts.extend(&node.false_expr);
        }
        Expr::Filter(node) => {
            parts.extend(&node.expr);
            parts.extend(args(&node.args));
        }
        Expr::Test(node) => {
            parts.push(&node.expr);
            parts.extend(args(&node.args));
        }
        Expr::GetAttr(node) => parts.push(&node.expr),
        Expr::GetItem(node) => parts.extend([&node.expr, &node.subscript_expr]),
        Expr::Call(node) => {
            parts.push(&node.expr);
            parts.extend(args(&node.args));
        }
        Expr::List(node) => parts.extend(&node.items),
        Expr::Map(node) => parts.extend(node.keys.iter().chain(&node.values)),
    }
    parts.into_iter().for_each(|part| variables(part, found));
}
