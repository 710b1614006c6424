//! Values that an insertion took from the cache, for its caller to drop where no lock is held.

/// Values in the order in which they left; one alone, the usual case, costs no allocation.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a destructor may call the cache: drop this after its lock"]
pub struct Left<V> {
    first: Option<V>,
    rest: Vec<V>,
}

impl<V> Left<V> {
    /// None yet.
    pub const fn new() -> Self {
        Self {
            first: None,
            rest: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, value: V) {
        if self.first.is_none() {
            self.first = Some(value);
        } else {
            self.rest.push(value);
        }
    }
}

impl<V> Default for Left<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> IntoIterator for Left<V> {
    type Item = V;
    type IntoIter = std::iter::Chain<std::option::IntoIter<V>, std::vec::IntoIter<V>>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.rest)
    }
}
