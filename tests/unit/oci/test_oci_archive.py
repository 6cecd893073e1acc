"""Image archives: they contain what importers look for, and equal contents give equal bytes."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images import oci

REF = "docker.io/gpushare/probe:1"


def blobs(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        members = {one.name: opened.extractfile(one) for one in opened if one.isfile()}
        return {name: content.read() for name, content in members.items() if content}


def members(layer: oci.Layer) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layer.blob.read_bytes()))) as opened:
        return opened.getmembers()


def a_layer(folder: Path, *entries: oci.Entry) -> oci.Layer:
    return oci.make_layer(entries or [oci.file("/bin/x", b"x", 0o755)], folder, made_by="test")


def test_every_digest_and_size_is_that_of_its_blob(tmp_path: Path) -> None:
    layers = [
        a_layer(tmp_path, oci.file("/a", b"1" * 5000)),
        a_layer(tmp_path, oci.file("/b/c", b"2"), oci.link("/d", "b/c")),
    ]
    digest = oci.write_archive(tmp_path / "i.tar", REF, layers, oci.Config(user="65532"))
    contents = blobs(tmp_path / "i.tar")
    for name, data in contents.items():
        if name.startswith("blobs/sha256/"):
            assert hashlib.sha256(data).hexdigest() == name.rpartition("/")[2]
    (listed,) = json.loads(contents["index.json"])["manifests"]
    assert listed["digest"] == digest
    manifest = json.loads(contents[f"blobs/sha256/{digest.partition(':')[2]}"])
    described = [manifest["config"], *manifest["layers"]]
    for one in described:
        assert len(contents[f"blobs/{one['digest'].replace(':', '/')}"]) == one["size"]
    config = json.loads(contents[f"blobs/{manifest['config']['digest'].replace(':', '/')}"])
    insides = [gzip.decompress(one.blob.read_bytes()) for one in layers]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in insides]
    assert config["config"]["User"] == "65532"


def test_names_are_where_importers_read_them(tmp_path: Path) -> None:
    names = ["docker.io/gpushare/probe:1", "registry.example.com:5000/other/probe:2"]
    oci.write_archive(tmp_path / "i.tar", names, [a_layer(tmp_path)], oci.Config())
    contents = blobs(tmp_path / "i.tar")
    annotations = [one["annotations"] for one in json.loads(contents["index.json"])["manifests"]]
    assert [one["io.containerd.image.name"] for one in annotations] == names
    assert [one["org.opencontainers.image.ref.name"] for one in annotations] == ["1", "2"]
    (docker,) = json.loads(contents["manifest.json"])
    assert docker["RepoTags"] == names
    assert {docker["Config"], *docker["Layers"]} <= contents.keys()
    assert json.loads(contents["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}


@pytest.mark.parametrize("name", ["probe:1", "docker.io/a/b", "library/a:1"])
def test_a_short_name_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="in full"):
        oci.write_archive(tmp_path / "i.tar", name, [a_layer(tmp_path)], oci.Config())
    assert not (tmp_path / "i.tar").exists()


def test_a_layer_does_not_depend_on_when_where_and_by_whom_it_was_built(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"content")
    os.utime(source, (1, 1))
    first = a_layer(tmp_path / "1", oci.file("/z", source), oci.file("/a/b", b"b"))
    os.utime(source)
    second = a_layer(tmp_path / "2", oci.file("/a/b", b"b"), oci.file("/z", source))
    assert first.digest == second.digest
    assert first.blob.read_bytes()[4:8] == bytes(4), "the gzip header contains a time"
    assert {(one.mtime, one.uid, one.gid, one.uname) for one in members(first)} == {(oci.MOMENT, 0, 0, "")}


def test_parents_come_first_and_the_last_of_equal_paths_wins(tmp_path: Path) -> None:
    layer = a_layer(
        tmp_path, oci.file("/a/b/c", b"old"), oci.folder("/a", 0o700, uid=65532), oci.file("a/b/c", b"newer")
    )
    assert [(one.name, one.mode, one.uid, one.size) for one in members(layer)] == [
        ("a", 0o700, 65532, 0),
        ("a/b", 0o755, 0, 0),
        ("a/b/c", 0o644, 0, 5),
    ]


@given(
    st.lists(st.lists(st.sampled_from(["a", "a.b", "a-b", "b", "é"]), min_size=1, max_size=4), max_size=6),
    st.randoms(),
)
def test_the_order_of_entries_does_not_matter(tmp_path_factory, paths, chance) -> None:
    folder = tmp_path_factory.mktemp("layer")
    # Only files that are not also the parent of another can be files.
    entries = {
        "/".join(path): oci.folder("/".join(path))
        if any(other[: len(path)] == path and other != path for other in paths)
        else oci.file("/".join(path), b"x")
        for path in paths
    }
    shuffled = list(entries.values())
    chance.shuffle(shuffled)
    first, second = (oci.make_layer(one, folder, made_by="test") for one in (entries.values(), shuffled))
    assert first.digest == second.digest
    seen: set[str] = set()
    for one in members(first):
        parent = one.name.rpartition("/")[0]
        assert not parent or parent in seen
        seen.add(one.name)


@pytest.mark.parametrize("path", ["", "/", "/a/../b", "//a//b", "."])
def test_a_path_that_leaves_the_image_or_is_empty_is_rejected(path: str) -> None:
    with pytest.raises(ValueError, match="no path of an image"):
        oci.file(path, b"")


def test_a_local_directory_becomes_entries(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "run").write_text("#!/bin/sh\n")
    (source / "sub" / "run").chmod(0o700)
    (source / "plain").write_text("p")
    (source / "name").symlink_to("plain")
    layer = a_layer(tmp_path / "blobs", *oci.tree(source, "/opt/x"))
    assert [(one.name, one.mode, one.linkname) for one in members(layer)] == [
        ("opt", 0o755, ""),
        ("opt/x", 0o755, ""),
        ("opt/x/name", 0o777, "plain"),
        ("opt/x/plain", 0o644, ""),
        ("opt/x/sub", 0o755, ""),
        ("opt/x/sub/run", 0o755, ""),
    ]


def test_an_archive_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    layer = a_layer(tmp_path / "blobs")
    layer.blob.unlink()
    target = tmp_path / "out" / "i.tar"
    with pytest.raises(FileNotFoundError):
        oci.write_archive(target, REF, [layer], oci.Config())
    assert list(target.parent.iterdir()) == []
