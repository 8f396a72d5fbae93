//! Files that are right, wrong and random.

use super::*;

const EXAMPLE: &str = r#"
sample = 32
tasks_max = 500
channels_max = 70
[[activity]]
name = "gold"
weight = 50
reservation = "30%"
limit = "800ms"
match = [{ program = "nginx", argument = "*gold.conf" }, { environment = "TENANT=gold", user = 33 }]
[[activity]]
name = "lead & tin"
priority = -3
deadline = "1.5ms"
threads = true
tasks_max = 20
processes_max = 3
timers_max = 4
events_max = 5
memory_max = "1.5GiB"
memory_min = 1000000
oom_group = true
[resource.device-write]
scheduler = "round-robin"
measure = "bytes"
rate = "100MB/s"
batch = 4
cores = [0, 2]
activity.gold = { weight = 70, reservation = "10MiB/s" }
[resource.socket]
measure = "operations"
activity."lead & tin" = { limit = "2.5k/s", deadline = 0 }
[resource.thread]
activity.gold = { reservation = 0 }
"#;

/// OK-09: everything that a file can say.
#[test]
fn reads_what_is_right() {
    let c = parse(EXAMPLE).unwrap();
    assert_eq!(c.sample, 32);
    assert_eq!(c.quotas, [500, 0, 0, 0, 70]);
    assert_eq!(QUOTA_KEYS, Quota::ALL.map(|quota| format!("{}_max", quota.name())));
    assert_eq!((c.activities[0].quotas, c.activities[1].quotas), ([0; QUOTAS], [20, 3, 4, 5, 0]));
    let lead = MemoryQuota { max: 3 << 29, min: 1_000_000, oom_group: true };
    assert_eq!((c.activities[0].memory, c.activities[1].memory), (MemoryQuota::default(), lead));
    assert_eq!((c.threads, c.activities[0].threads, c.activities[1].threads), (false, false, true));
    let gold =
        Parameters { weight: 50, reservation: 300_000_000, limit: 800_000_000, ..Parameters::default() };
    let lead = Parameters { priority: -3, deadline: 1_500_000, ..Parameters::default() };
    assert_eq!((c.activities[0].parameters, c.activities[1].parameters), (gold, lead));
    assert_eq!(c.activities[0].matches[0].argument.as_deref(), Some("*gold.conf"));
    assert_eq!(c.activities[0].matches[1].user, Some(33));
    // In the order of their numbers.
    let [thread, socket, write] = &c.resources[..] else { panic!("{c:?}") };
    assert_eq!(write.resource, Resource::DeviceWrite);
    assert_eq!((write.scheduler, write.measure), (SchedulerKind::RoundRobin, Measure::Bytes));
    assert_eq!((write.rate, write.batch, &write.cores[..]), (100_000_000, 4, &[0, 2][..]));
    // What was said of time says nothing of bytes and messages.
    assert_eq!(write.activities, [(0, Parameters { weight: 70, reservation: 10 << 20, limit: 0, ..gold })]);
    let none = Parameters { reservation: 0, limit: 0, ..gold };
    assert_eq!(socket.activities, [(0, none), (1, Parameters { limit: 2500, deadline: 0, ..lead })]);
    assert_eq!(thread.activities, [(0, Parameters { reservation: 0, ..gold })]);
    assert_eq!(parse("").unwrap(), GridConfig::default());
    let shares = "[[activity]]\nname = 'a'\nshare = '50%'\n[[activity]]\nname = 'b'\nshare = '0.5%'";
    let weights: Vec<u32> = parse(shares).unwrap().activities.iter().map(|a| a.parameters.weight).collect();
    assert_eq!(weights, [5000, 50]);
}

#[test]
fn reads_the_documents_example() {
    let document = include_str!("../../../../docs/grid.md");
    let example = document.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let config = parse(example).unwrap();
    assert_eq!((config.activities.len(), config.resources.len()), (1, 2));
    check_cores(&config, 3).unwrap();
}

#[test]
fn writes_what_it_reads() {
    let all = "[[activity]]\nname = \"a\\\"b\\\\\"\nmatch = [{program = \"x\\ty\"}]\nlimit = \"123456789ns\"\n\
               [resource.timer]\n[resource.wait]\nmeasure = 'bytes'\nrate = 7\nactivity.'a\"b\\' = {limit = '3kB'}";
    for text in ["", EXAMPLE, all, "sample = 1", "threads = true"] {
        let config = parse(text).unwrap();
        let written = write(&config, &[]);
        assert_eq!(parse(&written).as_ref(), Ok(&config), "{written}");
        assert_eq!(write(&parse(&written).unwrap(), &[]), written);
        toml::from_str::<toml::Table>(&written).unwrap();
    }
}

/// OK-09: a bad file is refused with the place and the reason.
#[test]
fn says_what_is_wrong_and_where() {
    let a = "[[activity]]\nname = 'a'\n";
    let long = "x".repeat(41);
    let many: String = (0..255).map(|n| format!("[[activity]]\nname = 'a{n}'\n")).collect();
    let big: String = (0..100)
        .map(|n| format!("[[activity]]\nname = 'a{n}'\nmatch = [{{program = '{}'}}]\n", "y".repeat(200)))
        .collect();
    for (text, at, part) in [
        ("sample = ", "line 1, column 10", "value"),
        ("sample = 1\nsample = 2", "line 2, column 1", "duplicate key"),
        (
            "a = 1",
            "line 1, column 1",
            "`a` is no key of the file: it is one of sample, threads, activity, resource, tasks_max, processes_max, timers_max, events_max, channels_max",
        ),
        ("sampel = 1", "line 1, column 1", "did you mean `sample`?"),
        ("sample = 0", "line 1, column 10", "from 1 to 65536"),
        ("sample = 1.5", "line 1, column 10", "whole number"),
        ("threads = 1", "line 1, column 11", "`threads` is true or false"),
        ("tasks_max = 0", "line 1, column 13", "`tasks_max` is a whole number from 1 to 4294967295"),
        ("sample = 99999999999999999999", "line 1, column 10", ""),
        ("activity = 3", "line 1, column 12", "`activity` is a list, not this integer"),
        ("activity = [3]", "line 1, column 13", "`activity` is a table"),
        ("[activity]", "line 1, column 1", "`activity` is a list, not this table"),
        ("[[activity]]", "line 1, column 1", "no `name`"),
        ("[[activity]]\nname = ''", "line 2, column 8", "1 to 40 bytes"),
        (&format!("[[activity]]\nname = '{long}'"), "line 2, column 8", "1 to 40 bytes"),
        ("[[activity]]\nname = \"a\\u0000\"", "line 2, column 8", "control"),
        (&format!("{a}{a}"), "line 4, column 8", "two activities `a`"),
        (&format!("{a}memory_max = '1x'"), "line 3, column 14", "`memory_max` is bytes of memory"),
        (&format!("{a}memory_min = 0"), "line 3, column 14", "`memory_min` is bytes of memory"),
        (&format!("{a}memory_max = 1\nmemory_min = 2"), "line 4, column 14", "more than `memory_max`"),
        (&format!("{a}oom_group = 1"), "line 3, column 13", "`oom_group` is true or false"),
        (
            &format!("{a}wieght = 3"),
            "line 3, column 1",
            "`wieght` is no key of an activity: did you mean `weight`?",
        ),
        (&format!("{a}weight = 0"), "line 3, column 10", "from 1 to 1000000"),
        (&format!("{a}weight = 1_000_001"), "line 3, column 10", "from 1 to 1000000"),
        (&format!("{a}weight = '50%'"), "line 3, column 10", "whole number"),
        (&format!("{a}weight = 1\nshare = '1%'"), "line 4, column 9", "don't go together"),
        (&format!("{a}share = 50"), "line 3, column 9", "write \"30%\""),
        (&format!("{a}share = '101%'"), "line 3, column 9", "to 100%"),
        (
            &format!("{a}share = '60%'\n[[activity]]\nname = 'b'\nshare = '41%'"),
            "line 5, column 8",
            "more than 100%",
        ),
        (&format!("{a}share = '60%'\n[[activity]]\nname = 'b'"), "line 5, column 8", "has none"),
        (&format!("{a}[[activity]]\nname = 'b'\nshare = '60%'"), "line 1, column 1", "has none"),
        (&format!("{a}reservation = '10MB/s'"), "line 3, column 15", "a part of each core's time"),
        (&format!("{a}reservation = 5"), "line 3, column 15", "a part of each core's time"),
        (&format!("{a}reservation = '101%'"), "line 3, column 15", "time"),
        (&format!("{a}reservation = '2s'"), "line 3, column 15", "time"),
        (&format!("{a}reservation = '-5%'"), "line 3, column 15", "time"),
        (&format!("{a}reservation = '50%'\nlimit = '40%'"), "line 4, column 9", "more than the limit"),
        (
            &format!("{a}reservation = '60%'\n[[activity]]\nname = 'b'\nreservation = '60%'"),
            "line 5, column 8",
            "more than 100%",
        ),
        (&format!("{a}priority = 3000000000"), "line 3, column 12", "whole number"),
        (&format!("{a}deadline = 5"), "line 3, column 12", "write \"1ms\""),
        (&format!("{a}deadline = '5 minutes'"), "line 3, column 12", "write \"1ms\""),
        (&format!("{a}match = [{{}}]"), "line 3, column 10", "says nothing"),
        (&format!("{a}match = [{{program = ''}}]"), "line 3, column 21", "empty"),
        (&format!("{a}match = [{{programm = 'x'}}]"), "line 3, column 11", "did you mean `program`?"),
        (&format!("{a}match = {{program = 'x'}}"), "line 3, column 9", "a list"),
        (&format!("{a}match = [{{user = -1}}]"), "line 3, column 18", "from 0 to 4294967295"),
        ("resource = 3", "line 1, column 12", "a table"),
        ("[resource.device-wriet]", "line 1, column 11", "did you mean `device-write`?"),
        ("[resource.idle]", "line 1, column 11", "nothing can be scheduled"),
        ("[resource.disk]", "line 1, column 11", "no resource `disk`"),
        (
            "[resource.thread]\nscheduler = 'fifo'",
            "line 2, column 13",
            "`fifo` is no scheduler: it is one of wfq, round-robin",
        ),
        ("[resource.thread]\nmeasure = 'byte'", "line 2, column 11", "did you mean `bytes`?"),
        ("[resource.thread]\nrate = '10MB/s'", "line 2, column 8", "core's time"),
        ("[resource.thread]\nmeasure = 'bytes'\nrate = '10M'", "line 3, column 8", "powers of 1000"),
        ("[resource.thread]\nmeasure = 'bytes'\nrate = -1", "line 3, column 8", "bytes a second"),
        ("[resource.thread]\nmeasure = 'operations'\nrate = '5q'", "line 3, column 8", "messages a second"),
        ("[resource.thread]\nbatch = 0", "line 2, column 9", "from 1 to 1024"),
        ("[resource.thread]\ncores = []", "line 2, column 9", "at least one core"),
        ("[resource.thread]\ncores = [1, 1]", "line 2, column 13", "once"),
        ("[resource.thread]\ncores = [256]", "line 2, column 10", "from 0 to 255"),
        ("[resource.thread]\nactivity.x = {}", "line 2, column 10", "no activity `x`"),
        (&format!("{a}[resource.thread]\nactivity.b = {{}}"), "line 4, column 10", "did you mean `a`?"),
        (
            &format!("{a}[resource.thread]\nactivity.a = {{name = 'x'}}"),
            "line 4, column 15",
            "no key of an activity of a resource",
        ),
        (
            &format!(
                "{a}[resource.thread]\nmeasure = 'bytes'\nrate = '1MB/s'\nactivity.a = {{reservation = '2MB'}}"
            ),
            "line 6, column 14",
            "more is reserved",
        ),
        (&many, "line 510, column 8", "254 activities are the most"),
        (&big, "line 1, column 1", "16384 is the most"),
        ("ä = 'x'\u{1}", "line 1, column", ""),
    ] {
        let error = parse(text).unwrap_err();
        let short: String = text.chars().take(300).collect();
        assert!(error.starts_with(at) && error.contains(part), "{short}\n-> {error}\nand not {at}: {part}");
    }
}

#[test]
fn cores_are_the_cells() {
    let config = parse("[[activity]]\nname = 'a'\ncores = [3]").unwrap();
    assert_eq!(parse(&write(&config, &[])).unwrap(), config);
    let error = check_cores(&config, 3).unwrap_err();
    assert_eq!(error, "activity a is to have core 3, and the cell's cores are 0 to 2");
    let config = parse("[resource.timer]\ncores = [0, 2]").unwrap();
    check_cores(&config, 3).unwrap();
    let error = check_cores(&config, 2).unwrap_err();
    assert_eq!(error, "resource timer is to have core 2, and the cell's cores are 0 to 1");
}

/// Bytes of the example changed, dropped, doubled: it is read or refused, and what is read is written and read again.
#[test]
fn takes_any_text() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    let pieces = [
        "\"",
        "[",
        "]",
        "{",
        "}",
        "=",
        "\n",
        ".",
        "%",
        "-1",
        "9999999999999999999",
        "é",
        "\0",
        "inf",
        "1e99",
        "'''",
    ];
    let mut taken = 0;
    for _ in 0..20_000 {
        let mut text: Vec<char> = EXAMPLE.chars().collect();
        for _ in 0..=next(3) {
            let at = next(text.len());
            match next(5) {
                0 => drop(text.remove(at)),
                1 => drop(text.splice(at..at, pieces[next(pieces.len())].chars())),
                2 => drop(text.splice(at..(at + next(30)).min(text.len()), [])),
                3 => {
                    let part: Vec<char> = text[at..(at + next(60)).min(text.len())].to_vec();
                    let to = next(text.len());
                    text.splice(to..to, part);
                }
                _ => text[at] = char::from(b' ' + next(95) as u8),
            }
        }
        let text: String = text.into_iter().collect();
        match parse(&text) {
            Ok(config) => {
                taken += 1;
                assert_eq!(parse(&write(&config, &[])), Ok(config), "{text}");
            }
            Err(e) => assert!(e.starts_with("line ") && e.len() < 1000, "{text}\n{e}"),
        }
    }
    assert!(taken > 100, "{taken}");
}

/// A resource is divided where there is a rate or a limit, and nowhere else.
#[test]
fn says_what_is_not_divided() {
    let text = "[[activity]]\nname = \"gold\"\n\n[resource.thread]\nscheduler = \"wfq\"\n\n\
        [resource.pipe]\nscheduler = \"round-robin\"\n\n[resource.files]\nrate = \"10%\"\n\n\
        [resource.socket]\nmeasure = \"operations\"\nactivity.gold = { limit = 5 }\n\n\
        [resource.wait]\nactivity.gold = { weight = 5 }\n";
    let of = |text: &str| undivided(&parse(text).unwrap()).collect::<Vec<_>>();
    assert_eq!(of(text), ["pipe", "wait"]);
    // A limit of time is one everywhere where time is measured.
    assert!(of(&text.replacen("\n\n", "\nlimit = \"5%\"\n\n", 1)).is_empty());
}
