//! What a terminal is shown, which takes control characters for orders: files of others, and a model, may have any.

use crate::telemetry::aside;
use std::io::{Result, Write};

/// Shows control characters other than ends of lines and tabs as `\u001b`, which JSON means by them too. What is
/// written comes out when it is flushed: whole lines, for which a bar makes way.
#[derive(Debug)]
pub(super) struct Harmless<W> {
    out: W,
    held: Vec<u8>,
}

impl<W: Write> Harmless<W> {
    pub fn new(out: W) -> Self {
        Self {
            out,
            held: Vec::new(),
        }
    }
}

impl<W: Write> Write for Harmless<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.held.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let text = shown(&String::from_utf8_lossy(&self.held));
        self.held.clear();
        aside(|| {
            self.out.write_all(text.as_bytes())?;
            self.out.flush()
        })
    }
}

fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && !matches!(c, '\n' | '\t') {
            shown.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_comes_through() {
        let all: String = (0..0x300).filter_map(char::from_u32).collect();
        let mut harmless = Harmless::new(Vec::new());
        // However it is cut.
        for byte in all.as_bytes() {
            harmless.write_all(&[*byte]).unwrap();
        }
        harmless.flush().unwrap();
        let shown = String::from_utf8(harmless.out).unwrap();
        assert!(!shown.contains(|c: char| c.is_control() && c != '\n' && c != '\t'));
        for part in [
            "\\u0000", "\\u001b", "\\u007f", "\\u009b", "~", "\t\n", "\u{e9}",
        ] {
            assert!(shown.contains(part), "{part:?}");
        }
    }
}
