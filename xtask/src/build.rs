//! Building.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The project's directory.
pub fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the project").to_path_buf()
}

/// The `atoll` that [`all`] makes. It is found from where this program is, so that copies of both work elsewhere.
pub fn atoll() -> PathBuf {
    let own = std::env::current_exe().ok();
    let target = own.as_deref().and_then(Path::parent).and_then(Path::parent);
    target.map_or_else(|| top().join("target"), Path::to_path_buf).join("release/atoll")
}

/// Runs a command of the project's, with its output to the terminal.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}").replace('"', "");
    let status = command.current_dir(top()).status().with_context(|| format!("starting {shown}"))?;
    if !status.success() {
        bail!("{shown} failed: {status}");
    }
    Ok(())
}

/// The cargo that runs this.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Builds `atoll`, the runtime and the nucleus, each by itself: the last two have no standard library.
pub fn all(release: bool) -> Result<()> {
    let build = |package: &str| {
        let mut command = cargo();
        command.args([
            "build",
            "--package",
            package,
            "--profile",
            if release { "release" } else { "checked" },
        ]);
        run(&mut command)
    };
    // Without a dynamic linker at work it starts and forks sooner. Optimizing it as a whole, as the runtime is, gains nothing that can be
    // measured, and takes three times as long.
    let mut linked = cargo();
    linked
        .args(["rustc", "--package", "atoll", "--release", "--", "-C", "target-feature=+crt-static"])
        .envs([("CARGO_PROFILE_RELEASE_LTO", "off"), ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")]);
    if !release || run(&mut linked).is_err() {
        // Some systems have no C library to link with.
        build("atoll")?;
    }
    build("atoll-cell")?;
    build("atoll-nucleus")?;
    library(release)
}

/// Makes `libatoll.a`, and the allocator as an object to preload, if there is a compiler for C: programs can as well be compiled with the
/// sources in `libatoll/`.
fn library(release: bool) -> Result<()> {
    let dir = top().join("target").join(if release { "release" } else { "checked" });
    for name in ["atoll", "pager"] {
        let object = dir.join(format!("lib{name}.o"));
        if !compiled(name, "-c", &object)? {
            return Ok(());
        }
        run(Command::new("ar").arg("rcs").arg(dir.join("libatoll.a")).arg(&object))?;
    }
    compiled("alloc", "-shared", &dir.join("libatoll-alloc.so"))?;
    Ok(())
}

/// Compiles `libatoll/NAME.c`. False: there is no compiler.
fn compiled(name: &str, kind: &str, to: &Path) -> Result<bool> {
    let source = format!("libatoll/{name}.c");
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-fPIC", "-Wall", kind, &source, "-o"]).arg(to);
    // Of older C libraries.
    compile.args((kind == "-shared").then_some("-ldl"));
    match compile.current_dir(top()).status() {
        Ok(status) if status.success() => Ok(true),
        Ok(status) => bail!("compiling {source} failed: {status}"),
        Err(_) => Ok(false),
    }
}
