"""A pod whose containers have another GPU than its record is counted on both until that is corrected."""

import pytest

from gpushare.api import names
from gpushare.api.objects import decode_pod
from gpushare.scheduler.cache.pod_records import record_of
from tests.unit.scheduler.world import pod_object

RECORD = (
    '{{"version":1,"unit":"1GiB","gpus":[{{"uuid":"GPU-{0}","index":{0},"mib":{1},"units":4,"of":16}}],'
    '"containers":{{}}}}'
)


def recorded(**annotations: str):
    made = pod_object("p", 4, node="n1", annotations=annotations)
    record = record_of(decode_pod(made))
    assert record is not None
    return record


@pytest.mark.parametrize(
    ("record", "also", "held"),
    [(0, 1, {"GPU-0": 4096, "GPU-1": 4096}), (1, 1, {"GPU-1": 4096})],
)
def test_the_additional_gpu_is_added_once(record, also, held):
    found = recorded(
        **{names.ANN_SHARE: RECORD.format(record, 4096), names.ANN_ALSO: RECORD.format(also, 4096)}
    )
    assert found.allocation is not None
    assert {share.uuid: share.mib for share in found.allocation.gpus} == held


def test_the_additional_allocation_must_be_readable():
    found = recorded(**{names.ANN_SHARE: RECORD.format(0, 4096), names.ANN_ALSO: "[]"})
    assert found.allocation is None
    assert "cannot be read" in found.problem
