//! JPEG by libjpeg-turbo, behind a walk over the header that refuses what Pillow would.
//!
//! Baseline, progressive and arithmetic coding with one, three or four components. Files that
//! libjpeg warns of are declined.

use std::ffi::{c_int, c_uchar, c_uint};

use safelight_core::cancel::Cancel;

use crate::mode::Mode;
use crate::refusal::{Declined, Refusal};
use crate::request::Target;

use super::codec::{Codec, Header};
use super::reader::Reader;
use super::scans::{MAX_SCANS, too_many_scans};

// The archive with libjpeg is linked through this crate; the shim calls it.
use turbojpeg_sys as _;

unsafe extern "C" {
    fn safelight_jpeg_decode(
        data: *const c_uchar,
        size: usize,
        width: c_uint,
        height: c_uint,
        scale: c_uint,
        components: c_int,
        layout: c_int,
        out: *mut c_uchar,
        stride: usize,
        max_scans: c_int,
        cancel: *const c_uchar,
    ) -> c_int;
}

/// A JPEG file with its header walked.
pub(crate) struct Jpeg<'a> {
    data: &'a [u8],
    frame: Frame,
    mode: Mode,
    scale: u8,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    width: u16,
    height: u16,
    components: u8,
}

impl<'a> Codec<'a> for Jpeg<'a> {
    fn open(data: &'a [u8]) -> Result<Self, Refusal> {
        let frame = walk(data)?;
        let mode = match frame.components {
            1 => Mode::L,
            3 => Mode::Rgb,
            _ => Mode::Cmyk,
        };
        Ok(Self {
            data,
            frame,
            mode,
            scale: 1,
        })
    }

    fn aim(&mut self, target: Target) {
        // Color and opaque alpha cost libjpeg nothing; luma it would take from the file, where
        // Pillow computes it from the color.
        if self.mode != Mode::Cmyk {
            match target {
                Target::L => {}
                Target::Rgb => self.mode = Mode::Rgb,
                Target::Rgbx => self.mode = Mode::Rgbx,
                Target::Rgba => self.mode = Mode::Rgba,
            }
        }
    }

    fn shrink(&mut self, scale: u8) {
        self.scale = scale;
        while u16::from(self.scale) > self.frame.width.min(self.frame.height) {
            self.scale /= 2;
        }
    }

    fn header(&self) -> Header {
        let scaled = |side: u16| u32::from(side).div_ceil(self.scale.into());
        Header {
            format: "JPEG",
            width: scaled(self.frame.width),
            height: scaled(self.frame.height),
            mode: self.mode,
        }
    }

    fn is_filling(&self) -> bool {
        true
    }

    fn decode(&mut self, buffer: &mut Vec<u8>, cancel: &Cancel) -> Result<(), Refusal> {
        let Frame {
            width,
            height,
            components,
        } = self.frame;
        let header = self.header();
        let stride = header.width as usize * self.mode.pixel_bytes();
        let layout = match self.mode {
            Mode::Rgb => 1,
            Mode::Rgbx => 2,
            Mode::Rgba => 3,
            Mode::Cmyk => 4,
            _ => 0,
        };
        let bytes = stride * header.height as usize;
        buffer.clear();
        let out = buffer.spare_capacity_mut();
        let out = out.get_mut(..bytes).ok_or(Declined("plan"))?;
        // SAFETY: `data` and `out` are valid for the sizes given; the shim writes rows of
        // `stride` bytes, as many as `height` is scaled to, which is all of `out`, and only if
        // the file's own size is the one given. The flag is read as an atomic byte and outlives
        // the call. Nothing is kept.
        let verdict = unsafe {
            safelight_jpeg_decode(
                self.data.as_ptr(),
                self.data.len(),
                width.into(),
                height.into(),
                self.scale.into(),
                components.into(),
                layout,
                out.as_mut_ptr().cast(),
                stride,
                MAX_SCANS.cast_signed(),
                cancel.as_byte(),
            )
        };
        match verdict {
            0 => {}
            2 => return Err(Declined("data ends too early").into()),
            3 => return Err(Declined("libjpeg warns").into()),
            5 => return Err(Refusal::Cancelled),
            6 => return Err(Refusal::Failed(too_many_scans())),
            _ => return Err(Declined("libjpeg refuses").into()),
        }
        // SAFETY: the shim is done, so every row was written, and rows are all there is.
        unsafe { buffer.set_len(bytes) };
        if components == 4 {
            // Pillow takes every four-component file for an inverted one, as Adobe writes them.
            for sample in buffer {
                *sample = !*sample;
            }
        }
        Ok(())
    }
}

/// Walk the segments up to the first scan, as strictly as Pillow or more so.
fn walk(data: &[u8]) -> Result<Frame, Declined> {
    let mut reader = Reader::at(data, 2);
    let mut frame = None;
    loop {
        if reader.u8()? != 0xFF {
            return Err(Declined("junk between segments"));
        }
        let mut marker = reader.u8()?;
        while marker == 0xFF {
            marker = reader.u8()?;
        }
        let body = match marker {
            0xC0..=0xC7 | 0xC9..=0xCF | 0xDA..=0xDF | 0xE0..=0xEF | 0xFE => {
                let length = usize::from(reader.u16_be()?);
                reader.take(length.checked_sub(2).ok_or(Declined("segment length"))?)?
            }
            _ => return Err(Declined("marker without a segment")),
        };
        match marker {
            0xC0..=0xC2 | 0xC9 | 0xCA => {
                if frame.is_some() {
                    return Err(Declined("second frame"));
                }
                frame = Some(start_of_frame(body)?);
            }
            0xC3 | 0xC5..=0xC7 | 0xCB | 0xCD..=0xCF | 0xDE => {
                return Err(Declined("coding process"));
            }
            0xDA => return frame.ok_or(Declined("scan before the frame")),
            0xDB => quantization(body)?,
            0xE0..=0xEF => application(marker & 15, body)?,
            _ => {}
        }
    }
}

fn start_of_frame(body: &[u8]) -> Result<Frame, Declined> {
    let mut reader = Reader::new(body);
    let precision = reader.u8()?;
    let (height, width) = (reader.u16_be()?, reader.u16_be()?);
    let components = reader.u8()?;
    let is_whole = body.len() == 6 + 3 * usize::from(components);
    if precision != 8 || !matches!(components, 1 | 3 | 4) || !is_whole || width == 0 || height == 0
    {
        return Err(Declined("frame"));
    }
    Ok(Frame {
        width,
        height,
        components,
    })
}

fn quantization(body: &[u8]) -> Result<(), Declined> {
    let mut reader = Reader::new(body);
    while !reader.rest().is_empty() {
        let is_long = reader.u8()? >> 4 != 0;
        reader.take(if is_long { 128 } else { 64 })?;
    }
    Ok(())
}

/// Decline application segments that Pillow's parser trips over.
fn application(number: u8, body: &[u8]) -> Result<(), Declined> {
    let is_broken = match number {
        0 => body.starts_with(b"JFIF") && body.len() < 7,
        2 if body.starts_with(b"ICC_PROFILE\0") => body.len() < 14,
        13 if body.starts_with(b"Photoshop 3.0\0") => !photoshop_is_whole(&body[14..]),
        14 => body.starts_with(b"Adobe") && body.len() < 7,
        _ => false,
    };
    if is_broken {
        return Err(Declined("application segment"));
    }
    Ok(())
}

/// Whether a walk over image resources ends inside the segment.
fn photoshop_is_whole(resources: &[u8]) -> bool {
    let mut reader = Reader::new(resources);
    let mut walk = || -> Result<(), Declined> {
        while reader.rest().starts_with(b"8BIM") {
            reader.take(6)?;
            let name = usize::from(reader.u8()?);
            // Name with its length byte, and data, are padded to even lengths.
            reader.take(name + usize::from(name % 2 == 0))?;
            let size = reader.u32_be()? as usize;
            reader.take(size)?;
            if size % 2 == 1 && !reader.rest().is_empty() {
                reader.take(1)?;
            }
        }
        Ok(())
    };
    walk().is_ok()
}
