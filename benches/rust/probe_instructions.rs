//! Instructions that a header probe takes, by callgrind: of each format, and of the megabytes
//! that cost a parser most.
//!
//! Writes a table that the bench report prints. Counts do not depend on how busy the machine is,
//! so they may be compared between runs. Without valgrind there is nothing to count, and this
//! bench says so and passes.

#![expect(clippy::print_stderr, reason = "a bench says what it cannot count")]

#[path = "../../rust/core/tests/media/mod.rs"]
mod media;

use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;

use safelight_core::probe::probe;

/// The argument before a case's number: what callgrind runs.
const ONE: &str = "--one";

/// A function of its own, so that callgrind counts it and nothing around it.
#[inline(never)]
fn counted(bytes: &[u8]) {
    let _ = black_box(probe(black_box(bytes)));
}

fn main() {
    let cases = cases();
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, one, number] = arguments.as_slice()
        && one == ONE
    {
        let number: usize = number.parse().expect("a case is named by its number");
        return counted(&cases[number].1);
    }
    let mut table = String::from("| header probe | bytes | instructions |\n| --- | --- | --- |\n");
    for (number, (name, bytes)) in cases.iter().enumerate() {
        let Some(instructions) = instructions(number) else {
            eprintln!("no valgrind: instructions of the header probe are not counted");
            return;
        };
        let _ = writeln!(table, "| {name} | {} | {instructions} |", bytes.len());
    }
    let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/out");
    fs::create_dir_all(&out).expect("benches/out can be made");
    fs::write(out.join("probe_instructions.md"), table).expect("benches/out can be written");
}

fn cases() -> Vec<(String, Vec<u8>)> {
    let formats = media::every_format().into_iter();
    let hostile = media::hostile_megabytes().into_iter();
    formats
        .map(|(name, bytes)| (name.to_owned(), bytes))
        .chain(hostile.map(|(name, bytes)| (format!("hostile: {name}"), bytes)))
        .collect()
}

/// Instructions of one case; `None` where there is no valgrind.
fn instructions(number: usize) -> Option<u64> {
    let this = std::env::current_exe().ok()?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*counted*")
        .arg(this)
        .args([ONE, &number.to_string()])
        .output()
        .ok()?;
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    let collected = report.split("Collected :").nth(1)?;
    collected.split_whitespace().next()?.parse().ok()
}
