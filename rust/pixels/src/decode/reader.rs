//! Reading numbers out of a slice; every step is checked.

use crate::refusal::Declined;

/// A cursor over a payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    data: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self { data, position: 0 }
    }

    pub(crate) fn at(data: &'a [u8], position: usize) -> Self {
        Self { data, position }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.data.get(self.position..).unwrap_or_default()
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Declined> {
        let bytes = self.rest().get(..count).ok_or(Declined("cut short"))?;
        self.position += count;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Declined> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Declined> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn u16_be(&mut self) -> Result<u16, Declined> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32_be(&mut self) -> Result<u32, Declined> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u16_le(&mut self) -> Result<u16, Declined> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32_le(&mut self) -> Result<u32, Declined> {
        self.array().map(u32::from_le_bytes)
    }
}
