//! What steps must come to, so that what a GPU computed can be compared with it.

use std::cell::RefCell;

/// Steps that leave a value each, from which the next one follows; the first follows from 0. Each is worked out once, and as far as
/// somebody asks.
pub struct Reference(RefCell<Known>);

struct Known {
    next: Box<dyn FnMut(u64) -> u64>,
    /// What so many steps leave.
    values: Vec<u64>,
}

impl Reference {
    /// `next` gives what a step leaves behind one that left its argument; it is called for each step in turn.
    pub fn of(next: impl FnMut(u64) -> u64 + 'static) -> Self {
        Self(RefCell::new(Known {
            next: Box::new(next),
            values: vec![0],
        }))
    }

    /// What the first `steps` steps leave.
    pub fn value(&self, steps: u64) -> u64 {
        let Known { next, values } = &mut *self.0.borrow_mut();
        while values.len() as u64 <= steps {
            values.push(next(values[values.len() - 1]));
        }
        values[steps as usize]
    }

    /// Makes the value after `steps` steps wrong: tests see by it that a comparison can fail.
    #[allow(dead_code, reason = "of use to tests")]
    pub fn spoil(&self, steps: u64) {
        let value = self.value(steps);
        self.0.borrow_mut().values[steps as usize] = !value;
    }
}

/// The mixing of one word in kernels/ways/step.cuh.
pub fn mix(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// The mixing of two words there.
pub fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
