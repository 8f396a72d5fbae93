//! A disk image that a machine's firmware boots, BIOS or UEFI: the nucleus and its module behind GRUB, which enters
//! the nucleus by Multiboot2. `grub-mkrescue` makes one file that is a disk with both kinds of boot sectors, and a
//! CD, too.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use atoll_supervisor::{Error, Result};

/// Programs that make the image.
const PROGRAMS: [&str; 3] = ["grub-mkrescue", "xorriso", "mformat"];
/// Where GRUB's own files are: for BIOS, and for UEFI.
const GRUB: [&str; 2] = ["/usr/lib/grub/i386-pc", "/usr/lib/grub/x86_64-efi"];
/// How to get all of these.
const INSTALL: &str = "apt-get install grub-common grub-pc-bin grub-efi-amd64-bin xorriso mtools";
/// Longest command line that the nucleus takes, bytes.
const OPTIONS_MAX: usize = 2048;

/// Is all there that makes images?
fn check_tools() -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<_> = std::env::split_paths(&path).collect();
    let missing: Vec<&str> = PROGRAMS
        .into_iter()
        .filter(|program| !dirs.iter().any(|dir| dir.join(program).is_file()))
        .chain(GRUB.into_iter().filter(|dir| !Path::new(dir).is_dir()))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(", ");
    Err(Error::new(format!(
        "a disk image can't be made, for this is missing: {missing}; on Debian, {INSTALL}"
    )))
}

/// What GRUB is told. Of its terminals, UEFI's own are the serial port, too, where firmware has set that up; a BIOS's
/// are not.
fn configuration(options: &str) -> Result<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || " =.,:@/_+-".contains(c);
    if let Some(c) = options.chars().find(|c| !plain(*c)) {
        return Err(Error::new(format!(
            "--append takes letters, digits, spaces and =.,:@/_+- only, and not {c:?}"
        )));
    }
    if options.len() >= OPTIONS_MAX {
        return Err(Error::new(format!("--append takes less than {OPTIONS_MAX} bytes")));
    }
    Ok(format!(
        "if [ \"$grub_platform\" = pc ]; then\n  \
         serial --unit=0 --speed=115200\n  terminal_output console serial\nfi\n\
         multiboot2 /boot/nucleus {options}\nmodule2 /boot/module.tar\nboot\n"
    ))
}

/// Writes the image to a file or a disk. `options` is the nucleus's command line.
pub fn write(nucleus: &Path, module: &[u8], options: &str, to: &Path) -> Result<()> {
    let configuration = configuration(options)?;
    check_tools()?;
    let dir = tempfile::tempdir().map_err(|e| Error::with("a directory for the disk image", e))?;
    let (image, tree) = (dir.path().join("image"), dir.path().join("tree"));
    let boot = tree.join("boot");
    let fill = || {
        fs::create_dir_all(boot.join("grub"))?;
        fs::copy(nucleus, boot.join("nucleus"))?;
        fs::write(boot.join("module.tar"), module)?;
        fs::write(boot.join("grub/grub.cfg"), configuration)
    };
    fill().map_err(|e| Error::with("writing the disk image's files", e))?;
    let made = Command::new("grub-mkrescue")
        .arg("-o")
        .arg(&image)
        .arg(&tree)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::with("starting grub-mkrescue", e))?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr);
        let last: Vec<&str> = said.lines().rev().take(5).collect();
        let last = last.into_iter().rev().collect::<Vec<_>>().join("; ");
        return Err(Error::new(format!(
            "grub-mkrescue could not make the disk image ({}): {last}",
            made.status
        )));
    }
    // Not renamed: it may go to a disk, which says at the end only what it could not write.
    let copy = || {
        let mut file = File::create(to)?;
        std::io::copy(&mut File::open(&image)?, &mut file)?;
        file.sync_all()
    };
    copy().map_err(|e| Error::with(format!("writing to {}", to.display()), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stay_what_they_are() {
        let text = configuration("exit=f4 virtio_mmio.device=512@0xfeb00000:5").unwrap();
        assert!(text.contains("\nmultiboot2 /boot/nucleus exit=f4 virtio_mmio.device=512@0xfeb00000:5\n"));
        for bad in ["a\nb", "$x", "a;b", "'", "\"", "\\", "{", "é", &"x".repeat(OPTIONS_MAX)] {
            assert!(configuration(bad).is_err(), "{bad}");
        }
    }
}
