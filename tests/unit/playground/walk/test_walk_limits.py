"""How the walk recognizes that a limit holds."""

import io
import sys

import pytest

from gpushare_playground.walk import limits
from gpushare_playground.walk.narration import Story

AT_SHARE = "GPU 0:   258 MiB of 2154 MiB, busy  30%\n  process 7:   258 MiB, busy  30%"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (AT_SHARE, True),
        (AT_SHARE.replace("30%", "15%"), True),
        (AT_SHARE.replace("30%", " 3%"), False),
        (AT_SHARE.replace("30%", "97%"), False),
        ("gpu-usage: NVML says: Driver Not Loaded", False),
    ],
)
def test_usage_near_the_share_is_within_the_limit(text, expected):
    assert limits._keeps_to_share(text) is expected


def usage(*percent, mib=258):
    processes = [f"  process {pid}:   {mib} MiB, busy {one:3}%" for pid, one in enumerate(percent, 100)]
    busy = f"GPU 0:   774 MiB of 16160 MiB, busy {sum(percent):3}%"
    return "\n".join([busy, *processes, "GPU 1:     0 MiB of 16160 MiB, busy   0%"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (usage(30, 29, 31), True),
        ("\n".join([usage(30, 29, 31), usage(28, 20, 33)]), True),
        ("\n".join([usage(30, 29, 31), usage(28, 33)]), False),
        (usage(30, 29, 60), False),
        (usage(30, 29, 2), False),
        (usage(30, 29, 31, mib=2500), False),
        ("", False),
    ],
)
def test_three_pods_work_when_each_has_about_its_share_of_one_gpu(text, expected):
    assert limits._all_work(text) is expected


def test_a_rate_is_read_from_what_the_sample_logs():
    assert limits._rate("round 12: 57.9 copies/s of 2 MiB to the GPU, each looked at for 5 ms") == 57.9
    assert limits._rate("bandwidthTest: a stand-in program") == 0.0
    assert limits._LATER.match("round 3: 57.9 copies/s")
    assert limits._LATER.match("round 12: 57.9 copies/s")
    assert not limits._LATER.match("round 2: 57.9 copies/s")


async def test_a_command_is_repeated_until_its_output_is_accepted(tmp_path):
    out = io.StringIO()
    story = Story({}, tmp_path, out)
    grows = f"{sys.executable} -c \"f = open('x', 'a'); f.write('x'); f.close(); print(open('x').read())\""
    assert await story.type_while(grows, lambda text: len(text) < 3) == "xxx"
    assert out.getvalue().count("xxx") == 1
