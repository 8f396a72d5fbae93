//! Numbered places, used again.

use alloc::vec::Vec;

/// Things by number. A number may come back for another thing.
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Slab { items: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, item: T) -> usize {
        match self.free.pop() {
            Some(n) => {
                self.items[n] = Some(item);
                n
            }
            None => {
                self.items.push(Some(item));
                self.items.len() - 1
            }
        }
    }

    pub(crate) fn get(&self, n: usize) -> Option<&T> {
        self.items.get(n)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, n: usize) -> Option<&mut T> {
        self.items.get_mut(n)?.as_mut()
    }

    pub(crate) fn remove(&mut self, n: usize) -> Option<T> {
        let item = self.items.get_mut(n)?.take()?;
        self.free.push(n);
        Some(item)
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }
}
