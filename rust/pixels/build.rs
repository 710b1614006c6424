//! Compiles the C shim over libjpeg; nothing where the feature `jpeg` is off.

#![expect(
    clippy::disallowed_methods,
    reason = "cargo speaks to build scripts through the environment"
)]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=shim/jpeg.c");
    if std::env::var_os("CARGO_FEATURE_JPEG").is_none() {
        return;
    }
    let include =
        std::env::var("DEP_TURBOJPEG_INCLUDE").expect("turbojpeg-sys tells where its headers are");
    let mut build = cc::Build::new();
    for path in include.split(',') {
        build.include(path);
    }
    build.file("shim/jpeg.c").compile("safelight_jpeg");
}
