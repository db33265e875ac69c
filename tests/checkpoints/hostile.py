"""Files that are as bad as their format allows: what they claim, or expand to, has nothing to do with their size.

Each function makes one in a folder; its sentence says what it does. The answer is the format, the name, and what is to
be said of it; without a format it is the folder's listing that is to be bounded.
"""

import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from checkpoints.tables import Table, block, bundle_entry, bundle_header, dimension, entry, index_of, table_of, varint

from sidecar.checkpoints.formats.crc32c import masked_crc32c
from sidecar.checkpoints.formats.dcp import MAX_METADATA_BYTES
from sidecar.checkpoints.formats.hdf5 import SIGNATURE
from sidecar.checkpoints.formats.keras_shards import MAX_MAP_BYTES
from sidecar.checkpoints.formats.safetensors import MAX_HEADER_BYTES
from sidecar.checkpoints.formats.shards import MAX_INDEX_BYTES as MAX_INDEX_JSON_BYTES
from sidecar.checkpoints.formats.sstable import MAGIC
from sidecar.checkpoints.formats.tf_object import MAX_INDEX_BYTES, MAX_SHARDS, MAX_TENSORS

Asked = tuple[str | None, str, str]
MIB = 1 << 20
EMPTY = bundle_entry(dtype=4, shape=dimension(0))
HOSTILE: dict[str, Callable[[Path], Asked]] = {}


def hostile(make: Callable[[Path], Asked]) -> Callable[[Path], Asked]:
    HOSTILE[make.__name__] = make
    return make


def sparse(path: Path, size: int, head: bytes = b"") -> None:
    """A file of a size, most of which takes no space."""
    path.write_bytes(head)
    os.truncate(path, size)


# TensorFlow object checkpoints


def bundle(folder: Path, index: bytes, said: str, data: bytes = b"") -> Asked:
    assert len(index) <= MAX_INDEX_BYTES
    (folder / "m.index").write_bytes(index)
    (folder / "m.data-00000-of-00001").write_bytes(data)
    return "tf_object", "m", said


def footer(metaindex: bytes, index: bytes) -> bytes:
    return (metaindex + index).ljust(40, b"\0") + MAGIC.to_bytes(8, "little")


@hostile
def a_block_of_2_to_the_62_bytes(folder: Path) -> Asked:
    handle = varint(0) + varint(1 << 62)
    return bundle(folder, bytes(100) + footer(handle, handle), "ends behind its table")


@hostile
def handles_of_ten_bytes(folder: Path) -> Asked:
    handle = b"\xff" * 9 + b"\x01"
    return bundle(folder, bytes(100) + footer(handle * 2, handle * 2), "ends behind its table")


@hostile
def a_block_that_says_it_expands_to_4_gib(folder: Path) -> Asked:
    return bundle(folder, table_of(varint(1 << 32) + b"\0" * MIB, kind=b"\1"), "compressed (snappy)")


@hostile
def a_million_tensors(folder: Path) -> Asked:
    entries = [(b"", bundle_header()), *((struct.pack(">I", number), b"\x08\x04\x28\x01") for number in range(300_000))]
    return bundle(folder, index_of(entries), f"more than {MAX_TENSORS} tensors")


@hostile
def as_many_tensors_as_may_be(folder: Path) -> Asked:
    crc = masked_crc32c(b"x")
    entries = [(b"", bundle_header())]
    for number in range(MAX_TENSORS):
        entries.append((struct.pack(">I", number), bundle_entry(dtype=4, size=1, offset=number, crc=crc)))
        if 31 * number > MAX_INDEX_BYTES:
            break
    return bundle(folder, index_of(entries), "whole", b"x" * len(entries))


@hostile
def as_many_blocks_as_fit(folder: Path) -> Asked:
    table = Table()
    content = block(b"")
    parts, at, handles = [], 0, []
    for _ in range(300_000):
        parts.append(content + b"\0" + masked_crc32c(content + b"\0").to_bytes(4, "little"))
        handles.append(varint(at) + varint(len(content)))
        at += len(parts[-1])
    table.data = b"".join(parts)
    return bundle(folder, table.finish(handles), "no header")


@hostile
def more_shards_than_any(folder: Path) -> Asked:
    return bundle(folder, index_of([(b"", bundle_header(1 << 62))]), f"must be 1 to {MAX_SHARDS}")


@hostile
def a_shard_for_each_tensor(folder: Path) -> Asked:
    entries = [(struct.pack(">I", number), bundle_entry(dtype=4, shard=number, size=1)) for number in range(MAX_SHARDS)]
    return bundle(folder, index_of([(b"", bundle_header(MAX_SHARDS)), *entries]), "m.data-00000-of-100000 is missing")


@hostile
def half_a_gigabyte_of_keys(folder: Path) -> Asked:
    key, path = b"/" * 60_000, b"/_iterations"
    scalar = bundle_entry(dtype=9, size=8)
    repeated = b"".join(entry(60_000, struct.pack(">H", number) + path, scalar) for number in range(8_000))
    large = entry(0, b"", bundle_header() + b"\x1a" + varint(7 * MIB) + bytes(7 * MIB))
    return bundle(folder, table_of(block(large + entry(0, key, EMPTY) + repeated)), "has 0 bytes")


@hostile
def millions_of_fields_in_an_entry(folder: Path) -> Asked:
    return bundle(
        folder, index_of([(b"", bundle_header()), (b"a", b"\x08\0" * (MAX_INDEX_BYTES // 4) + EMPTY)]), "whole"
    )


@hostile
def a_tensor_read_again_and_again(folder: Path) -> Asked:
    data = bytes(MIB)
    one = bundle_entry(dtype=4, shape=dimension(MIB), size=MIB, crc=masked_crc32c(data))
    entries = [(b"", bundle_header()), *((struct.pack(">I", number), one) for number in range(100_000))]
    return bundle(folder, index_of(entries), "overlaps others", data)


@hostile
def strings_of_a_million_dimensions(folder: Path) -> Asked:
    one = bundle_entry(dtype=7, size=MIB, shape=dimension((1 << 63) - 1) * (6 * MIB // 12))
    return bundle(folder, index_of([(b"", bundle_header()), (b"a", one)]), "more than 65536 bytes", bytes(MIB))


@hostile
def a_dimension_with_a_name_of_megabytes(folder: Path) -> Asked:
    text = b"\x08\x01\x12" + varint(7 * MIB) + b"x" * (7 * MIB)
    one = bundle_entry(dtype=4, size=1, shape=b"\x12" + varint(len(text)) + text)
    return bundle(folder, index_of([(b"", bundle_header()), (b"a", one)]), "more than 65536 bytes", bytes(MIB))


@hostile
def a_million_slices(folder: Path) -> Asked:
    slices = b"".join(b"\x3a\x09\x0a\x07\x08" + varint((1 << 21) + number) + b"\x10\x01" for number in range(700_000))
    one = bundle_entry(dtype=4, shape=dimension(1 << 22)) + slices
    return bundle(folder, index_of([(b"", bundle_header()), (b"a", one)]), "whole")


@hostile
def a_million_strings_of_odd_lengths(folder: Path) -> Asked:
    data = b"\x80\x01\x05" * MIB
    one = bundle_entry(dtype=7, size=len(data), shape=dimension(10**6))
    return bundle(folder, index_of([(b"", bundle_header()), (b"a", one)]), "the index says", data)


@hostile
def a_variant_that_ends_behind_its_file(folder: Path) -> Asked:
    data = varint(1 << 62) + bytes(100)
    one = bundle_entry(dtype=21, size=len(data))
    return bundle(folder, index_of([(b"", bundle_header()), (b"a", one)]), "no readable lengths", data)


# The text file `checkpoint`


def state(folder: Path, content: bytes) -> Asked:
    (folder / "checkpoint").write_bytes(content)
    for name in ("m.index", "m.data-00000-of-00001"):
        (folder / name).write_bytes(b"")
    return None, "m", "whole"


@hostile
def a_state_file_of_a_gigabyte(folder: Path) -> Asked:
    asked = state(folder, b"")
    os.truncate(folder / "checkpoint", 1 << 30)
    return asked


@hostile
def a_name_of_16_megabytes(folder: Path) -> Asked:
    return state(folder, b'model_checkpoint_path: "' + b"a" * (16 * MIB - 100) + b'"\n')


@hostile
def a_name_of_16_megabytes_without_an_end(folder: Path) -> Asked:
    return state(folder, b"model_checkpoint_path: '" + b"a" * (16 * MIB - 100))


@hostile
def millions_of_escapes(folder: Path) -> Asked:
    return state(folder, b'model_checkpoint_path: "' + b"\\141" * (4 * MIB - 100) + b'"\n')


@hostile
def millions_of_escapes_without_an_end(folder: Path) -> Asked:
    return state(folder, b'model_checkpoint_path: "' + b"\\a" * (8 * MIB - 100))


@hostile
def half_a_million_names(folder: Path) -> Asked:
    return state(folder, b"".join(b'model_checkpoint_path:"%05x"\n' % number for number in range(500_000)))


@hostile
def a_name_in_400_000_folders(folder: Path) -> Asked:
    return state(folder, b"".join(b'model_checkpoint_path:"%05x/m"\n' % number for number in range(400_000)))


@hostile
def text_nested_a_million_deep(folder: Path) -> Asked:
    return state(folder, b"a {\n" * (4 * MIB - 1))


# Zip archives


def archive(folder: Path, content: bytes, said: str) -> Asked:
    (folder / "m.keras").write_bytes(content)
    return "keras", "m.keras", said


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name in ("metadata.json", "config.json"):
            if name not in members:
                file.writestr(name, "{}")
        for name, content in members.items():
            file.writestr(name, content, method)
    return made.getvalue()


def declaring(content: bytes, size: int) -> bytes:
    """The last member says that it expands to so many bytes."""
    changed = bytearray(content)
    for signature, at in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        position = changed.rfind(signature) + at
        changed[position : position + 4] = size.to_bytes(4, "little")
    return bytes(changed)


@hostile
def a_directory_of_2_to_the_62_bytes(folder: Path) -> Asked:
    record = b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 1 << 60, 1 << 60, 1 << 62, 0)
    locator = b"PK\6\7" + struct.pack("<IQI", 0, 0, 1)
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return archive(folder, record + locator + end, "the zip table ends at")


@hostile
def a_million_members(folder: Path) -> Asked:
    table = (b"PK\1\2" + bytes(42)) * 10**6
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 0xFFFE, 0xFFFE, len(table), 0, 0)
    return archive(folder, table + end, "more than any model needs")


@hostile
def as_many_members_as_may_be(folder: Path) -> Asked:
    return archive(folder, zipped({f"{number:x}": b"" for number in range(60_000)}, zipfile.ZIP_STORED), "holds no")


@hostile
def as_many_members_in_one_place(folder: Path) -> Asked:
    local = b"PK\3\4" + bytes(22) + struct.pack("<HH", 1, 0) + b"a"
    one = b"PK\1\2" + bytes(24) + struct.pack("<H", 1) + bytes(16) + b"a"
    table = one * 65_000
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 65_000, 65_000, len(table), len(local), 0)
    return archive(folder, local + table + end, "overlaps another")


@hostile
def a_comment_of_end_records(folder: Path) -> Asked:
    end = b"PK\5\6" + bytes(16) + struct.pack("<H", 60_000)
    return archive(folder, end + b"PK\5\6" * 16_000, "does not end with its zip table")


@hostile
def weights_that_say_they_are_4_gib(folder: Path) -> Asked:
    content = declaring(zipped({"model.weights.h5": bytes(16 * MIB)}), 0xFFFFFFF0)
    return archive(folder, content, "Keras does not read such members")


@hostile
def weights_that_expand_a_thousandfold(folder: Path) -> Asked:
    return archive(folder, zipped({"model.weights.h5": bytes(100 * MIB)}), "whole")


@hostile
def a_configuration_that_expands_a_thousandfold(folder: Path) -> Asked:
    content = zipped({"model.weights.h5": b"", "config.json": bytes(100 * MIB)})
    return archive(folder, declaring(content, 100), "has more than 100 bytes")


@hostile
def compressed_weights_with_a_tail_of_gigabytes(folder: Path) -> Asked:
    """The stream ends after some bytes; what is behind it counts as the member, too."""
    squeeze = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    stream = squeeze.compress(b"weights") + squeeze.flush()
    content, table = b"", b""
    for name, data in ((b"metadata.json", b""), (b"config.json", b""), (b"model.weights.h5", stream)):
        sizes = (len(data) + (1 << 30), 7) if data else (0, 0)
        crc = zlib.crc32(b"weights") if data else 0
        told = struct.pack("<HHHHIIIHH", 0, 8, 0, 0, crc, *sizes, len(name), 0)
        table += b"PK\1\2\x14\0\x14\0" + told + bytes(10) + struct.pack("<I", len(content)) + name
        content += b"PK\3\4\x14\0" + told + name + data
    sparse(folder / "m.keras", start := len(content) + (1 << 30), content)
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 3, 3, len(table), start, 0)
    with (folder / "m.keras").open("ab") as file:
        file.write(table + end)
    return "keras", "m.keras", "more bytes after its compressed content"


# Maps of shards


def map_of(folder: Path, content: bytes, said: str) -> Asked:
    (folder / "m.weights.json").write_bytes(content)
    return "keras_shards", "m.weights.json", said


@hostile
def a_map_nested_100_000_deep(folder: Path) -> Asked:
    return map_of(folder, b'{"a":' * 100_000, "is cut off")


@hostile
def a_map_of_a_gigabyte(folder: Path) -> Asked:
    sparse(folder / "m.weights.json", 1 << 30)
    return "keras_shards", "m.weights.json", f"larger than the {MAX_MAP_BYTES} bytes"


@hostile
def a_map_of_a_million_lists(folder: Path) -> Asked:
    return map_of(folder, b"[" + b"[]," * (MAX_MAP_BYTES // 3 - 10) + b"[]]", "more than the 200000 values")


@hostile
def a_map_of_wide_letters(folder: Path) -> Asked:
    letters = "\U0001f600" + "a" * (MAX_MAP_BYTES - 1000)
    return map_of(folder, json.dumps({"weight_map": letters}, ensure_ascii=False).encode(), "not a map of shards")


@hostile
def a_map_with_a_number_of_a_million_digits(folder: Path) -> Asked:
    return map_of(folder, b'{"metadata": {"total_size": ' + b"9" * 10**6 + b"}}", "is cut off")


@hostile
def a_map_of_values_of_more_bytes_than_there_are(folder: Path) -> Asked:
    (folder / "m_00000.weights.h5").write_bytes(b"")
    places = {"metadata": {"total_size": 10**4000}, "weight_map": {"a": "m_00000.weights.h5"}}
    return map_of(folder, json.dumps(places).encode(), "states 1000")


@hostile
def a_map_that_names_a_long_shard(folder: Path) -> Asked:
    places = {"metadata": {"total_size": 1}, "weight_map": {"a": "b" * (3 * MIB)}}
    return map_of(folder, json.dumps(places).encode(), "not named like its shards")


@hostile
def a_map_of_nested_places(folder: Path) -> Asked:
    places = b"[" * 900 + b"]" * 900
    return map_of(
        folder, b'{"metadata": {"total_size": 1}, "weight_map": {"a": ' + places + b"}}", "names the shard a list"
    )


# HDF5


@hostile
def addresses_of_8_bytes(folder: Path) -> Asked:
    head = SIGNATURE + bytes([0, 0, 0, 0, 0, 8, 8, 0]) + bytes(8) + b"\0" * 8 + b"\xff" * 24 + bytes(64)
    (folder / "m.h5").write_bytes(head)
    return "hdf5", "m.h5", "its superblock says"


@hostile
def addresses_of_255_bytes(folder: Path) -> Asked:
    (folder / "m.h5").write_bytes(SIGNATURE + bytes([0, 0, 0, 0, 0, 255, 255, 0]) + bytes(500))
    return "hdf5", "m.h5", "addresses of 255 bytes"


@hostile
def a_terabyte_of_hdf5(folder: Path) -> Asked:
    numbers = struct.pack("<QQQQQQ", 0, 0, 1 << 40, 0, 0, 96)
    sparse(folder / "m.h5", 1 << 40, SIGNATURE + bytes([0, 0, 0, 0, 0, 8, 8, 0]) + bytes(8) + numbers)
    return "hdf5", "m.h5", "whole"


# SavedModels


def marker(folder: Path, content: bytes, said: str, size: int | None = None) -> Asked:
    (folder / "m").mkdir()
    sparse(folder / "m" / "saved_model.pb", len(content) if size is None else size, content)
    return "saved_model", "m", said


@hostile
def an_outline_of_a_million_fields(folder: Path) -> Asked:
    return marker(folder, b"\x08\x01" * 10**6, "its outline needs")


@hostile
def a_graph_of_2_to_the_63_bytes(folder: Path) -> Asked:
    return marker(folder, b"\x12" + varint(1 << 63) + bytes(100), "its outline needs")


@hostile
def a_graph_of_a_terabyte(folder: Path) -> Asked:
    head = b"\x12" + varint((1 << 40) - 7)
    return marker(folder, head, "its outline needs", 1 << 40)


@hostile
def graphs_of_as_many_fields_as_may_be(folder: Path) -> Asked:
    graph = b"\x08\x01" * 9_000
    return marker(folder, (b"\x12" + varint(len(graph)) + graph) * 1_000, "its outline needs")


# Archives of torch.save


def torch_archive(folder: Path, members: dict[str, bytes], said: str, name: str = "m.ckpt") -> Asked:
    with zipfile.ZipFile(folder / name, "w") as file:
        for inner, content in members.items():
            file.writestr(f"m/{inner}", content)
    return "torch_zip", name, said


@hostile
def a_pickle_of_marks(folder: Path) -> Asked:
    return torch_archive(folder, {"data.pkl": b"\x80\x02}" + b"(" * MIB}, "whole")


@hostile
def a_pickle_of_nested_mappings(folder: Path) -> Asked:
    return torch_archive(folder, {"data.pkl": b"\x80\x02" + b"}X\x01\x00\x00\x00a" * 200_000}, "whole")


@hostile
def a_pickle_of_a_mapping_that_is_filled_again_and_again(folder: Path) -> Asked:
    return torch_archive(folder, {"data.pkl": b"\x80\x02}" + b"(X\x04\x00\x00\x00stepK\x05u" * 100_000}, "whole")


@hostile
def a_pickle_with_a_text_of_4_gib(folder: Path) -> Asked:
    return torch_archive(folder, {"data.pkl": b"\x80\x02}(X\xff\xff\xff\xff" + b"a" * MIB}, "whole")


@hostile
def a_pickle_with_a_number_of_a_million_bytes(folder: Path) -> Asked:
    long_number = b"\x80\x02}(X\x04\x00\x00\x00step\x8b" + struct.pack("<i", MIB) + b"\x7f" * MIB + b"u."
    return torch_archive(folder, {"data.pkl": long_number}, "whole")


@hostile
def a_pickle_of_digits(folder: Path) -> Asked:
    digits = b"\x80\x02}(X\x04\x00\x00\x00stepL" + b"9" * 16_000 + b"L\nu."
    return torch_archive(folder, {"data.pkl": digits}, "whole")


def as_many_tensors() -> dict[str, bytes]:
    return {"data.pkl": b"\x80\x02}."} | {f"data/{number}": b"x" for number in range(60_000)}


@hostile
def as_many_members_as_a_table_may_have(folder: Path) -> Asked:
    return torch_archive(folder, as_many_tensors(), "whole")


@hostile
def last_next_to_as_many_members(folder: Path) -> Asked:
    """It is compared with files of the same size."""
    torch_archive(folder, as_many_tensors(), "whole", "last.ckpt")
    for number in range(12):
        os.link(folder / "last.ckpt", folder / f"m-{number}.ckpt")
    return "torch_zip", "last.ckpt", "whole"


@hostile
def a_tensor_of_a_terabyte_without_a_checksum(folder: Path) -> Asked:
    content, table = b"", b""
    for name, data, size in ((b"m/data.pkl", b"\x80\x02}.", 4), (b"m/data/0", b"", 1 << 40)):
        small = (size, size) if data else (0xFFFFFFFF, 0xFFFFFFFF)
        large = b"" if data else struct.pack("<HHQQ", 1, 16, size, size)
        told = struct.pack("<HHHHIIIHH", 0, 0, 0, 0, 0, *small, len(name), len(large))
        table += b"PK\1\2\x2d\0\x2d\0" + told + bytes(10) + struct.pack("<I", len(content)) + name + large
        content += b"PK\3\4\x2d\0" + told + name + large + data
    sparse(folder / "m.ckpt", start := len(content) + (1 << 40), content)
    end = b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 2, 2, len(table), start)
    end += b"PK\6\7" + struct.pack("<IQI", 0, start + len(table), 1)
    end += b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 2, 2, len(table), 0xFFFFFFFF, 0)
    with (folder / "m.ckpt").open("ab") as file:
        file.write(table + end)
    return "torch_zip", "m.ckpt", "whole"


# safetensors, and folders of Hugging Face's libraries


def safetensors(folder: Path, header: bytes, said: str, size: int = 0, name: str = "m.safetensors") -> Asked:
    sparse(folder / name, 8 + len(header) + size, len(header).to_bytes(8, "little") + header)
    return "safetensors", name, said


def index_of_shards(folder: Path, index: bytes, said: str) -> Asked:
    (folder / "m.safetensors.index.json").write_bytes(index)
    return "safetensors", "m.safetensors.index.json", said


@hostile
def a_header_of_2_to_the_63_bytes(folder: Path) -> Asked:
    (folder / "m.safetensors").write_bytes(b"\xff" * 8)
    return "safetensors", "m.safetensors", f"up to {MAX_HEADER_BYTES} are read"


@hostile
def as_many_tensors_as_a_header_may_have(folder: Path) -> Asked:
    count = 280_000
    tensors = (b'"%d":{"data_offsets":[%d,%d]}' % (number, number, number + 1) for number in range(count))
    return safetensors(folder, b"{" + b",".join(tensors) + b"}", "whole", count)


@hostile
def a_header_of_one_long_list(folder: Path) -> Asked:
    return safetensors(folder, b'{"a":[' + b"0," * (5 * MIB) + b"0]}", "its header is damaged")


@hostile
def a_header_of_one_long_name(folder: Path) -> Asked:
    return safetensors(folder, b'{"' + b"a" * (11 * MIB) + b'":{"data_offsets":[0,0]}}', "whole")


@hostile
def a_header_of_spaces(folder: Path) -> Asked:
    return safetensors(folder, b" " * (11 * MIB), "its header is damaged")


@hostile
def a_header_of_escapes(folder: Path) -> Asked:
    return safetensors(folder, b'{"' + b"\\u0041" * (MIB) + b'":{"data_offsets":[0,0]}}', "whole")


@hostile
def a_tensor_of_a_terabyte(folder: Path) -> Asked:
    return safetensors(folder, b'{"a":{"data_offsets":[0,1099511627776]}}', "whole", 1 << 40)


@hostile
def a_number_of_a_million_digits_in_a_header(folder: Path) -> Asked:
    return safetensors(folder, b'{"a":{"data_offsets":[0,' + b"9" * MIB + b"]}}", "its header is damaged")


@hostile
def an_index_of_as_many_tensors_as_it_may_have(folder: Path) -> Asked:
    safetensors(folder, b"{}", "", name=(shard := "m-00001-of-00001.safetensors"))
    tensors = (b'"%d":"%s"' % (number, shard.encode()) for number in range(350_000))
    return index_of_shards(folder, b'{"weight_map":{' + b",".join(tensors) + b"}}", "whole")


@hostile
def an_index_of_as_many_shards_as_it_may_name(folder: Path) -> Asked:
    tensors = (b'"%d":"m-%05d-of-99999.safetensors"' % (number, number) for number in range(99_999))
    return index_of_shards(
        folder, b'{"weight_map":{' + b",".join(tensors) + b"}}", "the shard m-00000-of-99999.safetensors is missing"
    )


@hostile
def an_index_larger_than_it_may_be(folder: Path) -> Asked:
    sparse(folder / "m.safetensors.index.json", MAX_INDEX_JSON_BYTES + 1)
    return "safetensors", "m.safetensors.index.json", f"larger than the {MAX_INDEX_JSON_BYTES} bytes"


def trainer(folder: Path, state: bytes, said: str, config: bytes = b"{}") -> Asked:
    (folder / "m").mkdir()
    safetensors(folder, b"{}", "", name="m/model.safetensors")
    (folder / "m" / "config.json").write_bytes(config)
    (folder / "m" / "trainer_state.json").write_bytes(state)
    return "pretrained_folder", "m", said


@hostile
def a_trainer_that_logged_for_weeks(folder: Path) -> Asked:
    entries = b",\n".join([b'  {\n   "loss": 0.25,\n   "step": 1\n  }'] * 500_000)
    return trainer(folder, b'{\n "global_step": 7,\n "log_history": [\n' + entries + b"\n ]\n}\n", "whole")


@hostile
def a_description_of_nested_lists(folder: Path) -> Asked:
    return trainer(folder, b'{"global_step": 7}', "is cut off, or is not JSON", b"[" * MIB)


@hostile
def a_description_of_numbers(folder: Path) -> Asked:
    return trainer(folder, b'{"global_step": 7}', "whole", b"[" + b"0," * (MIB - 9) + b"0]")


@hostile
def as_many_files_in_a_folder(folder: Path) -> Asked:
    (folder / "m").mkdir()
    for number in range(20_000):
        (folder / "m" / f"{number}.safetensors").touch()
    (folder / "m" / "trainer_state.json").touch()
    return "pretrained_folder", "m", "but no weights"


# torch.distributed.checkpoint


def metadata_of(folder: Path, frames: bytes, said: str, data: bytes = b"") -> Asked:
    (folder / "m").mkdir()
    (folder / "m" / ".metadata").write_bytes(b"\x80\x04" + frames)
    (folder / "m" / "__0_0.distcp").write_bytes(data)
    return "dcp", "m", said


def frame(content: bytes) -> bytes:
    return b"\x95" + len(content).to_bytes(8, "little") + content


@hostile
def a_frame_of_2_to_the_64_bytes(folder: Path) -> Asked:
    return metadata_of(folder, b"\x95" + b"\xff" * 8, "is cut off")


@hostile
def a_terabyte_of_metadata(folder: Path) -> Asked:
    asked = metadata_of(folder, b"", f"up to {MAX_METADATA_BYTES} are read")
    os.truncate(folder / "m" / ".metadata", 1 << 40)
    return asked


@hostile
def as_many_parts_as_in_a_large_model(folder: Path) -> Asked:
    part = b"(h\x01h\x02h\x03K\x00h\x04K\x01ub"
    content = frame(b"\x8c\x0c__0_0.distcp\x94") + frame(part * 2_000_000 + b".")
    return metadata_of(folder, content, "its data files have 0 bytes")


@hostile
def a_frame_for_each_byte(folder: Path) -> Asked:
    return metadata_of(folder, frame(b"\x94") * 500_000 + frame(b"."), "is not a pickle of a checkpoint")


@hostile
def a_large_value_for_each_byte(folder: Path) -> Asked:
    content = b"X\1\0\0\0a" * 10_000_000 + b"\x95\1\0\0\0\0\0\0\0."
    return metadata_of(folder, content, "is not a pickle of a checkpoint")


@hostile
def an_index_of_numbers(folder: Path) -> Asked:
    (folder / "n.safetensors.index.json").write_text("{" + '"":1,' * 3_300_000 + '"":2}')
    return "safetensors", "n.safetensors.index.json", "has more than 400000 members"


@hostile
def a_header_of_numbers(folder: Path) -> Asked:
    header = b'{"__metadata__":{' + b",".join(b'"%x":"%d"' % (n, n) for n in range(640_000)) + b"}}"
    (folder / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return "safetensors", "m.safetensors", "has more than 400000 members"


@hostile
def a_description_of_empty_lists(folder: Path) -> Asked:
    (folder / "m").mkdir()
    (folder / "m" / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    (folder / "m" / "config.json").write_text("[" + "[]," * 1_300_000 + "[]]")
    return "pretrained_folder", "m", "is cut off, or is not JSON"


@hostile
def as_many_names_of_data_files(folder: Path) -> Asked:
    return metadata_of(folder, frame(b"".join(b"__%d_0.distcp" % n for n in range(200_000)) + b"."), "names more than")


@hostile
def a_data_file_of_a_terabyte(folder: Path) -> Asked:
    asked = metadata_of(folder, frame(b"__0_0.distcp."), "there is no end of an archive")
    os.truncate(folder / "m" / "__0_0.distcp", 1 << 40)
    return asked


@hostile
def an_archive_that_states_no_length(folder: Path) -> Asked:
    """A reader that walks from its end to its start by that length never arrives."""
    end = b"PK\6\6" + bytes(52) + b"PK\6\7" + bytes(16) + b"PK\5\6" + bytes(18)
    return metadata_of(folder, frame(b"__0_0.distcp."), "whole", end * 20_000)
