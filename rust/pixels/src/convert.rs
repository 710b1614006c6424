//! Pillow's mode conversions, fused with turning upright into one pass over the pixels.
//!
//! Every mode is read as RGBA, pixel by pixel, and written as the target; the compiler removes
//! what a pair does not need. RGBA itself is pasted over a background run by run. Must equal
//! `Image.convert` and `Image.paste` of the pinned Pillow.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "levels are computed in wider types and are 0..=255 by the formula or a clamp"
)]

mod paste;

use safelight_core::cancel::Cancel;

use crate::mode::Mode;
use crate::picture::{Palette, Picture, Transparency};
use crate::refusal::Refusal;
use crate::request::{Request, Target};
use crate::turn::turn;

/// `picture` as `request` wants it.
pub(crate) fn finish(
    picture: Picture,
    request: &Request,
    cancel: &Cancel,
) -> Result<Picture, Refusal> {
    let job = Job { request, cancel };
    let Some(target) = request.target else {
        return job.turned(picture);
    };
    match (target, picture.mode) {
        (Target::Rgb, Mode::Rgb)
            if picture.transparency.is_none() || request.background.is_none() =>
        {
            return job.turned(Picture {
                transparency: None,
                ..picture
            });
        }
        (Target::L, Mode::L) | (Target::Rgba, Mode::Rgba) | (Target::Rgbx, Mode::Rgbx) => {
            return job.turned(picture);
        }
        _ => {}
    }
    let is_transparent = picture.mode.has_alpha() || picture.transparency.is_some();
    match (target, request.background) {
        (Target::Rgba, _) => job.with_reader(picture, Mode::Rgba, |color| color),
        (Target::Rgb, Some(background)) if picture.mode == Mode::Rgba => {
            job.map_runs(picture, Mode::Rgb, |colors, places| {
                paste::over_rgb(colors, background, places);
            })
        }
        (Target::Rgbx, Some(background)) if picture.mode == Mode::Rgba => {
            job.map_runs(picture, Mode::Rgbx, |colors, places| {
                paste::over_rgbx(colors, background, places);
            })
        }
        (Target::Rgb, Some(background)) if is_transparent => {
            job.with_reader(picture, Mode::Rgb, move |color| {
                paste::over(color, background)
            })
        }
        (Target::Rgbx, Some(background)) if is_transparent => {
            job.with_reader(picture, Mode::Rgbx, move |color| {
                let [r, g, b] = paste::over(color, background);
                [r, g, b, 255]
            })
        }
        (Target::Rgbx, _) => job.with_reader(picture, Mode::Rgbx, |[r, g, b, _]| [r, g, b, 255]),
        (Target::Rgb, _) => job.with_reader(picture, Mode::Rgb, |[r, g, b, _]| [r, g, b]),
        (Target::L, _) => job.with_reader(picture, Mode::L, |[r, g, b, _]| [luma(r, g, b)]),
    }
}

/// ITU-R 601-2 luma in 16-bit fixed point, rounded.
fn luma(r: u8, g: u8, b: u8) -> u8 {
    let sum = u32::from(r) * 19_595 + u32::from(g) * 38_470 + u32::from(b) * 7_471 + 0x8000;
    (sum >> 16) as u8
}

fn gray(level: u8) -> [u8; 4] {
    [level, level, level, 255]
}

fn cmyk([c, m, y, k]: [u8; 4]) -> [u8; 4] {
    let light = 255 - u32::from(k);
    let ink = |level: u8| {
        let product = u32::from(level) * light + 128;
        let scaled = ((product >> 8) + product) >> 8;
        light.saturating_sub(scaled) as u8
    };
    [ink(c), ink(m), ink(y), 255]
}

struct Job<'a> {
    request: &'a Request,
    cancel: &'a Cancel,
}

impl Job<'_> {
    /// The picture turned upright, its mode kept.
    fn turned(&self, picture: Picture) -> Result<Picture, Refusal> {
        if self.request.orientation == 1 {
            return Ok(picture);
        }
        let mode = picture.mode;
        match mode.pixel_bytes() {
            1 => self.map(picture, mode, |pixel: [u8; 1]| pixel),
            2 => self.map(picture, mode, |pixel: [u8; 2]| pixel),
            3 => self.map(picture, mode, |pixel: [u8; 3]| pixel),
            _ => self.map(picture, mode, |pixel: [u8; 4]| pixel),
        }
    }

    /// Map every pixel, read as RGBA, by `write`; palette and transparency are used up.
    fn with_reader<const D: usize>(
        &self,
        mut picture: Picture,
        mode: Mode,
        write: impl Fn([u8; 4]) -> [u8; D],
    ) -> Result<Picture, Refusal> {
        let palette = picture.palette.take();
        let transparency = picture.transparency.take();
        // Transparency matters to alpha alone; Pillow drops it in every other conversion.
        match picture.mode {
            Mode::Bilevel | Mode::L => {
                let clear = gray_key(transparency.as_ref());
                let table = table(|level| {
                    let color = gray(level);
                    write(if clear == Some(level) {
                        cleared(color)
                    } else {
                        color
                    })
                });
                self.map(picture, mode, |[level]| table[usize::from(level)])
            }
            Mode::P => {
                let colors = transparent_palette(palette, transparency);
                let table = table(|index| write(colors[usize::from(index)]));
                self.map(picture, mode, |[index]| table[usize::from(index)])
            }
            Mode::La => self.map(picture, mode, |[level, alpha]| {
                write([level, level, level, alpha])
            }),
            Mode::Pa => {
                let colors = palette.unwrap_or_else(Palette::blank).colors;
                self.map(picture, mode, |[index, alpha]| {
                    let [r, g, b, _] = colors[usize::from(index)];
                    write([r, g, b, alpha])
                })
            }
            Mode::Rgb => match transparency {
                Some(Transparency::Color(clear)) => {
                    let clear = clear.map(|sample| (sample & 0xFF) as u8);
                    self.map(picture, mode, |[r, g, b]| {
                        let color = [r, g, b, 255];
                        write(if [r, g, b] == clear {
                            cleared(color)
                        } else {
                            color
                        })
                    })
                }
                _ => self.map(picture, mode, |[r, g, b]| write([r, g, b, 255])),
            },
            Mode::Rgba | Mode::Rgbx => self.map(picture, mode, write),
            Mode::Cmyk => self.map(picture, mode, |pixel| write(cmyk(pixel))),
            Mode::I16 | Mode::I16Big => {
                let clear = gray_key(transparency.as_ref());
                let is_big = picture.mode == Mode::I16Big;
                self.map(picture, mode, |pixel| {
                    let sample = if is_big {
                        u16::from_be_bytes(pixel)
                    } else {
                        u16::from_le_bytes(pixel)
                    };
                    let level = sample.min(255) as u8;
                    let color = gray(level);
                    write(if clear == Some(level) {
                        cleared(color)
                    } else {
                        color
                    })
                })
            }
            Mode::I => self.map(picture, mode, |pixel| {
                write(gray(i32::from_le_bytes(pixel).clamp(0, 255) as u8))
            }),
            Mode::F => self.map(picture, mode, |pixel| {
                // A cast from float saturates, and truncates toward zero.
                write(gray(f32::from_le_bytes(pixel) as u8))
            }),
        }
    }

    /// Map every pixel by `each`, turning upright on the way.
    fn map<const S: usize, const D: usize>(
        &self,
        picture: Picture,
        mode: Mode,
        each: impl Fn([u8; S]) -> [u8; D],
    ) -> Result<Picture, Refusal> {
        self.map_runs(picture, mode, |stored: &[[u8; S]], places| {
            for (pixel, place) in stored.iter().zip(places) {
                *place = each(*pixel);
            }
        })
    }

    /// Map every run of pixels by `run`, to as many places, turning upright on the way.
    fn map_runs<const S: usize, const D: usize>(
        &self,
        mut picture: Picture,
        mode: Mode,
        run: impl Fn(&[[u8; S]], &mut [[u8; D]]),
    ) -> Result<Picture, Refusal> {
        let size = (picture.width, picture.height);
        let orientation = self.request.orientation;
        picture.pixels = turn(picture.pixels, size, orientation, self.cancel, run)?;
        picture.mode = mode;
        if orientation >= 5 {
            (picture.width, picture.height) = (size.1, size.0);
        }
        Ok(picture)
    }
}

fn cleared([r, g, b, _]: [u8; 4]) -> [u8; 4] {
    [r, g, b, 0]
}

fn table<const D: usize>(each: impl Fn(u8) -> [u8; D]) -> [[u8; D]; 256] {
    let mut table = [[0; D]; 256];
    for (index, entry) in (0..=255).zip(&mut table) {
        *entry = each(index);
    }
    table
}

/// The transparent gray as Pillow compares it: the low byte.
fn gray_key(transparency: Option<&Transparency>) -> Option<u8> {
    match transparency {
        Some(Transparency::Gray(sample)) => Some((sample & 0xFF) as u8),
        _ => None,
    }
}

fn transparent_palette(
    palette: Option<Palette>,
    transparency: Option<Transparency>,
) -> Box<[[u8; 4]; 256]> {
    let mut colors = palette.unwrap_or_else(Palette::blank).colors;
    match transparency {
        Some(Transparency::Index(index)) => colors[usize::from(index)][3] = 0,
        Some(Transparency::Alphas(alphas)) => {
            for (color, alpha) in colors.iter_mut().zip(alphas) {
                color[3] = alpha;
            }
        }
        _ => {}
    }
    colors
}
