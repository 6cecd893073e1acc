"""Which plugins run, in the order in which they are called: our own, then those of others that the user enables."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from gpushare.options.option import InvalidSettings
from gpushare.scheduler.core import Core
from gpushare.scheduler.framework.interface import Handle
from gpushare.scheduler.framework.runtime import Enabled
from gpushare.scheduler.observability.pod_lifecycle_log import PodLifecycleLog
from gpushare.scheduler.plugins.preemption.nominations import Nominations

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Where packages of others name their plugins: ``name = "module:factory"``, a ``framework.interface.Factory``.
GROUP: Final = "gpushare.scheduler_plugins"


def built_in(core: Core, handle: Handle) -> Iterator[Enabled]:
    """Our own. What is off unless asked for is imported only then: mostly nobody does, and start-up time counts."""
    settings = core.settings
    yield Enabled("pod-log", PodLifecycleLog(core.cache, core.decisions))
    yield Enabled("gangs", core.gangs)
    yield Enabled("resource-policy", core.policies)
    yield Enabled("requeue", core.requeuer)
    yield Enabled("preemption", core.preemptor)
    if settings.defragmentation is not None:
        from gpushare.scheduler.plugins.defragmentation.plugin import Defragmenter
        from gpushare.scheduler.plugins.resource_policy.move_targets import PolicyPlaces

        places = PolicyPlaces(core.policies)
        count = core.metrics.defragmentations
        yield Enabled(
            "defragmentation",
            Defragmenter(
                handle.cache,
                handle.client,
                handle.recorder,
                handle.clock,
                settings.defragmentation,
                places,
                must_lead=handle.must_lead,
                retry=handle.retry,
                count=lambda result: count.labels(result).inc(),
            ),
        )
    if settings.autoscaling is not None:
        from gpushare.scheduler.plugins.autoscaling.plugin import Autoscaler

        yield Enabled("autoscaling", Autoscaler(handle, settings.autoscaling))
    yield Enabled("nominations", Nominations(core.cache, core.preemptor.kept))
    yield Enabled("decisions", core.decisions)


def third_party(handle: Handle, arguments: Mapping[str, Mapping[str, Any]]) -> Iterator[Enabled]:
    """The plugins that ``arguments`` names, in its order; ``weight`` among their arguments is that of their scores.

    Raises ``InvalidSettings`` that names the plugin and says what to do.
    """
    if not arguments:
        return
    from importlib.metadata import entry_points  # start-up time that only those pay who enable one

    installed = {one.name: one for one in entry_points(group=GROUP)}
    for name, its in arguments.items():
        if name not in installed:
            there = ", ".join(sorted(installed)) or "none"
            raise InvalidSettings(
                [
                    f"plugin {name} is not installed; installed are: {there}. Install its package into the image"
                ]
            )
        weight = its.get("weight", 1)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= 100:
            raise InvalidSettings([f"plugin {name}: weight: give a number above 0 and at most 100"])
        rest = {key: value for key, value in its.items() if key != "weight"}
        yield Enabled(name, _made(installed[name], handle, rest), float(weight))


def _made(entry: "EntryPoint", handle: Handle, arguments: Mapping[str, Any]) -> object:
    try:
        factory = entry.load()
    except (ImportError, AttributeError) as error:
        raise InvalidSettings([f"plugin {entry.name}: {entry.value} cannot be imported: {error}"]) from error
    try:
        plugin: object = factory(handle, arguments)
    except (ValueError, TypeError) as error:
        raise InvalidSettings([f"plugin {entry.name}: {error}"]) from error
    return plugin
