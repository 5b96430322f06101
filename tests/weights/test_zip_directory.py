import io
import struct
import zipfile

import pytest

from cuvil.frontend.importers.weights import zip_directory
from cuvil.frontend.importers.weights.zip_directory import ZipDirectory
from cuvil.support.errors import WeightsError


def zipped(records, method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    return bytearray(file.getvalue())


def directory(content):
    return ZipDirectory(memoryview(bytes(content)), "a file")


def refused(content, message):
    with pytest.raises(WeightsError, match=message):
        directory(content)


TWO = {"a": b"first", "b": b"second"}


def central(content, index=0):
    """Where an entry of the central directory starts."""
    position = -1
    for _ in range(index + 1):
        position = bytes(content).index(b"PK\1\2", position + 1)
    return position


def end(content):
    return bytes(content).rindex(b"PK\5\6")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_records_are_found_by_name(method):
    found = directory(zipped(TWO, method))
    assert found.names() == ("a", "b")
    assert "a" in found
    assert "c" not in found
    assert {name: bytes(found.read(name, verify=True)) for name in found.names()} == TWO
    with pytest.raises(WeightsError, match="no record 'c'"):
        found.read("c", verify=True)


def test_an_empty_archive_has_no_records():
    assert directory(zipped({})).names() == ()


def test_sixty_four_bit_directories_are_read():
    plain = zipped({"a": b"first"})
    at, tail = central(plain), end(plain)
    entry = bytearray(plain[at:tail])
    struct.pack_into("<LL", entry, 20, 0xFFFFFFFF, 0xFFFFFFFF)
    struct.pack_into("<L", entry, 42, 0xFFFFFFFF)
    struct.pack_into("<H", entry, 30, 28)
    entry += struct.pack("<HHQQQ", 1, 24, 5, 5, 0)
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(entry), at)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, at + len(entry), 1)
    last = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    content = bytes(plain[:at]) + bytes(entry) + end64 + locator + last
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.read("a") == b"first"
    assert bytes(directory(content).read("a", verify=True)) == b"first"
    short = bytes(plain[:at]) + bytes(entry[:-28]) + bytes(28) + end64 + locator + last
    refused(short, "lacks the 64-bit sizes")
    few = bytes(content).replace(struct.pack("<HHQ", 1, 24, 5), struct.pack("<HHQ", 1, 8, 5))
    refused(few, "lacks the 64-bit sizes")


def edited(place, offset, form, value, index=0):
    content = zipped(TWO)
    position = {"central": lambda: central(content, index), "end": lambda: end(content), "local": lambda: 0}[place]()
    struct.pack_into(form, content, position + offset, value)
    return content


@pytest.mark.parametrize(
    "content, message",
    [
        (edited("central", 8, "<H", 1), "encrypted"),
        (edited("central", 20, "<L", 4), "stored in 4 bytes but claims 5"),
        (edited("central", 24, "<L", 2**31), "stored in 5 bytes"),
        (edited("central", 42, "<L", 10**6), "outside the file"),
        (edited("central", 42, "<L", 1), "no zip record header"),
        (edited("central", 42, "<L", 0, index=1), "another name in its own header"),
        (edited("central", 46, "<B", ord("b")), "another name|twice"),
        (edited("central", 28, "<H", 0xFFFF), "outside the directory"),
        (edited("central", 32, "<H", 0xFFFF), "outside the directory"),
        (edited("local", 28, "<H", 0xFFFF), "outside the file's records"),
        (edited("end", 4, "<H", 1), "several parts"),
        (edited("end", 8, "<H", 3), "several parts"),
        (edited("end", 12, "<L", 2**31), "expected it to end"),
        (edited("end", 16, "<L", 0), "expected it to end"),
        (edited("end", 20, "<H", 1), "not at the end"),
        (zipped(TWO) + b"tail", "not at the end"),
        (b"head" + zipped(TWO), "expected it to end"),
        (b"", "directory is missing"),
        (b"PK\3\4" * 10, "directory is missing"),
    ],
)
def test_lying_directories_are_refused(content, message):
    refused(content, message)


def test_counts_that_do_not_fit_the_directory_are_refused():
    for count, message in (
        (1, "bytes after its 1 entries"),
        (3, "no zip directory entry|3 entries"),
        (999, "999 entries"),
    ):
        content = zipped(TWO)
        struct.pack_into("<HH", content, end(content) + 8, count, count)
        refused(content, message)


def test_two_entries_for_the_same_bytes_are_refused():
    content = zipped(
        {"a": b"first", "c": b"x" * 40 + b"PK\3\4" + bytes(22) + struct.pack("<HH", 1, 0) + b"b" + b"inner", "b": b"y"}
    )
    inner = bytes(content).index(b"PK\3\4", bytes(content).index(b"x" * 40))
    struct.pack_into("<L", content, central(content, 2) + 42, inner)
    refused(content, "overlap")


def test_the_same_name_twice_is_refused():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", b"1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a", b"2")
    refused(file.getvalue(), "twice")


def test_unknown_methods_are_refused_when_read():
    found = directory(zipped(TWO, zipfile.ZIP_BZIP2))
    with pytest.raises(WeightsError, match="zip method 12"):
        found.read("a", verify=False)


def test_damaged_deflated_records_are_refused():
    for offset, form, value, message in [
        (24, "<L", 4, "does not inflate to the 4 bytes"),
        (24, "<L", 6, "does not inflate to the 6 bytes"),
        (16, "<L", 1, "CRC-32"),
    ]:
        content = zipped(TWO, zipfile.ZIP_DEFLATED)
        struct.pack_into(form, content, central(content) + offset, value)
        with pytest.raises(WeightsError, match=message):
            directory(content).read("a", verify=False)
    content = zipped(TWO, zipfile.ZIP_DEFLATED)
    content[31] = 0xFF
    with pytest.raises(WeightsError, match="does not inflate"):
        directory(content).read("a", verify=False)


def test_a_checksum_of_zero_was_left_out_by_the_writer():
    content = zipped(TWO)
    struct.pack_into("<L", content, central(content) + 16, 0)
    assert bytes(directory(content).read("a", verify=True)) == b"first"
    struct.pack_into("<L", content, central(content) + 16, 1)
    with pytest.raises(WeightsError, match="CRC-32"):
        directory(content).read("a", verify=True)


def test_zip_bombs_are_refused_one_by_one_and_together(monkeypatch):
    monkeypatch.setattr(zip_directory, "_INFLATED_BASE", 10_000)
    bomb = zipped({"a": bytes(1_000_000)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(WeightsError, match=r"inflates from \d+ to 1000000 bytes"):
        directory(bomb).read("a", verify=False)
    several = directory(zipped({str(index): bytes(9_000) for index in range(9)}, zipfile.ZIP_DEFLATED))
    several.read("0", verify=False)
    with pytest.raises(WeightsError, match="beyond what is accepted"):
        for index in range(1, 9):
            several.read(str(index), verify=False)
