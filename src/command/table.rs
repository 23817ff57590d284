//! Columns of text: widths from the contents, numbers to the right.

use crate::quote;
use std::fmt::Display;
use std::io::{self, Write};

/// Rows of cells.
#[derive(Debug)]
pub struct Table {
    /// Columns aligned to the left; the others are to the right.
    left: &'static [usize],
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(left: &'static [usize]) -> Self {
        Self {
            left,
            rows: Vec::new(),
        }
    }

    /// Each cell is one line, whatever is in it.
    pub fn row<S: Display>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows
            .push(cells.into_iter().map(quote::visible).collect());
    }

    /// Writes the rows, each after `indent`, two spaces between columns.
    pub fn write(&self, indent: &str, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        for row in &self.rows {
            let mut line = String::from(indent);
            for (column, cell) in row.iter().enumerate() {
                if column > 0 {
                    line.push_str("  ");
                }
                let width = widths[column];
                if self.left.contains(&column) {
                    line.push_str(&format!("{cell:<width$}"));
                } else {
                    line.push_str(&format!("{cell:>width$}"));
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
