//! What the picture is made of: boxes and text, and how kernels and bytes are written in it.

use crate::backend::cuda::listed::captured::CapturedGraph;
use crate::cli::inspect::graphs::extent;
use crate::plan::bytes::Si;

pub(super) const WIDTH: u32 = 1180;
pub(super) const MARGIN: u32 = 16;

/// Light, or dark where the reader's system is.
pub(super) const STYLE: &str = "\
text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1b1f24}\
.head{font-weight:bold}.title{font-size:16px;font-weight:bold}.dim{fill:#5b6570}.end{text-anchor:end}\
.page{fill:#fff}.box{fill:#f4f6f8;stroke:#8c96a1}.fold{fill:#fff;stroke:#8c96a1;stroke-dasharray:2 2}\
.memory{fill:#3b7dd8}.compute{fill:#d9822b}.wait{stroke:#1b1f24}.early{stroke:#1b1f24;stroke-dasharray:3 3}\
line{stroke-width:1.4}\
@media(prefers-color-scheme:dark){text{fill:#e3e7eb}.dim{fill:#9aa5b1}.page{fill:#14181c}.box{fill:#1f252b;stroke:#5b6570}\
.fold{fill:#14181c;stroke:#5b6570}.wait,.early{stroke:#e3e7eb}}";

/// A kernel as it is launched, and what a block of it takes.
pub(super) fn node_line(graph: &CapturedGraph, place: usize) -> String {
    let node = &graph.nodes[place];
    let early = if graph.starts_early(place) { "» " } else { "" };
    let shape = node.kernel.map_or(String::new(), |kernel| {
        let shared = kernel.static_shared_bytes + kernel.dynamic_shared_bytes;
        format!(
            "  {} x {}, {}, {}",
            extent(kernel.grid),
            extent(kernel.block),
            kernel.registers,
            bytes_text(f64::from(shared))
        )
    });
    format!("{early}{}{shape}", node.name)
}

pub(super) fn bytes_text(bytes: f64) -> String {
    match bytes.round() {
        few if few < 1000.0 => format!("{few} B"),
        many => format!("{}B", Si(many)),
    }
}

pub(super) fn frame(svg: &mut String, class: &str, y: u32, height: u32) {
    let width = WIDTH - 2 * MARGIN;
    svg.push_str(&format!(
        "<rect class=\"{class}\" x=\"{MARGIN}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>\n"
    ));
}

pub(super) fn text(svg: &mut String, x: u32, y: u32, class: &str, content: &str) {
    let content = content
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    svg.push_str(&format!(
        "<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{content}</text>\n"
    ));
}
