//! The page around charts and tables: one file, no network, light or dark as the reader's system is.

use super::svg::escape;
use std::fmt::Write;

/// Colours are Okabe and Ito's for all kinds of colour vision, some of them lighter or darker to stand out on the page.
const STYLE: &str = "
:root { color-scheme: light dark; --page: #fdfdfb; --ink: #1d1f21; --soft: #5c6066; --rule: #d8d9d4; --panel: #f4f4f0;
  --c0: #0068a8; --c1: #c04a00; --c2: #007a5a; --c3: #a8467f; --c9: #6b6f75; --on: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --page: #16181b; --ink: #e7e8e6; --soft: #a4a9af; --rule: #363a40;
  --panel: #1e2125; --c0: #5bb8ee; --c1: #f0913c; --c2: #3fc9a0; --c3: #e294c0; --c9: #9aa0a8; --on: #111315; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 792px; margin: 0 auto; padding: 28px 20px 64px; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .4em; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 2.6em 0 .5em; padding-top: .9em; border-top: 2px solid var(--rule);
  overflow-wrap: anywhere; }
h3 { font-size: 1.05rem; line-height: 1.35; margin: 2em 0 .3em; }
p { margin: .5em 0; max-width: 68ch; }
.soft { color: var(--soft); font-size: .93rem; }
a { color: var(--c0); }
code { font: .88em ui-monospace, monospace; background: var(--panel); padding: .1em .3em; border-radius: 3px;
  overflow-wrap: anywhere; }
.chart { margin: 12px 0; }
.chart svg { display: block; max-width: 100%; height: auto; }
.narrow { display: none; } .narrow svg { width: 100%; max-width: 480px; }
@media (max-width: 640px) { .wide { display: none; } .narrow { display: block; } main { padding: 18px 10px 48px; }
  body { font-size: 15px; } }
.scroll { overflow-x: auto; margin: 12px 0; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28em .55em; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { font-weight: 600; color: var(--soft); vertical-align: bottom; white-space: normal; line-height: 1.25; }
th.l, td.l { text-align: left; padding-left: 0; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
svg .group, svg .tick { paint-order: stroke; stroke: var(--page); stroke-width: 4px; stroke-linejoin: round; }
svg .axis { fill: var(--ink); } svg .group { fill: var(--ink); font-weight: 600; } svg .name { font-weight: 600; }
.grid { stroke: var(--rule); stroke-width: 1; } .axisline { stroke: var(--soft); stroke-width: 1; }
.line { fill: none; stroke-width: 2; } .thin { stroke-width: 1.4; } .dashed { stroke-dasharray: 6 4; }
.leader { stroke-width: 1; opacity: .55; } .span { stroke-width: 2; }
.mark { stroke: var(--page); stroke-width: 1; } .piece { stroke: var(--page); stroke-width: .5; }
.c0 { stroke: var(--c0); } .c1 { stroke: var(--c1); } .c2 { stroke: var(--c2); } .c3 { stroke: var(--c3); }
.c9 { stroke: var(--c9); }
.f0 { fill: var(--c0); } .f1 { fill: var(--c1); } .f2 { fill: var(--c2); } .f3 { fill: var(--c3); } .f9 { fill: var(--c9); }
svg .t0, .k0 { fill: var(--c0); color: var(--c0); } svg .t1, .k1 { fill: var(--c1); color: var(--c1); }
svg .t2, .k2 { fill: var(--c2); color: var(--c2); } svg .t3, .k3 { fill: var(--c3); color: var(--c3); }
svg .t9, .k9 { fill: var(--c9); color: var(--c9); }
.k0, .k1, .k2, .k3, .k9 { font-weight: 600; }
svg .inside { fill: var(--on); font-size: 11.5px; font-weight: 600; }
@media print { main { max-width: none; } }
";

/// A page in the making.
pub struct Page {
    title: String,
    body: String,
    contents: Vec<String>,
}

impl Page {
    pub fn new(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            body: String::new(),
            contents: vec![],
        }
    }

    /// A new part, about this file.
    pub fn part(&mut self, title: &str, file: &str) {
        self.contents.push(format!("{title} ({file})"));
        let _ = writeln!(
            self.body,
            "<h2 id=\"part{}\">{}</h2>",
            self.contents.len(),
            escape(title)
        );
    }

    pub fn head(&mut self, title: &str) {
        let _ = writeln!(self.body, "<h3>{}</h3>", escape(title));
    }

    pub fn text(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p>{}</p>", escape(text));
    }

    /// Text of less weight: what a chart leaves open.
    pub fn note(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p class=\"soft\">{}</p>", escape(text));
    }

    pub fn command(&mut self, before: &str, command: &str) {
        let (before, command) = (escape(before), escape(command));
        let _ = writeln!(
            self.body,
            "<p class=\"soft\">{before} <code>{command}</code></p>"
        );
    }

    /// Names in the colours that the next chart draws them in.
    pub fn key(&mut self, names: &[(&str, usize)]) {
        let names: Vec<String> = names
            .iter()
            .map(|(name, color)| {
                format!("<span class=\"k{color}\">\u{25a0} {}</span>", escape(name))
            })
            .collect();
        let _ = writeln!(
            self.body,
            "<p class=\"soft\">{}</p>",
            names.join(" &#160; ")
        );
    }

    /// What is HTML already.
    pub fn chart(&mut self, chart: &str) {
        let _ = writeln!(self.body, "{chart}");
    }

    /// The first `left` columns are names, the others numbers.
    pub fn table(&mut self, left: usize, heads: &[&str], rows: &[Vec<String>]) {
        let row = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
            let mut text = String::from("<tr>");
            for (n, cell) in cells.enumerate() {
                let class = if n < left { " class=\"l\"" } else { "" };
                let _ = write!(text, "<{tag}{class}>{}</{tag}>", escape(cell));
            }
            text + "</tr>\n"
        };
        let head = row("th", &mut heads.iter().copied());
        let rows: String = rows
            .iter()
            .map(|cells| row("td", &mut cells.iter().map(String::as_str)))
            .collect();
        let _ = writeln!(
            self.body,
            "<div class=\"scroll\"><table>\n<thead>{head}</thead>\n<tbody>{rows}</tbody></table></div>"
        );
    }

    pub fn finish(self, made: &str) -> String {
        let title = escape(&self.title);
        let mut contents = String::new();
        if self.contents.len() > 1 {
            contents.push_str("<ul>\n");
            for (n, part) in (1..).zip(&self.contents) {
                let _ = writeln!(
                    contents,
                    "<li><a href=\"#part{n}\">{}</a></li>",
                    escape(part)
                );
            }
            contents.push_str("</ul>\n");
        }
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body><main>\n<h1>{title}</h1>\n<p class=\"soft\">{}</p>\n{contents}{}</main></body>\n</html>\n",
            escape(made),
            self.body
        )
    }
}
