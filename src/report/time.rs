//! Charts over time.

use super::charts::{Axes, BOTTOM, middle, x_axis};
use super::svg::{Scale, Svg, figure};

/// A piece of a track.
pub struct Piece {
    pub name: String,
    pub color: usize,
    pub from: f64,
    pub to: f64,
}

/// Tracks one below the other over one axis of time.
pub fn tracks(axes: &Axes<'_>, tracks: &[(String, Vec<Piece>)], width: f64) -> String {
    let narrow = width < 500.0;
    let thin = tracks.len() > 8;
    let row = if thin { 17.0 } else { 34.0 };
    // On a narrow screen, and where a name is long, names stand above their tracks.
    let longest = tracks.iter().map(|(name, _)| name.len()).max().unwrap_or(0) as f64 * 6.6 + 10.0;
    let above = !thin && (narrow || longest > 150.0);
    let left = if above { 4.0 } else { longest };
    let each = row + if above { 18.0 } else { 0.0 };
    let height = 12.0 + each * tracks.len() as f64 + BOTTOM;
    let times = tracks
        .iter()
        .flat_map(|(_, p)| p)
        .flat_map(|p| [p.from, p.to]);
    let most = times.fold(0.0, f64::max);
    let x = Scale::exact(0.0, most, left, width - 18.0);
    let mut svg = Svg::new(width, height);
    let ticks = x.ticks(if narrow { 4 } else { 8 });
    let name_at = middle(left, width, width);
    x_axis(&mut svg, (&x, &ticks), "grid", (axes.x, name_at, height));
    let mut y = 8.0;
    for (name, pieces) in tracks {
        if above {
            svg.text(0.0, y + 12.0, "start", "group", name);
        } else {
            svg.text(left - 6.0, y + row / 2.0 + 3.0, "end", "tick", name);
        }
        let top = y + each - row;
        for piece in pieces {
            let (from, wide) = (x.at(piece.from), x.at(piece.to) - x.at(piece.from));
            let title = format!(
                "{}: {} to {}",
                piece.name,
                figure(piece.from),
                figure(piece.to)
            );
            // An edge would hide a piece that is thinner than it.
            let edge = if wide > 3.0 { "piece " } else { "" };
            let class = format!("{edge}f{}", piece.color);
            svg.rect((from, top + 1.0), (wide, row - 4.0), &class, &title);
            if !thin && wide > piece.name.len() as f64 * 6.8 + 8.0 {
                let class = format!("inside i{}", piece.color);
                svg.text(
                    from + wide / 2.0,
                    top + row / 2.0 + 3.0,
                    "middle",
                    &class,
                    &piece.name,
                );
            }
        }
        y += each;
    }
    svg.finish(axes.label)
}

/// A value over time, as steps, in a low band of its own: `(name, points)`, each to the end of the axis.
pub fn bands(axes: &Axes<'_>, bands: &[(String, Vec<(f64, f64)>)], end: f64, width: f64) -> String {
    let (left, each) = (52.0, 92.0);
    let height = each * bands.len() as f64 + BOTTOM;
    let x = Scale::exact(0.0, end, left, width - 18.0);
    let mut svg = Svg::new(width, height);
    let floor = height - BOTTOM;
    for tick in x.ticks(if width < 500.0 { 4 } else { 8 }) {
        svg.line((x.at(tick), 20.0), (x.at(tick), floor), "grid");
        svg.text(x.at(tick), floor + 18.0, "middle", "tick", &figure(tick));
    }
    svg.text((left + width) / 2.0, height - 6.0, "middle", "axis", axes.x);
    for (n, (name, points)) in bands.iter().enumerate() {
        let top = each * n as f64;
        svg.text(0.0, top + 14.0, "start", "group", name);
        let y = Scale::linear(
            points.iter().map(|&(_, v)| v),
            top + each - 12.0,
            top + 24.0,
        );
        for tick in y.ticks(2) {
            svg.line((left, y.at(tick)), (width - 18.0, y.at(tick)), "grid");
            svg.text(left - 8.0, y.at(tick) + 4.0, "end", "tick", &figure(tick));
        }
        let mut path = vec![];
        for (n, &(at, value)) in points.iter().enumerate() {
            let until = points.get(n + 1).map_or(end, |&(next, _)| next);
            path.push((x.at(at), y.at(value)));
            path.push((x.at(until), y.at(value)));
        }
        svg.path(&path, "line thin c0");
    }
    svg.finish(axes.label)
}
