//! Media keys never change: the golden vectors that the Python tests read as well.

use safelight_core::key::{self, Key};
use serde_json::Value;

fn vectors(kind: &str) -> Vec<Value> {
    let text = include_str!("../../../tests/data/keys.json");
    let mut document: Value = serde_json::from_str(text).expect("keys.json is JSON");
    match document[kind].take() {
        Value::Array(vectors) if !vectors.is_empty() => vectors,
        _ => panic!("keys.json has no {kind} vectors"),
    }
}

fn text<'a>(vector: &'a Value, name: &str) -> &'a str {
    vector[name].as_str().expect("a text")
}

fn bytes(vector: &Value, name: &str) -> Vec<u8> {
    let digits = text(vector, name);
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits"))
        .collect()
}

#[test]
fn derived_keys() {
    for vector in vectors("derive") {
        let spec = text(&vector, "canonical");
        let derived = key::derive(&bytes(&vector, "payload"), spec.as_bytes());
        assert_eq!(derived.to_vec(), bytes(&vector, "key"), "spec {spec}");
    }
}

#[test]
fn extended_keys() {
    for vector in vectors("extend") {
        let spec = text(&vector, "canonical");
        let parent: Key = bytes(&vector, "parent").try_into().expect("32 bytes");
        let extended = key::extend(&parent, spec.as_bytes());
        assert_eq!(extended.to_vec(), bytes(&vector, "key"), "spec {spec}");
    }
}
