"""The directory of a zip file held in memory: where each record's bytes lie, checked before any is read.

Source: APPNOTE.TXT (PKWARE) sections 4.3.7, 4.3.12, 4.3.14 to 4.3.16 and 4.5.3. Names are keys of a table and never
become paths.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from itertools import pairwise

from cuvil.support.errors import WeightsError

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_STORED, _DEFLATED = 0, 8
_MAX_COMMENT = 0xFFFF
# Deflated records may together grow to this much. Weights hardly compress, so a ratio of 32 is never an honest file;
# the constant lets small files of zeros through.
_INFLATED_BASE, _INFLATED_RATIO = 2**26, 32


@dataclass(frozen=True)
class _Record:
    name: str
    method: int
    crc: int
    begin: int
    stored_size: int
    size: int


class ZipDirectory:
    """The records of one zip file.

    Args:
        data: all bytes of the file.
        where: the name of the file, for messages.

    Raises:
        WeightsError: the directory is cut short, lies about positions, or names a record twice.
    """

    def __init__(self, data: memoryview, where: str) -> None:
        self._data = data
        self._where = where
        self._inflated_left = _INFLATED_BASE + _INFLATED_RATIO * len(data)
        self._records: dict[str, _Record] = {}
        count, begin, end = self._find_directory()
        extents: list[tuple[int, int, str]] = []
        position = begin
        for _ in range(count):
            record, header, position = self._read_entry(position, end, limit=begin)
            if record.name in self._records:
                raise self._error(f"the zip directory names {record.name!r:.80} twice")
            self._records[record.name] = record
            extents.append((header, record.begin + record.stored_size, record.name))
        if position != end:
            raise self._error(f"the zip directory has {end - position} bytes after its {count} entries")
        extents.sort()
        for (_, before, first), (after, _, second) in pairwise(extents):
            if after < before:
                raise self._error(f"the zip records {first!r:.80} and {second!r:.80} overlap")

    def __contains__(self, name: str) -> bool:
        return name in self._records

    def names(self) -> tuple[str, ...]:
        """All record names in the directory's order."""
        return tuple(self._records)

    def read(self, name: str, *, verify: bool) -> memoryview:
        """The bytes of a record: a view of the file where it is stored, inflated where it is deflated.

        ``verify`` checks the CRC-32 of a stored record too, which reads all of it; deflated ones are always checked.
        A CRC-32 of 0 means that the writer left it out, as PyTorch does on request.

        Raises:
            WeightsError: no such record, damaged bytes, an unknown method, or a record that inflates beyond reason.
        """
        record = self._records.get(name)
        if record is None:
            raise self._error(f"there is no record {name!r:.80}; the file is damaged or no PyTorch checkpoint")
        stored = self._data[record.begin : record.begin + record.stored_size]
        if record.method == _STORED:
            content = stored
        elif record.method == _DEFLATED:
            content = memoryview(bytearray(self._inflate(record, stored)))
        else:
            raise self._error(f"record {name!r:.80} uses zip method {record.method}; expected stored or deflated")
        if (verify or record.method == _DEFLATED) and record.crc and zlib.crc32(content) != record.crc:
            raise self._error(f"record {name!r:.80} does not match its CRC-32; the file is damaged")
        return content

    def _inflate(self, record: _Record, stored: memoryview) -> bytes:
        if record.size > self._inflated_left:
            raise self._error(
                f"record {record.name!r:.80} inflates from {record.stored_size} to {record.size} bytes, beyond what is "
                "accepted; store the weights uncompressed, as torch.save does"
            )
        self._inflated_left -= record.size
        machine = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            content = machine.decompress(stored, record.size + 1)
        except zlib.error as error:
            raise self._error(f"record {record.name!r:.80} does not inflate: {error}") from error
        if len(content) != record.size or not machine.eof:
            raise self._error(f"record {record.name!r:.80} does not inflate to the {record.size} bytes that it claims")
        return content

    def _error(self, message: str) -> WeightsError:
        return WeightsError(f"{self._where}: {message}")

    def _unpack(self, layout: struct.Struct, position: int, signature: bytes, what: str) -> tuple[int, ...]:
        if position < 0 or position + layout.size > len(self._data):
            raise self._error(f"the zip {what} at byte {position} lies outside the file; it is cut short")
        fields = layout.unpack_from(self._data, position)
        if fields[0] != signature:
            raise self._error(f"there is no zip {what} at byte {position}; the file is cut short or damaged")
        return fields[1:]

    def _find_directory(self) -> tuple[int, int, int]:
        """The number of entries and the byte range of the central directory."""
        tail = max(0, len(self._data) - _END.size - _MAX_COMMENT)
        found = bytes(self._data[tail:]).rfind(b"PK\5\6")
        if found < 0:
            raise self._error("the zip directory is missing; the file is cut short")
        position = tail + found
        disk, first_disk, on_disk, count, size, begin, comment = self._unpack(_END, position, b"PK\5\6", "end record")
        if position + _END.size + comment != len(self._data):
            raise self._error("the zip end record is not at the end of the file; the file is cut short or has a tail")
        limit = position
        locator = position - _END64_LOCATOR.size
        if locator >= 0 and bytes(self._data[locator : locator + 4]) == b"PK\6\7":
            _, limit, _ = self._unpack(_END64_LOCATOR, locator, b"PK\6\7", "locator")
            fields = self._unpack(_END64, limit, b"PK\6\6", "end record")
            disk, first_disk, on_disk, count, size, begin = fields[3:]
        if disk or first_disk or on_disk != count:
            raise self._error("a zip file in several parts is not read; join the parts")
        if begin + size != limit:
            raise self._error(f"the zip directory claims bytes {begin}..{begin + size}; expected it to end at {limit}")
        if count * _CENTRAL.size > size:
            raise self._error(f"the zip directory claims {count} entries in {size} bytes")
        return count, begin, limit

    def _read_entry(self, position: int, end: int, *, limit: int) -> tuple[_Record, int, int]:
        """One directory entry: the record, where its local header starts, and the position of the next entry."""
        fields = self._unpack(_CENTRAL, position, b"PK\1\2", "directory entry")
        flags, method, crc, stored_size, size = fields[2], fields[3], fields[6], fields[7], fields[8]
        name_size, extra_size, comment_size, header = fields[9], fields[10], fields[11], fields[15]
        name_at = position + _CENTRAL.size
        extra_at = name_at + name_size
        after = extra_at + extra_size + comment_size
        if after > end:
            raise self._error("a zip directory entry reaches outside the directory")
        raw_name = bytes(self._data[name_at:extra_at])
        name = raw_name.decode("utf-8", "surrogateescape")
        if flags & 1:
            raise self._error(f"record {name!r:.80} is encrypted; decrypt the file first")
        size, stored_size, header = self._wide_fields(
            bytes(self._data[extra_at : extra_at + extra_size]), [size, stored_size, header], name
        )
        local = self._unpack(_LOCAL, header, b"PK\3\4", "record header")
        begin = header + _LOCAL.size + local[8] + local[9]
        if begin + stored_size > limit:
            raise self._error(f"record {name!r:.80} claims {stored_size} bytes at {begin}, outside the file's records")
        if bytes(self._data[header + _LOCAL.size : header + _LOCAL.size + local[8]]) != raw_name:
            raise self._error(f"record {name!r:.80} has another name in its own header; the file is damaged")
        if method == _STORED and stored_size != size:
            raise self._error(f"record {name!r:.80} is stored in {stored_size} bytes but claims {size}")
        return _Record(name, method, crc, begin, stored_size, size), header, after

    def _wide_fields(self, extra: bytes, values: list[int], name: str) -> list[int]:
        """Sizes and offset with those that did not fit in 32 bits taken from the zip64 extra field."""
        if 0xFFFFFFFF not in values:
            return values
        position = 0
        while position + 4 <= len(extra):
            tag, length = struct.unpack_from("<HH", extra, position)
            if tag == 1:
                wide = extra[position + 4 : position + 4 + length]
                needed = values.count(0xFFFFFFFF)
                if len(wide) < 8 * needed:
                    break
                numbers = iter(struct.unpack_from(f"<{needed}Q", wide))
                return [next(numbers) if value == 0xFFFFFFFF else value for value in values]
            position += 4 + length
        raise self._error(f"record {name!r:.80} lacks the 64-bit sizes that its entry promises")
