//! Exact LRU by bytes: the policy, without a lock and without a clock.
//!
//! The same calls in the same order evict the same entries, which two mirrored caches rely on.
//! Every operation is O(1) beside the entries it evicts. Must never drop a value while its caller
//! may hold a lock: whatever leaves the cache is handed back.

use hashbrown::{DefaultHashBuilder, HashTable};

pub use evicted::Evicted;
use key::{Key, Query};

mod evicted;
mod key;

/// The end of a list, and the index no node has.
const NIL: u32 = u32::MAX;

/// A byte-bounded map that forgets what was used longest ago.
///
/// ```
/// use safelight_core::lru::{Insert, Lru};
///
/// let mut lru = Lru::new(10);
/// lru.insert(b"a", 'a', 6);
/// let Insert::Stored { evicted, .. } = lru.insert(b"b", 'b', 6) else { panic!() };
/// assert_eq!(evicted, vec!['a'].into());
/// ```
pub struct Lru<V> {
    table: HashTable<u32>,
    nodes: Vec<Node<V>>,
    hasher: DefaultHashBuilder,
    /// First of the unused nodes, linked through `next`.
    free: u32,
    /// Most recently used of the entries that are not pinned.
    newest: u32,
    /// Least recently used of the entries that are not pinned.
    oldest: u32,
    bytes: u64,
    pinned_bytes: u64,
    max_bytes: u64,
}

struct Node<V> {
    key: Key,
    /// `None` exactly while the node is unused.
    value: Option<V>,
    weight: u64,
    newer: u32,
    older: u32,
    /// A pinned node is in no list: it cannot be evicted and has no place in the order.
    pins: u32,
}

/// What became of an insertion.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what left the cache is dropped here, perhaps under a lock"]
pub enum Insert<V> {
    /// The value is in the cache, most recently used.
    Stored {
        /// The value that had this key.
        replaced: Option<V>,
        /// What had to leave, least recently used first.
        evicted: Evicted<V>,
    },
    /// The value does not fit, even alone beside what is pinned. Nothing else was evicted.
    Refused {
        /// The value that was offered.
        value: V,
        /// The value that had this key: it is out of date, so it left.
        replaced: Option<V>,
    },
}

impl<V> Lru<V> {
    /// An empty cache of at most `max_bytes`. With 0 it stores nothing, weightless values included.
    #[must_use]
    pub fn new(max_bytes: u64) -> Self {
        Self {
            table: HashTable::new(),
            nodes: Vec::new(),
            hasher: DefaultHashBuilder::default(),
            free: NIL,
            newest: NIL,
            oldest: NIL,
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
    /// change its weight and keeps its pins.
    #[inline]
    pub fn insert(&mut self, key: &[u8], value: V, weight: u64) -> Insert<V> {
        let query = Query::new(key);
        let hash = query.hash(&self.hasher);
        let held = self.find_hashed(hash, &query);
        let others_pinned = match held {
            Some(index) if self.node(index).pins > 0 => self.pinned_bytes - self.node(index).weight,
            _ => self.pinned_bytes,
        };
        let fits = weight
            .checked_add(others_pinned)
            .is_some_and(|least| least <= self.max_bytes);
        if !fits || self.max_bytes == 0 || (held.is_none() && self.is_full()) {
            let replaced = held.map(|index| self.take(index));
            return Insert::Refused { value, replaced };
        }
        let Some(index) = held else {
            let mut evicted = Evicted::NONE;
            self.make_room(weight, &mut evicted);
            let index = self.place(hash, &query, value, weight);
            self.link_newest(index);
            return Insert::Stored {
                replaced: None,
                evicted,
            };
        };
        let pinned = self.node(index).pins > 0;
        if !pinned {
            // Out of the order first, so that it cannot be evicted for its own sake.
            self.unlink(index);
        }
        let node = self.node_mut(index);
        let replaced = node.value.replace(value);
        let before = std::mem::replace(&mut node.weight, weight);
        self.bytes -= before;
        let mut evicted = Evicted::NONE;
        self.make_room(weight, &mut evicted);
        self.bytes += weight;
        if pinned {
            self.pinned_bytes = others_pinned + weight;
        } else {
            self.link_newest(index);
        }
        Insert::Stored { replaced, evicted }
    }

    /// Remove `key`, pinned or not, and hand its value back.
    pub fn remove(&mut self, key: &[u8]) -> Option<V> {
        let index = self.find(key)?;
        Some(self.take(index))
    }

    /// Remove everything, pinned or not, and hand the values back.
    #[must_use = "what left the cache is dropped here, perhaps under a lock"]
    pub fn clear(&mut self) -> Vec<V> {
        let fresh = Self {
            hasher: self.hasher.clone(),
            ..Self::new(self.max_bytes)
        };
        let old = std::mem::replace(self, fresh);
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
        let mut index = self.oldest;
        std::iter::from_fn(move || {
            let node = self.nodes.get(index as usize)?;
            index = node.newer;
            Some((node.key.to_bytes(), node.weight))
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
        for (index, node) in self.nodes.iter().enumerate() {
            if node.value.is_none() {
                continue;
            }
            used += 1;
            bytes = bytes.checked_add(node.weight).ok_or("weights overflow")?;
            if node.pins > 0 {
                pinned = (pinned.0 + 1, pinned.1 + node.weight);
            }
            if self.find(&node.key.to_bytes()).map(|found| found as usize) != Some(index) {
                return Err("a used node is not what its key finds");
            }
        }
        if used != self.table.len() {
            return Err("the table and the nodes count differently");
        }
        if bytes != self.bytes || pinned.1 != self.pinned_bytes {
            return Err("a byte sum differs from a recount");
        }
        if self.bytes > self.max_bytes {
            return Err("over max_bytes");
        }
        let mut older = NIL;
        let mut linked = 0_usize;
        let mut index = self.oldest;
        while let Some(node) = self.nodes.get(index as usize) {
            linked += 1;
            if linked > used || node.older != older || node.value.is_none() || node.pins > 0 {
                return Err("the order is broken");
            }
            older = index;
            index = node.newer;
        }
        if self.newest != older || linked + pinned.0 != used {
            return Err("the order misses an entry");
        }
        Ok(())
    }

    fn node(&self, index: u32) -> &Node<V> {
        &self.nodes[index as usize]
    }

    fn node_mut(&mut self, index: u32) -> &mut Node<V> {
        &mut self.nodes[index as usize]
    }

    fn find(&self, key: &[u8]) -> Option<u32> {
        let query = Query::new(key);
        self.find_hashed(query.hash(&self.hasher), &query)
    }

    fn find_hashed(&self, hash: u64, query: &Query<'_>) -> Option<u32> {
        self.table
            .find(hash, |&index| self.nodes[index as usize].key.is(query))
            .copied()
    }

    fn is_full(&self) -> bool {
        self.free == NIL && self.nodes.len() >= NIL as usize
    }

    fn renew(&mut self, index: u32) {
        if self.node(index).pins == 0 && self.newest != index {
            self.unlink(index);
            self.link_newest(index);
        }
    }

    #[inline]
    fn make_room(&mut self, weight: u64, evicted: &mut Evicted<V>) {
        while self.bytes > self.max_bytes - weight {
            let oldest = self.oldest;
            evicted.push(self.take(oldest));
        }
    }

    fn place(&mut self, hash: u64, query: &Query<'_>, value: V, weight: u64) -> u32 {
        let index = self.free;
        let index = if index == NIL {
            self.nodes.push(Node {
                key: query.to_key(),
                value: Some(value),
                weight,
                newer: NIL,
                older: NIL,
                pins: 0,
            });
            u32::try_from(self.nodes.len() - 1).expect("is_full was checked")
        } else {
            // Field by field: a whole node would be made elsewhere and copied here.
            let node = &mut self.nodes[index as usize];
            self.free = node.newer;
            node.key = query.to_key();
            node.value = Some(value);
            node.weight = weight;
            index
        };
        let (nodes, hasher) = (&self.nodes, &self.hasher);
        self.table
            .insert_unique(hash, index, |&other| nodes[other as usize].key.hash(hasher));
        self.bytes += weight;
        index
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
        let node = self.node_mut(index);
        let value = node.value.take().expect("a node in use has a value");
        node.key = Key::default();
        node.newer = free;
        node.pins = 0;
        let weight = std::mem::take(&mut node.weight);
        self.free = index;
        self.bytes -= weight;
        value
    }

    fn unlink(&mut self, index: u32) {
        let (newer, older) = (self.node(index).newer, self.node(index).older);
        match newer {
            NIL => self.newest = older,
            newer => self.node_mut(newer).older = older,
        }
        match older {
            NIL => self.oldest = newer,
            older => self.node_mut(older).newer = newer,
        }
    }

    fn link_newest(&mut self, index: u32) {
        let second = self.newest;
        let node = self.node_mut(index);
        node.newer = NIL;
        node.older = second;
        match second {
            NIL => self.oldest = index,
            second => self.node_mut(second).newer = index,
        }
        self.newest = index;
    }
}
