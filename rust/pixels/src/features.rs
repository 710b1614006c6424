//! What is inside of a build: the versions of its C libraries, and the vector instructions at hand.

use std::ffi::{CStr, c_char};

unsafe extern "C" {
    #[cfg(feature = "jpeg")]
    fn safelight_jpeg_version() -> *const c_char;
    fn safelight_deflate_version() -> *const c_char;
}

/// Each C library by name, with the version that it tells; `None` where the build left it out.
#[must_use]
pub fn libraries() -> [(&'static str, Option<String>); 3] {
    #[cfg(feature = "jpeg")]
    let jpeg = Some(text(safelight_jpeg_version));
    #[cfg(not(feature = "jpeg"))]
    let jpeg = None;
    // SAFETY: it takes nothing and returns a constant.
    let webp = unsafe { libwebp_sys::WebPGetDecoderVersion() }.cast_unsigned();
    let [_, major, minor, revision] = webp.to_be_bytes();
    [
        ("libjpeg-turbo", jpeg),
        ("libwebp", Some(format!("{major}.{minor}.{revision}"))),
        ("libdeflate", Some(text(safelight_deflate_version))),
    ]
}

fn text(version: unsafe extern "C" fn() -> *const c_char) -> String {
    // SAFETY: the shims take nothing and return a literal, which lives as long as the program.
    let version = unsafe { CStr::from_ptr(version()) };
    version.to_string_lossy().into_owned()
}

/// Instructions that native code chooses code paths by at run time, whether its own or a
/// library's (hashes, base64, libjpeg-turbo, libwebp, libdeflate); and whether this machine has them.
#[must_use]
pub fn vector_instructions() -> Vec<(&'static str, bool)> {
    macro_rules! table {
        ($detect:ident: $($name:tt)*) => { vec![$(($name, std::arch::$detect!($name))),*] };
    }
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    let found = table!(is_x86_feature_detected:
        "sse2" "ssse3" "sse4.1" "avx" "avx2" "avx512f" "avx512bw" "avx512vl" "bmi2" "pclmulqdq" "sha");
    #[cfg(target_arch = "aarch64")]
    let found = table!(is_aarch64_feature_detected: "neon" "crc" "pmull" "sha2");
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
    let found = Vec::new();
    found
}
