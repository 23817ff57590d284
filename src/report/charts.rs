//! Charts of numbers by batch, way or bucket; what they mean is the caller's. Those over time are in [`super::time`].

use super::svg::{Scale, Svg, figure};

/// Pixels of a chart on a wide and on a narrow screen.
pub const WIDTHS: [f64; 2] = [720.0, 340.0];
const TOP: f64 = 30.0;
pub(super) const BOTTOM: f64 = 44.0;

/// One chart for both kinds of screen.
pub fn both(draw: impl Fn(f64) -> String) -> String {
    let [wide, narrow] = WIDTHS.map(draw);
    format!("<div class=\"chart wide\">{wide}</div><div class=\"chart narrow\">{narrow}</div>")
}

/// A line of a line chart. `color`: which of the page's.
pub struct Line {
    pub name: String,
    pub color: usize,
    pub dashed: bool,
    pub points: Vec<(f64, f64)>,
}

/// What stands at the axes.
pub struct Axes<'a> {
    /// What the chart shows, for those who do not see it.
    pub label: &'a str,
    pub x: &'a str,
    pub y: &'a str,
}

/// Lines over batch sizes, on a logarithmic axis that shows just these sizes; their names stand at their ends. `log`: the
/// other axis is logarithmic too.
pub fn lines(axes: &Axes<'_>, log: bool, lines: &[Line], width: f64) -> String {
    let narrow = width < 500.0;
    // On a narrow screen names stand above the lines.
    let height = if narrow {
        250.0 + 16.0 * lines.len() as f64
    } else {
        330.0
    };
    let longest = lines.iter().map(|line| line.name.len()).max().unwrap_or(0) as f64;
    let right = width - if narrow { 16.0 } else { longest * 7.6 + 28.0 };
    let (left, top) = (
        52.0,
        if narrow {
            TOP + 16.0 * lines.len() as f64
        } else {
            TOP
        },
    );
    let all = || lines.iter().flat_map(|line| &line.points);
    let x = Scale::log(all().map(|&(x, _)| x), left, right);
    let values = all().map(|&(_, y)| y);
    let y = match log {
        true => Scale::log(values, height - BOTTOM, top),
        false => Scale::linear(values, height - BOTTOM, top),
    };
    let mut svg = Svg::new(width, height);
    svg.text(0.0, 14.0, "start", "axis", axes.y);
    svg.line(
        (left, height - BOTTOM),
        (right, height - BOTTOM),
        "axisline",
    );
    for tick in y.ticks(if log { 9 } else { 5 }) {
        svg.line((left, y.at(tick)), (right, y.at(tick)), "grid");
        svg.text(left - 8.0, y.at(tick) + 4.0, "end", "tick", &figure(tick));
    }
    let mut sizes: Vec<f64> = all().map(|&(x, _)| x).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let mut free = f64::NEG_INFINITY;
    for size in sizes {
        svg.line(
            (x.at(size), height - BOTTOM),
            (x.at(size), height - BOTTOM + 5.0),
            "axisline",
        );
        // Sizes that lie close have a mark, and a number where there is room.
        if x.at(size) > free {
            svg.text(
                x.at(size),
                height - BOTTOM + 19.0,
                "middle",
                "tick",
                &figure(size),
            );
            free = x.at(size) + 26.0;
        }
    }
    svg.text((left + right) / 2.0, height - 6.0, "middle", "axis", axes.x);
    let at = |line: &Line| -> Vec<(f64, f64)> {
        line.points
            .iter()
            .map(|&(px, py)| (x.at(px), y.at(py)))
            .collect()
    };
    for (n, line) in lines.iter().enumerate() {
        let dashed = if line.dashed { " dashed" } else { "" };
        svg.path(&at(line), &format!("line c{}{dashed}", line.color));
        if narrow {
            // No room at the ends: names stand above, each with its mark.
            let height = 32.0 + 16.0 * n as f64;
            match line.dashed {
                true => svg.line(
                    (left - 2.0, height - 4.0),
                    (left + 14.0, height - 4.0),
                    &format!("line c{}{dashed}", line.color),
                ),
                false => svg.mark(line.color, left + 6.0, height - 4.0, &line.name),
            }
            svg.text(
                left + 18.0,
                height,
                "start",
                &format!("name t{}", line.color),
                &line.name,
            );
        }
        if !line.dashed {
            for (&(px, py), (sx, sy)) in line.points.iter().zip(at(line)) {
                let title = format!("{}: {} at {}", line.name, figure(py), figure(px));
                svg.mark(line.color, sx, sy, &title);
            }
        }
    }
    if !narrow {
        let ends: Vec<(f64, f64)> = lines
            .iter()
            .filter_map(|line| at(line).last().copied())
            .collect();
        let heights: Vec<f64> = ends.iter().map(|&(_, y)| y).collect();
        let places = Svg::apart(&heights, top, height - BOTTOM);
        for ((line, &(ex, ey)), place) in lines.iter().zip(&ends).zip(places) {
            svg.line(
                (ex + 6.0, ey),
                (right + 12.0, place),
                &format!("leader c{}", line.color),
            );
            svg.text(
                right + 16.0,
                place + 4.0,
                "start",
                &format!("name t{}", line.color),
                &line.name,
            );
        }
    }
    svg.finish(axes.label)
}

/// Where an axis' name stands: below the axis, or on a narrow screen, which it fills, in the middle of the chart.
pub(super) fn middle(left: f64, right: f64, width: f64) -> f64 {
    if width < 500.0 {
        width / 2.0
    } else {
        (left + right) / 2.0
    }
}

/// The horizontal axis of a chart of `height`: a line from top to bottom and a number at each tick, that at 0 of class
/// `zero`, and the axis' name around `name_at`.
pub(super) fn x_axis(
    svg: &mut Svg,
    (x, ticks): (&Scale, &[f64]),
    zero: &str,
    (name, name_at, height): (&str, f64, f64),
) {
    let floor = height - BOTTOM + 4.0;
    for &tick in ticks {
        let class = if tick == 0.0 { zero } else { "grid" };
        svg.line((x.at(tick), 6.0), (x.at(tick), floor), class);
        svg.text(x.at(tick), floor + 16.0, "middle", "tick", &figure(tick));
    }
    svg.text(name_at, height - 4.0, "middle", "axis", name);
}

/// A row of a range chart: a line from the first to the last value, a mark at the first, a tick at those between, a ring
/// at the last.
pub struct Range {
    pub name: String,
    pub color: usize,
    pub values: Vec<f64>,
}

/// Ranges in groups, on one logarithmic axis.
pub fn ranges(axes: &Axes<'_>, groups: &[(String, Vec<Range>)], width: f64) -> String {
    let narrow = width < 500.0;
    let rows: usize = groups.iter().map(|(_, ranges)| ranges.len()).sum();
    let height = 24.0 + BOTTOM + 18.0 * rows as f64 + 26.0 * groups.len() as f64;
    let longest = groups
        .iter()
        .flat_map(|(_, r)| r)
        .map(|r| r.name.len())
        .max()
        .unwrap_or(0) as f64;
    let left = (longest * 7.7 + 12.0).min(width * 0.6);
    let right = width - 20.0;
    let all = groups
        .iter()
        .flat_map(|(_, r)| r)
        .flat_map(|r| r.values.iter().copied());
    let x = Scale::log(all, left + 6.0, right);
    let mut svg = Svg::new(width, height);
    let ticks = x.ticks(if narrow { 5 } else { 10 });
    let name_at = middle(left, right, width);
    x_axis(&mut svg, (&x, &ticks), "grid", (axes.x, name_at, height));
    let mut y = 4.0;
    for (group, ranges) in groups {
        y += 18.0;
        svg.text(0.0, y, "start", "group", group);
        y += 8.0;
        for range in ranges {
            let middle = y + 8.0;
            svg.text(
                left - 4.0,
                middle + 4.0,
                "end",
                &format!("name t{}", range.color),
                &range.name,
            );
            let (Some(&first), Some(&last)) = (range.values.first(), range.values.last()) else {
                continue;
            };
            svg.line(
                (x.at(first), middle),
                (x.at(last), middle),
                &format!("span c{}", range.color),
            );
            for &value in &range.values[1..] {
                let at = x.at(value);
                svg.line(
                    (at, middle - 5.0),
                    (at, middle + 5.0),
                    &format!("span c{}", range.color),
                );
            }
            let values: Vec<String> = range.values.iter().map(|&v| figure(v)).collect();
            svg.mark(
                range.color,
                x.at(first),
                middle,
                &format!("{}: {}", range.name, values.join(", ")),
            );
            y += 18.0;
        }
    }
    svg.finish(axes.label)
}

/// A bar, which may point left of 0.
pub struct Bar {
    pub name: String,
    pub color: usize,
    pub value: f64,
}

/// Bars in groups, with their numbers.
pub fn bars(axes: &Axes<'_>, groups: &[(String, Vec<Bar>)], width: f64) -> String {
    let rows: usize = groups.iter().map(|(_, bars)| bars.len()).sum();
    let height = 24.0 + BOTTOM + 18.0 * rows as f64 + 26.0 * groups.len() as f64;
    let longest = groups
        .iter()
        .flat_map(|(_, b)| b)
        .map(|b| b.name.len())
        .max()
        .unwrap_or(0) as f64;
    let left = (longest * 7.7 + 12.0).min(width * 0.6);
    let all = || groups.iter().flat_map(|(_, b)| b).map(|b| b.value);
    let below = if all().any(|v| v < 0.0) { 46.0 } else { 6.0 };
    let x = Scale::linear(all(), left + below, width - 54.0);
    let mut svg = Svg::new(width, height);
    let ticks = x.ticks(if width < 500.0 { 3 } else { 6 });
    let name_at = middle(left, width, width);
    x_axis(
        &mut svg,
        (&x, &ticks),
        "axisline",
        (axes.x, name_at, height),
    );
    let mut y = 4.0;
    for (group, bars) in groups {
        y += 18.0;
        svg.text(0.0, y, "start", "group", group);
        y += 8.0;
        for bar in bars {
            svg.text(
                left - 4.0,
                y + 12.0,
                "end",
                &format!("name t{}", bar.color),
                &bar.name,
            );
            let (from, to) = (
                x.at(0.0).min(x.at(bar.value)),
                x.at(0.0).max(x.at(bar.value)),
            );
            let title = format!("{}: {}", bar.name, figure(bar.value));
            svg.rect(
                (from, y + 2.0),
                (to - from, 12.0),
                &format!("f{}", bar.color),
                &title,
            );
            let (at, anchor) = if bar.value < 0.0 {
                (from - 5.0, "end")
            } else {
                (to + 5.0, "start")
            };
            svg.text(at, y + 12.0, anchor, "tick", &figure(bar.value));
            y += 18.0;
        }
    }
    svg.finish(axes.label)
}
