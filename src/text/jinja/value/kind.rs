//! Python's types.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::{Dict, Generator, Method, Namespace, Seq, SeqKind};

/// Python's types, as far as templates meet them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Undefined,
    None,
    Bool,
    Int,
    Float,
    Str,
    List,
    Tuple,
    Range,
    /// `dict.keys()` and the like.
    View,
    Dict,
    Generator,
    Namespace,
    /// A loop, a macro, a function, a method.
    Other,
}

pub fn type_of(value: &Value) -> Type {
    match value.kind() {
        ValueKind::Undefined => Type::Undefined,
        ValueKind::None => Type::None,
        ValueKind::Bool => Type::Bool,
        ValueKind::Number if value.is_integer() => Type::Int,
        ValueKind::Number => Type::Float,
        ValueKind::String => Type::Str,
        _ if value.is_kwargs() => Type::Dict,
        _ => {
            if let Some(seq) = value.downcast_object_ref::<Seq>() {
                match seq.kind {
                    SeqKind::List => Type::List,
                    SeqKind::Tuple | SeqKind::Group => Type::Tuple,
                    SeqKind::Range { .. } => Type::Range,
                    SeqKind::Keys | SeqKind::Values | SeqKind::Items => Type::View,
                }
            } else if value.downcast_object_ref::<Dict>().is_some() {
                Type::Dict
            } else if value.downcast_object_ref::<Generator>().is_some() {
                Type::Generator
            } else if value.downcast_object_ref::<Namespace>().is_some() {
                Type::Namespace
            } else {
                Type::Other
            }
        }
    }
}

/// The name of a value's type, as Python's messages have it.
pub fn name(value: &Value) -> &'static str {
    match type_of(value) {
        Type::Undefined => "Undefined",
        Type::None => "NoneType",
        Type::Bool => "bool",
        Type::Int => "int",
        Type::Float => "float",
        Type::Str => "str",
        Type::List => "list",
        Type::Tuple => "tuple",
        Type::Range => "range",
        Type::View => "dict view",
        Type::Dict => "dict",
        Type::Generator => "generator",
        Type::Namespace => "Namespace",
        Type::Other if value.downcast_object_ref::<Method>().is_some() => "method",
        Type::Other => "object",
    }
}
