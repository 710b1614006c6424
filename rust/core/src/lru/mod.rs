//! Exact LRU by bytes: the policy, without a lock and without a clock.
//!
//! The same calls in the same order evict the same entries, which two mirrored caches rely on.
//! Every operation is O(1) beside the entries it evicts. Must never drop a value while its caller
//! may hold a lock: whatever leaves the cache is handed back.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use key::{Key, KeyHasher, Others, Query};
pub use left::Left;

mod key;
mod left;

/// The node that closes the ring of the order, and the end of the free list. It holds no entry.
const ENDS: u32 = 0;

/// A byte-bounded map that forgets what was used longest ago.
///
/// ```
/// use safelight_core::lru::{Insert, Left, Lru};
///
/// let (mut lru, mut left) = (Lru::new(10), Left::new());
/// lru.insert(b"a", 'a', 6, &mut left);
/// assert_eq!(lru.insert(b"b", 'b', 6, &mut left), Insert::Stored { evicted: 1 });
/// assert!(left.into_iter().eq(['a']));
/// ```
pub struct Lru<V> {
    table: HashTable<u32>,
    /// The entries that are not pinned are a ring through [`ENDS`], in the order of their use.
    nodes: Vec<Node<V>>,
    others: Others,
    hasher: KeyHasher,
    /// First of the unused nodes, linked through `newer`.
    free: u32,
    bytes: u64,
    pinned_bytes: u64,
    max_bytes: u64,
}

/// One cache line, where the value is a pointer.
#[repr(align(64))]
struct Node<V> {
    key: Key,
    /// `None` exactly while the node is unused.
    value: Option<V>,
    weight: u64,
    newer: u32,
    older: u32,
    /// A pinned node is in no ring: it cannot be evicted and has no place in the order.
    pins: u32,
}

impl<V> Node<V> {
    /// The ends of an empty order.
    const ENDS: Self = Self {
        key: Key::NONE,
        value: None,
        weight: 0,
        newer: ENDS,
        older: ENDS,
        pins: 0,
    };
}

/// What became of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insert {
    /// The value is in the cache, most recently used.
    Stored {
        /// How many others had to leave for it.
        evicted: u64,
    },
    /// The value does not fit, even alone beside what is pinned. Nothing was evicted.
    Refused,
}

impl<V> Lru<V> {
    /// An empty cache of at most `max_bytes`. With 0 it stores nothing, weightless values included.
    #[must_use]
    pub fn new(max_bytes: u64) -> Self {
        Self {
            table: HashTable::new(),
            nodes: vec![Node::ENDS],
            others: Others::default(),
            hasher: KeyHasher::default(),
            free: ENDS,
            bytes: 0,
            pinned_bytes: 0,
            max_bytes,
        }
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Exact sum of the weights of all entries.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sum of the weights of the pinned entries.
    #[must_use]
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    /// The bound.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// The value of `key`, which becomes the most recently used.
    #[inline]
    pub fn get(&mut self, key: &[u8]) -> Option<&V> {
        let index = self.find(key)?;
        self.renew(index);
        self.node(index).value.as_ref()
    }

    /// The value of `key`, for a look-up that promises nothing: the order stays.
    #[must_use]
    pub fn peek(&self, key: &[u8]) -> Option<&V> {
        self.node(self.find(key)?).value.as_ref()
    }

    /// The weight of `key`; the order stays.
    #[must_use]
    pub fn weight(&self, key: &[u8]) -> Option<u64> {
        Some(self.node(self.find(key)?).weight)
    }

    /// Make `key` the most recently used; false if it is not there.
    pub fn touch(&mut self, key: &[u8]) -> bool {
        let Some(index) = self.find(key) else {
            return false;
        };
        self.renew(index);
        true
    }

    /// Keep `key` from eviction until it is unpinned as often; false if it is not there.
    ///
    /// The order of the others stays.
    pub fn pin(&mut self, key: &[u8]) -> bool {
        let Some(index) = self.find(key) else {
            return false;
        };
        if self.node(index).pins == 0 {
            self.unlink(index);
            self.pinned_bytes += self.node(index).weight;
        }
        let node = self.node_mut(index);
        // Saturated pins are never released: pinned for good is safe, a wrapped count is not.
        node.pins = node.pins.saturating_add(1);
        true
    }

    /// Take back one pin; with the last, `key` becomes the most recently used.
    ///
    /// False if it is not there or not pinned.
    pub fn unpin(&mut self, key: &[u8]) -> bool {
        let Some(index) = self.find(key) else {
            return false;
        };
        match self.node(index).pins {
            0 => return false,
            u32::MAX => {}
            1 => {
                self.node_mut(index).pins = 0;
                self.pinned_bytes -= self.node(index).weight;
                self.link_newest(index);
            }
            pins => self.node_mut(index).pins = pins - 1,
        }
        true
    }

    /// Store `value` under `key` as the most recently used, and evict until it fits.
    ///
    /// Whether it can fit is known before anything is evicted. A key that is stored again may
    /// change its weight and keeps its pins; one whose new value is refused is forgotten, because
    /// its old value is out of date. To `left` go the value that had the key, then what was
    /// evicted, least recently used first, then `value` itself if it was refused.
    #[inline]
    pub fn insert(&mut self, key: &[u8], value: V, weight: u64, left: &mut Left<V>) -> Insert {
        let query = Query::new(key);
        let hash = query.hash(&self.hasher);
        self.reserve();
        let (nodes, others, hasher) = (&self.nodes, &self.others, &self.hasher);
        // One probe finds the entry or its place.
        let entry = self.table.entry(
            hash,
            |&index| others.is(index, &nodes[index as usize].key, &query),
            |&index| nodes[index as usize].key.hash(hasher),
        );
        let place = match entry {
            Entry::Occupied(entry) => {
                let index = *entry.get();
                return self.replace(index, value, weight, left);
            }
            Entry::Vacant(place) => place,
        };
        let index = self.free;
        if index == ENDS || !fits(weight, self.pinned_bytes, self.max_bytes) {
            left.push(value);
            return Insert::Refused;
        }
        place.insert(index);
        self.free = self.node(index).newer;
        let evicted = self.make_room(weight, left);
        let node = &mut self.nodes[index as usize];
        self.others.keep(index, &query, hash, &mut node.key);
        node.value = Some(value);
        node.weight = weight;
        self.bytes += weight;
        self.link_newest(index);
        Insert::Stored { evicted }
    }

    /// Give the entry at `index` another value and another weight.
    fn replace(&mut self, index: u32, value: V, weight: u64, left: &mut Left<V>) -> Insert {
        let pinned = self.node(index).pins > 0;
        let others_pinned = if pinned {
            self.pinned_bytes - self.node(index).weight
        } else {
            self.pinned_bytes
        };
        if !fits(weight, others_pinned, self.max_bytes) {
            left.push(self.take(index));
            left.push(value);
            return Insert::Refused;
        }
        if !pinned {
            // Out of the order first, so that it cannot be evicted for its own sake.
            self.unlink(index);
        }
        let node = self.node_mut(index);
        if let Some(before) = node.value.replace(value) {
            left.push(before);
        }
        let before = std::mem::replace(&mut node.weight, weight);
        self.bytes -= before;
        let evicted = self.make_room(weight, left);
        self.bytes += weight;
        if pinned {
            self.pinned_bytes = others_pinned + weight;
        } else {
            self.link_newest(index);
        }
        Insert::Stored { evicted }
    }

    /// Remove `key`, pinned or not, and hand its value back.
    pub fn remove(&mut self, key: &[u8]) -> Option<V> {
        let index = self.find(key)?;
        Some(self.take(index))
    }

    /// Remove everything, pinned or not, and hand the values back.
    #[must_use = "what left the cache is dropped here, perhaps under a lock"]
    pub fn clear(&mut self) -> Vec<V> {
        let old = std::mem::replace(self, Self::new(self.max_bytes));
        old.nodes
            .into_iter()
            .filter_map(|node| node.value)
            .collect()
    }

    /// Every value, pinned ones included, in no order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.nodes.iter().filter_map(|node| node.value.as_ref())
    }

    /// Keys and weights that can be evicted, in the order in which they would be.
    pub fn eviction_order(&self) -> impl Iterator<Item = (Box<[u8]>, u64)> {
        let mut index = self.node(ENDS).newer;
        std::iter::from_fn(move || {
            let node = self.node(index);
            let entry =
                (index != ENDS).then(|| (self.others.to_bytes(index, &node.key), node.weight));
            index = node.newer;
            entry
        })
    }

    /// Check every invariant in O(n), for tests and fuzzing.
    ///
    /// # Errors
    ///
    /// The first invariant that does not hold.
    pub fn validate(&self) -> Result<(), &'static str> {
        let mut bytes = 0_u64;
        let mut pinned = (0_usize, 0_u64);
        let mut used = 0_usize;
        for (index, node) in (0_u32..).zip(&self.nodes) {
            if node.value.is_none() {
                continue;
            }
            used += 1;
            bytes = bytes.checked_add(node.weight).ok_or("weights overflow")?;
            if node.pins > 0 {
                pinned = (pinned.0 + 1, pinned.1 + node.weight);
            }
            if self.find(&self.others.to_bytes(index, &node.key)) != Some(index) {
                return Err("a used node is not what its key finds");
            }
        }
        if used != self.table.len() {
            return Err("the table and the nodes count differently");
        }
        let mut free = 0_usize;
        let mut index = self.free;
        while index != ENDS {
            let node = self
                .nodes
                .get(index as usize)
                .ok_or("a free node is not there")?;
            free += 1;
            if free > self.nodes.len() || node.value.is_some() {
                return Err("the free list is broken");
            }
            index = node.newer;
        }
        if 1 + used + free != self.nodes.len() {
            return Err("a node is neither used nor free");
        }
        if bytes != self.bytes || pinned.1 != self.pinned_bytes {
            return Err("a byte sum differs from a recount");
        }
        if self.bytes > self.max_bytes {
            return Err("over max_bytes");
        }
        let mut older = ENDS;
        let mut linked = 0_usize;
        let mut index = self.node(ENDS).newer;
        while index != ENDS {
            let node = self.nodes.get(index as usize).ok_or("the order leaves")?;
            linked += 1;
            if linked > used || node.older != older || node.value.is_none() || node.pins > 0 {
                return Err("the order is broken");
            }
            older = index;
            index = node.newer;
        }
        if self.node(ENDS).older != older || linked + pinned.0 != used {
            return Err("the order misses an entry");
        }
        Ok(())
    }

    #[inline]
    fn node(&self, index: u32) -> &Node<V> {
        &self.nodes[index as usize]
    }

    #[inline]
    fn node_mut(&mut self, index: u32) -> &mut Node<V> {
        &mut self.nodes[index as usize]
    }

    #[expect(
        clippy::inline_always,
        reason = "a hit is as short as the call would be"
    )]
    #[inline(always)]
    fn find(&self, key: &[u8]) -> Option<u32> {
        let query = Query::new(key);
        let is = |&index: &u32| self.others.is(index, &self.node(index).key, &query);
        self.table.find(query.hash(&self.hasher), is).copied()
    }

    /// Have a free node, unless there are as many as can be.
    #[inline]
    fn reserve(&mut self) {
        if self.free == ENDS
            && let Ok(index) = u32::try_from(self.nodes.len())
        {
            self.nodes.push(Node::ENDS);
            self.free = index;
        }
    }

    #[inline]
    fn renew(&mut self, index: u32) {
        if self.node(index).pins == 0 {
            self.unlink(index);
            self.link_newest(index);
        }
    }

    /// Evict until `weight` fits; how many entries.
    #[inline]
    fn make_room(&mut self, weight: u64, left: &mut Left<V>) -> u64 {
        let mut evicted = 0;
        while self.bytes > self.max_bytes - weight {
            let oldest = self.node(ENDS).newer;
            left.push(self.take(oldest));
            evicted += 1;
        }
        evicted
    }

    /// Empty the node and put it on the free list.
    #[inline]
    fn take(&mut self, index: u32) -> V {
        if self.node(index).pins == 0 {
            self.unlink(index);
        } else {
            self.pinned_bytes -= self.node(index).weight;
        }
        let hash = self.node(index).key.hash(&self.hasher);
        if let Ok(entry) = self.table.find_entry(hash, |&other| other == index) {
            entry.remove();
        }
        let free = self.free;
        let node = &mut self.nodes[index as usize];
        self.others.forget(index, &node.key);
        let value = node.value.take().expect("a node in use has a value");
        node.newer = free;
        node.pins = 0;
        let weight = std::mem::take(&mut node.weight);
        self.free = index;
        self.bytes -= weight;
        value
    }

    #[inline]
    fn unlink(&mut self, index: u32) {
        let (newer, older) = (self.node(index).newer, self.node(index).older);
        self.node_mut(newer).older = older;
        self.node_mut(older).newer = newer;
    }

    #[inline]
    fn link_newest(&mut self, index: u32) {
        let second = std::mem::replace(&mut self.node_mut(ENDS).older, index);
        let node = self.node_mut(index);
        node.newer = ENDS;
        node.older = second;
        self.node_mut(second).newer = index;
    }
}

/// Whether `weight` fits beside what is pinned. Nothing fits a cache of 0 bytes.
fn fits(weight: u64, pinned_bytes: u64, max_bytes: u64) -> bool {
    let least = weight.checked_add(pinned_bytes);
    max_bytes > 0 && least.is_some_and(|least| least <= max_bytes)
}
