//! Strings of templates: what Python reads in them, and how they are written for minijinja.

/// `text` as a literal whose escapes mean the same to minijinja as to Python.
pub(super) fn write_literal(text: &str, quote: char, out: &mut String) {
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// The escapes of Python's strings; what is none stays as it is. After a backslash, a character beyond ASCII is
/// written as its own escape first: that is how Jinja2 decodes literals.
pub(super) fn unescape(body: &str) -> Result<String, String> {
    let mut out = String::with_capacity(body.len());
    let mut rest = body;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(c) = rest.chars().next() else {
            return Err("the string ends in a backslash".to_owned());
        };
        rest = &rest[c.len_utf8()..];
        match c {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(c),
            'a' => out.push('\u{7}'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\u{b}'),
            'x' => out.push(code(&mut rest, c, 2, 16, "")?),
            'u' => out.push(code(&mut rest, c, 4, 16, "")?),
            'U' => out.push(code(&mut rest, c, 8, 16, "")?),
            'N' => return Err("the escape \\N in a string is not supported here".to_owned()),
            '0'..='7' => {
                let more = rest
                    .bytes()
                    .take(2)
                    .take_while(|byte| (b'0'..=b'7').contains(byte))
                    .count();
                out.push(code(&mut rest, c, more, 8, &c.to_string())?);
            }
            c if !c.is_ascii() => {
                out.push_str(&match u32::from(c) {
                    code @ 0..=0xff => format!("\\x{code:02x}"),
                    code @ 0x100..=0xffff => format!("\\u{code:04x}"),
                    code => format!("\\U{code:08x}"),
                });
            }
            c => {
                out.push('\\');
                out.push(c);
            }
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// The character of an escape `\\c` whose code is `start` and `digits` more digits, which are taken from `rest`.
fn code(rest: &mut &str, c: char, digits: usize, radix: u32, start: &str) -> Result<char, String> {
    let more = rest.get(..digits).unwrap_or_default();
    *rest = rest.get(digits..).unwrap_or_default();
    let text = format!("{start}{more}");
    u32::from_str_radix(&text, radix)
        .ok()
        .filter(|_| more.len() == digits && !text.starts_with('+'))
        .and_then(char::from_u32)
        .ok_or_else(|| {
            format!("the escape \\{c}{more} in a string is no character, expected {digits} digits of one")
        })
}
