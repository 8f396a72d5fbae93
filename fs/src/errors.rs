//! Errors of writing behind the program's back, as they are reported: each open file learns of one once, whoever met it (Linux's
//! `errseq_t`, Documentation/core-api/errseq.rst).

use core::sync::atomic::{AtomicU64, Ordering};

use atoll_abi::{Errno, Result};

/// Somebody has been told of the last one.
const SEEN: u64 = 1 << 12;
/// Its error number.
const NUMBER: u64 = SEEN - 1;
/// Above: how many there have been.
const ONE: u64 = SEEN << 1;

/// What went wrong with a file's contents, and how often.
#[derive(Default)]
pub struct Errors(AtomicU64);

impl Errors {
    /// Some of what was written is lost.
    pub fn note(&self, e: Errno) {
        // It always has a value to store.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| {
            Some(((now / ONE + 1) * ONE) | (u64::from(e.0) & NUMBER))
        });
    }

    /// Where who opens the file begins: what nobody has been told of yet is for him, too.
    pub fn sample(&self) -> u64 {
        let now = self.0.load(Ordering::Acquire);
        let count = now / ONE;
        if count > 0 && now & SEEN == 0 { count - 1 } else { count }
    }

    /// The last one, if there has been one after `since`. Who asks tells it.
    pub fn check(&self, since: u64) -> Result<()> {
        let now = self.0.load(Ordering::Acquire);
        if now / ONE <= since {
            return Ok(());
        }
        // If there is a newer one by now, nobody has been told of that.
        let _ = self.0.compare_exchange(now, now | SEEN, Ordering::AcqRel, Ordering::Relaxed);
        Err(Errno((now & NUMBER) as u32))
    }

    /// The last one, if nobody has been told of it. It stays to be told.
    pub fn peek(&self) -> Result<()> {
        let now = self.0.load(Ordering::Acquire);
        if now < ONE || now & SEEN != 0 { Ok(()) } else { Err(Errno((now & NUMBER) as u32)) }
    }

    /// Nobody is to be told of the last one any more who has not had the file open when it came.
    pub fn forget(&self) {
        self.0.fetch_or(SEEN, Ordering::AcqRel);
    }

    /// What [`Errors::check`] says, once.
    pub fn check_and_advance(&self, since: &AtomicU64) -> Result<()> {
        let before = since.load(Ordering::Acquire);
        let now = self.0.load(Ordering::Acquire) / ONE;
        // Of several who ask at the same time for one open file, one is told.
        if now <= before || since.compare_exchange(before, now, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return Ok(());
        }
        self.check(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_learns_of_one_once() {
        let errors = Errors::default();
        let (a, b) = (AtomicU64::new(errors.sample()), AtomicU64::new(errors.sample()));
        assert_eq!(errors.check_and_advance(&a), Ok(()));
        errors.note(Errno::ENOSPC);
        // Who closes a copy of its descriptor does not take it from the others.
        assert_eq!(errors.check(a.load(Ordering::Relaxed)), Err(Errno::ENOSPC));
        assert_eq!(errors.check_and_advance(&a), Err(Errno::ENOSPC));
        assert_eq!(errors.check_and_advance(&a), Ok(()));
        assert_eq!(errors.check_and_advance(&b), Err(Errno::ENOSPC));
        // It has been told.
        let c = AtomicU64::new(errors.sample());
        assert_eq!(errors.check_and_advance(&c), Ok(()));
        errors.note(Errno::EIO);
        // This one has not, and so whoever comes next is.
        let d = AtomicU64::new(errors.sample());
        assert_eq!(errors.check_and_advance(&d), Err(Errno::EIO));
        assert_eq!(errors.check_and_advance(&a), Err(Errno::EIO));
    }

    #[test]
    fn who_peeks_takes_nothing() {
        let errors = Errors::default();
        errors.forget();
        assert_eq!(errors.peek(), Ok(()));
        let a = AtomicU64::new(errors.sample());
        errors.note(Errno::ENOSPC);
        assert_eq!(errors.peek(), Err(Errno::ENOSPC));
        assert_eq!(errors.peek(), Err(Errno::ENOSPC));
        let b = AtomicU64::new(errors.sample());
        assert_eq!(errors.check_and_advance(&b), Err(Errno::ENOSPC));
        assert_eq!(errors.peek(), Ok(()));
        assert_eq!(errors.check_and_advance(&a), Err(Errno::ENOSPC));
        errors.note(Errno::EIO);
        errors.forget();
        assert_eq!(errors.peek(), Ok(()));
        let c = AtomicU64::new(errors.sample());
        assert_eq!(errors.check_and_advance(&c), Ok(()));
    }
}
