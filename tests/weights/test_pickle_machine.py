import os
import pickle
import struct
import sys
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuvil.frontend.importers.weights.pickle_machine import MAX_OPCODES, InertGlobal, interpret_pickle
from cuvil.support.errors import WeightsError
from tests.weights.checkpoint_files import Call, Name, Persistent, opcodes, pickled

ECHO = InertGlobal("torch", "echo", lambda arguments: ("echo", *arguments))
NAMED = InertGlobal("torch", "named", value=3)
ORDERED = InertGlobal("collections", "OrderedDict", lambda arguments: OrderedDict())
TABLE = {(entry.module, entry.name): entry for entry in (ECHO, NAMED, ORDERED)}


def value_of(content, persistent=None):
    return interpret_pickle(memoryview(content), 0, TABLE, persistent, "a file").value


def refused(content, message, persistent=None):
    with pytest.raises(WeightsError, match=message):
        value_of(content, persistent)


KEYS = st.one_of(st.text(max_size=4), st.integers(-(2**59), 2**59), st.booleans(), st.none(), st.binary(max_size=3))
PLAIN = st.recursive(
    st.one_of(
        KEYS,
        st.floats(allow_nan=False),
        st.integers(-(2**500), 2**500),
        st.binary(max_size=300),
        st.sets(KEYS, max_size=3),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.tuples(inner, inner), st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(PLAIN, st.sampled_from([4, 5]))
def test_plain_values_are_what_pickle_gives(value, protocol):
    assert value_of(pickle.dumps(value, protocol)) == value


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), st.lists(st.one_of(st.integers(), st.text(), st.floats(allow_nan=False)))))
def test_protocol_2_is_read_too(value):
    assert value_of(pickle.dumps(value, 2)) == value


def test_shared_and_cyclic_containers_keep_their_identity():
    shared = [1]
    value = {"a": shared, "b": shared}
    value["self"] = value
    found = value_of(pickle.dumps(value, 4))
    assert found["a"] is found["b"]
    assert found["self"] is found


def test_allowed_globals_build_inert_values():
    assert value_of(pickled(Call(Name("torch", "echo"), (1, "x")))) == ("echo", 1, "x")
    assert value_of(pickled(Name("torch", "named"))) is NAMED
    assert value_of(pickled(Persistent(("key",))), persistent=lambda identifier: identifier[0]) == "key"


def test_the_state_of_an_ordered_dict_is_left_out():
    content = b"\x80\x02ccollections\nOrderedDict\n)R" + opcodes({"_metadata": 1}) + b"b."
    assert value_of(content) == OrderedDict()


class Runs:
    """Pickles itself as a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_calls_of_other_globals_are_refused_by_name_and_not_run(tmp_path, protocol):
    marker = tmp_path / "ran"
    for value, name in [
        (Runs(os.system, f"touch {marker}"), r"\w+\.system"),
        (Runs(eval, f"open({str(marker)!r}, 'w')"), r"\w+\.eval"),
        (Runs(exec, f"open({str(marker)!r}, 'w')"), r"\w+\.exec"),
        (Runs(getattr, "text", "upper"), r"\w+\.getattr"),
        (Runs(open, str(marker), "w"), r"\w+\.open"),
        (Runs(__import__, "os"), r"\w+\.__import__"),
        (np.float32(3), r"numpy\.\S*multiarray\.scalar"),
        (np.arange(3), r"numpy\.\S*(_reconstruct|_frombuffer)"),
        (object(), r"(copy_?reg|builtins|__builtin__)\.(_reconstructor|object)"),
        (OrderedDict, None),
    ]:
        content = pickle.dumps(value, protocol)
        if name is None:
            assert value_of(content) is ORDERED
        else:
            refused(content, f"global {name}")
    assert not marker.exists()


@pytest.mark.parametrize(
    "module, name",
    [
        ("os", "system"),
        ("builtins", "eval"),
        ("collections", "OrderedDict.__init__.__globals__"),
        ("torch", "echo.__class__"),
        ("torch.echo", ""),
        ("", "torch.echo"),
        ("copyreg", "_reconstructor"),
        ("torch._utils", "import_dotted_name"),
        ("torch.hub", "load"),
        ("functools", "partial"),
    ],
)
def test_names_are_table_keys_and_never_looked_up(module, name):
    refused(b"\x80\x04" + opcodes(module) + opcodes(name) + b"\x93.", "names the global")
    if "\n" not in module + name:
        refused(pickled(Name(module, name)), "names the global")


def test_refused_modules_are_not_imported():
    assert "antigravity" not in sys.modules
    refused(pickled(Call(Name("antigravity", "fly"), ())), "global antigravity.fly")
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "content, message",
    [
        (pickled(Call("text", ())), "REDUCE calls a str"),
        (pickled(Call(Call(Name("torch", "echo"), ()), ())), "REDUCE calls a tuple"),
        (pickled(Call(Name("torch", "named"), ())), "may be named but not called"),
        (pickled(Call(Name("torch", "echo"), [])), "with a list"),
        (b"\x80\x02ctorch\necho\n)\x81.", "NEWOBJ is refused"),
        (b"\x80\x02ctorch\necho\n)}\x92.", "NEWOBJ_EX is refused"),
        (b"(ios\nsystem\n.", "INST is refused"),
        (b"(cos\nsystem\n.", "global os.system"),
        (b"(ctorch\necho\no.", "OBJ is refused"),
        (b"\x82\x01.", "EXT1 is refused"),
        (b"\x83\x01\x01.", "EXT2 is refused"),
        (b"\x84\x01\x01\x01\x01.", "EXT4 is refused"),
        (b"\x97.", "NEXT_BUFFER is refused"),
        (b"PX\n.", "PERSID is refused"),
        (b"I1\n.", "INT is refused"),
        (b"S'x'\n.", "STRING is refused"),
        (b"Np0\n.", "PUT is refused"),
        (b"\x80\x06N.", "protocol 6"),
        (b"\xff.", "no pickle opcode"),
        (b"", "cut short"),
        (b"\x80", "cut short"),
        (b"N", "cut short"),
        (b".", "stack is empty"),
        (b"NN.", "leaves values"),
        (b"(N.", "leaves values"),
        (b"t.", "no MARK"),
        (b"0.", "no MARK"),
        (b"\x86.", "stack is empty"),
        (b"2.", "stack is empty"),
        (b"q\0.", "stack is empty"),
        (b"h\7.", "memo entry 7"),
        (b"j\xff\xff\xff\xff.", "memo entry 4294967295"),
        (b"NNa.", "APPEND to a NoneType"),
        (b"ctorch\necho\nNa.", "APPEND to a global torch.echo"),
        (b"]NNs.", "SETITEM on a list"),
        (b"}(Nu.", "no value"),
        (b"}(Nd.", "no value"),
        (b"}(N\x90.", "ADDITEMS to a dict"),
        (b"}]Ns.", "list as a dict key"),
        (b"})Ns.", "tuple as a dict key"),
        (b"}" + opcodes(2**61) + b"Ns.", "int as a dict key"),
        (b"\x8f(" + b"G" + bytes(8) + b"\x90.", "float as a dict key"),
        (b"(]\x91.", "list as a dict key"),
        (b"}}b.", "BUILD gives a dict to a dict"),
        (b"ctorch\necho\n}b.", "BUILD gives a dict to a global"),
        (b"ccollections\nOrderedDict\n)R(Ntb.", "BUILD gives a tuple"),
        (b"K\1K\2\x93.", "no string"),
        (pickled(Persistent("x")), "persistent id where none"),
        (b"c" + b"a" * 5000 + b"\nb\n.", "does not end within"),
        (b"c\xff\nb\n.", "not UTF-8"),
        (b"X\1\0\0\0\xff.", "not UTF-8"),
        (b"\x8b\xff\xff\xff\x7fN.", "an integer of 2147483647 bytes"),
        (b"\x8b\xff\xff\xff\xffN.", "an integer of 4294967295 bytes"),
        (b"\x8a\xff" + bytes(255) + b".", "an integer of 255 bytes"),
        (b"B\xff\xff\xff\xffN.", "4294967295 bytes are claimed"),
        (b"X\xff\xff\xff\x7fN.", "2147483647 bytes are claimed"),
        (b"\x8e" + b"\xff" * 8 + b"N.", "18446744073709551615 bytes are claimed"),
        (b"\x8d" + b"\xff" * 8 + b"N.", "are claimed"),
        (b"\x96" + b"\xff" * 8 + b"N.", "are claimed"),
        (b"\x95" + b"\xff" * 8 + b"N.", "a frame of"),
    ],
)
def test_malformed_and_hostile_pickles_are_refused(content, message):
    refused(content, message)


def test_deep_nesting_needs_no_recursion():
    depth = 200_000
    value = value_of(b")" + b"\x85" * depth + b".")
    levels = 0
    while value:
        (value,) = value
        levels += 1
    assert levels == depth
    assert value_of(b"(" * depth + b"1" * depth + b"N.") is None


def test_a_tree_of_shared_tuples_stays_small():
    # 2**200 leaves, were it unfolded: neither building, keys nor messages may walk it.
    content = b")" + b"q\0h\0\x86" * 200
    assert isinstance(value_of(content + b"."), tuple)
    refused(b"}" + content + b"Ns.", "tuple as a dict key")
    refused(content + b")R.", "REDUCE calls a tuple")
    refused(content + content + b".", "leaves values")


def test_the_number_of_opcodes_is_bounded(monkeypatch):
    monkeypatch.setattr("cuvil.frontend.importers.weights.pickle_machine.MAX_OPCODES", 100)
    assert MAX_OPCODES > 1000
    refused(b"N0" * 100 + b"N.", "more than 100 opcodes")


def test_the_number_of_bytes_is_bounded(monkeypatch):
    monkeypatch.setattr("cuvil.frontend.importers.weights.pickle_machine.MAX_PICKLE_BYTES", 100)
    refused(b"B" + struct.pack("<I", 200) + bytes(200) + b".", "more than 100 bytes")


def test_messages_say_where():
    refused(b"]" * 10 + b"\xff", "a file: pickle refused at byte 10: ")


def value_or_refusal(content):
    try:
        return value_of(content, persistent=lambda identifier: identifier)
    except WeightsError as error:
        return str(error)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_give_a_value_or_a_weights_error(content):
    value_or_refusal(content)


OPCODES = (
    *(bytes([code]) for code in b"(012N])}tldaesuRbQ\x85\x86\x87\x8f\x90\x91\x94"),
    *(b"K\1", b"X\1\0\0\0a", b"h\0", b"q\0", b"ctorch\necho\n", b"ccollections\nOrderedDict\n)R"),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(OPCODES), max_size=30))
def test_any_order_of_opcodes_gives_a_value_or_a_weights_error(parts):
    value_or_refusal(b"".join(parts) + b".")
