//! What a template's names stand for, wherever in the template they are set: a name set twice stands for both.

use std::collections::HashMap;

use minijinja::machinery::ast::{Expr, Macro};

use super::shape::{Kind, Shapes};

/// Names of macros' parameters and of what is set in a macro are that macro's own. An attribute of a namespace is
/// `name.attribute`.
#[derive(Default)]
pub struct Names<'t, 's> {
    known: HashMap<(usize, String), Shapes>,
    macros: HashMap<&'s str, &'t Macro<'s>>,
    /// The parameters that `caller(…)` fills.
    call_blocks: HashMap<usize, &'t Macro<'s>>,
    /// The macros around the place that is looked at.
    inside: Vec<&'t Macro<'s>>,
    /// Whether anything was learnt since this was last asked.
    grew: bool,
}

fn address(node: &Macro<'_>) -> usize {
    std::ptr::from_ref(node).addr()
}

fn is_parameter(node: &Macro<'_>, name: &str) -> bool {
    let mut args = node.args.iter();
    args.any(|arg| matches!(arg, Expr::Var(var) if var.id == name))
}

impl<'t, 's> Names<'t, 's> {
    pub fn grew(&mut self) -> bool {
        std::mem::take(&mut self.grew)
    }

    pub fn enter(&mut self, node: &'t Macro<'s>) {
        self.inside.push(node);
    }

    pub fn leave(&mut self) {
        self.inside.pop();
    }

    pub fn declare_macro(&mut self, node: &'t Macro<'s>) {
        self.grew |= self.macros.insert(node.name, node).is_none();
    }

    pub fn declare_call_block(&mut self, node: &'t Macro<'s>) {
        self.grew |= self.call_blocks.insert(address(node), node).is_none();
    }

    pub fn macro_named(&self, name: &str) -> Option<&'t Macro<'s>> {
        self.macros.get(name).copied()
    }

    pub fn call_blocks(&self) -> Vec<&'t Macro<'s>> {
        self.call_blocks.values().copied().collect()
    }

    pub fn set(&mut self, name: &str, shapes: Shapes) {
        let scope = self.inside.last().map_or(0, |node| address(node));
        self.set_in(scope, name, shapes);
    }

    pub fn set_parameter(&mut self, of: &Macro<'s>, name: &str, shapes: Shapes) {
        self.set_in(address(of), name, shapes);
    }

    fn set_in(&mut self, scope: usize, name: &str, shapes: Shapes) {
        if shapes.is_none() {
            return;
        }
        let known = self.known.entry((scope, name.to_owned())).or_default();
        self.grew |= known.or(shapes) != *known;
        *known = known.or(shapes);
    }

    pub fn get(&self, name: &str) -> Shapes {
        let root = name.split('.').next().unwrap_or(name);
        for node in self.inside.iter().rev() {
            if let Some(&shapes) = self.known.get(&(address(node), name.to_owned())) {
                return shapes;
            }
            if is_parameter(node, root) {
                return Shapes::NONE;
            }
        }
        let set = self.known.get(&(0, name.to_owned())).copied();
        let given = match name {
            "messages" => Shapes::one(Kind::Message).in_a_list(),
            _ => Shapes::NONE,
        };
        given.or(set.unwrap_or_default())
    }
}
