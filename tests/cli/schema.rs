//! The checker of JSON against schemas.

use crate::common::schema::check;
use serde_json::Value;

#[test]
fn the_checker_finds_what_is_wrong() {
    let schema: Value = serde_json::from_str(
        r#"{"type": "object", "required": ["a"], "additionalProperties": false,
            "properties": {"a": {"oneOf": [{"const": 1}, {"type": "array", "items": {"type": "integer", "minimum": 2}}]}}}"#,
    )
    .unwrap();
    let check = |text: &str| check(&schema, &serde_json::from_str(text).unwrap());
    for right in [r#"{"a": 1}"#, r#"{"a": []}"#, r#"{"a": [2, 3]}"#] {
        check(right).unwrap();
    }
    for wrong in [
        "[]",
        "{}",
        r#"{"a": 2}"#,
        r#"{"a": [1]}"#,
        r#"{"a": ["x"]}"#,
        r#"{"a": 1, "b": 1}"#,
    ] {
        check(wrong).unwrap_err();
    }
}
