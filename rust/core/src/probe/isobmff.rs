//! Boxes of the ISO base media file format, as HEIF, JPEG 2000 and JPEG XL use them.
//!
//! Every step moves on by at least a box header; depth is bounded by the callers, who descend
//! into boxes they name.

use crate::budget::Budget;
use crate::error::Error;
use crate::probe::format::Format;
use crate::reader::{Parsed, Payload, Stop, index};

/// The place of a box in a payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) kind: [u8; 4],
    pub(super) body: usize,
    /// `None` for a box that goes to the end of the file.
    pub(super) end: Option<usize>,
}

impl Place {
    /// The body, once it has arrived.
    pub(super) fn read(self, payload: Payload<'_>) -> Parsed<&[u8]> {
        match self.end {
            Some(end) => payload.get(self.body, end - self.body),
            None if payload.is_whole => payload.get(self.body, payload.bytes.len() - self.body),
            None => Err(Stop::More(None)),
        }
    }
}

/// The box at `at`.
pub(super) fn place(payload: Payload<'_>, at: usize) -> Parsed<Place> {
    let [s0, s1, s2, s3, kind @ ..] = payload.array::<8>(at)?;
    let (head, size) = match u32::from_be_bytes([s0, s1, s2, s3]) {
        0 => (8, None),
        1 => (
            16,
            Some(u64::from_be_bytes(payload.array(at.saturating_add(8))?)),
        ),
        size => (8, Some(u64::from(size))),
    };
    if size.is_some_and(|size| size < head) {
        return Err(Error::malformed("box is shorter than its own header").into());
    }
    Ok(Place {
        kind,
        body: at.saturating_add(index(head)),
        end: size.map(|size| at.saturating_add(index(size))),
    })
}

/// The first box from `at` that is of that kind; `format` is for the error.
pub(super) fn find(
    payload: Payload<'_>,
    mut at: usize,
    kind: [u8; 4],
    format: Format,
    budget: &mut Budget,
) -> Parsed<Place> {
    loop {
        budget.spend()?;
        let place = place(payload, at)?;
        if place.kind == kind {
            return Ok(place);
        }
        let Some(end) = place.end else {
            let kind = kind.escape_ascii();
            return Err(Error::malformed(format!("{format} has no box {kind}")).into());
        };
        at = end;
    }
}

/// The boxes in the body of another, up to the first that is damaged.
pub(super) fn children(body: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    let payload = Payload {
        bytes: body,
        is_whole: true,
    };
    let mut at = 0;
    std::iter::from_fn(move || {
        let place = place(payload, at).ok()?;
        at = place.end.unwrap_or(body.len());
        Some((place.kind, body.get(place.body..at)?))
    })
}

/// The compatible brands of the file type box that the payload begins with.
pub(super) fn compatible_brands(
    payload: Payload<'_>,
) -> Parsed<impl Iterator<Item = [u8; 4]> + '_> {
    let body = place(payload, 0)?.read(payload)?;
    let brands = body.get(8..).unwrap_or_default();
    Ok(brands
        .chunks_exact(4)
        .map(|brand| [brand[0], brand[1], brand[2], brand[3]]))
}
