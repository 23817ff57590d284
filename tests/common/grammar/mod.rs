//! Random chat templates from a grammar, over the variables of `context`.

mod words;

use super::random::Random;

use serde_json::{Value, json};
use words::{ATOMS, BINARY, FILTERS, POSTFIX, TESTS};

pub fn context() -> Value {
    json!({
        "messages": [
            {"role": "user", "content": " Hi <b> there\n", "n": 1},
            {"role": "assistant", "content": "yo", "n": 2, "tool_calls": [
                {"function": {"name": "f", "arguments": {"city": "Oslo", "n": 2.5}}}
            ]},
            {"role": "tool", "content": "é'\"", "n": 1},
        ],
        "d": {"a": 1, "b": [1, 2], "c": {"x": "y"}, "items": 5},
        "l": [3, 1, 2],
        "s": "hello World, it's",
        "n": 7,
        "f": 2.5,
        "t": true,
        "z": null,
    })
}

pub struct Grammar<'r> {
    random: &'r mut Random,
}

fn pick<'a>(random: &mut Random, items: &[&'a str]) -> &'a str {
    items[random.below(items.len() as u32) as usize]
}

impl<'r> Grammar<'r> {
    pub fn new(random: &'r mut Random) -> Self {
        Self { random }
    }

    fn pick<'a>(&mut self, items: &[&'a str]) -> &'a str {
        pick(self.random, items)
    }

    pub fn expression(&mut self, depth: u32) -> String {
        if depth == 0 {
            return self.pick(ATOMS).to_owned();
        }
        let inner = depth - 1;
        match self.random.below(12) {
            0 | 1 => self.pick(ATOMS).to_owned(),
            2 | 3 => {
                let operator = self.pick(BINARY);
                let (a, b) = (self.expression(inner), self.expression(inner));
                match self.random.below(3) {
                    0 => format!("({a}) {operator} ({b})"),
                    _ => format!("{a} {operator} {b}"),
                }
            }
            4 | 5 => {
                let filter = self.pick(FILTERS);
                format!("{} | {filter}", self.operand(inner))
            }
            6 | 7 => {
                let postfix = self.pick(POSTFIX);
                format!("{}{postfix}", self.operand(inner))
            }
            8 => {
                let test = self.pick(TESTS);
                let not = self.pick(&["", "not "]);
                format!("{} is {not}{test}", self.operand(inner))
            }
            9 => {
                let (a, b, c) = (
                    self.expression(inner),
                    self.expression(inner),
                    self.expression(inner),
                );
                match self.random.below(4) {
                    0 => format!("({a} if {b})"),
                    1 => format!("{a} < {b} <= {c}"),
                    _ => format!("({a} if {b} else {c})"),
                }
            }
            10 => {
                let sign = self.pick(&["not ", "-", "- -"]);
                format!("{sign}{}", self.operand(inner))
            }
            _ => {
                let (a, b) = (self.expression(inner), self.expression(inner));
                match self.random.below(4) {
                    0 => format!("[{a}, {b}]"),
                    1 => format!("({a}, {b})"),
                    2 => format!("{{'k': {a}, 'a': {b}}}"),
                    _ => format!("'%s/%s' % ({a}, {b})"),
                }
            }
        }
    }

    /// An expression that a postfix or filter may follow.
    fn operand(&mut self, depth: u32) -> String {
        let expression = self.expression(depth);
        match self.random.below(3) {
            0 => expression,
            _ => format!("({expression})"),
        }
    }

    fn tag(&mut self, inner: &str) -> String {
        let open = self.pick(&["", "", "", "-", "+"]);
        let close = self.pick(&["", "", "", "-", "+"]);
        format!("{{%{open} {inner} {close}%}}")
    }

    fn text(&mut self) -> &'static str {
        self.pick(&[
            "a",
            "\n",
            "  ",
            "\n  ",
            " b\n",
            "<|im_start|>",
            "\n\n\t",
            "{ }",
            "é",
        ])
    }

    pub fn template(&mut self, depth: u32) -> String {
        let mut out = String::new();
        for _ in 0..=self.random.below(3) {
            out += self.text();
            out += &self.statement(depth);
        }
        out + self.text()
    }

    fn statement(&mut self, depth: u32) -> String {
        let kind = match depth {
            0 => self.random.below(4),
            _ => self.random.below(17),
        };
        let value = self.expression(2);
        let body = if depth > 0 {
            self.template(depth - 1)
        } else {
            String::new()
        };
        let block = |this: &mut Self, open: &str, body: &str, close: &str| {
            this.tag(open) + body + &this.tag(close)
        };
        match kind {
            0..=2 => {
                let (open, close) = (self.pick(&["", "", "-"]), self.pick(&["", "", "-"]));
                format!("{{{{{open} {value} {close}}}}}")
            }
            3 => {
                let name = self.pick(&["x", "y", "ns.a", "s"]);
                self.tag("set ns = namespace(a=0)")
                    + &self.tag(&format!("set {name} = {value}"))
                    + "{{ x }}{{ ns.a }}"
            }
            4 => {
                let other = self.template(depth - 1);
                let condition = self.expression(2);
                let els = self.pick(&["else", "elif n > 3"]);
                let body = body + &self.tag(els) + &other;
                block(self, &format!("if {condition}"), &body, "endif")
            }
            5 | 6 => {
                let target = self.pick(&["x", "m", "k, v"]);
                let list = self.pick(&[
                    "l",
                    "messages",
                    "d.items()",
                    "s",
                    "d",
                    "[(1, 2), (3, 4)]",
                    "u",
                    "range(2)",
                    "value",
                ]);
                let list = if list == "value" { &value } else { list };
                let filter = self.pick(&["", "", " if loop is defined", " if x", " if m.n == 1"]);
                let end = self.pick(&[
                    "",
                    "{% if loop.index == 2 %}{% break %}{% endif %}",
                    "{% if loop.first %}{% continue %}{% endif %}",
                    "{{ loop.index }}{{ loop.last }}{{ loop.length }}",
                    "{% else %}none",
                    "{{ loop.previtem }}{{ loop.changed(x) }}",
                ]);
                let body = format!(
                    "{}{body}{end}",
                    self.pick(&[
                        "",
                        "{{ loop.index0 }}{{ x }}",
                        "{{ m.role }}",
                        "{{ k }}={{ v }}"
                    ])
                );
                block(
                    self,
                    &format!("for {target} in {list}{filter}"),
                    &body,
                    "endfor",
                )
            }
            7 => {
                let b = self.expression(1);
                block(
                    self,
                    &format!("with x = {value}, y = {b}"),
                    &(body + "{{ y }}"),
                    "endwith",
                ) + "{{ x }}"
            }
            8 => block(self, "set x", &body, "endset") + "[{{ x }}]",
            9 => {
                let filter = self.pick(&[
                    "upper",
                    "trim",
                    "replace('a', 'b')",
                    "indent",
                    "title | trim",
                ]);
                block(self, &format!("filter {filter}"), &body, "endfilter")
            }
            10 => {
                let call = self.pick(&[
                    "mac(1)",
                    "mac(u, 2)",
                    "mac(b=3)",
                    "mac(s, b=u)",
                    "mac(l[0], n)",
                    "mac()",
                ]);
                block(
                    self,
                    "macro mac(x, b=n)",
                    &(body + "{{ x }}{{ b }}"),
                    "endmacro",
                ) + &format!("{{{{ {call} }}}}")
            }
            11 => block(self, "generation", &body, "endgeneration"),
            12 => self.recursive_loop(&body),
            13 => {
                let arguments = self.pick(&["", "x", "x, y=n", "varargs", "y='q', x=u"]);
                let call = self.pick(&[
                    "any()",
                    "any(1, 2, 3)",
                    "any(x=1, q=2)",
                    "any(u, y=3)",
                    "any(*l, **d)",
                    "any(s, l, k=u)",
                ]);
                let spare = self.pick(&[
                    "{{ varargs }}",
                    "{{ kwargs }}",
                    "{{ varargs | length }}{{ kwargs | dictsort }}",
                    "{{ varargs[0] }}{{ kwargs.q }}{{ x }}",
                    "{{ x }}{{ y }}",
                ]);
                let body = body + spare;
                block(self, &format!("macro any({arguments})"), &body, "endmacro")
                    + &format!("{{{{ {call} }}}}")
            }
            14 => {
                let target = self.pick(&["x, y", "x, (y, z)", "(x, y)"]);
                let pair = self.pick(&["(1, (2, 3))", "'ab'", "l[:2]", "(n, 'xy')", "d.items()"]);
                match self.random.below(2) {
                    0 => self.tag(&format!("set {target} = {pair}")) + "{{ x }}{{ y }}",
                    _ => block(
                        self,
                        &format!("with {target} = {pair}"),
                        &(body + "{{ y }}"),
                        "endwith",
                    ),
                }
            }
            15 => {
                self.tag("macro calls(x)")
                    + "{{ caller(x, 2) }}{{ caller(x) if x }}"
                    + &self.tag("endmacro")
                    + &block(
                        self,
                        "call(x, y=n) calls(s)",
                        &(body + "{{ y }}"),
                        "endcall",
                    )
            }
            _ => match self.random.below(3) {
                0 => format!("{{#- {value} #}}"),
                1 => block(self, "raw", "{{ x }}\n  ", "endraw"),
                _ => {
                    self.tag("macro call_me()")
                        + "({{ caller() }})"
                        + &self.tag("endmacro")
                        + &block(self, "call call_me()", &body, "endcall")
                }
            },
        }
    }

    fn recursive_loop(&mut self, body: &str) -> String {
        let list = self.pick(&[
            "[1, [2, [3]], []]",
            "[[], [[1]]]",
            "messages",
            "d",
            "[s, l]",
            "u",
        ]);
        let condition = self.pick(&["", "", " if x", " if x is iterable", " if x != 1"]);
        let call = self.pick(&[
            "{{ loop(x) if x is iterable and x is not string }}",
            "{% if x is sequence and loop.depth < 3 %}({{ loop(x) }}){% else %}{{ x }}{% endif %}",
            "{{ loop(x.tool_calls or []) if x is mapping }}",
            "{{ loop(x) | upper if loop.depth0 < 2 }}",
        ]);
        let more = self.pick(&[
            "",
            "{{ y }}{% set y = loop.index %}",
            "{{ loop.depth }}",
            "{{ loop.last }}",
        ]);
        let end = self.pick(&["", "", "{% else %}none", "{% else %}{{ x }}{{ y }}"]);
        self.tag(&format!("for x in {list}{condition} recursive"))
            + more
            + body
            + call
            + end
            + &self.tag("endfor")
    }
}
