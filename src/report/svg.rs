//! Charts as SVG, sized in CSS pixels for one width; a page holds each for a wide and for a narrow screen. Colours come
//! from the page's style by class (`c0`, `c1` ...), so that light and dark are its matter; every mark has a `<title>`.

use crate::quote;
use std::fmt::Write;

/// Text of marks and axes, in px.
const LINE: f64 = 14.0;

/// `<` and the like as HTML writes them; XML has no control characters.
pub fn escape(text: &str) -> String {
    quote::visible(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A number as people read it: four figures, no more than it needs.
pub fn figure(value: f64) -> String {
    let text = exact(value);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A number of a column of them: four figures, also where the last are 0.
pub fn exact(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{value:.digits$}");
    let text = match text.contains('.') {
        true => text,
        false => thousands(&text),
    };
    text.replace('-', "\u{2212}")
}

/// With thin spaces between thousands.
fn thousands(digits: &str) -> String {
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", digits),
    };
    let mut text = String::from(sign);
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) && digits.len() > 4 {
            text.push('\u{2009}');
        }
        text.push(digit);
    }
    text
}

/// Values to pixels.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    from: f64,
    to: f64,
    /// Pixels of `from` and `to`.
    start: f64,
    end: f64,
    log: bool,
}

impl Scale {
    /// With some room around the values; from 0 where they are not below it.
    pub fn linear(values: impl IntoIterator<Item = f64>, start: f64, end: f64) -> Self {
        let (least, most) = range(values);
        let step = nice((most.max(0.0) - least.min(0.0)).max(1e-9) / 4.0);
        let (from, to) = (
            (least.min(0.0) / step).floor() * step,
            (most.max(0.0) / step).ceil() * step,
        );
        Self {
            from,
            // Where all values are 0 too.
            to: if to > from { to } else { from + 1.0 },
            start,
            end,
            log: false,
        }
    }

    /// Exactly these limits.
    pub fn exact(from: f64, to: f64, start: f64, end: f64) -> Self {
        Self {
            from,
            to: if to > from { to } else { from + 1.0 },
            start,
            end,
            log: false,
        }
    }

    /// Powers of ten and their halves; values are above 0.
    pub fn log(values: impl IntoIterator<Item = f64>, start: f64, end: f64) -> Self {
        let (least, most) = range(values);
        let (least, most) = (least.max(LEAST), most.max(LEAST));
        Self {
            from: least / 1.15,
            to: most * 1.15,
            start,
            end,
            log: true,
        }
    }

    pub fn at(&self, value: f64) -> f64 {
        let value = value.clamp(-MOST, MOST);
        let share = match self.log {
            true => (value.max(LEAST) / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        self.start + share * (self.end - self.start)
    }

    /// Where to draw lines, `most` at the most.
    pub fn ticks(&self, most: usize) -> Vec<f64> {
        if !self.log {
            let step = nice((self.to - self.from) / most.max(1) as f64);
            let first = (self.from / step).ceil() as i64;
            let last = (self.to / step + 1e-9).floor() as i64;
            return (first..=last).map(|n| n as f64 * step).collect();
        }
        let decades = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
        for marks in [
            &[1.0, 2.0, 3.0, 5.0][..],
            &[1.0, 2.0, 5.0],
            &[1.0, 3.0],
            &[1.0],
        ] {
            let all = decades
                .clone()
                .flat_map(|d| marks.iter().map(move |m| m * 10f64.powi(d)));
            let inside: Vec<f64> = all.filter(|&v| v >= self.from && v <= self.to).collect();
            if inside.len() <= most {
                return inside;
            }
        }
        vec![]
    }
}

/// What a logarithmic scale begins with, at least.
const LEAST: f64 = 1e-12;
/// Values that are further from 0 are drawn here: a file may have any, and sums with them are to stay finite.
const MOST: f64 = 1e100;

fn range(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let start = (f64::INFINITY, f64::NEG_INFINITY);
    let (least, most) = values
        .into_iter()
        .map(|value| value.clamp(-MOST, MOST))
        .fold(start, |(least, most), v| (least.min(v), most.max(v)));
    if least > most {
        (0.0, 1.0)
    } else {
        (least, most)
    }
}

/// 1, 2 or 5 times a power of ten, at least `step`.
fn nice(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0];
    times
        .into_iter()
        .find(|t| t * power >= step * 0.999)
        .unwrap_or(10.0)
        * power
}

/// A chart in the making.
pub struct Svg {
    body: String,
    width: f64,
    height: f64,
}

impl Svg {
    pub fn new(width: f64, height: f64) -> Self {
        Self {
            body: String::new(),
            width,
            height,
        }
    }

    pub fn text(&mut self, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
        let text = escape(text);
        let _ = write!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>"
        );
    }

    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        let _ = write!(
            self.body,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"
        );
    }

    /// Straight lines through points.
    pub fn path(&mut self, points: &[(f64, f64)], class: &str) {
        let mut data = String::new();
        for (n, (x, y)) in points.iter().enumerate() {
            let _ = write!(data, "{}{x:.1} {y:.1}", if n == 0 { "M" } else { "L" });
        }
        let _ = write!(self.body, "<path d=\"{data}\" class=\"{class}\"/>");
    }

    pub fn rect(
        &mut self,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        class: &str,
        title: &str,
    ) {
        let (width, title) = (width.max(0.6), escape(title));
        let _ = write!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" class=\"{class}\"><title>{title}</title></rect>"
        );
    }

    /// A point of series `n`: each has a shape of its own beside its colour.
    pub fn mark(&mut self, n: usize, x: f64, y: f64, title: &str) {
        let title = escape(title);
        let shape = match n % 4 {
            0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\""),
            1 => format!(
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"7\" height=\"7\"",
                x - 3.5,
                y - 3.5
            ),
            2 => format!(
                "<polygon points=\"{x:.1},{:.1} {:.1},{:.1} {:.1},{:.1}\"",
                y - 4.8,
                x + 4.4,
                y + 3.4,
                x - 4.4,
                y + 3.4
            ),
            _ => format!(
                "<polygon points=\"{x:.1},{:.1} {:.1},{y:.1} {x:.1},{:.1} {:.1},{y:.1}\"",
                y - 5.0,
                x + 5.0,
                y + 5.0,
                x - 5.0
            ),
        };
        let tag = shape[1..].split(' ').next().unwrap_or("circle");
        let _ = write!(
            self.body,
            "{shape} class=\"mark f{n}\"><title>{title}</title></{tag}>"
        );
    }

    pub fn ring(&mut self, (x, y): (f64, f64), radius: f64, class: &str, title: &str) {
        let title = escape(title);
        let _ = write!(
            self.body,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\" class=\"{class}\"><title>{title}</title></circle>"
        );
    }

    /// The whole, with a name for those who do not see it.
    pub fn finish(self, label: &str) -> String {
        format!(
            "<svg viewBox=\"0 0 {w:.0} {h:.0}\" width=\"{w:.0}\" height=\"{h:.0}\" role=\"img\" aria-label=\"{label}\">{body}</svg>",
            w = self.width,
            h = self.height,
            label = escape(label),
            body = self.body
        )
    }

    /// A file of its own, which looks as `style` says.
    pub fn alone(self, label: &str, style: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w:.0} {h:.0}\" width=\"{w:.0}\" height=\"{h:.0}\" role=\"img\" aria-label=\"{label}\">\n<style>{style}</style>\n<rect width=\"100%\" height=\"100%\" class=\"page\"/>\n{body}\n</svg>\n",
            w = self.width,
            h = self.height,
            label = escape(label),
            body = self.body
        )
    }

    /// Places for labels at these heights, none within a line's height of another, in the same order.
    pub fn apart(heights: &[f64], least: f64, most: f64) -> Vec<f64> {
        let mut order: Vec<usize> = (0..heights.len()).collect();
        order.sort_by(|&a, &b| heights[a].total_cmp(&heights[b]));
        let mut placed = heights.to_vec();
        let mut floor = least;
        for &n in &order {
            placed[n] = placed[n].max(floor);
            floor = placed[n] + LINE;
        }
        let mut ceiling = most;
        for &n in order.iter().rev() {
            placed[n] = placed[n].min(ceiling);
            ceiling = placed[n] - LINE;
        }
        placed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_what_people_read() {
        let figures = [
            0.0, 1.892864, 16.0, 1234.5678, 22_870.4, 0.06849, -31.24, 399.0,
        ];
        let text = figures.map(figure);
        let expected = [
            "0",
            "1.893",
            "16",
            "1235",
            "22\u{2009}870",
            "0.06849",
            "\u{2212}31.24",
            "399",
        ];
        assert_eq!(text, expected);
        let columns = [7.999783, 1.95, 16144.2].map(exact);
        assert_eq!(columns, ["8.000", "1.950", "16\u{2009}144"]);
    }

    #[test]
    fn scales_put_values_between_their_ends() {
        let linear = Scale::linear([3.0, 11.3], 100.0, 0.0);
        assert_eq!(linear.at(0.0), 100.0);
        assert!(linear.at(11.3) >= 0.0 && linear.at(3.0) < 100.0);
        assert_eq!(linear.ticks(5), [0.0, 5.0, 10.0, 15.0]);
        let log = Scale::log([1.0, 100.0], 0.0, 100.0);
        assert!((log.at(10.0) - 50.0).abs() < 1e-9);
        assert_eq!(log.ticks(3), [1.0, 10.0, 100.0]);
        let below = Scale::linear([-30.0, 50.0], 0.0, 100.0);
        assert!(below.at(-30.0) >= 0.0 && below.at(0.0) < below.at(50.0));
    }

    #[test]
    fn no_values_leave_a_scale_without_an_end() {
        for values in [
            &[0.0][..],
            &[0.0, 0.0],
            &[1.7e308, 1.0],
            &[-1.7e308, 1.7e308],
            &[5e-324, 1e-308],
            &[f64::INFINITY, 1.0],
            &[],
        ] {
            let scales = [
                Scale::linear(values.iter().copied(), 0.0, 100.0),
                Scale::log(values.iter().copied(), 0.0, 100.0),
            ];
            for scale in scales {
                let drawn = values.iter().map(|&value| scale.at(value));
                let mut drawn = drawn.chain([scale.at(0.0), scale.at(f64::INFINITY)]);
                assert!(drawn.all(f64::is_finite), "{values:?}");
                assert!(scale.ticks(6).len() <= 8, "{values:?}");
            }
        }
    }

    #[test]
    fn labels_keep_apart_and_in_order() {
        let placed = Svg::apart(&[50.0, 49.0, 51.0, 10.0], 0.0, 60.0);
        assert!(placed[1] < placed[0] && placed[0] < placed[2]);
        let mut sorted = placed.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(
            sorted
                .windows(2)
                .all(|pair| pair[1] - pair[0] >= LINE - 1e-9)
        );
        assert!(sorted[3] <= 60.0 && placed[3] == 10.0);
    }

    #[test]
    fn what_came_from_a_file_cannot_become_markup() {
        let mut svg = Svg::new(10.0, 10.0);
        svg.text(0.0, 0.0, "start", "t", "<script>\"&");
        assert!(svg.finish("a\"b").contains("&lt;script&gt;&quot;&amp;"));
    }
}
