"""Which part of a pod the scheduler counts."""

import msgspec

from gpushare.api import names
from gpushare.api.objects import decode_pod
from gpushare.scheduler.cache.pod_records import record_of

UUID = "GPU-0"
RECORD = msgspec.json.encode(
    {
        "version": 1,
        "unit": "1GiB",
        "gpus": [{"uuid": UUID, "index": 0, "mib": 16384, "units": 16, "of": 16, "core": 100}],
        "containers": {},
    }
).decode()
OLDER = {names.ANN_ALLOCATION: '{"0":{"0":16}}', names.ANN_ASSIGNED: "false", names.ANN_ASSUME_TIME: "1"}
OLDEST = {
    names.ANN_MEM_INDEX: "0",
    names.ANN_MEM_POD: "16",
    names.ANN_MEM_DEVICE: "16",
    names.ANN_MEM_ASSIGNED: "false",
    names.ANN_MEM_ASSUME_TIME: "1",
}


def bound(annotations, **limits):
    return decode_pod(
        {
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": annotations},
            "spec": {"nodeName": "node", "containers": [{"name": "c", "resources": {"limits": limits}}]},
        }
    )


def test_a_record_counts_on_a_pod_that_requests_a_share() -> None:
    record = record_of(bound({names.ANN_SHARE: RECORD}, **{names.GPU_MEM: "16"}))
    assert record is not None
    assert [share.uuid for share in record.allocation.gpus] == [UUID]


def test_a_record_counts_nowhere_on_a_pod_that_requests_none() -> None:
    for annotations in ({names.ANN_SHARE: RECORD}, {names.ANN_SHARE: "broken"}, OLDER, OLDEST):
        assert record_of(bound(annotations)) is None
        assert record_of(bound(annotations, cpu="1", memory="1Gi")) is None
