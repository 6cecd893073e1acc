"""Part of the table of what admission accepts and rejects: containers with a GPU each (label ``gpushare.dev/gpu-per-container``)."""

from typing import Final

from gpushare.api import names
from tests.admission_words import COUNT, OURS, PodCase, box

LABEL: Final = names.LABEL_POD_APART
_ALIKE: Final = (box("a", mem="10", core="30"), box("b", mem="10", core="30"))


def _unlike(amounts: str) -> str:
    return (
        f"label {LABEL}=true requires the same request in every GPU container: {amounts}; "
        "use equal requests, or remove the label"
    )


def _beside(label: str) -> str:
    return f"label {LABEL}=true gives each container its own GPU and cannot be combined with label {label}: remove one of them"


def _value(value: str) -> str:
    return f"label {LABEL} must be 'true' or 'false': it is '{value}'; correct it, or remove the label"


APART: Final = (
    PodCase("apart-alike", _ALIKE, labels={LABEL: "true"}, scheduler=OURS),
    PodCase("apart-of-one", (box(mem="3"),), labels={LABEL: "true"}, scheduler=OURS),
    PodCase(
        "apart-in-another-notation",
        (box("a", mem="1k"), box("b", mem="1000")),
        labels={LABEL: "true"},
        scheduler=OURS,
    ),
    PodCase(
        "apart-beside-one-without-gpu", (*_ALIKE, box("web", cpu="1")), labels={LABEL: "true"}, scheduler=OURS
    ),
    PodCase("apart-of-one-gpu", _ALIKE, labels={LABEL: "true", COUNT: "1"}, scheduler=OURS),
    PodCase(
        "apart-not-asked-for", (box("a", mem="1"), box("b", mem="2")), labels={LABEL: "false"}, scheduler=OURS
    ),
    PodCase("apart-without-gpu", (box(cpu="1"),), labels={LABEL: "yes"}),
    PodCase("apart-word", (box(mem="3"),), labels={LABEL: "yes"}, says=_value("yes")),
    PodCase("apart-empty", (box(mem="3"),), labels={LABEL: ""}, says=_value("")),
    PodCase(
        "apart-and-several",
        (box("a", mem="4"), box("b", mem="4")),
        labels={LABEL: "true", COUNT: "2"},
        says=_beside(f"{COUNT}=2"),
    ),
    PodCase(
        "apart-and-whole",
        (box("a", mem="4"), box("b", mem="4")),
        labels={LABEL: "true", names.LABEL_POD_PLACEMENT: names.POD_PLACEMENT_WHOLE_DEVICE},
        says=_beside(f"{names.LABEL_POD_PLACEMENT}={names.POD_PLACEMENT_WHOLE_DEVICE}"),
    ),
    PodCase(
        "apart-from-the-beginning",
        (box("a", mem="4"),),
        (box("i", mem="4"), box("s", mem="4", sidecar=True)),
        labels={LABEL: "true"},
        says=f"label {LABEL}=true does not support init containers with GPU requests: container i, container s; "
        "request GPUs only in regular containers, or remove the label",
    ),
    PodCase(
        "apart-unlike-in-memory",
        (box("a", mem="4"), box("b", mem="5")),
        labels={LABEL: "true"},
        says=_unlike("container a asks for 4, container b asks for 5"),
    ),
    PodCase(
        "apart-unlike-in-compute",
        (box("a", mem="4", core="30"), box("b", mem="4", core="40")),
        labels={LABEL: "true"},
        says=_unlike("container a asks for 4 and 30%, container b asks for 4 and 40%"),
    ),
)
