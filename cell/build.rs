//! Links the runtime: no C library, no start files, position independent, loaded at one fixed address.
/// Says so to cargo, for the package whose build script this is.
pub fn main() {
    for arg in [
        "-nostdlib",
        "-nostartfiles",
        "-static-pie",
        "-Wl,-z,noexecstack",
        "-Wl,-z,max-page-size=4096",
        "-Wl,--no-dynamic-linker",
        "-Wl,-z,nognustack",
        "-Wl,--build-id=none",
        // What is never written after loading is mapped read-only: no process of a
        // cell can change the pointers that another one, less confined, jumps through.
        "-Wl,-z,relro",
    ] {
        println!("cargo:rustc-link-arg-bins={arg}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
