//! Ranges that Nsight shows on the host's timeline, in the domain `tailgraph`. Without the feature `cuda`
//! there is nothing to show them beside, and all of this compiles to nothing.
//!
//! ```
//! use tailgraph::telemetry::nvtx::{Name, range};
//!
//! let capture = Name::new(c"capture"); // once: registering takes a lock
//! for _bucket in [1, 2, 4] {
//!     let _range = range(capture); // until the end of the scope
//! }
//! ```

#[cfg(feature = "cuda")]
mod imp {
    use nvtx::Domain;
    use nvtx::domain::{LocalRange, RegisteredString};
    use std::ffi::CStr;
    use std::sync::LazyLock;

    static DOMAIN: LazyLock<Domain> = LazyLock::new(|| Domain::new(c"tailgraph"));

    #[derive(Debug, Clone, Copy)]
    pub struct Name(RegisteredString<'static>);

    impl Name {
        pub fn new(text: &CStr) -> Self {
            Self(DOMAIN.register_string(text))
        }
    }

    #[derive(Debug)]
    pub struct Range {
        _open: LocalRange<'static>,
    }

    pub fn range(name: Name) -> Range {
        Range {
            _open: DOMAIN.local_range(name.0),
        }
    }
}

#[cfg(not(feature = "cuda"))]
mod imp {
    use std::ffi::CStr;

    #[derive(Debug, Clone, Copy)]
    pub struct Name;

    impl Name {
        pub fn new(_text: &CStr) -> Self {
            Self
        }
    }

    #[derive(Debug)]
    pub struct Range {
        // What the other build's ranges are: tied to the thread that opened them.
        _thread: std::marker::PhantomData<*const ()>,
    }

    pub fn range(_name: Name) -> Range {
        Range {
            _thread: std::marker::PhantomData,
        }
    }
}

use std::ffi::CStr;

/// The name of a range, registered with NVTX once and cheap to use from then on.
#[derive(Debug, Clone, Copy)]
pub struct Name(imp::Name);

impl Name {
    /// Registers `text`; the same text gives the same name.
    pub fn new(text: &CStr) -> Self {
        Self(imp::Name::new(text))
    }
}

/// An open range of this thread; ranges nest, and this one ends when it is dropped.
#[must_use = "a range ends when it is dropped"]
#[derive(Debug)]
pub struct Range {
    _open: imp::Range,
}

/// Opens a range. Costs tens of nanoseconds with nothing attached.
pub fn range(name: Name) -> Range {
    Range {
        _open: imp::range(name.0),
    }
}
