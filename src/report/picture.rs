//! A lineup of launch ways as one SVG file for a README: a panel a batch, a row a way, from the median to the slow steps
//! with an idle and with a busy host, beside the bare graph and the floor. Sized in CSS pixels; light or dark as the
//! reader's system is.

use super::lineup::{Batch, Cell, Lineup};
use super::listed;
use crate::bench::output::number;
use crate::command::summary::counted;
use crate::quote;
use std::fmt::Write;

const WIDTH: f64 = 800.0;
const EDGE: f64 = 16.0;
/// The right edges of the columns of numbers, and between what marks are.
const GROWTH: f64 = WIDTH - EDGE;
const MEDIAN: f64 = GROWTH - 104.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = MEDIAN - 66.0;
const ROW: f64 = 18.0;
/// Above a panel's rows: its name.
const HEAD: f64 = 28.0;
/// Where the first panel begins, below what is said of all.
const PANELS: f64 = 74.0;

/// Ways have these by their places: `--c0` and so on.
const COLORS: usize = 7;
const STYLE: &str = ":root { --page: #fdfdfb; --ink: #1d1f21; --soft: #5c6066; --rule: #d8d9d4; --c0: #0068a8; --c1: #c04a00; --c2: #007a5a;
  --c3: #a8467f; --c4: #6d4fc4; --c5: #8a6d00; --c6: #00889c; --c9: #6b6f75; }
@media (prefers-color-scheme: dark) { :root { --page: #16181b; --ink: #e7e8e6; --soft: #a4a9af; --rule: #363a40; --c0: #5bb8ee; --c1: #f0913c;
  --c2: #3fc9a0; --c3: #e294c0; --c4: #b39dfa; --c5: #dcc24a; --c6: #5fd9e8; --c9: #9aa0a8; } }
text { fill: var(--soft); font: 12px system-ui, sans-serif; } .ink { fill: var(--ink); } .title { fill: var(--ink); font-size: 16px; font-weight: 600; }
.bold { fill: var(--ink); font-weight: 600; } .page { fill: var(--page); } .least { fill: var(--rule); fill-opacity: .6; }
line, circle { stroke: var(--c, var(--c9)); stroke-width: 2; } circle { fill: var(--c); } .ring { fill: none; } .way { fill: var(--c); font-weight: 600; }
.grid { stroke: var(--rule); stroke-width: 1; } .bare { stroke-dasharray: 4 3; } .reach { stroke-width: 1.5; stroke-dasharray: 1.5 3; }
";

/// Text as XML writes it, cut to so many characters.
fn escape(text: &str, most: usize) -> String {
    let text = quote::visible(text);
    let mut shown: String = text.chars().take(most).collect();
    if shown.len() < text.len() {
        shown.pop();
        shown.push('\u{2026}');
    }
    let shown = shown.replace('&', "&amp;").replace('<', "&lt;");
    shown.replace('>', "&gt;").replace('"', "&quot;")
}

/// Values to pixels, logarithmically.
struct Scale {
    from: f64,
    to: f64,
}

impl Scale {
    /// From a little below the least of these to a little above the largest.
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let values = values.map(|value| value.clamp(1e-9, 1e15));
        let most = values.clone().fold(1e-9, f64::max);
        Self {
            from: values.fold(most, f64::min) / 1.1,
            to: most * 1.1,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.clamp(self.from, self.to) / self.from).ln() / (self.to / self.from).ln();
        LEFT + share * (RIGHT - LEFT)
    }

    /// Round numbers that have room beside each other, powers of ten first.
    fn ticks(&self) -> Vec<f64> {
        let mut ticks: Vec<f64> = vec![];
        for mantissa in ["1", "5", "2", "3", "7", "1.5", "4", "6"] {
            for decade in self.from.log10().floor() as i32..=self.to.log10() as i32 {
                // Parsed from its text, so that it is written as the same text again.
                let tick = format!("{mantissa}e{decade}").parse().unwrap_or(1.0);
                let apart = |&other: &f64| (self.at(other) - self.at(tick)).abs() > 40.0;
                if (self.from..=self.to).contains(&tick) && ticks.iter().all(apart) {
                    ticks.push(tick);
                }
            }
        }
        ticks
    }
}

/// A picture in the making.
struct Drawing<'a> {
    marks: String,
    x: Scale,
    lineup: &'a Lineup,
}

/// The file.
pub fn svg(lineup: &Lineup) -> String {
    let values = lineup.batches.iter().flat_map(|batch| {
        let cells = batch.cells.iter();
        let times = cells.flat_map(|cell| [cell.p50, cell.p99, cell.busy_p99]);
        times.chain([batch.floor, batch.bare]).flatten()
    });
    let mut drawing = Drawing {
        marks: String::new(),
        x: Scale::of(values.filter(|&value| value > 0.0)),
        lineup,
    };
    let rows = |batch: &Batch| batch.cells.iter().filter(|cell| !cell.is_empty()).count() as f64;
    let panels = lineup.batches.iter().map(|batch| HEAD + ROW * rows(batch));
    let floor = PANELS + panels.sum::<f64>() + 8.0;
    let busy = lineup.beside().map(|words| format!("; ring: p99 {words}"));
    let title = "How long a step takes in each way to launch";
    let what = &lineup.subject;
    let key = format!(
        "Dot: p50; tick: p99, host idle{}; dashed: the bare graph; grey: below the floor",
        busy.unwrap_or_default()
    );
    drawing.text(EDGE, 28.0, "start", "title", title);
    drawing.text(EDGE, 48.0, "start", "ink", what);
    drawing.text(EDGE, 66.0, "start", "", &key);
    for tick in drawing.x.ticks() {
        let at = drawing.x.at(tick);
        drawing.line((at, PANELS + HEAD - 6.0), (at, floor), "grid");
        drawing.text(at, floor + 16.0, "middle", "", &tick.to_string());
    }
    let middle = (LEFT + RIGHT) / 2.0;
    drawing.text(middle, floor + 36.0, "middle", "ink", "ms a step (log)");
    drawing.text(MEDIAN, PANELS + HEAD - 10.0, "end", "", "p50 ms");
    if lineup.busy.is_some() {
        drawing.text(GROWTH, PANELS + HEAD - 10.0, "end", "", "p99 busy / idle");
    }
    let mut top = PANELS;
    for batch in &lineup.batches {
        let end = top + HEAD + ROW * rows(batch);
        drawing.panel(batch, top, end);
        top = end;
    }
    let (height, marks) = (floor + 46.0, drawing.marks);
    let label = escape(&format!("{title}. {what}"), 400);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" aria-label=\"{label}\">\n<style>{STYLE}</style>\n<rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\"/>\n{marks}</svg>\n"
    )
}

impl Drawing<'_> {
    fn add(&mut self, mark: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.marks, "{mark}");
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
        let text = escape(text, 116);
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>"
        ));
    }

    fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        self.add(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"
        ));
    }

    /// A batch, from `top` to `end`.
    fn panel(&mut self, batch: &Batch, top: f64, end: f64) {
        let (head, from) = (top + HEAD - 10.0, top + HEAD - 5.0);
        let name = counted(batch.sequences.into(), "sequence");
        self.text(EDGE, head, "start", "bold", &name);
        let at = |value: Option<f64>| value.map(|value| (self.x.at(value), number(value)));
        let (floor, bare) = (at(batch.floor), at(batch.bare));
        // Their numbers keep apart where they lie close.
        let shift = match (&floor, &bare) {
            (Some((floor, _)), Some((bare, _))) => ((46.0 - (bare - floor)) / 2.0).max(0.0),
            _ => 0.0,
        };
        if let Some((at, value)) = floor {
            let (width, height) = (at - LEFT, end - from);
            self.add(format_args!(
                "<rect x=\"{LEFT}\" y=\"{from:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" class=\"least\"/>"
            ));
            self.text(at - shift, head, "middle", "", &value);
        }
        if let Some((at, value)) = bare {
            self.line((at, from), (at, end), "bare");
            self.text(at + shift, head, "middle", "", &value);
        }
        let lineup = self.lineup;
        let cells = batch.cells.iter().zip(&lineup.ways).enumerate();
        let shown = cells.filter(|(_, (cell, _))| !cell.is_empty());
        for (n, (place, (cell, way))) in shown.enumerate() {
            let y = top + HEAD + ROW * (n as f64 + 0.5);
            let color = place % COLORS;
            let title = escape(&title(cell, &format!("{way}, {name}")), 400);
            self.add(format_args!(
                "<g style=\"--c: var(--c{color})\"><title>{title}</title>"
            ));
            self.row(&escape(way, 24), *cell, y);
            self.add(format_args!("</g>"));
        }
    }

    fn row(&mut self, way: &str, cell: Cell, y: f64) {
        let (x, under) = (LEFT - 10.0, y + 4.0);
        self.add(format_args!(
            "<text x=\"{x}\" y=\"{under}\" text-anchor=\"end\" class=\"way\">{way}</text>"
        ));
        let at = |value: Option<f64>| value.map(|value| self.x.at(value));
        let (p50, p99, busy) = (at(cell.p50), at(cell.p99), at(cell.busy_p99));
        if let (Some(from), Some(to)) = (p99, busy) {
            self.line((from, y), (to, y), "reach");
        }
        if let (Some(from), Some(to)) = (p50, p99) {
            self.line((from, y), (to, y), "");
        }
        if let Some(p99) = p99 {
            self.line((p99, y - 5.0), (p99, y + 5.0), "");
        }
        for (at, radius, class) in [(busy, 5, "ring"), (p50, 4, "")] {
            if let Some(at) = at {
                self.add(format_args!(
                    "<circle cx=\"{at:.1}\" cy=\"{y:.1}\" r=\"{radius}\" class=\"{class}\"/>"
                ));
            }
        }
        if let Some(p50) = cell.p50 {
            self.text(MEDIAN, under, "end", "ink", &number(p50));
        }
        if let (Some(busy), Some(idle)) = (cell.busy_p99, cell.p99) {
            let growth = format!("\u{d7} {:.2}", busy / idle);
            self.text(GROWTH, under, "end", "ink", &growth);
        }
    }
}

/// What a row says when it is pointed at.
fn title(cell: &Cell, name: &str) -> String {
    let busy = ("p99 with a busy host", cell.busy_p99);
    let values = [("p50", cell.p50), ("p99", cell.p99), busy].into_iter();
    let values = values.filter_map(|(name, value)| Some(format!("{name} {}", number(value?))));
    format!("{name}: {} ms", listed(&values.collect::<Vec<_>>()))
}
