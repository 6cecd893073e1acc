"""Names of the peers' policies. Imports nothing: ``gpushare config`` reads the options, which list them."""

from typing import Final

#: ``hami-NODES-GPUS``: its policy among nodes, and the one among the GPUs of a node. ``kai-…``: its placement strategy for GPUs.
PEERS: Final = (
    "hami-binpack-binpack",
    "hami-binpack-spread",
    "hami-spread-binpack",
    "hami-spread-spread",
    "kai-binpack",
    "kai-spread",
)
