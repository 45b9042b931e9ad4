"""A bundle is read only when every byte of it is the exported one; anything else is refused with a reason."""

import contextlib
import hashlib
import json
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.bundle import load_bundle, parse_manifest
from serving.errors import BundleError
from serving.external import external_files


def refused(folder):
    with pytest.raises(BundleError) as error:
        load_bundle(folder)
    return error.value.problems


def edit_manifest(folder, change):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


@pytest.fixture
def folder(bundle_folder, tmp_path):
    """A copy of the bundle, to be damaged."""
    return shutil.copytree(bundle_folder, tmp_path / "copy")


def test_a_whole_bundle_loads_with_its_digest(bundle_folder):
    bundle = load_bundle(bundle_folder)
    assert bundle.manifest.placement == "home_clicks"
    assert bundle.digest == hashlib.sha256((bundle_folder / "manifest.json").read_bytes()).hexdigest()
    assert bundle.model == bundle_folder / "model.onnx"


def test_a_missing_folder_is_named(tmp_path):
    (problem,) = refused(tmp_path / "nowhere")
    assert "nowhere" in problem.where


@pytest.mark.parametrize("name", ["manifest.json", "model.onnx", "model.onnx.data"])
def test_each_missing_file_is_named(folder, name):
    (folder / name).unlink()
    (problem,) = refused(folder)
    assert problem.where == str(folder / name)


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data"])
@pytest.mark.parametrize("place", [0, 100, -1])
def test_one_flipped_bit_is_noticed(folder, name, place):
    content = bytearray((folder / name).read_bytes())
    content[place] ^= 1
    (folder / name).write_bytes(content)
    (problem,) = refused(folder)
    assert problem.where == str(folder / name)
    assert "sha256" in problem.expected


def test_a_truncated_file_is_noticed_by_its_size(folder):
    os.truncate(folder / "model.onnx.data", 10)
    (problem,) = refused(folder)
    assert problem.got == "10 bytes"


def test_every_damaged_file_is_listed(folder):
    os.truncate(folder / "model.onnx.data", 10)
    os.truncate(folder / "model.onnx", 10)
    assert len(refused(folder)) == 2


def test_a_manifest_from_the_future_is_refused_with_a_remedy(folder):
    edit_manifest(folder, lambda manifest: manifest.update(format=3, something_new=[]))
    (problem,) = refused(folder)
    assert "newer" in problem.got
    assert "Upgrade" in problem.remedy


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 100_000])
def test_a_manifest_that_is_no_manifest_is_refused(folder, content):
    (folder / "manifest.json").write_bytes(content)
    assert refused(folder)


def test_every_bad_field_of_a_manifest_is_listed(folder):
    edit_manifest(folder, lambda manifest: manifest.update(surfaces="home", opset="many", max_candidates=0))
    where = {problem.where.rsplit(": ", 1)[1] for problem in refused(folder)}
    assert where == {"surfaces", "opset", "max_candidates"}


def test_a_value_of_a_later_version_is_refused_with_both_remedies(folder):
    later = {"kind": "vector", "name": "later", "size": 8}
    edit_manifest(folder, lambda manifest: manifest.update(candidate=[*manifest["candidate"], later]))
    (problem,) = refused(folder)
    assert "vector" in problem.got
    assert problem.remedy == "Export the bundle again, or upgrade gemcut here."


@pytest.mark.parametrize("name", ["../model.onnx.data", "/etc/hostname", "a/b", "", "..", "c:\\x", "manifest.json"])
def test_a_listed_file_outside_the_folder_is_refused(folder, name):
    edit_manifest(folder, lambda m: m["files"].update({name: m["files"]["model.onnx"]}))
    assert any(repr(name) == problem.got for problem in refused(folder))


def test_a_manifest_without_the_graph_is_refused(folder):
    edit_manifest(folder, lambda m: m["files"].pop("model.onnx"))
    assert any("model.onnx" in problem.expected for problem in refused(folder))


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("name", ["manifest.json", "model.onnx", "model.onnx.data"])
def test_links_are_refused_even_to_the_right_bytes(folder, tmp_path, link, name):
    (folder / name).rename(tmp_path / "elsewhere")
    link(tmp_path / "elsewhere", folder / name)
    (problem,) = refused(folder)
    assert "link" in problem.got


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/hostname", "other.data", "./model.onnx.data", "model.onnx", ""]
)
def test_weights_that_the_graph_reads_elsewhere_are_refused(tiny, tmp_path, location):
    import onnx

    folder = tiny.write(tmp_path / "bundle")
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    (table,) = [tensor for tensor in model.graph.initializer if tensor.name == "user"]
    next(entry for entry in table.external_data if entry.key == "location").value = location
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "manifest.json").write_text(json.dumps(tiny.manifest(folder)))
    (problem,) = refused(folder)
    assert problem.got == repr(location)


def tensor_at(location):
    from onnx import TensorProto

    tensor = TensorProto(data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def test_external_data_is_found_wherever_a_graph_can_hold_a_tensor():
    import onnx

    model = onnx.ModelProto()
    model.graph.initializer.append(tensor_at("a"))
    model.graph.sparse_initializer.add().values.CopyFrom(tensor_at("b"))
    node = model.graph.node.add()
    node.attribute.add().t.CopyFrom(tensor_at("c"))
    node.attribute.add().tensors.append(tensor_at("d"))
    node.attribute.add().g.initializer.append(tensor_at("e"))
    node.attribute.add().graphs.add().node.add().attribute.add().t.CopyFrom(tensor_at("f"))
    node.attribute.add().sparse_tensor.indices.CopyFrom(tensor_at("g"))
    node.attribute.add().sparse_tensors.add().values.CopyFrom(tensor_at("h"))
    model.functions.add().node.add().attribute.add().t.CopyFrom(tensor_at("i"))
    model.functions[0].attribute_proto.add().t.CopyFrom(tensor_at("j"))
    model.training_info.add().algorithm.initializer.append(tensor_at("k"))
    assert external_files(model.SerializeToString()) == set("abcdefghijk")


def test_every_field_of_onnx_that_leads_to_a_tensor_is_walked():
    """The walker's table against the descriptors of onnx itself, so that a new field is noticed."""
    from onnx import ModelProto, TensorProto

    from serving.external import _CHILDREN

    names = {"model": ModelProto.DESCRIPTOR}
    seen = set()
    while names.keys() - seen:
        name = min(names.keys() - seen)
        seen.add(name)
        for field in names[name].fields:
            if field.message_type is None or not _leads_to(field.message_type, TensorProto.DESCRIPTOR.full_name):
                continue
            child = _CHILDREN[name].get(field.number)
            assert child is not None, f"{names[name].name}.{field.name}"
            names[child] = field.message_type
    assert seen == _CHILDREN.keys()


def _leads_to(message, goal, on_the_way=frozenset()):
    if message.full_name == goal:
        return True
    if message.full_name in on_the_way:
        return False
    return any(
        field.message_type is not None and _leads_to(field.message_type, goal, on_the_way | {message.full_name})
        for field in message.fields
    )


@pytest.mark.parametrize("content", [b"\x08", b"\x3a\xff", b"\x0b", b"\xff" * 20, b"\x3a\x02\x2a\x09"])
def test_bytes_that_are_no_graph_are_refused(content):
    with pytest.raises(BundleError, match="do not parse"):
        external_files(content)


def test_a_graph_nested_without_end_is_refused():
    body = b""
    for _ in range(200):
        body = _field(6, body)  # AttributeProto.g
        body = _field(5, body)  # NodeProto.attribute
        body = _field(1, body)  # GraphProto.node
    with pytest.raises(BundleError, match="nested"):
        external_files(_field(7, body))


def _field(number, body):
    size, digits = len(body), []
    while True:
        digits.append((size & 0x7F) | (0x80 if size > 0x7F else 0))
        size >>= 7
        if not size:
            return bytes([number << 3 | 2, *digits]) + body


@given(st.binary(max_size=200))
def test_any_bytes_are_either_walked_or_refused(content):
    with contextlib.suppress(BundleError):
        external_files(content)


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_a_graph_with_any_changed_byte_is_either_walked_or_refused(bundle_folder, place, value):
    content = bytearray((bundle_folder / "model.onnx").read_bytes())
    content[place % len(content)] = value
    with contextlib.suppress(BundleError):
        external_files(bytes(content))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_any_json_is_either_a_manifest_or_refused(document):
    with pytest.raises(BundleError):
        parse_manifest(json.dumps(document).encode("utf-8", "surrogatepass"))
