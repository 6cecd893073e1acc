"""Sample images: the playground's descriptions become files of an image, at the image's own paths."""

from pathlib import Path

import pytest

from gpushare_playground.images.registry import Registry, read_description
from images import samples
from images.oci import Entry


def entries(image) -> dict[str, Entry]:
    return {one.path: one for one in samples.furnishing(image)}


@pytest.mark.parametrize("name", samples.REFS)
def test_the_names_of_an_archive_are_of_one_described_image(name: str) -> None:
    registry = Registry()
    assert len({id(registry.find(ref)) for ref in samples.REFS[name]}) == 1


def test_commands_run_the_images_python_on_the_images_files() -> None:
    image = Registry().find("docker.io/cheyang/gpu-player:v2")
    made = entries(image)
    script = bytes(made["usr/local/bin/gpu-player"].content).decode()
    assert script == (
        "#!/bin/sh\nexec /usr/bin/python3"
        ' /usr/local/lib/python3.11/dist-packages/gpushare_playground/images/programs/player.py "$@"\n'
    )
    assert made["usr/local/bin/gpu-player"].mode == 0o755
    assert "usr/local/bin/python" not in made, "the layer below has it"


def test_files_are_where_manifests_name_them() -> None:
    image = Registry().find("registry.cn-beijing.aliyuncs.com/ai-samples/gpushare-sample:tensorflow-1.5")
    made = entries(image)
    for inside, source in image.files.items():
        assert made[inside.strip("/")].content == source.read_bytes()
    assert made["root"].mode == 0o700


def test_arguments_with_blanks_stay_single_arguments(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('[[image]]\nnames = ["a:1"]\n[image.programs]\nsay = "echo \'a b\'"\n')
    (image,) = read_description(tmp_path / "x.toml")
    assert bytes(entries(image)["usr/local/bin/say"].content) == b"#!/bin/sh\nexec echo 'a b' \"$@\"\n"
