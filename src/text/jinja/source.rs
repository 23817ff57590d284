//! What Jinja2 does to a template's source before minijinja sees it.

/// Line ends become `\n`, as in Jinja2's lexer. `{% generation %}` blocks, a tag of transformers that only
/// marks what the assistant wrote, become `with` blocks: they render their content in a scope of its own.
pub fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut prepared = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        prepared.push_str(before);
        rest = match generation_tag(tag) {
            Some((replacement, length)) => {
                prepared.push_str(&replacement);
                &tag[length..]
            }
            None => {
                prepared.push_str("{%");
                &tag[2..]
            }
        };
    }
    prepared.push_str(rest);
    prepared
}

/// `tag` starts with `{%`: the tag to write instead, and the length of the one found.
fn generation_tag(tag: &str) -> Option<(String, usize)> {
    let inner = &tag[2..][..tag[2..].find("%}")?];
    let end = 2 + inner.len() + 2;
    let name = inner.trim_start_matches(['-', '+']);
    let open = &inner[..inner.len() - name.len()];
    let name = name.trim_end_matches(['-', '+']);
    let close = &inner[open.len() + name.len()..];
    let replacement = match name.trim() {
        "generation" => "with",
        "endgeneration" => "endwith",
        _ => return None,
    };
    Some((format!("{{%{open} {replacement} {close}%}}"), end))
}

#[cfg(test)]
mod tests {
    use super::prepare;

    #[test]
    fn generation_tags_keep_their_whitespace_control() {
        assert_eq!(
            prepare("a{%- generation -%}b\r\n{% endgeneration+%}{%generation%}{% generations %}{%"),
            "a{%- with -%}b\n{% endwith +%}{% with %}{% generations %}{%"
        );
        for other in ["{%}{% x %}", "{%%}", "{%-", "{%-%}"] {
            assert_eq!(prepare(other), other);
        }
    }
}
