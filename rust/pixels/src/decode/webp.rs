//! WebP by libwebp: still pictures, and the first frame of animations on their canvas.
//!
//! The demuxer gives the verdict on the container, as it does in Pillow; the frame is then decoded
//! straight to its place on the canvas, without the animation decoder's own canvas and copies.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use libwebp_sys::{
    VP8StatusCode, WEBP_CSP_MODE, WEBP_DEMUX_ABI_VERSION, WebPBitstreamFeatures, WebPData,
    WebPDecode, WebPDecoderConfig, WebPDemuxDelete, WebPDemuxGetFrame, WebPDemuxGetI,
    WebPDemuxInternal, WebPDemuxReleaseIterator, WebPDemuxer, WebPFormatFeature, WebPGetFeatures,
    WebPIterator, WebPRGBABuffer,
};

use safelight_core::cancel::Cancel;

use crate::mode::Mode;
use crate::refusal::{Declined, Refusal};
use crate::request::Target;

use super::codec::{Codec, Header};

/// A WebP file with its container parsed.
pub(crate) struct WebP<'a> {
    header: Header,
    frame: Frame<'a>,
    is_lossless: bool,
}

impl<'a> Codec<'a> for WebP<'a> {
    fn open(data: &'a [u8]) -> Result<Self, Refusal> {
        let mode = if features(data)?.has_alpha != 0 {
            Mode::Rgba
        } else {
            Mode::Rgb
        };
        let demuxer = Demuxer::new(data)?;
        let header = Header {
            format: "WEBP",
            width: demuxer.get(WebPFormatFeature::WEBP_FF_CANVAS_WIDTH),
            height: demuxer.get(WebPFormatFeature::WEBP_FF_CANVAS_HEIGHT),
            mode,
        };
        let frame = demuxer.first_frame()?;
        let is_lossless = features(frame.data)?.format == LOSSLESS;
        Ok(Self {
            header,
            frame,
            is_lossless,
        })
    }

    fn aim(&mut self, target: Target) {
        if target == Target::Rgbx && self.header.mode == Mode::Rgb && self.is_filling() {
            self.header.mode = Mode::Rgbx;
        }
    }

    fn header(&self) -> Header {
        self.header
    }

    /// Where the frame is the whole canvas.
    fn is_filling(&self) -> bool {
        let Header { width, height, .. } = self.header;
        let frame = &self.frame;
        [frame.left, frame.top, frame.width, frame.height] == [0, 0, width, height]
    }

    fn decode(&mut self, buffer: &mut Vec<u8>, _cancel: &Cancel) -> Result<(), Refusal> {
        let frame = &self.frame;
        let unit = self.header.mode.pixel_bytes();
        let stride = self.header.width as usize * unit;
        let (left, top) = (frame.left as usize, frame.top as usize);
        let (width, height) = (frame.width as usize, frame.height as usize);
        if left + width > self.header.width as usize || top + height > self.header.height as usize {
            return Err(Declined("frame outside the canvas").into());
        }
        // From the frame's first pixel to its last, rows a canvas apart.
        let start = top * stride + left * unit;
        let length = (height - 1) * stride + width * unit;
        let bytes = stride * self.header.height as usize;
        buffer.clear();
        let room = buffer.spare_capacity_mut().get_mut(..bytes);
        let place = room.and_then(|room| room.get_mut(start..start + length));
        let place = place.ok_or(Declined("plan"))?;
        decode(frame.data, place, stride, self.header.mode)?;
        // SAFETY: where the frame fills the canvas, libwebp says that it wrote all of it; where it
        // does not, the buffer was zeros before.
        unsafe { buffer.set_len(bytes) };
        if self.is_lossless && self.header.mode == Mode::Rgbx {
            // The pixels have an alpha, though the file says that it is not used.
            let (pixels, _) = buffer.as_chunks_mut::<4>();
            for pixel in pixels {
                *pixel = (u32::from_le_bytes(*pixel) | 0xFF00_0000).to_le_bytes();
            }
        }
        Ok(())
    }
}

/// What libwebp calls the format of `VP8L`.
const LOSSLESS: c_int = 2;

fn features(data: &[u8]) -> Result<WebPBitstreamFeatures, Declined> {
    let mut features = MaybeUninit::zeroed();
    // SAFETY: the pointer is valid for the length given with it; `features` is plain data of the
    // type that the function fills, all zeros being a value of it.
    unsafe {
        let status = WebPGetFeatures(data.as_ptr(), data.len(), features.as_mut_ptr());
        if status != VP8StatusCode::VP8_STATUS_OK {
            return Err(Declined("no features"));
        }
        Ok(features.assume_init())
    }
}

struct Demuxer<'a> {
    pointer: NonNull<WebPDemuxer>,
    // The demuxer keeps the address of the payload.
    payload: PhantomData<&'a [u8]>,
}

struct Frame<'a> {
    left: u32,
    top: u32,
    width: u32,
    height: u32,
    data: &'a [u8],
}

impl<'a> Demuxer<'a> {
    fn new(data: &'a [u8]) -> Result<Self, Declined> {
        let payload = WebPData {
            bytes: data.as_ptr(),
            size: data.len(),
        };
        // SAFETY: `payload` points to `data`, which outlives the demuxer; it is read only. No
        // state is asked for, and the version is that of the headers these bindings are made of.
        let pointer = unsafe {
            WebPDemuxInternal(
                &raw const payload,
                0,
                std::ptr::null_mut(),
                WEBP_DEMUX_ABI_VERSION.cast_signed(),
            )
        };
        Ok(Self {
            pointer: NonNull::new(pointer).ok_or(Declined("container is damaged or cut"))?,
            payload: PhantomData,
        })
    }

    fn get(&self, feature: WebPFormatFeature) -> u32 {
        // SAFETY: the demuxer is alive.
        unsafe { WebPDemuxGetI(self.pointer.as_ptr(), feature) }
    }

    fn first_frame(&self) -> Result<Frame<'a>, Declined> {
        let mut iterator = MaybeUninit::<WebPIterator>::zeroed();
        // SAFETY: the demuxer is alive. The iterator is plain data that a successful call fills;
        // its fragment lies in the payload, which outlives `'a`, whatever becomes of it.
        unsafe {
            if WebPDemuxGetFrame(self.pointer.as_ptr(), 1, iterator.as_mut_ptr()) == 0 {
                return Err(Declined("no frame"));
            }
            let mut iterator = iterator.assume_init();
            let unsigned = |value: c_int| u32::try_from(value).unwrap_or(0);
            let fragment = iterator.fragment;
            let frame = Frame {
                left: unsigned(iterator.x_offset),
                top: unsigned(iterator.y_offset),
                width: unsigned(iterator.width),
                height: unsigned(iterator.height),
                data: if fragment.bytes.is_null() {
                    &[]
                } else {
                    std::slice::from_raw_parts(fragment.bytes, fragment.size)
                },
            };
            WebPDemuxReleaseIterator(&raw mut iterator);
            if frame.width == 0 || frame.height == 0 {
                return Err(Declined("empty frame"));
            }
            Ok(frame)
        }
    }
}

impl Drop for Demuxer<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `WebPDemuxInternal` and freed once.
        unsafe { WebPDemuxDelete(self.pointer.as_ptr()) }
    }
}

/// Decode one frame to `place`, rows `stride` bytes apart. Success is every pixel written.
fn decode(
    data: &[u8],
    place: &mut [MaybeUninit<u8>],
    stride: usize,
    mode: Mode,
) -> Result<(), Refusal> {
    let mut config = WebPDecoderConfig::new().map_err(|()| Declined("version of libwebp"))?;
    config.output.colorspace = match mode {
        Mode::Rgb => WEBP_CSP_MODE::MODE_RGB,
        _ => WEBP_CSP_MODE::MODE_RGBA,
    };
    config.output.is_external_memory = 1;
    config.output.u.RGBA = WebPRGBABuffer {
        rgba: place.as_mut_ptr().cast(),
        stride: c_int::try_from(stride).map_err(|_| Declined("too large"))?,
        size: place.len(),
    };
    // SAFETY: `data` is valid for its length. libwebp writes to the external memory only, within
    // `size` bytes of it, which it checks against stride and frame before the first row.
    let status = unsafe { WebPDecode(data.as_ptr(), data.len(), &raw mut config) };
    if status != VP8StatusCode::VP8_STATUS_OK {
        return Err(Declined("libwebp refuses").into());
    }
    Ok(())
}
