//! XMP: the orientation, where a packet of RDF states one. No XML is parsed.

/// The orientation that an XMP packet states, as an attribute or as an element.
///
/// The first mention counts, and only its first digit, as in Pillow.
pub(crate) fn orientation(packet: &[u8]) -> Option<u8> {
    const NAME: &[u8] = b"tiff:Orientation";
    for at in memchr::memmem::find_iter(packet, NAME) {
        let rest = &packet[at + NAME.len()..];
        let value = match rest {
            [b'=', b'"', digit, ..] | [b'>', digit, ..] => *digit,
            _ => continue,
        };
        match value {
            b'1'..=b'8' => return Some(value - b'0'),
            b'0' | b'9' => return Some(1),
            _ => {}
        }
    }
    None
}
