//! Which of many has the smallest key.

use alloc::vec::Vec;

use super::Client;

/// The key of who is not in.
const NONE: u128 = u128::MAX;

/// Clients in the order of their keys: a tournament, whose inner nodes name the winner of the two below. Changing a key
/// plays one client's matches again: two comparisons for up to four clients, eight for 256.
#[derive(Default)]
pub(super) struct Order {
    /// By client, as many as a power of two, at least two.
    keys: Vec<u128>,
    /// Node 1 is the root; those below `n` are `2 * n` and `2 * n + 1`. Number 0 is nobody's.
    winners: Vec<Client>,
}

impl Order {
    /// Makes room for clients up to this one.
    pub(super) fn grow(&mut self, client: Client) {
        let places = (client as usize + 1).next_power_of_two().max(2);
        if places <= self.keys.len() {
            return;
        }
        self.keys.resize(places, NONE);
        self.winners = alloc::vec![0; places];
        for node in (1..places).rev() {
            self.winners[node] = self.play(node);
        }
    }

    /// Who wins at a node; the lower number if the keys are the same.
    fn play(&self, node: usize) -> Client {
        let places = self.keys.len();
        let (a, b) = match 2 * node {
            below if below >= places => ((below - places) as Client, (below - places + 1) as Client),
            below => (self.winners[below], self.winners[below + 1]),
        };
        if self.keys[b as usize] < self.keys[a as usize] { b } else { a }
    }

    /// Sets a client's key; a client that was not in now is. The greatest key counts as the one before it.
    #[inline]
    pub(super) fn set(&mut self, client: Client, key: u128) {
        self.replay(client, key.min(NONE - 1));
    }

    #[inline]
    fn replay(&mut self, client: Client, key: u128) {
        self.keys[client as usize] = key;
        let mut node = (client as usize + self.keys.len()) / 2;
        while node > 0 {
            let winner = self.play(node);
            // Above a node that another client won before and wins now, nothing changes.
            if self.winners[node] == winner && winner != client {
                break;
            }
            self.winners[node] = winner;
            node /= 2;
        }
    }

    /// Takes a client out.
    #[inline]
    pub(super) fn remove(&mut self, client: Client) {
        if self.keys[client as usize] != NONE {
            self.replay(client, NONE);
        }
    }

    /// Who has the smallest key, and that.
    #[inline]
    pub(super) fn first(&self) -> Option<(Client, u128)> {
        let winner = *self.winners.get(1)?;
        let key = self.keys[winner as usize];
        (key != NONE).then_some((winner, key))
    }

    /// The same of all but this client.
    #[inline]
    pub(super) fn first_but(&self, client: Client) -> Option<(Client, u128)> {
        let first = self.first()?;
        if first.0 != client {
            return Some(first);
        }
        // The best of those it has won against, on its way to the root.
        let mut best = client ^ 1;
        let mut node = (client as usize + self.keys.len()) / 2;
        while node > 1 {
            let other = self.winners[node ^ 1];
            let of = |c: Client| (self.keys[c as usize], c);
            best = if of(other) < of(best) { other } else { best };
            node /= 2;
        }
        let key = self.keys[best as usize];
        (key != NONE).then_some((best, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_greatest_key_is_in() {
        let mut order = Order::default();
        order.grow(2);
        order.set(2, u128::MAX);
        assert_eq!(order.first(), Some((2, u128::MAX - 1)));
        order.remove(2);
        assert_eq!(order.first(), None);
    }

    proptest! {
        #[test]
        fn agrees_with_model(ops in prop::collection::vec((0u16..40, 0u128..20), 1..400)) {
            let mut order = Order::default();
            let mut model: BTreeMap<Client, u128> = BTreeMap::new();
            prop_assert_eq!(order.first(), None);
            for (client, key) in ops {
                order.grow(client);
                if key == 0 {
                    order.remove(client);
                    model.remove(&client);
                } else {
                    order.set(client, key);
                    model.insert(client, key);
                }
                let all = || model.iter().map(|(c, k)| (*k, *c));
                let first = all().min().map(|(k, c)| (c, k));
                prop_assert_eq!(order.first(), first);
                for but in [client, first.map_or(0, |f| f.0)] {
                    let first = all().filter(|(_, c)| *c != but).min().map(|(k, c)| (c, k));
                    prop_assert_eq!(order.first_but(but), first);
                }
            }
        }
    }
}
