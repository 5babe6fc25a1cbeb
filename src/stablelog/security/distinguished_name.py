"""The distinguished name of a certificate's subject, as Java writes it (`X500Principal.getName()`, RFC 2253).

ACLs name principals by this text, so it has to be the same as in Kafka. Python's `ssl` module returns the subject
without the encoding of its values. This module therefore reads the subject from the certificate (X.509, DER).
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

# The attributes that RFC 2253 has keywords for, by object identifier. The value of another attribute is written in
# hexadecimal digits.
KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
# The encoding of a text, by the tag of its type.
TEXTS: Final = {
    0x0C: "utf-8",
    0x12: "ascii",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
SPECIAL: Final = ',+"\\<>;'
VERSION_TAG: Final = 0xA0
LONG_LENGTH: Final = 0x80


class _Value(NamedTuple):
    """One value in DER, the encoding of certificates: its tag (the number of its type), its content, and all its bytes,
    including tag and length.
    """

    tag: int
    content: bytes
    whole: bytes


def _values(data: bytes) -> Iterator[_Value]:
    """Yield the values that follow each other in `data`, the bytes of a certificate or a part of one. DER is their
    encoding.
    """
    at = 0
    while at < len(data):
        start, tag, length = at, data[at], data[at + 1]
        at += 2
        if length >= LONG_LENGTH:
            count = length - LONG_LENGTH
            length = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + length > len(data):
            raise ValueError("the certificate is truncated")
        yield _Value(tag, data[at : at + length], data[start : at + length])
        at += length


def _object_identifier(content: bytes) -> str:
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:  # the last byte of a number
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escaped(text: str) -> str:
    escaped = "".join(f"\\{letter}" if letter in SPECIAL else letter for letter in text)
    if escaped.startswith((" ", "#")):
        escaped = "\\" + escaped
    if text.endswith(" ") and len(text) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped


def _attribute(data: bytes) -> str:
    identifier, value = _values(data)
    name = _object_identifier(identifier.content)
    if name not in KEYWORDS or value.tag not in TEXTS:
        return f"{KEYWORDS.get(name, name)}=#{value.whole.hex()}"
    return f"{KEYWORDS[name]}={_escaped(value.content.decode(TEXTS[value.tag]))}"


def subject_of(certificate: bytes) -> str:
    """Return the distinguished name of a certificate's subject.

    Args:
        certificate: the certificate in DER format.

    Raises:
        ValueError: the bytes are not a certificate.
    """
    try:
        (whole,) = _values(certificate)
        parts = iter([*_values(next(_values(whole.content)).content)])
        first = next(parts)
        if first.tag == VERSION_TAG:
            next(parts)
        _algorithm, _issuer, _validity, subject, *_ = parts
        names = [
            "+".join(_attribute(attribute.content) for attribute in _values(relative.content))
            for relative in _values(subject.content)
        ]
    except (IndexError, StopIteration) as error:
        raise ValueError("the bytes are not a certificate") from error
    return ",".join(reversed(names))
