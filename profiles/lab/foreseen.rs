//! What steps must come to, so that what a GPU computed can be compared with it.

use parking_lot::Mutex;
use std::sync::Arc;

/// Steps that leave a value each, from which the next step follows. The first follows from 0.
pub trait Computed {
    /// What the next step leaves, behind one that left `before`. Called for each step in turn.
    fn next(&mut self, before: u64) -> u64;
}

/// The values of such steps, worked out as far as somebody asks, once for all who share it.
#[derive(Debug)]
pub struct Foreseen<S>(Arc<Mutex<Known<S>>>);

#[derive(Debug)]
struct Known<S> {
    steps: S,
    /// By steps done.
    values: Vec<u64>,
}

impl<S> Clone for Foreseen<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Computed> Foreseen<S> {
    pub fn of(steps: S) -> Self {
        Self(Arc::new(Mutex::new(Known {
            steps,
            values: vec![0],
        })))
    }

    /// What the steps are.
    pub fn steps<T>(&self, look: impl FnOnce(&S) -> T) -> T {
        look(&self.0.lock().steps)
    }

    /// After the first `steps` steps.
    pub fn value(&self, steps: u64) -> u64 {
        let Known {
            steps: computed,
            values,
        } = &mut *self.0.lock();
        while values.len() as u64 <= steps {
            let value = computed.next(values[values.len() - 1]);
            values.push(value);
        }
        values[steps as usize]
    }

    /// From step `steps` on all that is expected is wrong: to see that a comparison finds it.
    #[doc(hidden)]
    pub fn spoil(&self, steps: u64) {
        let value = self.value(steps);
        self.0.lock().values[steps as usize] = !value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often it was asked.
    struct Doubling(u32);

    impl Computed for Doubling {
        fn next(&mut self, before: u64) -> u64 {
            self.0 += 1;
            2 * before + 1
        }
    }

    #[test]
    fn each_step_is_worked_out_once_for_all() {
        let steps = Foreseen::of(Doubling(0));
        let other = steps.clone();
        assert_eq!((steps.value(5), other.value(3), steps.value(0)), (31, 7, 0));
        assert_eq!(other.steps(|steps| steps.0), 5);
        steps.spoil(4);
        assert_eq!(
            (other.value(3), other.value(4), other.value(6)),
            (7, !15, 63)
        );
    }
}
