//! Links the runtime: no C library, no start files, position independent, loaded at one fixed address.
fn main() {
    for arg in [
        "-nostdlib",
        "-nostartfiles",
        "-static-pie",
        "-Wl,-z,noexecstack",
        "-Wl,-z,max-page-size=4096",
        "-Wl,--no-dynamic-linker",
        "-Wl,-z,nognustack",
        "-Wl,--build-id=none",
        "-Wl,-z,norelro",
    ] {
        println!("cargo:rustc-link-arg-bins={arg}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
