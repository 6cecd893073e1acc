"""The product's rules on pods: who is pointed to our scheduler."""

import pytest

from gpushare.playground.apiserver.admission import Review, name_scheduler
from gpushare.playground.apiserver.resources import Registry


@pytest.mark.parametrize(
    ("limits", "labels", "named", "scheduler"),
    [
        ({"aliyun.com/gpu-mem": "3"}, {}, "default-scheduler", "ack-co-scheduler"),
        ({"aliyun.com/gpu-core.percentage": "30"}, {}, "default-scheduler", "ack-co-scheduler"),
        ({"cpu": "1"}, {}, "default-scheduler", "default-scheduler"),
        ({"aliyun.com/gpu-mem": "3"}, {}, "other", "other"),
        (
            {"aliyun.com/gpu-mem": "3"},
            {"gpushare.dev/admission": "disabled"},
            "default-scheduler",
            "default-scheduler",
        ),
    ],
)
def test_pods_that_ask_for_our_resources_and_name_no_scheduler_get_ours(limits, labels, named, scheduler):
    pod = {"spec": {"schedulerName": named, "initContainers": [{"resources": {"limits": limits}}]}}
    pods = Registry().find("", "v1", "pods")
    assert pods is not None
    name_scheduler(Review(pods, labels, pod, "someone"))
    assert pod["spec"]["schedulerName"] == scheduler
