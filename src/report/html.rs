//! The page around charts and tables: one file, no network, light or dark as the reader's system is.

use super::style::{COLORS, MARKS};
use super::svg::escape;
use std::fmt::Write;

/// Of the page around the charts.
const STYLE: &str = "* { box-sizing: border-box; }
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
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{title}</title>\n<style>{COLORS}{STYLE}{MARKS}</style>\n</head>\n<body><main>\n<h1>{title}</h1>\n<p class=\"soft\">{}</p>\n{contents}{}</main></body>\n</html>\n",
            escape(made),
            self.body
        )
    }
}
