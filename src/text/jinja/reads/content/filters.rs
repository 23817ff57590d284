//! What a template's filters do with contents.

use minijinja::machinery::ast::{CallArg, Filter};

use super::super::shape::{Kind, Shapes};
use super::Walk;
use super::expressions::text_of;

/// Filters that take a text and give a text or a number.
const OF_TEXT: [&str; 29] = [
    "abs",
    "capitalize",
    "center",
    "e",
    "escape",
    "filesizeformat",
    "float",
    "forceescape",
    "format",
    "indent",
    "int",
    "lower",
    "pprint",
    "replace",
    "round",
    "safe",
    "string",
    "striptags",
    "title",
    "tojson",
    "trim",
    "truncate",
    "upper",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
    "sum",
];

impl<'t, 's> Walk<'t, 's> {
    pub(super) fn joined(&mut self, list: Shapes) {
        self.uses.text |= list.is(Kind::Content) || list.is_list_of(Kind::Content);
        self.uses.item_text |= list.is_list_of(Kind::Part);
        self.show_whole(list);
    }

    pub(super) fn filter(&mut self, node: &'t Filter<'s>) -> Shapes {
        let value = node
            .expr
            .as_ref()
            .map_or(Shapes::NONE, |expr| self.expr(expr));
        let args = self.args(&node.args);
        let attribute = attribute(node);
        if !matches!(node.name, "default" | "d") {
            args.into_iter().for_each(|shapes| self.text(shapes));
        } else {
            return value.or(args.first().copied().unwrap_or_default());
        }
        let by_field = attribute.is_some()
            || matches!(
                node.name,
                "selectattr" | "rejectattr" | "select" | "reject" | "groupby"
            );
        let takes_attribute = matches!(
            node.name,
            "map"
                | "join"
                | "sort"
                | "unique"
                | "min"
                | "max"
                | "sum"
                | "groupby"
                | "selectattr"
                | "rejectattr"
                | "select"
                | "reject"
        );
        if by_field && takes_attribute {
            self.uses.fields |= value.is(Kind::Content);
        }
        match node.name {
            "list" | "reverse" | "sort" | "unique" | "select" | "reject" | "selectattr"
            | "rejectattr" => value,
            "batch" | "slice" => value.in_a_list(),
            "first" | "last" | "random" | "min" | "max" => value.item(),
            "length" | "count" => Shapes::NONE,
            "attr" => self.field(value, attribute),
            "map" => match attribute {
                Some("content") if value.is_list_of(Kind::Message) => {
                    Shapes::one(Kind::Content).in_a_list()
                }
                Some(_) => Shapes::NONE,
                None => {
                    self.show_whole(value);
                    self.uses.unknown |= value.is(Kind::Content);
                    self.uses.text |= value.is_list_of(Kind::Content);
                    Shapes::NONE
                }
            },
            "join" => {
                match attribute {
                    Some("content") => self.uses.text |= value.is_list_of(Kind::Message),
                    Some(_) => {}
                    None => self.joined(value),
                }
                Shapes::NONE
            }
            "sum" if attribute.is_some() => Shapes::NONE,
            "items" | "dictsort" => {
                self.uses.fields |= value.is(Kind::Part);
                self.show_whole(value);
                Shapes::NONE
            }
            name if OF_TEXT.contains(&name) => {
                self.text(value);
                Shapes::NONE
            }
            _ => {
                self.lose(value);
                Shapes::NONE
            }
        }
    }
}

/// The field by whose name a filter goes through a list.
fn attribute<'e>(node: &'e Filter<'_>) -> Option<&'e str> {
    let mut positional = 0;
    for arg in &node.args {
        match arg {
            CallArg::Kwarg("attribute", value) => return text_of(value),
            CallArg::Pos(value) => {
                let place = match node.name {
                    "attr" | "groupby" | "sum" => 0,
                    "join" => 1,
                    _ => usize::MAX,
                };
                if positional == place {
                    return text_of(value);
                }
                positional += 1;
            }
            _ => {}
        }
    }
    None
}
