//! Which processes are an activity's, by what the configuration says.

use atoll_abi::grid::Match;

/// Does all hold that is said here? `program` is the path of what is executed, `args` and `environment` are what it gets,
/// `user` is whose it is. Where nothing is said, everything holds.
pub fn matches<'a>(
    all_of: &Match,
    program: &[u8],
    args: impl IntoIterator<Item = &'a [u8]>,
    environment: impl IntoIterator<Item = &'a [u8]>,
    user: u32,
) -> bool {
    let Match { program: path, argument, environment: variable, user: whose } = all_of;
    path.as_ref().is_none_or(|p| is_program(p.as_bytes(), program))
        && whose.is_none_or(|w| w == user)
        && argument.as_ref().is_none_or(|p| args.into_iter().any(|a| glob(p.as_bytes(), a)))
        && variable.as_ref().is_none_or(|v| environment.into_iter().any(|e| is_variable(v.as_bytes(), e)))
}

/// A pattern with a slash is for the whole path, another for its last part.
pub fn is_program(pattern: &[u8], path: &[u8]) -> bool {
    if pattern.contains(&b'/') {
        return glob(pattern, path);
    }
    glob(pattern, path.rsplit(|b| *b == b'/').next().unwrap_or(path))
}

/// `NAME=VALUE` is for all of it, `NAME` for any value.
fn is_variable(said: &[u8], entry: &[u8]) -> bool {
    if said.contains(&b'=') {
        return said == entry;
    }
    entry.strip_prefix(said).is_some_and(|rest| rest.first() == Some(&b'='))
}

/// Does a text match a pattern, in which `*` stands for any bytes, or none, and `?` for one? Takes time of the one's length times the other's
/// at most.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Behind the last star, and where the text goes on if that star stands for no more.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                star = Some((p, t));
            }
            Some(b) if *b == b'?' || *b == text[t] => {
                p += 1;
                t += 1;
            }
            // One byte more for the last star: one before it need not change, as it took the first place that fits.
            _ => match &mut star {
                None => return false,
                Some((behind, from)) => {
                    *from += 1;
                    (p, t) = (*behind, *from);
                }
            },
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;
    use std::vec;

    /// A model of `glob` that tries everything.
    fn slow(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|n| slow(rest, &text[n..])),
            Some((b'?', rest)) => !text.is_empty() && slow(rest, &text[1..]),
            Some((b, rest)) => text.first() == Some(b) && slow(rest, &text[1..]),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn glob_agrees_with_model(pattern in "[ab*?]{0,8}", text in "[ab*]{0,10}") {
            prop_assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), slow(pattern.as_bytes(), text.as_bytes()));
        }
    }

    #[test]
    fn long_patterns_end_soon() {
        let text = vec![b'a'; 20_000];
        assert!(!glob(b"*a*a*a*a*a*a*a*a*a*a*a*ab", &text));
    }

    #[test]
    fn all_that_is_said_holds() {
        let is = |m: &Match| {
            let args = ["nginx", "-c", "/etc/nginx/b.conf"].map(str::as_bytes);
            let env = ["PATH=/bin", "ROLE=web", "EMPTY="].map(str::as_bytes);
            matches(m, b"/usr/sbin/nginx", args, env, 33)
        };
        let all = Match::default();
        let program = |p: &str| Match { program: Some(p.to_string()), ..Match::default() };
        let argument = |p: &str| Match { argument: Some(p.to_string()), ..Match::default() };
        let environment = |p: &str| Match { environment: Some(p.to_string()), ..Match::default() };
        assert!(is(&all));
        for (p, holds) in [
            ("nginx", true),
            ("ngin*", true),
            ("*", true),
            ("ngin", false),
            ("sbin*", false),
            ("/usr/sbin/nginx", true),
            ("/usr/*", true),
            ("*/nginx", true),
            ("sbin/nginx", false),
            ("", false),
        ] {
            assert_eq!(is(&program(p)), holds, "{p}");
        }
        for (p, holds) in [("-c", true), ("*b.conf", true), ("-", false), ("b.conf", false), ("nginx", true)]
        {
            assert_eq!(is(&argument(p)), holds, "{p}");
        }
        for (p, holds) in [
            ("ROLE", true),
            ("ROLE=web", true),
            ("ROLE=", false),
            ("ROL", false),
            ("EMPTY", true),
            ("EMPTY=", true),
        ] {
            assert_eq!(is(&environment(p)), holds, "{p}");
        }
        assert!(is(&Match { user: Some(33), ..program("nginx") }));
        assert!(!is(&Match { user: Some(0), ..program("nginx") }));
        assert!(!is(&Match { user: Some(33), ..program("lighttpd") }));
        assert!(!is(&Match { argument: Some("-d".to_string()), ..environment("ROLE") }));
    }
}
