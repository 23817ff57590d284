//! Ranges that Nsight shows on the host's timeline, in the domain `tailgraph`. Without the feature `cuda`
//! there is nothing to show them beside, and all of this compiles to nothing.
//!
//! ```
//! use tailgraph::telemetry::nvtx::{Category, Name, range};
//!
//! let decode = Name::new(Category::Step, c"decode 8"); // once: registering takes a lock
//! for _step in 0..3 {
//!     let _range = range(decode); // until the end of the scope
//! }
//! ```

pub use imp::{Name, Range, Span, mark, range};
use std::ffi::CString;

/// The domain's name, as tools filter by it.
pub const DOMAIN: &str = "tailgraph";

/// Set where captured graphs are to [`mark`] their nodes: a profiler notes when and by which thread a node was made, so the mark
/// before it names it (`profiles/summary.py nodes`). Some thousand texts are made for that, which other runs go without.
pub const NAME_NODES: &str = "TAILGRAPH_NAME_NODES";

/// What a range belongs to; tools filter by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    /// Once per run: load, graphs, and in these capture, instantiate, upload.
    Start,
    /// The life of an engine: serve, drain.
    Run,
    /// A stage of a step that the host launches.
    Step,
}

#[cfg(feature = "cuda")]
mod imp {
    use super::Category;
    use nvtx::Domain;
    use nvtx::domain::{self, EventAttributes, LocalRange, RegisteredString};
    use std::ffi::CStr;
    use std::sync::LazyLock;

    static DOMAIN: LazyLock<Domain> = LazyLock::new(|| Domain::new(c"tailgraph"));

    /// The name of a range, registered with NVTX once and cheap to use from then on.
    #[derive(Debug, Clone, Copy)]
    pub struct Name {
        text: RegisteredString<'static>,
        category: domain::Category<'static>,
    }

    impl Name {
        /// Registers `text`; the same text gives the same name.
        pub fn new(category: Category, text: &CStr) -> Self {
            let category = match category {
                Category::Start => c"start",
                Category::Run => c"run",
                Category::Step => c"step",
            };
            Self {
                text: DOMAIN.register_string(text),
                category: DOMAIN.register_category(category),
            }
        }

        fn event(self) -> EventAttributes<'static> {
            DOMAIN
                .event_attributes_builder()
                .category(self.category)
                .message(self.text)
                .build()
        }
    }

    /// An open range of this thread; ranges nest, and this one ends when it is dropped.
    #[must_use = "a range ends when it is dropped"]
    #[derive(Debug)]
    pub struct Range {
        _open: LocalRange<'static>,
    }

    /// Opens a range. Costs tens of nanoseconds with nothing attached.
    pub fn range(name: Name) -> Range {
        Range {
            _open: DOMAIN.local_range(name.event()),
        }
    }

    /// Marks this moment on this thread.
    pub fn mark(name: Name) {
        DOMAIN.mark(name.event());
    }

    /// An open range of the whole process: it may end on another thread, and need not nest. It ends when it is dropped.
    #[must_use = "a span ends when it is dropped"]
    #[derive(Debug)]
    pub struct Span {
        _open: domain::Range<'static>,
    }

    impl Span {
        pub fn new(name: Name) -> Self {
            Self {
                _open: DOMAIN.range(name.event()),
            }
        }
    }
}

#[cfg(not(feature = "cuda"))]
mod imp {
    use super::Category;
    use std::ffi::CStr;

    #[derive(Debug, Clone, Copy)]
    pub struct Name;

    impl Name {
        pub fn new(_category: Category, _text: &CStr) -> Self {
            Self
        }
    }

    /// Tied to the thread that opened it, as the other build's ranges are.
    #[must_use = "a range ends when it is dropped"]
    #[derive(Debug)]
    pub struct Range(std::marker::PhantomData<*const ()>);

    pub fn range(_name: Name) -> Range {
        Range(std::marker::PhantomData)
    }

    pub fn mark(_name: Name) {}

    #[must_use = "a span ends when it is dropped"]
    #[derive(Debug)]
    pub struct Span;

    impl Span {
        pub fn new(_name: Name) -> Self {
            Self
        }
    }
}

impl Name {
    /// [`Name::new`] of a text that is put together: up to its first zero byte, if it has one.
    pub fn of(category: Category, text: &str) -> Self {
        let bytes: Vec<u8> = text.bytes().take_while(|&byte| byte != 0).collect();
        Self::new(category, &CString::new(bytes).unwrap_or_default())
    }
}
