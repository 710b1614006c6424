//! Bounds-checked reads of a payload that may not have arrived in full.
//!
//! Owns the difference between "these bytes are damaged" and "these bytes end here". Works on
//! slices only: must never copy, and must never panic whatever the offsets.

use std::num::NonZeroU64;

use crate::error::Error;

/// Byte order of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endian {
    Little,
    Big,
}

/// Why a parser stopped without a header.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The answer lies further on: at least this many bytes from the start of the payload.
    More(Option<NonZeroU64>),
    /// No further bytes can give a header. Boxed, to keep every result on the way small.
    Fail(Box<Error>),
}

impl Stop {
    /// At least `bytes` are needed.
    #[cold]
    pub(crate) fn more(bytes: usize) -> Self {
        Self::More(NonZeroU64::new(bytes as u64))
    }
}

impl From<Error> for Stop {
    #[cold]
    fn from(error: Error) -> Self {
        Self::Fail(Box::new(error))
    }
}

/// The outcome of a parser.
pub(crate) type Parsed<T> = Result<T, Stop>;

/// The bytes of a payload, and whether they are all of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) is_whole: bool,
}

impl<'a> Payload<'a> {
    /// The `len` bytes from `at`.
    #[inline]
    pub(crate) fn get(self, at: usize, len: usize) -> Parsed<&'a [u8]> {
        match self.bytes.get(at..at.saturating_add(len)) {
            Some(bytes) => Ok(bytes),
            None => Err(Stop::more(at.saturating_add(len))),
        }
    }

    /// The `N` bytes from `at`.
    #[inline]
    pub(crate) fn array<const N: usize>(self, at: usize) -> Parsed<[u8; N]> {
        match self
            .bytes
            .get(at..)
            .and_then(|rest| rest.first_chunk::<N>())
        {
            Some(bytes) => Ok(*bytes),
            None => Err(Stop::more(at.saturating_add(N))),
        }
    }

    /// The byte at `at`.
    #[inline]
    pub(crate) fn u8(self, at: usize) -> Parsed<u8> {
        match self.bytes.get(at) {
            Some(byte) => Ok(*byte),
            None => Err(Stop::more(at.saturating_add(1))),
        }
    }

    /// The number of two bytes at `at`.
    #[inline]
    pub(crate) fn u16(self, at: usize, endian: Endian) -> Parsed<u16> {
        self.array(at).map(|bytes| endian.u16(bytes))
    }

    /// The number of four bytes at `at`.
    #[inline]
    pub(crate) fn u32(self, at: usize, endian: Endian) -> Parsed<u32> {
        self.array(at).map(|bytes| endian.u32(bytes))
    }
}

impl Endian {
    /// The number that two bytes spell.
    #[inline]
    pub(crate) fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    /// The number that four bytes spell.
    #[inline]
    pub(crate) fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    /// The number that eight bytes spell.
    #[inline]
    pub(crate) fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }
}

/// A length or offset of a file as an index; saturates where the platform's is narrower, and a
/// saturated index is beyond any payload.
#[inline]
pub(crate) fn index(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
