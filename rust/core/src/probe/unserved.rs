//! Names for what is recognized but not read, so that a refusal can say what it was.

/// The longest beginning that a format is told by.
pub(super) const LONGEST_MAGIC: usize = 44;

/// Where a magic lies, the magic, and whose it is; the first that is there counts.
const MAGICS: &[(usize, &[u8], &str)] = &[
    (0, b"%!PS", "EPS"),
    (0, b"\xC5\xD0\xD3\xC6", "EPS"),
    (0, b"%PDF-", "PDF"),
    (8, b"AVI ", "AVI"),
    (8, b"WAVE", "WAV"),
    (0, b"OggS", "Ogg"),
    (0, b"fLaC", "FLAC"),
    (0, b"ID3", "MP3"),
    (0, b"\xFF\xFB", "MP3"),
    (0, b"\xFF\xF3", "MP3"),
    (0, b"\xFF\xF1", "AAC"),
    (0, b"\xFF\xF9", "AAC"),
    (0, b"FLV\x01", "FLV"),
    (0, b"\x30\x26\xB2\x75\x8E\x66\xCF\x11", "ASF"),
    (0, b"\0\0\x01\xB3", "MPEG"),
    (0, b"\0\0\x01\xBA", "MPEG"),
    (0, b"\xD7\xCD\xC6\x9A", "WMF"),
    (0, b"\x01\0\x09\0\0\x03", "WMF"),
    (40, b" EMF", "EMF"),
    (0, b"BLP1", "BLP"),
    (0, b"BLP2", "BLP"),
    (0, b"BUFR", "BUFR"),
    (0, b"GRIB", "GRIB"),
    (0, b"\x89HDF\r\n\x1A\n", "HDF5"),
    (0, b"SIMPLE ", "FITS"),
    (0, b"\x59\xA6\x6A\x95", "SUN"),
    (0, b"\xB1\x68\xDE\x3A", "DCX"),
    (4, b"\x11\xAF", "FLI"),
    (4, b"\x12\xAF", "FLI"),
    (20, b"GIMP", "GBR"),
    (0, b"\0\0\0\0\0\0\0\x04", "MCIDAS"),
    (0, b"\x76\x2F\x31\x01", "OpenEXR"),
    (0, b"#?RADIANCE", "Radiance HDR"),
    (0, b"#?RGBE", "Radiance HDR"),
    (0, b"\xABKTX ", "KTX"),
    (0, b"FTEX", "FTEX"),
    (0, b"DanM", "MSP"),
    (0, b"LinS", "MSP"),
    (0, b"AT&TFORM", "DjVu"),
    (0, b"II\xBC\x01", "JPEG XR"),
    (0, b"\x8BJNG", "JNG"),
    (0, b"\x8AMNG", "MNG"),
    (0, b"gimp xcf", "XCF"),
    (0, b"BPG\xFB", "BPG"),
    (0, b"FLIF", "FLIF"),
    (0, b"/* XPM", "XPM"),
    (0, b"#define ", "XBM"),
    (0, b"P7 332", "XV thumbnail"),
    (8, b"ILBM", "ILBM"),
    (0, b"PK\x03\x04", "ZIP"),
    (0, b"PK\x05\x06", "ZIP"),
    (0, b"\x1F\x8B\x08", "gzip"),
    (0, b"\xFD7zXZ\0", "xz"),
    (0, b"BZh", "bzip2"),
    (0, b"7z\xBC\xAF", "7z"),
    (0, b"\x28\xB5\x2F\xFD", "Zstandard"),
    (0, b"Rar!\x1A\x07", "RAR"),
];

const EBML: &[u8] = b"\x1A\x45\xDF\xA3";

/// The name of a format that is not served, by its magic.
pub(super) fn name(bytes: &[u8]) -> Option<&'static str> {
    if bytes.starts_with(EBML) {
        return Some(matroska(bytes));
    }
    let found = MAGICS.iter().find(|(at, magic, _)| {
        let place = bytes.get(*at..);
        place.is_some_and(|place| place.starts_with(magic))
    });
    found.map(|(_, _, name)| *name)
}

/// Matroska, or WebM where the document type among the first elements says so.
fn matroska(bytes: &[u8]) -> &'static str {
    let beginning = &bytes[..bytes.len().min(LONGEST_MAGIC)];
    if memchr::memmem::find(beginning, b"webm").is_some() {
        "WebM"
    } else {
        "Matroska"
    }
}
