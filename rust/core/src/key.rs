//! Cache identity: SHA-256 over a payload and its decode spec.
//!
//! Each chunk is preceded by its length, so no chunk can borrow bytes from its neighbor:
//! ("ab", "c") and ("a", "bc") differ. The bytes of a key are a published format and never
//! change. Reads bytes only; must never parse or decode them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use sha2::{Digest, Sha256};

use crate::flight::Flight;
use crate::pool::{Job, Pool, Task};

/// Length of a media key in bytes.
pub const KEY_BYTES: usize = 32;

/// A media key.
pub type Key = [u8; KEY_BYTES];

/// The key of `payload` decoded under the spec whose canonical JSON bytes are `spec`.
///
/// SHA-256 over, for the payload and then for the spec, the length as 8 bytes little-endian
/// followed by the chunk.
///
/// ```
/// let key = safelight_core::key::derive(b"payload", b"{}");
/// assert_eq!(key[..4], [0xb9, 0xd8, 0x63, 0x91]);
/// ```
#[must_use]
pub fn derive(payload: &[u8], spec: &[u8]) -> Key {
    let mut hasher = Sha256::new();
    for chunk in [payload, spec] {
        hasher.update((chunk.len() as u64).to_le_bytes());
        hasher.update(chunk);
    }
    hasher.finalize().into()
}

/// The key of what is made of a keyed item under an extended spec.
///
/// The same framing over the parent's 32 key bytes, so the payload is not hashed again.
#[must_use]
pub fn extend(parent: &Key, spec: &[u8]) -> Key {
    derive(parent, spec)
}

/// A batch of fewer bytes than this gains nothing from a second thread: waking one costs about as
/// much as hashing 64 KiB (`benches/rust/key.rs`).
pub const SPREAD_BYTES: usize = 128 << 10;

/// Threads of a batch take payloads of about this many bytes together: less, and they contend for
/// the next one; more, and one of them ends long after the others.
const STRIDE_BYTES: usize = 8 << 10;

/// The keys of `payloads` under one spec, in order, hashed here.
#[must_use]
pub fn derive_all<P: AsRef<[u8]>>(payloads: &[P], spec: &[u8]) -> Vec<Key> {
    payloads
        .iter()
        .map(|payload| derive(payload.as_ref(), spec))
        .collect()
}

/// As [`derive_all`], spread over `pool` if there are [`SPREAD_BYTES`] or more.
///
/// The caller hashes too and waits for nobody: what another thread took and has not hashed by then
/// is hashed here as well. So a busy pool costs next to nothing, and a job of it may call this.
#[must_use]
pub fn derive_spread<P>(pool: &Pool, payloads: Vec<P>, spec: &[u8]) -> Vec<Key>
where
    P: AsRef<[u8]> + Send + Sync + 'static,
{
    let total: usize = payloads.iter().map(|payload| payload.as_ref().len()).sum();
    let count = payloads.len();
    let helpers = count.min(pool.options().threads).saturating_sub(1);
    if total < SPREAD_BYTES || helpers == 0 {
        return derive_all(&payloads, spec);
    }
    let batch = Arc::new(Batch {
        keys: payloads.iter().map(|_| OnceLock::new()).collect(),
        payloads,
        spec: spec.into(),
        stride: (STRIDE_BYTES * count / total).max(1),
        next: AtomicUsize::new(0),
    });
    let flights: Vec<Arc<Flight<()>>> = (0..helpers)
        .map(|_| {
            let batch = Arc::clone(&batch);
            Flight::new(Box::new(move |_| batch.derive_rest()))
        })
        .collect();
    let mut jobs: VecDeque<Job> = flights
        .iter()
        .map(|flight| Job::new(Arc::clone(flight) as Arc<dyn Task>))
        .collect();
    // Help that cannot be had is no error: this thread derives whatever nobody else does.
    let _ = pool.try_submit(&mut jobs);
    batch.derive_rest();
    for flight in &flights {
        flight.withdraw();
    }
    batch
        .keys
        .iter()
        .zip(&batch.payloads)
        .map(|(key, payload)| *key.get_or_init(|| derive(payload.as_ref(), spec)))
        .collect()
}

/// Payloads that several threads hash, each taking the next few.
struct Batch<P> {
    payloads: Vec<P>,
    spec: Box<[u8]>,
    stride: usize,
    next: AtomicUsize,
    keys: Vec<OnceLock<Key>>,
}

impl<P: AsRef<[u8]>> Batch<P> {
    fn derive_rest(&self) {
        loop {
            let start = self.next.fetch_add(self.stride, Ordering::Relaxed);
            if start >= self.payloads.len() {
                return;
            }
            let end = self.payloads.len().min(start + self.stride);
            for (key, payload) in self.keys[start..end].iter().zip(&self.payloads[start..end]) {
                let _ = key.set(derive(payload.as_ref(), &self.spec));
            }
        }
    }
}
