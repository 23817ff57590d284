//! The one source of random test input: a seed gives the same on every machine.

use tailgraph::io::hash::mix64;

/// SplitMix64, and its seed.
#[derive(Clone)]
pub struct Random(pub u64);

/// What can be drawn below a bound.
pub trait Whole: Copy {
    fn wide(self) -> u64;
    /// The number in this type, all of whose bits it fits in.
    fn narrow(number: u64) -> Self;
}

macro_rules! whole {
    ($($number:ty),*) => {$(
        impl Whole for $number {
            fn wide(self) -> u64 {
                self as u64
            }
            fn narrow(number: u64) -> Self {
                number as $number
            }
        }
    )*};
}

whole!(i32, u32, u64, usize);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0)
    }

    /// Below `end`; 0 where `end` is 0.
    pub fn below<N: Whole>(&mut self, end: N) -> N {
        N::narrow(self.next() % end.wide().max(1))
    }

    /// In `low ..= high`.
    pub fn range(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high - low + 1)
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, chance: u32) -> bool {
        self.below(100u32) < chance
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }

    /// In (-scale, scale).
    pub fn values(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count)
            .map(|_| ((self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale)
            .collect()
    }
}
