//! The part of JSON Schema that the schemas here use. A keyword that it does not know is an error, so none goes unchecked.

use serde_json::Value;

/// Where `value` is not what `schema` says: a line each.
pub fn violations(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(schema, value, "$", &mut found);
    found
}

fn check(schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    for (keyword, wanted) in schema.as_object().expect("a schema is an object") {
        match keyword.as_str() {
            "$schema" | "title" | "description" => {}
            "type" => {
                let one = |name: &Value| is(value, name.as_str().expect("a type is a string"));
                if !wanted
                    .as_array()
                    .map_or_else(|| one(wanted), |names| names.iter().any(one))
                {
                    found.push(format!("{at}: {value} is not of type {wanted}"));
                }
            }
            "const" if value != wanted => found.push(format!("{at}: {value} is not {wanted}")),
            "const" => {}
            "enum" if !wanted.as_array().unwrap().contains(value) => {
                found.push(format!("{at}: {value} is none of {wanted}"));
            }
            "enum" => {}
            "minimum" => {
                if value
                    .as_f64()
                    .is_some_and(|number| number < wanted.as_f64().unwrap())
                {
                    found.push(format!("{at}: {value} is below {wanted}"));
                }
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(wanted, item, &format!("{at}[{index}]"), found);
                }
            }
            "required" => {
                for name in wanted.as_array().unwrap() {
                    if value.get(name.as_str().unwrap()).is_none() {
                        found.push(format!("{at}: {name} is missing"));
                    }
                }
            }
            "properties" | "additionalProperties" => {}
            _ => panic!("the keyword {keyword} is not checked here"),
        }
    }
    for (name, field) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        match (&schema["properties"][name], &schema["additionalProperties"]) {
            (Value::Null, Value::Bool(false)) => found.push(format!("{at}: no such field")),
            (Value::Null, more @ Value::Object(_)) => check(more, field, &at, found),
            (known @ Value::Object(_), _) => check(known, field, &at, found),
            _ => {}
        }
    }
}

fn is(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => panic!("{name} is no type"),
    }
}

#[test]
fn a_wrong_document_is_seen() {
    let schema = serde_json::json!({
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"n": {"type": ["integer", "null"], "minimum": 0}, "k": {"enum": ["a"]}},
            "required": ["n"],
            "additionalProperties": false,
        },
    });
    let of = |text: &str| violations(&schema, &serde_json::from_str(text).unwrap()).len();
    assert_eq!(of(r#"[{"n": 1, "k": "a"}, {"n": null}]"#), 0);
    for wrong in [
        "{}",
        "[1]",
        "[{}]",
        r#"[{"n": -1}]"#,
        r#"[{"n": 1.5}]"#,
        r#"[{"n": 1, "k": "b"}]"#,
        r#"[{"n": 1, "more": 1}]"#,
    ] {
        assert!(of(wrong) > 0, "{wrong}");
    }
}
