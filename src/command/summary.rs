//! What is said at the end of a job: rows, why some failed, tokens and their rates.

use crate::session::job::Summary;

/// The lines of it. `seqs`: sequences that ran at once, at most.
pub fn lines(summary: &Summary, seqs: u32) -> Vec<String> {
    let counts = &summary.counts;
    let mut rows = counted(counts.rows, "row");
    rows.push_str(&format!(", {} failed", counts.failed));
    let limit = match counts.at_limit {
        1 => "ended by its limit of new tokens",
        _ => "ended by their limit of new tokens",
    };
    for (number, what) in [
        (counts.at_limit, limit),
        (counts.recomputed, "recomputed for want of memory"),
        (counts.kept, "kept from an earlier run"),
    ] {
        if number > 0 {
            rows.push_str(&format!(", {number} {what}"));
        }
    }
    if counts.rows > 1 {
        rows.push_str(&format!(", up to {seqs} at once"));
    }
    let mut lines = vec![rows];
    lines.extend(summary.failures.iter().map(|failure| {
        let code = failure.code.as_str();
        match failure.rows {
            1 => format!("  1 {code}: {}", failure.first),
            many => format!("  {many} {code}, the first: {}", failure.first),
        }
    }));
    let seconds = summary.elapsed.as_secs_f64();
    let rate = |tokens: u64| tokens as f64 / seconds.max(1e-9);
    let (prompt, new) = (counts.prompt_tokens, counts.tokens);
    let shared = match counts.shared_tokens {
        0 => String::new(),
        shared => format!(", {shared} of them shared"),
    };
    lines.push(format!(
        "{} ({:.1} tok/s{shared}) and {} ({:.1} tok/s) in {seconds:.2} s",
        counted(prompt, "prompt token"),
        rate(prompt),
        counted(new, "new token"),
        rate(new),
    ));
    lines
}

/// One line for whoever has read the texts as they came.
pub fn speed(summary: &Summary) -> String {
    let tokens = summary.counts.tokens;
    let seconds = summary.elapsed.as_secs_f64();
    let limit = if summary.counts.at_limit > 0 {
        "; ended at --max-new-tokens"
    } else {
        ""
    };
    let digits = if seconds < 1.0 { 2 } else { 1 };
    format!(
        "{} in {seconds:.digits$} s ({:.0} tok/s){limit}",
        counted(tokens, "token"),
        tokens as f64 / seconds.max(1e-9)
    )
}

/// `1 row`, `2 rows`.
pub fn counted(number: u64, noun: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{end}")
}
