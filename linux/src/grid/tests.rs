//! Bytes that no supervisor of ours has encoded.

use std::vec;

use atoll_abi::grid::{ACTIVITIES_MAX, Match, MemoryQuota};
use atoll_grid::message::{Header, Message, Pool};
use atoll_grid::queue::Queues;

use super::*;

/// Splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// Everything that a configuration can have.
fn example() -> GridConfig {
    let gold =
        Parameters { weight: 50, reservation: 300_000_000, limit: 800_000_000, ..Parameters::default() };
    let lead = Parameters { priority: -3, deadline: 1_500_000, ..Parameters::default() };
    let nginx = Match {
        program: Some("nginx".into()),
        argument: Some("*gold.conf".into()),
        environment: Some("TENANT=gold".into()),
        user: Some(33),
    };
    let resource = |resource, scheduler, measure, batch| ResourceConfig {
        resource,
        scheduler,
        measure,
        rate: 100_000_000,
        batch,
        cores: vec![0, 2],
        activities: vec![(0, Parameters { weight: 70, limit: 1000, ..gold }), (1, lead)],
    };
    GridConfig {
        sample: 32,
        threads: true,
        quotas: [500, 0, 0, 0, 70],
        activities: vec![
            ActivityConfig {
                name: "gold".into(),
                parameters: gold,
                cores: vec![0, 1],
                matches: vec![nginx, Match::default()],
                threads: true,
                quotas: [20, 3, 4, 5, 0],
                memory: MemoryQuota { max: 3 << 29, min: 1_000_000, oom_group: true },
            },
            ActivityConfig { name: "lead & tin".into(), parameters: lead, ..ActivityConfig::default() },
        ],
        resources: vec![
            resource(Resource::Thread, SchedulerKind::Wfq, Measure::Time, 1),
            resource(Resource::DeviceWrite, SchedulerKind::RoundRobin, Measure::Bytes, 4),
            resource(Resource::Socket, SchedulerKind::Priority, Measure::Operations, 2),
            resource(Resource::Files, SchedulerKind::Deadline, Measure::Time, 1024),
        ],
    }
}

/// Makes a few bytes others, or more, or fewer.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    /// Where numbers end: of a byte, of a varint's piece, and the longest ones.
    const EXTREMES: [&[u8]; 5] = [&[0], &[0x7f], &[0xff], &[0xff; 4], &[0xff; 9]];
    for _ in 0..1 + random.below(2) {
        let at = random.below(bytes.len().max(1)).min(bytes.len());
        let to = (at + random.below(8)).min(bytes.len());
        match random.below(10) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..to)),
            2 => drop(bytes.splice(at..at, EXTREMES[random.below(EXTREMES.len())].iter().copied())),
            // A number of up to 64 bits, in place of what was there.
            3 => drop(bytes.splice(at..to, [&[0xff; 9][..], &[1]].concat())),
            4 => {
                let piece = bytes[at..to].to_vec();
                let there = random.below(bytes.len() + 1);
                bytes.splice(there..there, piece);
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = random.below(256) as u8;
                }
            }
        }
    }
}

/// What [`check`] promises of what it takes.
fn assert_sound(config: &GridConfig) {
    for (n, a) in config.activities.iter().enumerate() {
        assert!((1..=NAME_MAX).contains(&a.name.len()) && a.parameters.weight > 0, "{a:?}");
        assert!(config.activities[..n].iter().all(|other| other.name != a.name), "{} twice", a.name);
    }
    for resource in &config.resources {
        assert!(
            resource.activities.iter().all(|(n, _)| (*n as usize) < config.activities.len()),
            "{resource:?}"
        );
        assert!(resource.activities.iter().all(|(_, p)| p.weight > 0), "{resource:?}");
        assert!((1..=BATCH_MAX).contains(&resource.batch), "{resource:?}");
    }
}

/// Divides a resource as a configuration says, with small amounts and large ones, over 300 years. Value: what the
/// schedulers did wrong.
fn divide(r: &ResourceConfig, config: &GridConfig) -> u64 {
    let mut queues = Queues::new(r.scheduler, r.batch, r.rate);
    let mut pool = Pool::new(8);
    let named = config.activities.len().min(ACTIVITIES_MAX - 2) as u32;
    for n in 0..named {
        let own = r.activities.iter().find(|(a, _)| *a == n).map(|(_, own)| own);
        queues.configure(2 + n, own.unwrap_or(&config.activities[n as usize].parameters));
    }
    for now in [0, 1, 10_000_000, u64::MAX / 2] {
        for activity in 0..(2 + named).min(6) {
            for cost in [1, 1 << 24] {
                if queues.may_run(activity, now) {
                    queues.done(activity, cost, now);
                }
                let header = Header { dependency: 0, affinity: 0, cost, activity, resource: r.resource };
                queues.push(Message::new(&mut pool, header, || ()), now);
            }
        }
        for _ in 0..64 {
            let Some(message) = queues.next(now) else { break };
            let Header { activity, cost, .. } = *message.header();
            pool.put(message.run());
            queues.done(activity, cost, now);
        }
        queues.later(now);
    }
    queues.faults()
}

/// OK-09: whatever bytes stand where a configuration is offered, they are one or an error, and never a panic; and what the cell
/// takes, schedulers can divide by.
#[test]
fn takes_no_nonsense() {
    let random = &mut Random(20261127);
    let right = postcard::to_allocvec(&example()).unwrap();
    assert_eq!(postcard::from_bytes::<GridConfig>(&right).unwrap(), example());
    check(&example()).unwrap();
    let (mut decoded, mut taken) = (0, 0);
    for n in 0..20_000 {
        let mut bytes = match n % 8 {
            0 => (0..random.below(400)).map(|_| random.below(256) as u8).collect(),
            _ => right.clone(),
        };
        if n % 8 != 0 {
            mutate(&mut bytes, random);
        }
        let Ok(config) = postcard::from_bytes::<GridConfig>(&bytes) else { continue };
        decoded += 1;
        if check(&config).is_ok() {
            taken += 1;
            assert_sound(&config);
            for resource in &config.resources {
                assert_eq!(divide(resource, &config), 0, "{config:?}");
            }
        }
    }
    assert!(decoded > 2_000 && taken > 1_000 && taken < decoded, "{taken} of {decoded} were taken");
}

/// OK-09: what is refused, each for its own reason.
#[test]
fn refuses() {
    type Spoil = fn(&mut GridConfig);
    let wrong: [(&str, Spoil); 11] = [
        ("idle is measured", |c| c.resources[2].resource = Resource::Idle),
        ("device-write is divided twice", |c| c.resources[3].resource = Resource::DeviceWrite),
        ("batch of files is from 1 to 1024", |c| c.resources[3].batch = 1025),
        ("batch of thread is from 1 to 1024", |c| c.resources[0].batch = 0),
        ("has no weight at socket", |c| c.resources[2].activities[1].1.weight = 0),
        ("1 to 40 bytes", |c| c.activities[1].name.clear()),
        ("1 to 40 bytes", |c| c.activities[1].name = "n".repeat(NAME_MAX + 1)),
        ("two activities gold", |c| c.activities[1].name = "gold".into()),
        ("gold has no weight", |c| c.activities[0].parameters.weight = 0),
        ("an activity 2 that is not there", |c| c.resources[1].activities[1].0 = 2),
        ("an activity 4294967295 that is not there", |c| c.resources[3].activities[0].0 = u32::MAX),
    ];
    for (why, spoil) in wrong {
        let mut config = example();
        spoil(&mut config);
        let said = check(&config).expect_err(why);
        assert!(said.contains(why), "{said} and not {why}");
    }
}
