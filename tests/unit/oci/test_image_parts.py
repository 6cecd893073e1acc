"""Layers are rebuilt exactly when one of their inputs changed."""

from pathlib import Path

import pytest

from images import oci
from images.parts import Part, Store, key_of


def made(part: Part, content: bytes) -> oci.Layer:
    (part.fresh_root() / "file").write_bytes(content)
    part.keep(oci.tree(part.root, ""), [{"of": content.decode()}], "test")
    return part.layer


def test_a_part_stays_valid_until_its_key_changes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.part("a", "1").stale
    layer = made(store.part("a", "1"), b"one")
    same = store.part("a", "1")
    assert not same.stale
    assert same.layer == layer
    assert same.notes == [{"of": "one"}]
    assert store.part("a", "2").stale


def test_a_part_without_its_blob_or_that_was_not_finished_is_rebuilt(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made(store.part("a", "1"), b"one").blob.unlink()
    assert store.part("a", "1").stale
    part = store.part("a", "1")
    made(part, b"one")
    part.fresh_root()
    assert store.part("a", "1").stale, "the build ended before it was finished"


def test_a_part_keeps_no_older_blobs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made(store.part("a", "1"), b"one")
    layer = made(store.part("a", "2"), b"two")
    assert [path for path in layer.blob.parent.iterdir() if path.name not in ("root", "made.json")] == [
        layer.blob
    ]


def test_a_key_depends_on_contents_and_names_of_files_and_on_texts(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("x")
    other.write_text("x")
    assert key_of([one], "t") == key_of([one], "t")
    assert len({key_of([one]), key_of([other]), key_of([one], ""), key_of([one], "t")}) == 4
    before = key_of([one])
    one.write_text("y")
    assert key_of([one]) != before


def test_an_archive_that_is_up_to_date_is_not_rewritten(tmp_path: Path) -> None:
    lines: list[str] = []
    store = Store(tmp_path, lines.append)
    layer = made(store.part("a", "1"), b"one")
    archive = tmp_path / "a.tar"

    def write(config: oci.Config) -> int:
        store.write(archive, ["e2e.local/a:1"], [layer], config)
        return archive.stat().st_mtime_ns

    first = write(oci.Config())
    assert write(oci.Config()) == first
    assert "up to date" in lines[-1]
    write(oci.Config(user="1"))
    assert "up to date" not in lines[-1]
    archive.unlink()
    write(oci.Config(user="1"))
    assert archive.exists()


class _Waiting(Exception):
    pass


def test_only_one_process_builds_in_a_directory(tmp_path: Path) -> None:
    def report(text: str) -> None:
        raise _Waiting(text)

    with (
        Store(tmp_path).alone(),
        pytest.raises(_Waiting, match="waiting for another"),
        Store(tmp_path, report).alone(),
    ):
        pytest.fail("two build at once")
    with Store(tmp_path, report).alone():
        pass
