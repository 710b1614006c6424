//! Compiles the C shims: over libdeflate, and over libjpeg where the feature `jpeg` is on.

#![expect(
    clippy::disallowed_methods,
    reason = "cargo speaks to build scripts through the environment"
)]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    compile("deflate", "DEP_LIBDEFLATE_INCLUDE");
    if std::env::var_os("CARGO_FEATURE_JPEG").is_some() {
        compile("jpeg", "DEP_TURBOJPEG_INCLUDE");
    }
}

/// Compile `shim/<name>.c` with the headers of the library that `variable` tells of.
fn compile(name: &str, variable: &str) {
    let file = format!("shim/{name}.c");
    println!("cargo::rerun-if-changed={file}");
    let include = std::env::var(variable).expect("the library tells where its headers are");
    let mut build = cc::Build::new();
    for path in include.split(',') {
        build.include(path);
    }
    build.file(file).compile(&format!("safelight_{name}"));
}
