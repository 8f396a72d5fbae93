//! What control groups leave to this process (cgroups(7)): the kernel kills who takes more memory.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// The least limit on memory of this process's control group and those above it, bytes; None: there is none, or it can't be told.
pub(crate) fn memory_limit() -> Option<u64> {
    let groups = read_to_string("/proc/self/cgroup").ok()?;
    let mounts = read_to_string("/proc/self/mountinfo").ok()?;
    directories(&groups, &mounts).iter().filter_map(|(top, dir, file)| least(top, dir, file)).min()
}

/// The least that a file says in a directory and those above it, up to `top`.
fn least(top: &Path, dir: &Path, file: &str) -> Option<u64> {
    let within = dir.ancestors().take_while(|d| d.starts_with(top));
    within.filter_map(|d| read_to_string(d.join(file)).ok()?.trim().parse().ok()).min()
}

/// Where limits on memory are, by `/proc/self/cgroup` and `/proc/self/mountinfo`: where the hierarchy is mounted, the group's directory there,
/// and the file.
fn directories(groups: &str, mounts: &str) -> Vec<(PathBuf, PathBuf, &'static str)> {
    let mut found = Vec::new();
    for line in mounts.lines() {
        // ID parent device root point options [fields] - kind source options of the hierarchy
        let Some((mount, kind)) = line.split_once(" - ") else { continue };
        let (mount, kind): (Vec<&str>, Vec<&str>) = (mount.split(' ').collect(), kind.split(' ').collect());
        let ([_, _, _, root, point, ..], [kind, _, options, ..]) = (&mount[..], &kind[..]) else { continue };
        let of = |group: &str| {
            // ID:controllers:path
            let mut parts = group.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let memory = |list: &str| list.split(',').any(|c| c == "memory");
            let file = match *kind {
                "cgroup2" if controllers.is_empty() => "memory.max",
                "cgroup" if memory(controllers) && memory(options) => "memory.limit_in_bytes",
                _ => return None,
            };
            // What is mounted may be a part of the hierarchy, which this process's group may be outside of.
            let beneath = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
            Some((PathBuf::from(point), Path::new(point).join(beneath), file))
        };
        found.extend(groups.lines().filter_map(of));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_where_limits_are() {
        let two = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let one = "33 25 0:29 / /sys/fs/cgroup/memory rw shared:12 - cgroup cgroup rw,memory\n\
                   34 25 0:30 / /sys/fs/cgroup/cpu rw shared:13 - cgroup cgroup rw,cpu\n";
        let inside = "99 98 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let of = |groups, mounts| {
            let found = directories(groups, mounts).into_iter();
            found.map(|(_, dir, file)| dir.join(file).display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of("0::/user.slice/a.scope\n", two), ["/sys/fs/cgroup/user.slice/a.scope/memory.max"]);
        assert_eq!(
            of("9:cpu,cpuacct:/b\n4:memory:/c\n0::/\n", one),
            ["/sys/fs/cgroup/memory/c/memory.limit_in_bytes"]
        );
        assert_eq!(of("0::/docker/abc/d\n", inside), ["/sys/fs/cgroup/d/memory.max"]);
        assert_eq!(of("0::/elsewhere\n", inside), ["/sys/fs/cgroup/memory.max"]);
        assert!(of("", "").is_empty());
    }

    #[test]
    fn the_least_counts() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("a/b");
        std::fs::create_dir_all(&dir).unwrap();
        assert_eq!(least(top.path(), &dir, "memory.max"), None);
        std::fs::write(top.path().join("a/memory.max"), "4096000\n").unwrap();
        std::fs::write(dir.join("memory.max"), "max\n").unwrap();
        assert_eq!(least(top.path(), &dir, "memory.max"), Some(4_096_000));
        std::fs::write(dir.join("memory.max"), "4096\n").unwrap();
        assert_eq!(least(top.path(), &dir, "memory.max"), Some(4096));
    }
}
