//! JSON against a schema: as much of JSON Schema as tests/schemas/ uses. A word that is not known here is a failure, so
//! that no schema seems to say what nobody checks.

use serde_json::Value;

/// The schema of this name in tests/schemas/.
pub fn schema(name: &str) -> Value {
    let path = format!(
        "{}/tests/schemas/{name}.schema.json",
        env!("CARGO_MANIFEST_DIR")
    );
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// What is wrong with `value`, with where.
pub fn check(root: &Value, value: &Value) -> Result<(), String> {
    at(root, root, value, "$")
}

fn at(root: &Value, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    let wrong = |what: String| Err(format!("{place}: {what}, found {value}"));
    let number = value.as_f64();
    let length = value.as_array().map(|items| items.len() as u64);
    for (word, rule) in schema.as_object().ok_or("a schema is an object")? {
        match word.as_str() {
            "$schema" | "title" | "$defs" | "description" | "format" | "default" => {}
            "$ref" => {
                let pointer = rule.as_str().unwrap().trim_start_matches('#');
                let target = root.pointer(pointer).ok_or(format!("no {pointer}"))?;
                at(root, target, value, place)?;
            }
            "type" => {
                let of = |name: &Value| match name.as_str().unwrap() {
                    "object" => Ok(value.is_object()),
                    "array" => Ok(value.is_array()),
                    "string" => Ok(value.is_string()),
                    "boolean" => Ok(value.is_boolean()),
                    "number" => Ok(value.is_number()),
                    "integer" => Ok(value.is_i64() || value.is_u64()),
                    "null" => Ok(value.is_null()),
                    other => Err(format!("no type {other}")),
                };
                let mut fits = false;
                for name in rule.as_array().unwrap_or(&vec![rule.clone()]) {
                    fits |= of(name)?;
                }
                if !fits {
                    return wrong(format!("expected {rule}"));
                }
            }
            "const" if rule != value => return wrong(format!("expected {rule}")),
            "enum" if !rule.as_array().unwrap().contains(value) => {
                return wrong(format!("expected one of {rule}"));
            }
            "const" | "enum" => {}
            "minimum" if number.is_some_and(|number| Some(number) < rule.as_f64()) => {
                return wrong(format!("expected at least {rule}"));
            }
            "maximum" if number > rule.as_f64() => {
                return wrong(format!("expected at most {rule}"));
            }
            "minimum" | "maximum" => {}
            "minItems" if length.is_some_and(|length| Some(length) < rule.as_u64()) => {
                return wrong(format!("expected at least {rule} items"));
            }
            "maxItems" if length > rule.as_u64() => {
                return wrong(format!("expected at most {rule} items"));
            }
            "minItems" | "maxItems" => {}
            "required" => {
                for name in rule.as_array().unwrap() {
                    if value.get(name.as_str().unwrap()).is_none() {
                        return wrong(format!("expected {name}"));
                    }
                }
            }
            "properties" => {
                for (name, rule) in rule.as_object().unwrap() {
                    if let Some(value) = value.get(name) {
                        at(root, rule, value, &format!("{place}.{name}"))?;
                    }
                }
            }
            "additionalProperties" => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    if schema["properties"].get(name).is_some() {
                        continue;
                    }
                    if *rule == false {
                        return wrong(format!("did not expect '{name}'"));
                    }
                    at(root, rule, value, &format!("{place}.{name}"))?;
                }
            }
            "items" => {
                for (n, item) in value.as_array().into_iter().flatten().enumerate() {
                    at(root, rule, item, &format!("{place}[{n}]"))?;
                }
            }
            "oneOf" | "anyOf" => {
                let tried: Vec<_> = rule
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|s| at(root, s, value, place))
                    .collect();
                match tried.iter().filter(|t| t.is_ok()).count() {
                    1 => {}
                    2.. if word == "anyOf" => {}
                    n => return wrong(format!("fits {n} of {word}: {tried:?}")),
                }
            }
            other => {
                return Err(format!(
                    "{place}: the schema's word '{other}' is not known here"
                ));
            }
        }
    }
    Ok(())
}
