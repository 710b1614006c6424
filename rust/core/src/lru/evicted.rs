//! What an insertion pushed out, handed back to be dropped where no lock is held.

/// Values that had to leave, in their order; one alone, the usual case, costs no allocation.
#[derive(Debug, PartialEq, Eq)]
pub struct Evicted<V> {
    first: Option<V>,
    rest: Vec<V>,
}

impl<V> Evicted<V> {
    pub(super) const NONE: Self = Self {
        first: None,
        rest: Vec::new(),
    };

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    /// Whether nothing had to leave.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn push(&mut self, value: V) {
        if self.first.is_none() {
            self.first = Some(value);
        } else {
            self.rest.push(value);
        }
    }
}

impl<V> From<Vec<V>> for Evicted<V> {
    fn from(values: Vec<V>) -> Self {
        let mut evicted = Self::NONE;
        for value in values {
            evicted.push(value);
        }
        evicted
    }
}
