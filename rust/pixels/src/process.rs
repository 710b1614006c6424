//! An image processor: resize, patches or planes, and the table, for one image or many.
//!
//! Owns the order of the steps and the memory between them. No float image exists: a float is
//! written where it stays. Besides its output a processor holds what the resize holds, the resized
//! image, and one row of blocks of uint8.

use safelight_core::Error;
use safelight_core::layout::Geometry;

use crate::buffer::{area, zeroed};
use crate::patchify::{block_row, crop_planes};
use crate::refusal::{Declined, Refusal};
use crate::table::Table;
use crate::{Cancel, Filter, Mode, Outcome, Picture, Resize, Rule, View};

/// An image processor with all of its settings.
#[derive(Clone, Debug)]
pub struct Processor {
    geometry: Geometry,
    filter: Filter,
    rule: Rule,
    table: Table,
}

/// What a processed image is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// float32, through the table.
    Float,
    /// The levels that the table would be asked for.
    Uint8,
    /// As [`Form::Uint8`], without the copies of each patch.
    Single,
}

impl Processor {
    /// A processor.
    ///
    /// # Errors
    /// Unsupported where no image can be processed with the geometry.
    pub fn new(
        geometry: Geometry,
        filter: Filter,
        rule: Rule,
        table: Table,
    ) -> Result<Self, Error> {
        geometry.check()?;
        Ok(Self {
            geometry,
            filter,
            rule,
            table,
        })
    }

    /// How it places an image.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Process RGB images into one buffer, one after the other.
    ///
    /// The result is a picture of mode `F` or `L` whose rows are patches, or lines of planes.
    ///
    /// # Errors
    /// A limit error for an image of a size that the geometry refuses, before any is processed;
    /// malformed for one that is not RGB. It declines for want of memory alone.
    pub fn run(&self, views: &[View<'_>], form: Form, cancel: &Cancel) -> Result<Outcome, Error> {
        match self.process(views, form, cancel) {
            Ok(picture) => Ok(Outcome::Decoded(picture)),
            Err(refusal) => refusal.into_outcome(),
        }
    }

    /// Floats for levels that [`Processor::run`] made as [`Form::Single`], or as [`Form::Uint8`].
    ///
    /// # Errors
    /// Malformed where they are not whole rows of such an output.
    pub fn expand(&self, levels: &[u8], is_single: bool) -> Result<Outcome, Error> {
        let run = match self.geometry {
            Geometry::Patches { patch, .. } => (patch * patch) as usize,
            Geometry::Crop { crop: size, .. } | Geometry::Fixed { size } => {
                size.0 as usize * size.1 as usize
            }
        };
        let (run, copies) = if is_single {
            (run, self.copies())
        } else {
            (run * self.copies(), 1)
        };
        if !levels.len().is_multiple_of(3 * run) {
            return Err(Error::malformed(
                "levels are not whole rows of three channels",
            ));
        }
        let expanded = || -> Result<Picture, Refusal> {
            let bytes = levels.len().checked_mul(copies * size_of::<f32>());
            let mut pixels = zeroed(bytes.ok_or(Declined("too large"))?)?;
            self.table.expand(levels, run, copies, &mut pixels);
            picture(Mode::F, run * copies, levels.len() / run, pixels)
        };
        match expanded() {
            Ok(picture) => Ok(Outcome::Decoded(picture)),
            Err(refusal) => refusal.into_outcome(),
        }
    }

    fn copies(&self) -> usize {
        match self.geometry {
            Geometry::Patches { copies, .. } => copies as usize,
            Geometry::Crop { .. } | Geometry::Fixed { .. } => 1,
        }
    }

    fn process(&self, views: &[View<'_>], form: Form, cancel: &Cancel) -> Result<Picture, Refusal> {
        let mut sizes = Vec::with_capacity(views.len());
        let mut samples = 0_usize;
        for view in views {
            if !view.is_rgb() {
                return Err(Error::malformed("image is not RGB").into());
            }
            let size = self.geometry.resized(view.size().0, view.size().1)?;
            let kept = self.geometry.kept(size);
            samples = samples
                .checked_add(area(kept.0, kept.1, 3)?)
                .ok_or(Declined("too large"))?;
            sizes.push(size);
        }
        let (mode, unit) = match form {
            Form::Float => (Mode::F, self.copies() * size_of::<f32>()),
            Form::Uint8 => (Mode::L, self.copies()),
            Form::Single => (Mode::L, 1),
        };
        let bytes = samples.checked_mul(unit).ok_or(Declined("too large"))?;
        let mut pixels = zeroed(bytes)?;
        let mut rest = pixels.as_mut_slice();
        for (view, size) in views.iter().zip(sizes) {
            let resize = Resize {
                size,
                filter: self.filter,
                rule: self.rule,
                region: None,
            };
            let resized = if view.size() == size {
                None
            } else {
                Some(resize.run(*view, cancel)?)
            };
            let resized = resized.as_deref().unwrap_or(view.pixels());
            let kept = self.geometry.kept(size);
            let place;
            (place, rest) = rest.split_at_mut(area(kept.0, kept.1, 3)? * unit);
            self.place(resized, size, form, place, cancel)?;
        }
        let columns = match self.geometry {
            Geometry::Patches { patch, copies, .. } => {
                let copies = if form == Form::Single { 1 } else { copies };
                (3 * copies * patch * patch) as usize
            }
            Geometry::Crop {
                crop: (width, _), ..
            } => width as usize,
            Geometry::Fixed { size: (width, _) } => width as usize,
        };
        let rows = bytes / mode.sample_bytes() / columns;
        picture(mode, columns, rows, pixels)
    }

    /// Write a resized image where it stays.
    fn place(
        &self,
        resized: &[u8],
        size: (u32, u32),
        form: Form,
        out: &mut [u8],
        cancel: &Cancel,
    ) -> Result<(), Refusal> {
        let width = size.0 as usize;
        match self.geometry {
            Geometry::Patches { patch, merge, .. } => {
                let (patch, merge) = (patch as usize, merge as usize);
                let levels = width * patch * merge * 3;
                let mut lines = zeroed(width * 3)?;
                let mut block = zeroed(levels)?;
                let places = out.len() / (resized.len() / levels);
                let blocks = resized.chunks_exact(levels);
                for (rows, out) in blocks.zip(out.chunks_exact_mut(places)) {
                    cancel.check()?;
                    block_row(rows, width, patch, merge, &mut lines, &mut block);
                    self.finish(&block, patch * patch, form, out);
                }
            }
            Geometry::Crop { .. } | Geometry::Fixed { .. } => {
                let kept = self.geometry.kept(size);
                let corner = (
                    (size.0 - kept.0) as usize / 2,
                    (size.1 - kept.1) as usize / 2,
                );
                let kept = (kept.0 as usize, kept.1 as usize);
                let run = kept.0 * kept.1;
                let mut lines = zeroed(kept.0 * 3)?;
                let mut planes = zeroed(run * 3)?;
                crop_planes(resized, width, corner, kept, &mut lines, &mut planes);
                cancel.check()?;
                self.finish(&planes, run, form, out);
            }
        }
        Ok(())
    }

    /// Rows of three channels of `run` levels each, in the form that is asked for.
    fn finish(&self, levels: &[u8], run: usize, form: Form, out: &mut [u8]) {
        match form {
            Form::Float => self.table.expand(levels, run, self.copies(), out),
            Form::Single => out.copy_from_slice(levels),
            Form::Uint8 => {
                let channels = levels.chunks_exact(run);
                for (levels, out) in channels.zip(out.chunks_exact_mut(run * self.copies())) {
                    for out in out.chunks_exact_mut(run) {
                        out.copy_from_slice(levels);
                    }
                }
            }
        }
    }
}

fn picture(mode: Mode, width: usize, height: usize, pixels: Vec<u8>) -> Result<Picture, Refusal> {
    let side = |length: usize| u32::try_from(length).map_err(|_| Declined("too large"));
    Ok(Picture {
        width: side(width)?,
        height: side(height)?,
        mode,
        pixels,
        palette: None,
        transparency: None,
    })
}
