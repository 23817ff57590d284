//! Namespaces: what a template may change.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use indexmap::IndexMap;
use minijinja::value::{Object, ObjectRepr};
use minijinja::{Error, Value};

use super::{HOLDS_NAMESPACE, depth_of, wrong};
use crate::text::jinja::meter;

/// What `namespace()` makes: attributes that a template may set.
#[derive(Debug, Default)]
pub struct Namespace(Mutex<IndexMap<String, Value>>);

thread_local! {
    /// Those of the rendering on this thread.
    static NAMESPACES: RefCell<Vec<Weak<Namespace>>> = const { RefCell::new(Vec::new()) };
}

/// After a rendering: a macro in a namespace may hold that namespace, and neither would ever go.
pub fn empty_namespaces() {
    for namespace in NAMESPACES.take() {
        if let Some(namespace) = namespace.upgrade() {
            let entries = std::mem::take(&mut *namespace.lock());
            drop(entries);
        }
    }
}

impl Namespace {
    /// # Errors
    /// There are more than the rendering may still make.
    pub fn create() -> Result<Arc<Self>, Error> {
        meter::charge_items(4)?;
        let namespace = Arc::new(Self::default());
        NAMESPACES.with_borrow_mut(|all| all.push(Arc::downgrade(&namespace)));
        Ok(namespace)
    }

    fn lock(&self) -> MutexGuard<'_, IndexMap<String, Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self, name: &str) -> Option<Value> {
        self.lock().get(name).cloned()
    }

    /// # Errors
    /// The name begins with an underscore, which transformers forbids, or the value holds a namespace.
    pub fn set(&self, name: &str, value: Value) -> Result<(), Error> {
        if name.starts_with('_') {
            return Err(wrong(format!(
                "namespace: found the attribute {name:?}, expected a name that does not begin with an underscore"
            )));
        }
        if depth_of(&value) >= HOLDS_NAMESPACE {
            return Err(wrong(format!(
                "namespace: found a namespace, or a list or dict that holds one, for the attribute {name:?}, expected another value: namespaces in namespaces are not supported"
            )));
        }
        meter::charge_items(2)?;
        self.lock().insert(name.to_owned(), value);
        Ok(())
    }

    pub fn pairs(&self) -> Vec<(String, Value)> {
        let entries = self.lock();
        entries
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }
}

impl Object for Namespace {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}
