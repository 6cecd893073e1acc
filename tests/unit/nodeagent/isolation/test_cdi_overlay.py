"""A CDI description with our libraries in place of the driver's."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpushare.nodeagent.isolation.backends.cdi_overlay import NotShimmed, qualified, shimmed

LIBRARY = Path("/var/lib/gpushare/lib/ab12")
DEBIAN = "/usr/lib/x86_64-linux-gnu"


def mount(path: str, **more: Any) -> dict[str, Any]:
    return {"hostPath": path, "containerPath": path, "options": ["ro", "nosuid", "nodev", "bind"], **more}


def described(*mounts: dict[str, Any], **edits: Any) -> bytes:
    return json.dumps(
        {
            "cdiVersion": "0.5.0",
            "kind": "gpushare.dev/gpu",
            "containerEdits": {"mounts": list(mounts), **edits},
            "devices": [
                {"name": f"GPU-{name}", "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{name}"}]}}
                for name in "01"
            ],
        }
    ).encode()


def placed(content: bytes) -> dict[str, str]:
    """Container path → host path."""
    edits = json.loads(shimmed(content, LIBRARY))["containerEdits"]
    return {one["containerPath"]: one["hostPath"] for one in edits["mounts"]}


def test_ours_are_in_place_and_the_drivers_are_where_ours_are_linked_to() -> None:
    content = described(
        mount(f"{DEBIAN}/libcuda.so.535.261.03"),
        mount(f"{DEBIAN}/libnvidia-ml.so.535.261.03"),
        mount(f"{DEBIAN}/libcudadebugger.so.535.261.03"),
        mount("/usr/bin/nvidia-smi"),
    )
    assert placed(content) == {
        f"{DEBIAN}/libcuda.so.535.261.03": f"{LIBRARY}/libcuda.so.1",
        "/run/gpushare/driver/libcuda.so": f"{DEBIAN}/libcuda.so.535.261.03",
        "/run/gpushare/lib/libgpushare-optional-cuda.so.1": f"{LIBRARY}/libgpushare-optional-cuda.so.1",
        f"{DEBIAN}/libnvidia-ml.so.535.261.03": f"{LIBRARY}/libnvidia-ml.so.1",
        "/run/gpushare/driver/libnvidia-ml.so": f"{DEBIAN}/libnvidia-ml.so.535.261.03",
        "/run/gpushare/lib/libgpushare-optional-nvml.so.1": f"{LIBRARY}/libgpushare-optional-nvml.so.1",
        f"{DEBIAN}/libcudadebugger.so.535.261.03": f"{DEBIAN}/libcudadebugger.so.535.261.03",
        "/usr/bin/nvidia-smi": "/usr/bin/nvidia-smi",
    }
    made = json.loads(shimmed(content, LIBRARY))
    assert made["kind"] == "gpushare.dev/isolated"
    assert [one["name"] for one in made["devices"]] == ["GPU-0", "GPU-1"]
    assert made["containerEdits"]["mounts"][1]["options"] == ["ro", "nosuid", "nodev", "bind"]
    assert qualified("GPU-0") == "gpushare.dev/isolated=GPU-0"


def test_links_next_to_the_file_lead_to_ours_too() -> None:
    content = described(
        mount(f"{DEBIAN}/libcuda.so.535.1"),
        mount(f"{DEBIAN}/libcuda.so.1"),
        mount(f"{DEBIAN}/libnvidia-ml.so.1"),
    )
    assert placed(content)[f"{DEBIAN}/libcuda.so.1"] == f"{LIBRARY}/libcuda.so.1"


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ("/usr/lib/i386-linux-gnu", DEBIAN),
        ("/usr/lib", "/usr/lib64"),
        ("/usr/lib32", "/usr/lib"),
    ],
)
def test_libraries_for_32_bits_are_left_out(narrow: str, wide: str) -> None:
    content = described(
        *(
            mount(f"{folder}/{name}.so.535.1")
            for folder in (narrow, wide)
            for name in ("libcuda", "libnvidia-ml")
        )
    )
    made = placed(content)
    assert f"{narrow}/libcuda.so.535.1" not in made
    assert made["/run/gpushare/driver/libcuda.so"] == f"{wide}/libcuda.so.535.1"


def test_the_hook_that_prefers_a_library_of_the_image_is_left_out() -> None:
    hooks = [
        {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", name]}
        for name in ("update-ldcache", "enable-cuda-compat")
    ]
    content = described(mount("/x/libcuda.so.1"), mount("/x/libnvidia-ml.so.1"), hooks=hooks)
    made = json.loads(shimmed(content, LIBRARY))
    assert made["containerEdits"]["hooks"] == hooks[:1]


def test_a_description_without_the_drivers_libraries_is_refused() -> None:
    with pytest.raises(NotShimmed, match=r"it does not mount libnvidia-ml.so of the driver for GPU GPU-0"):
        shimmed(described(mount("/x/libcuda.so.1")), LIBRARY)


def test_libraries_may_be_mounted_for_each_gpu() -> None:
    content = json.loads(described())
    for device in content["devices"]:
        device["containerEdits"]["mounts"] = [mount("/x/libcuda.so.1"), mount("/x/libnvidia-ml.so.1")]
    made = json.loads(shimmed(json.dumps(content).encode(), LIBRARY))
    assert made["devices"][1]["containerEdits"]["mounts"][0]["hostPath"] == f"{LIBRARY}/libcuda.so.1"
    assert "mounts" in made["devices"][0]["containerEdits"]
