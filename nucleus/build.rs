//! Links the nucleus: no C library, no start files, at addresses of its own.
fn main() {
    let script = format!("{}/nucleus.ld", std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default());
    for arg in [
        "-nostdlib",
        "-nostartfiles",
        "-static",
        "-no-pie",
        "-Wl,-z,max-page-size=4096",
        "-Wl,-z,norelro",
        "-Wl,--no-eh-frame-hdr",
        "-Wl,--build-id=none",
        &format!("-Wl,-T,{script}"),
    ] {
        println!("cargo:rustc-link-arg-bins={arg}");
    }
    println!("cargo:rerun-if-changed=nucleus.ld");
    println!("cargo:rerun-if-changed=build.rs");
}
