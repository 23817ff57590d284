//! A lineup of launch ways as one SVG file for a README: a panel a batch, a row a way, from the median to the slow steps
//! with an idle and with a busy host, beside the bare graph and the floor. Sized in CSS pixels.

use super::lineup::{Batch, Cell, Lineup};
use super::steps::{BARE, color, sequences};
use super::style::{COLORS, MARKS};
use super::svg::{Scale, Svg, exact, figure};

const WIDTH: f64 = 800.0;
const EDGE: f64 = 16.0;
/// Of the numbers at the right: the column's right edge, and that of the one before.
const GROWTH: f64 = WIDTH - EDGE;
const MEDIAN: f64 = GROWTH - 104.0;
/// Between marks and numbers.
const GAP: f64 = 60.0;
const ROW: f64 = 18.0;
/// Above a panel's rows: its name.
const HEAD: f64 = 26.0;
/// Of a line of text.
const LINE: f64 = 17.0;
/// Pixels a letter takes at the most, on average: of titles, of other text, of names.
const TITLE_LETTER: f64 = 10.3;
const LETTER: f64 = 7.0;
const NAME_LETTER: f64 = 7.8;
/// Of a number over a line, with room around it.
const NUMBER: f64 = 48.0;
/// Of a ring, which may lie around a tick.
const RING: f64 = 5.0;
/// A p99 that grows so much with a busy host is no chance.
const FAR: f64 = 1.5;

const STYLE: &str = "
.page { fill: var(--page); }
svg .title { fill: var(--ink); font-size: 16px; font-weight: 600; }
.least { fill: var(--rule); fill-opacity: .5; stroke: var(--rule); stroke-width: 1; }
.bare { stroke: var(--c9); stroke-width: 1.5; stroke-dasharray: 4 3; }
.ring { fill: none; stroke-width: 2; } .reach { stroke-width: 1.5; stroke-dasharray: 1.5 3; }
svg .far { fill: var(--ink); font-weight: 600; }
";

/// Text as lines of at most `wide` pixels.
fn wrapped(text: &str, wide: f64, letter: f64) -> Vec<String> {
    let mut lines: Vec<String> = vec![];
    for word in text.split_whitespace() {
        let fits = |line: &&mut String| {
            (line.chars().count() + 1 + word.chars().count()) as f64 * letter <= wide
        };
        match lines.last_mut().filter(fits) {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A picture in the making.
struct Drawing<'a> {
    svg: Svg,
    lineup: &'a Lineup,
    x: Scale,
    left: f64,
    right: f64,
}

/// The file.
pub fn svg(lineup: &Lineup) -> String {
    let title = match &lineup.finding {
        Some(finding) => finding.as_str(),
        None => "How long a step takes in each way to launch",
    };
    let titles = wrapped(title, WIDTH - 2.0 * EDGE, TITLE_LETTER);
    let subjects = wrapped(&lineup.subject, WIDTH - 2.0 * EDGE, LETTER);
    let longest = lineup.ways.iter().map(|way| way.chars().count()).max();
    let left = EDGE + (longest.unwrap_or(0) as f64 * NAME_LETTER + 10.0).clamp(96.0, 260.0);
    let right = MEDIAN - GAP;
    let values = lineup.batches.iter().flat_map(|batch| {
        let cells = batch.cells.iter();
        let times = cells.flat_map(|cell| [cell.p50, cell.p99, cell.busy_p99]);
        times.chain([batch.floor, batch.bare]).flatten()
    });
    let x = Scale::log(values, left + RING, right - RING);
    let key = EDGE + 6.0 + LINE * (titles.len() + subjects.len()) as f64 + 22.0;
    let panels = key + 18.0;
    let rows = |batch: &Batch| batch.cells.iter().filter(|cell| !cell.is_empty()).count() as f64;
    let heights = lineup.batches.iter().map(|batch| HEAD + ROW * rows(batch));
    let floor = panels + heights.sum::<f64>() + 8.0;
    let mut drawing = Drawing {
        svg: Svg::new(WIDTH, floor + 46.0),
        lineup,
        x,
        left,
        right,
    };
    drawing.words(&titles, &subjects);
    drawing.key(key);
    drawing.axis(panels, floor);
    let mut y = panels;
    for batch in &lineup.batches {
        drawing.panel(batch, y);
        y += HEAD + ROW * rows(batch);
    }
    let label = format!("{title}. {}", lineup.subject);
    drawing
        .svg
        .alone(&label, &format!("{COLORS}{MARKS}{STYLE}"))
}

impl Drawing<'_> {
    fn words(&mut self, titles: &[String], subjects: &[String]) {
        let mut y = EDGE + 12.0;
        let lines = titles.iter().map(|line| (line, "title"));
        for (n, (line, class)) in lines
            .chain(subjects.iter().map(|l| (l, "soft")))
            .enumerate()
        {
            // Some room between the two.
            let gap = if n >= titles.len() { 6.0 } else { 0.0 };
            self.svg.text(EDGE, y + gap, "start", class, line);
            y += LINE;
        }
    }

    /// What the marks mean, with its middle at `y`.
    fn key(&mut self, y: f64) {
        let neutral = color(BARE);
        let mut at = EDGE + 5.0;
        self.svg.mark(neutral, at, y, "p50");
        at = self.say(at, y, "p50");
        self.tick((at, y), neutral);
        at = self.say(at, y, "p99, host idle");
        if let Some(beside) = self.lineup.beside() {
            self.svg
                .ring((at, y), RING, &format!("ring c{neutral}"), "p99");
            at = self.say(at, y, &format!("p99 {beside}"));
        }
        let batches = || self.lineup.batches.iter();
        let (bare, floor) = (
            batches().any(|batch| batch.bare.is_some()),
            batches().any(|batch| batch.floor.is_some()),
        );
        if bare {
            self.svg.line((at, y - 7.0), (at, y + 7.0), "bare");
            at = self.say(at, y, "bare graph, p50");
        }
        if floor {
            let size = (12.0, 12.0);
            self.svg
                .rect((at - 6.0, y - 6.0), size, "least", "below the floor");
            self.say(at, y, "below the floor");
        }
    }

    /// Text beside a mark at `at`; where the next mark goes.
    fn say(&mut self, at: f64, y: f64, text: &str) -> f64 {
        self.svg.text(at + 10.0, y + 4.0, "start", "tick", text);
        at + 10.0 + text.chars().count() as f64 * LETTER + 16.0
    }

    /// p99 with an idle host.
    fn tick(&mut self, (x, y): (f64, f64), color: usize) {
        let class = format!("span c{color}");
        self.svg.line((x, y - 5.0), (x, y + 5.0), &class);
    }

    fn axis(&mut self, top: f64, floor: f64) {
        for tick in self.x.ticks(9) {
            let at = self.x.at(tick);
            self.svg.line((at, top + HEAD), (at, floor), "grid");
            self.svg
                .text(at, floor + 16.0, "middle", "tick", &figure(tick));
        }
        let name = format!("{} a step, logarithmic", self.lineup.unit);
        let middle = (self.left + self.right) / 2.0;
        self.svg.text(middle, floor + 36.0, "middle", "axis", &name);
        let below = top + HEAD - 10.0;
        let head = format!("p50 {}", self.lineup.unit);
        self.svg.text(MEDIAN, below, "end", "tick", &head);
        if self.lineup.busy.is_some() {
            self.svg
                .text(GROWTH, below, "end", "tick", "p99 busy / idle");
        }
    }

    fn panel(&mut self, batch: &Batch, top: f64) {
        let rows: Vec<(&String, Cell)> = self
            .lineup
            .ways
            .iter()
            .zip(batch.cells.iter().copied())
            .filter(|(_, cell)| !cell.is_empty())
            .collect();
        let head = top + HEAD - 10.0;
        let (from, to) = (top + HEAD - 4.0, top + HEAD + ROW * rows.len() as f64);
        let name = sequences(batch.sequences);
        self.svg.text(EDGE, head, "start", "group", &name);
        // Their numbers keep apart where they lie close.
        let shift = match (batch.floor, batch.bare) {
            (Some(floor), Some(bare)) => {
                ((NUMBER - (self.x.at(bare) - self.x.at(floor))) / 2.0).max(0.0)
            }
            _ => 0.0,
        };
        if let Some(least) = batch.floor {
            let at = self.x.at(least);
            let title = format!("floor of {name}: {} {}", figure(least), self.lineup.unit);
            let size = (at - self.left, to - from);
            self.svg.rect((self.left, from), size, "least", &title);
            self.svg
                .text(at - shift, head, "middle", "tick", &exact(least));
        }
        if let Some(bare) = batch.bare {
            let at = self.x.at(bare);
            self.svg.line((at, from), (at, to), "bare");
            self.svg
                .text(at + shift, head, "middle", "tick t9", &exact(bare));
        }
        for (n, (way, cell)) in rows.into_iter().enumerate() {
            let middle = top + HEAD + ROW * (n as f64 + 0.5);
            self.row(way, cell, middle, &name);
        }
    }

    fn row(&mut self, way: &str, cell: Cell, y: f64, batch: &str) {
        let (color, unit) = (color(way), self.lineup.unit);
        let names = format!("name t{color}");
        self.svg.text(self.left - 10.0, y + 4.0, "end", &names, way);
        let at = |value: Option<f64>| value.map(|value| self.x.at(value));
        let (p50, p99, busy) = (at(cell.p50), at(cell.p99), at(cell.busy_p99));
        if let (Some(from), Some(to)) = (p99, busy) {
            // Up to the ring, where the two are apart.
            let to = to - RING * (to - from).signum();
            if (to - from).abs() > RING {
                self.svg
                    .line((from, y), (to, y), &format!("reach c{color}"));
            }
        }
        if let (Some(from), Some(to)) = (p50, p99) {
            self.svg.line((from, y), (to, y), &format!("span c{color}"));
        }
        if let Some(p99) = p99 {
            self.tick((p99, y), color);
        }
        let values = [
            ("p50", cell.p50),
            ("p99", cell.p99),
            ("p99 with a busy host", cell.busy_p99),
        ];
        let values = values
            .iter()
            .filter_map(|(name, value)| Some(format!("{name} {}", exact((*value)?))));
        let title = format!(
            "{way}, {batch}: {} {unit}",
            super::listed(&values.collect::<Vec<_>>())
        );
        if let Some(p50) = p50 {
            self.svg.mark(color, p50, y, &title);
        }
        if let Some(busy) = busy {
            self.svg
                .ring((busy, y), RING, &format!("ring c{color}"), &title);
        }
        if let Some(p50) = cell.p50 {
            self.svg.text(MEDIAN, y + 4.0, "end", "tick", &exact(p50));
        }
        if let Some(growth) = cell.growth() {
            let far = if growth >= FAR { "far" } else { "tick" };
            let times = format!("\u{d7} {growth:.2}");
            self.svg.text(GROWTH, y + 4.0, "end", far, &times);
        }
    }
}
